#include "testing/generators.h"

#include <algorithm>
#include <numeric>

namespace gradweave::testing {
namespace {

// Returns a value of [low, high] that is small as often as it is large: the number of bits is uniform.
std::int64_t skewed(std::int64_t low, std::int64_t high) {
  int bits = 0;
  while ((high - low) >> bits > 0) ++bits;
  const int chosen = *rc::gen::inRange(0, bits + 1);
  return low + *rc::gen::inRange<std::int64_t>(0, std::min(high - low, std::int64_t{1} << chosen) + 1);
}

bool one_in(int n) { return *rc::gen::inRange(0, n) == 0; }

Nanoseconds layer_time() { return one_in(5) ? 0 : skewed(1, 20'000'000); }

DType dtype_for(const WorkloadShape& shape) {
  if (!shape.mixed_dtypes || !one_in(4)) return DType::kFloat32;
  return *rc::gen::element(DType::kFloat16, DType::kBFloat16, DType::kFloat64, DType::kInt8);
}

Layer layer(const WorkloadShape& shape, int number, bool given_time) {
  Layer layer{
      .name = "layer" + std::to_string(number), .forward_ns = layer_time(), .backward_ns = layer_time()};
  const int tensors = one_in(6) ? 0 : *rc::gen::inRange(1, shape.max_tensors + 1);
  for (int t = 0; t < tensors; ++t) {
    layer.tensors.push_back({.name = layer.name + ".t" + std::to_string(t),
                             .numel = skewed(1, shape.max_numel),
                             .dtype = dtype_for(shape)});
    Tensor& tensor = layer.tensors.back();
    const std::int64_t rows = std::gcd(tensor.numel, *rc::gen::element<std::int64_t>(1, 12, 64, 1000));
    if (one_in(2)) tensor.shape = {rows, tensor.numel / rows};
  }
  if (given_time) layer.communication_ns = tensors == 0 ? 0 : layer_time();
  return layer;
}

Line line() {
  const Nanoseconds startup = one_in(4) ? 0 : skewed(1, 30'000'000);
  return {startup, *rc::gen::element(Decimal{0, 0}, Decimal{1, 6}, Decimal{8, 5}, Decimal{8, 4},
                                     Decimal{15, 3}, Decimal{1234567, 9}, Decimal{3, 1})};
}

Link link(const ClusterShape& shape, int number) {
  const Line whole = line();
  Link link{.name = "link" + std::to_string(number),
            .startup_ns = whole.startup_ns,
            .us_per_byte = whole.us_per_byte};
  if (shape.halves && one_in(2)) link.halves = {line(), line()};
  link.relative_time =
      *rc::gen::element(Decimal{1, 0}, Decimal{1, 0}, Decimal{165, 2}, Decimal{5, 1}, Decimal{3, 0});
  if (shape.fluid) link.concurrency = *rc::gen::element(1, 1, 1, 0, 2, 3);
  return link;
}

void add_levels(const ClusterShape& shape, Cluster& cluster) {
  cluster.workers_per_node = *rc::gen::element(1, 2, 4, 8);
  cluster.workers *= cluster.workers_per_node;
  for (Link& between : cluster.links) between.each_worker = one_in(3);
  cluster.inside = {cluster.startup_growth, {}};
  const int links = one_in(2) ? 1 : 2;
  for (int k = 0; k < links; ++k) {
    cluster.inside->links.push_back(link(shape, k));
    cluster.inside->links.back().name = "inside" + std::to_string(k);
  }
}

}  // namespace

rc::Gen<Workload> workloads(WorkloadShape shape) {
  return rc::gen::exec([shape] {
    Workload workload{.name = "random"};
    const int layers = one_in(6) ? 1 : *rc::gen::inRange(1, shape.max_layers + 1);
    const bool all_given = shape.given_times && one_in(5);
    for (int l = 0; l < layers; ++l) {
      const bool given = all_given || (shape.given_times && one_in(12));
      workload.layers.push_back(layer(shape, l, given));
    }
    return workload;
  });
}

rc::Gen<Cluster> clusters(ClusterShape shape) {
  return rc::gen::exec([shape] {
    Cluster cluster;
    cluster.workers = one_in(8) ? 1 : skewed(std::min<std::int64_t>(2, shape.max_workers), shape.max_workers);
    cluster.workers_per_node = *rc::gen::element(1, 1, 4, 8);
    cluster.startup_growth =
        *rc::gen::element(StartupGrowth::kLinear, StartupGrowth::kLog, StartupGrowth::kConstant);
    const int links = one_in(2) ? 1 : *rc::gen::inRange(1, shape.max_links + 1);
    for (int k = 0; k < links; ++k) cluster.links.push_back(link(shape, k));
    if (shape.levels) add_levels(shape, cluster);
    return cluster;
  });
}

rc::Gen<Decimal> decimals(std::int64_t max_mantissa) {
  return rc::gen::exec([max_mantissa] {
    Decimal value{skewed(0, max_mantissa), *rc::gen::inRange(0, 13)};
    while (value.scale > 0 && value.mantissa % 10 == 0 && value.mantissa != 0) {
      value.mantissa /= 10;
      --value.scale;
    }
    return value.mantissa == 0 ? Decimal{} : value;
  });
}

}  // namespace gradweave::testing
