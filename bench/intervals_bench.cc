// Speed of DreamDDP's solvers at H = 10, with communication of `range(1)` tenths of the computation.
#include <benchmark/benchmark.h>

#include "solve/intervals.h"
#include "workloads.h"

namespace gradweave {
namespace {

CostModel model_for(const benchmark::State& state) {
  Workload workload = bench::workload(2 * state.range(0));
  std::int64_t bytes = 0;
  Nanoseconds compute = 0;
  for (const Layer& layer : workload.layers) {
    compute += layer.forward_ns + layer.backward_ns;
    for (const Tensor& tensor : layer.tensors) bytes += tensor.numel * size_of(tensor.dtype);
  }
  Cluster cluster = bench::cluster();
  const double ns_per_byte = static_cast<double>(compute * state.range(1)) / static_cast<double>(10 * bytes);
  cluster.links[0].us_per_byte = decimal_from_double(ns_per_byte / 1000, "rate");
  return CostModel(workload, cluster);
}

template <Assignment (*solve)(const Packer&, std::size_t)>
void BM_Solve(benchmark::State& state) {
  const CostModel model = model_for(state);
  const Packer packer(model, false);
  for (auto _ : state) benchmark::DoNotOptimize(solve(packer, 10));
}

const std::vector<std::vector<std::int64_t>> kSizes = {{100, 200, 400, 800}, {2, 5, 10, 20, 100}};

BENCHMARK(BM_Solve<exact_intervals>)
    ->Name("intervals/exact")
    ->ArgsProduct(kSizes)
    ->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_Solve<paper_search>)->Name("intervals/dfs")->ArgsProduct(kSizes)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace gradweave
