// Speed of the simulator: ops executed per second, and whole predictions.
#include <benchmark/benchmark.h>

#include <variant>

#include "gradweave/schemes.h"
#include "gradweave/simulate.h"
#include "simulate/cycle_ratio.h"
#include "simulate/machine.h"
#include "workloads.h"

namespace gradweave {
namespace {

Plan plan_of(const char* scheme, const Workload& workload, const Cluster& cluster,
             const std::map<std::string, std::string>& options = {}) {
  return std::get<Plan>(make_plan(scheme, workload, cluster, options));
}

// The loop itself: iterations of a compiled plan with `range(0)` tensors.
void run_machine(benchmark::State& state, const char* scheme, std::int32_t concurrency,
                 std::size_t links = 1) {
  const Workload workload = bench::workload(state.range(0));
  const Cluster cluster = bench::cluster(links, concurrency);
  const Plan plan = plan_of(scheme, workload, cluster);
  const CostModel model(workload, cluster);
  const Program program = program_of(CompiledPlan(resolve(plan, model.index(), &cluster)),
                                     std::span(&workload, 1), model, {}, false);
  const auto machine = concurrency == 1 ? serial_machine(program) : shared_machine(program, {1, 0});
  std::vector<std::int64_t> snapshot;
  std::int64_t done = program.head;
  machine->run_to(done, nullptr);
  const std::int64_t first = done;
  for (auto _ : state) {
    done += program.period;
    machine->run_to(done, nullptr);
    snapshot.clear();
    machine->snapshot(snapshot);  // as every search for the steady state does
    benchmark::DoNotOptimize(snapshot.data());
  }
  double ops = 0;
  for (const Iteration& iteration : plan.period) ops += static_cast<double>(iteration.ops.size());
  state.counters["ops"] =
      benchmark::Counter(ops / static_cast<double>(program.period) * static_cast<double>(done - first),
                         benchmark::Counter::kIsRate);
}

void serial_wfbp(benchmark::State& state) { run_machine(state, "wfbp", 1); }
BENCHMARK(serial_wfbp)->Name("simulate/wfbp/one")->Arg(40)->Arg(400)->Arg(4000);

void serial_forward_overlap(benchmark::State& state) { run_machine(state, "p3", 1); }
BENCHMARK(serial_forward_overlap)->Name("simulate/p3/one")->Arg(40)->Arg(400)->Arg(4000);

void serial_deft(benchmark::State& state) { run_machine(state, "deft", 1, 2); }
BENCHMARK(serial_deft)->Name("simulate/deft/two")->Arg(40)->Arg(400)->Arg(4000);

void shared_wfbp(benchmark::State& state) { run_machine(state, "wfbp", 0); }
BENCHMARK(shared_wfbp)->Name("simulate/wfbp/fluid")->Arg(40)->Arg(400)->Arg(4000);

void shared_wfbp_two_links(benchmark::State& state) { run_machine(state, "wfbp", 0, 2); }
BENCHMARK(shared_wfbp_two_links)->Name("simulate/wfbp/two fluid")->Arg(40)->Arg(400)->Arg(4000);

void shared_sequential(benchmark::State& state) { run_machine(state, "sequential", 0); }
BENCHMARK(shared_sequential)->Name("simulate/sequential/fluid")->Arg(40)->Arg(400)->Arg(4000);

// A whole prediction, as planners and `compare` ask for: compile, find the steady state, bounds.
void whole_prediction(benchmark::State& state, const char* scheme) {
  const Workload workload = bench::workload(state.range(0));
  const Cluster cluster = bench::cluster();
  const Plan plan = plan_of(scheme, workload, cluster);
  for (auto _ : state) benchmark::DoNotOptimize(simulate(plan, workload, cluster).cycle_ns);
}
BENCHMARK_CAPTURE(whole_prediction, wfbp, "wfbp")->Name("predict/wfbp")->Arg(100)->Arg(300)->Arg(1000);
BENCHMARK_CAPTURE(whole_prediction, p3, "p3")->Name("predict/p3")->Arg(100)->Arg(300)->Arg(1000);
BENCHMARK_CAPTURE(whole_prediction, deft, "deft")->Name("predict/deft")->Arg(100)->Arg(300)->Arg(1000);

void cycle_ratio(benchmark::State& state) {
  const Workload workload = bench::workload(state.range(0));
  const Cluster cluster = bench::cluster();
  const CostModel model(workload, cluster);
  const Program program =
      program_of(CompiledPlan(resolve(plan_of("p3", workload, cluster), model.index(), &cluster)),
                 std::span(&workload, 1), model, {}, false);
  for (auto _ : state) benchmark::DoNotOptimize(maximum_cycle_ratio(program).time);
}
BENCHMARK(cycle_ratio)->Name("cycle ratio/p3")->Arg(40)->Arg(400);

}  // namespace
}  // namespace gradweave
