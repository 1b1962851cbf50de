// What the engine's bookkeeping of one iteration costs, without and with the record of what a rank did last (`wrap(dump=)`): a
// run of a plan with all its ops, waits and points, on a host without data and on links that end every op at once. It is of one
// thread, so that callgrind counts the same instructions each time. `range(0)`: events kept.
#include <benchmark/benchmark.h>

#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "gradweave/schemes.h"
#include "plan/run_plan.h"
#include "run/run.h"
#include "workloads.h"

namespace gradweave {
namespace {

constexpr std::int64_t kTensors = 160;  // ResNet-50's number

struct NoData final : run::Host {
  void begin_exchange(std::size_t /*slot*/, std::span<std::uint8_t> /*flags*/) override {}
  void finish_exchange(std::size_t /*slot*/) override {}
  bool begin_backward() override { return false; }
  void take_gradient(std::int32_t /*tensor*/, run::Gradient /*gradient*/) override {}
  void compensate(std::int32_t /*block*/, double /*coefficient*/, bool /*sent*/) override {}
  bool has_residual(std::int32_t /*block*/) const override { return false; }
  void restore_residuals() override {}
  void leave_out(const run::Execution& /*execution*/) override {}
  bool overflowed() override { return false; }
  std::int32_t not_finite() override { return -1; }
  bool lend_gradient(const run::Execution& /*execution*/) override { return false; }
  void write_gradient(const run::Execution& /*execution*/, std::size_t /*at*/, bool /*first*/,
                      std::int32_t /*iterations*/) override {}
  void read_parameter(const run::Execution& /*execution*/, std::size_t /*at*/) override {}
  void filled(const run::Execution& /*execution*/) override {}
  void landed(const run::Execution& /*execution*/) override {}
  void rescale(const run::Execution& /*execution*/, double /*factor*/) override {}
  void retire(const run::Execution& /*execution*/) override {}
  void put_gradient(std::int32_t /*tensor*/, std::span<const run::Part> /*parts*/, bool /*add*/) override {}
  void drop_gradient(std::int32_t /*tensor*/) override {}
  void average_parameter(const run::Part& /*part*/) override {}
  void set_gradients_aside(std::span<const std::int32_t> /*tensors*/) override {}
  void put_gradients_back(std::span<const std::int32_t> /*tensors*/) override {}
  void step(const Stepped& /*stepped*/) override {}
  run::Kept kept(std::int32_t /*tensor*/) const override { return run::Kept::kSame; }
  void note_parameter(std::int32_t /*tensor*/) override {}
  bool parameter_changed(std::int32_t /*tensor*/) const override { return false; }
  void average_over_ranks(std::span<const std::int32_t> /*tensors*/) override {}
};

struct NoPeers final : run::Peers {
  void outside(std::int64_t /*iteration*/) override {}
  void training(std::int64_t /*iteration*/) override {}
  void set_progress(std::int64_t /*ops_done*/) override {}
  std::vector<std::string> agree(const std::string& /*what*/, const std::string& post,
                                 std::chrono::milliseconds /*timeout*/) override {
    return {post};
  }
  std::string give_up(const std::string& what, std::chrono::nanoseconds /*after*/,
                      const std::string& cause) override {
    return what + ": " + cause;
  }
};

struct NoNetwork final : run::Channel {
  struct Ended final : run::Pending {
    void wait() override {}
  };
  bool returns_at_once() const override { return true; }
  bool ordered_launches() const override { return true; }
  std::unique_ptr<run::Pending> start(const run::Execution& /*execution*/,
                                      std::size_t /*sequence*/) override {
    return std::make_unique<Ended>();
  }
};

const run::AsComputeThread kThisThread;

class Rank {
 public:
  Rank(const Plan& plan, const Workload& workload, std::size_t events)
      : run_(host_, std::make_shared<NoPeers>(), {.queue = {.flight_events = events}, .world_size = 2}) {
    run_.install(run_plan_of(plan, workload));
    std::vector<std::shared_ptr<run::Channel>> channels;
    for (std::size_t k = 0; k < plan.links.size(); ++k) channels.push_back(std::make_shared<NoNetwork>());
    run_.start(std::move(channels));
    forward_ = run_.forward_layers();
  }

  // As the engine's hooks call it. A function of its own, which callgrind finds.
  [[gnu::noinline]] void iterate() {
    run_.forward_begins();
    for (const std::int32_t layer : forward_) {
      run_.forward_start(layer);
      run_.forward_end(layer);
    }
    run_.backward_start();
    for (auto tensor = static_cast<std::int32_t>(kTensors); tensor-- > 0;) run_.gradient(tensor);
    run_.finish_backward();
    run_.end_iteration();
  }

  run::Counters counters() const { return run_.counters(); }

 private:
  NoData host_;
  run::Run run_;
  std::vector<std::int32_t> forward_;
};

void run_iterations(benchmark::State& state, const char* scheme) {
  const Workload workload = bench::workload(kTensors);
  const Plan plan = std::get<Plan>(make_plan(scheme, workload, bench::cluster()));
  Rank rank(plan, workload, static_cast<std::size_t>(state.range(0)));
  for (int n = 0; n < 2; ++n) rank.iterate();  // what is made once
  const std::int64_t before = rank.counters().ops;
  for (auto _ : state) rank.iterate();
  state.counters["ops"] =
      static_cast<double>(rank.counters().ops - before) / static_cast<double>(state.iterations());
}
BENCHMARK_CAPTURE(run_iterations, ddp, "ddp")->Name("recording/ddp")->Arg(0)->Arg(8192)->Iterations(500);
BENCHMARK_CAPTURE(run_iterations, wfbp, "wfbp")->Name("recording/wfbp")->Arg(0)->Arg(8192)->Iterations(500);
BENCHMARK_CAPTURE(run_iterations, p3, "p3")->Name("recording/p3")->Arg(0)->Arg(8192)->Iterations(500);

}  // namespace
}  // namespace gradweave
