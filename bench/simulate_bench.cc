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
  const Program program = compile(plan, std::span(&workload, 1), model, {}, false);
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

void BM_SerialWfbp(benchmark::State& state) { run_machine(state, "wfbp", 1); }
BENCHMARK(BM_SerialWfbp)->Arg(40)->Arg(400)->Arg(4000);

void BM_SerialForwardOverlap(benchmark::State& state) { run_machine(state, "p3", 1); }
BENCHMARK(BM_SerialForwardOverlap)->Arg(40)->Arg(400);

void BM_SerialDeftTwoLinks(benchmark::State& state) { run_machine(state, "deft", 1, 2); }
BENCHMARK(BM_SerialDeftTwoLinks)->Arg(40)->Arg(400);

void BM_SharedWfbp(benchmark::State& state) { run_machine(state, "wfbp", 0); }
BENCHMARK(BM_SharedWfbp)->Arg(40)->Arg(400);

// A whole prediction, as planners and `compare` ask for: compile, find the steady state, bounds.
void whole_prediction(benchmark::State& state, const char* scheme) {
  const Workload workload = bench::workload(state.range(0));
  const Cluster cluster = bench::cluster();
  const Plan plan = plan_of(scheme, workload, cluster);
  for (auto _ : state) benchmark::DoNotOptimize(simulate(plan, workload, cluster).cycle_ns);
  state.SetComplexityN(state.range(0));
}
BENCHMARK_CAPTURE(whole_prediction, wfbp, "wfbp")->RangeMultiplier(2)->Range(50, 1600)->Complexity();
BENCHMARK_CAPTURE(whole_prediction, p3, "p3")->RangeMultiplier(2)->Range(50, 400)->Complexity();
BENCHMARK_CAPTURE(whole_prediction, deft, "deft")->Arg(400);

void BM_MaximumCycleRatio(benchmark::State& state) {
  const Workload workload = bench::workload(state.range(0));
  const Cluster cluster = bench::cluster();
  const CostModel model(workload, cluster);
  const Program program =
      compile(plan_of("p3", workload, cluster), std::span(&workload, 1), model, {}, false);
  for (auto _ : state) benchmark::DoNotOptimize(maximum_cycle_ratio(program).time);
}
BENCHMARK(BM_MaximumCycleRatio)->Arg(40)->Arg(400);

}  // namespace
}  // namespace gradweave
