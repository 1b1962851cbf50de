// Speed of the planners, with growth in the number of tensors.
#include <benchmark/benchmark.h>

#include <string>

#include "gradweave/schemes.h"
#include "workloads.h"

namespace gradweave {
namespace {

void BM_Plan(benchmark::State& state, const std::string& scheme) {
  const Workload workload = bench::workload(state.range(0));
  const Cluster cluster = bench::cluster();
  for (auto _ : state) benchmark::DoNotOptimize(make_plan(scheme, workload, cluster));
  state.SetComplexityN(state.range(0));
}

// Every scheme of the registry, so that a new one is measured without a line here.
const int registered = [] {
  for (const SchemeInfo& scheme : schemes()) {
    const std::string name(scheme.name);
    benchmark::RegisterBenchmark(("plan/" + name).c_str(), BM_Plan, name)
        ->RangeMultiplier(4)
        ->Range(64, 1024)
        ->Unit(benchmark::kMicrosecond)
        ->Complexity();
  }
  return 0;
}();

}  // namespace
}  // namespace gradweave
