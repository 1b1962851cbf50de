#include "gradweave/compression.h"

#include <gtest/gtest.h>

#include "gradweave/cost.h"
#include "gradweave/error.h"

namespace gradweave {
namespace {

Cluster cluster_of(std::int64_t workers) {
  return {.workers = workers, .links = {{"net", 1000, {1, 3}, 1, {1, 0}}}};  // 1 us start-up, 1 ns a byte
}

std::int64_t wire(const char* name, std::int64_t numel, std::int64_t workers,
                  std::map<std::string, double> parameters = {}) {
  return compressed_cost({name, std::move(parameters)}, Payload::kGradient, numel, 4, cluster_of(workers))
      .equivalent_bytes;
}

TEST(Compression, CountsTheBytesOnTheWire) {
  EXPECT_EQ(wire("fp16", 1000, 8), 2000);
  EXPECT_EQ(wire("bf16", 1000, 2), 2000);
  EXPECT_EQ(wire("random_k", 1000, 8, {{"density", 0.1}}), 400);
  EXPECT_EQ(wire("top_k", 1000, 8, {{"density", 0.1}}), 100 * 8 * 8 / 2);  // gathered from 8 workers
  EXPECT_EQ(wire("ok_top_k", 1000, 8, {{"density", 0.1}}), 12 * 100);
  EXPECT_EQ(wire("ef_signsgd", 1000, 4), (125 + 4) * 4 / 2);
  EXPECT_EQ(wire("power_sgd", 10000, 4, {{"rank", 2}}), 2 * 100 * 2 * 4);
  EXPECT_EQ(wire("power_sgd", 4, 4, {{"rank", 100}}), 16);  // never more than the matrix itself
}

TEST(Compression, ShapesSayWhatPowerSgdSends) {
  const auto work_of = [](std::vector<Tensor> tensors, std::vector<Slice> slices) {
    const CostModel model({.name = "w", .layers = {{"a", 0, 0, std::nullopt, std::move(tensors)}}},
                          cluster_of(8), {"power_sgd", {}});
    const MessageLoad load = model.load(0, slices);
    MessageLoad sum;
    for (const Slice& slice : slices) sum = sum + model.load(0, std::span(&slice, 1));
    EXPECT_EQ(model.all_reduce_of(0, load).work, model.all_reduce_of(0, sum).work);
    EXPECT_EQ(model.all_reduce_of(0, load).work, model.cost(0, Collective::kAllReduce, slices).work);
    return model.all_reduce_of(0, load).work;  // 1 ns a byte
  };
  const Tensor convolution{.name = "c", .numel = 64 * 288, .shape = {64, 32, 3, 3}};
  const Tensor bias{.name = "b", .numel = 64, .shape = {1, 64, 1}};
  const Tensor unknown{.name = "u", .numel = 64};
  EXPECT_EQ(work_of({convolution}, {{0, 0, 64 * 288}}), 4 * 4 * (64 + 288));
  EXPECT_EQ(work_of({convolution, bias}, {{0, 0, 64 * 288}, {1, 0, 64}}), 4 * (4 * (64 + 288) + 64));
  EXPECT_EQ(work_of({bias}, {{0, 0, 64}}), 4 * 64);
  // A part of a matrix is as near to a square as can be, a part of a vector is a vector.
  EXPECT_EQ(work_of({convolution}, {{0, 10, 1010}}), 4 * (4 * (31 + 32) + 8));
  EXPECT_EQ(work_of({bias}, {{0, 10, 30}}), 4 * 20);
  // One that is not known: the message counts as a square.
  EXPECT_EQ(work_of({convolution, unknown}, {{0, 0, 64 * 288}, {1, 0, 64}}), 4 * 2 * 4 * 136);
}

TEST(Compression, GatheringGrowsWithTheWorkersAndSummingDoesNot) {
  for (const CompressorInfo& info : compressors()) {
    const std::int64_t few = wire(std::string(info.name).c_str(), 100000, 2);
    const std::int64_t many = wire(std::string(info.name).c_str(), 100000, 64);
    const bool gathered = info.name == "top_k" || info.name == "dgc" || info.name == "ef_signsgd";
    EXPECT_EQ(many > few, gathered) << info.name;
  }
}

TEST(Compression, PaysAStartUpForEachCollective) {
  const std::map<std::string_view, std::int64_t> halves = {
      {"bf16", 2}, {"dgc", 1},      {"ef_signsgd", 1}, {"fp16", 2},     {"int2", 2}, {"int4", 2},
      {"int8", 2}, {"ok_top_k", 2}, {"power_sgd", 4},  {"random_k", 2}, {"top_k", 1}};
  for (const CompressorInfo& info : compressors()) {
    EXPECT_EQ(compressed_cost({std::string(info.name), {}}, Payload::kGradient, 1000, 4, cluster_of(8))
                  .half_startups,
              halves.at(info.name))
        << info.name;
    const CostModel model({.name = "w", .layers = {{"a", 0, 0, std::nullopt, {{"a.w", 1000}}}}},
                          cluster_of(8), {std::string(info.name), {}});
    EXPECT_EQ(model.cost(0, Collective::kAllReduce, std::vector<Slice>{{0, 0, 1000}}).startup,
              500 * halves.at(info.name));
  }
}

TEST(Compression, SendsWhatThePapersSendByDefault) {
  EXPECT_EQ(wire("dgc", 100'000, 2), 100 * 8);  // 0.1 %
  EXPECT_EQ(wire("top_k", 100'000, 2), 1000 * 8);
  EXPECT_EQ(wire("random_k", 100'000, 2), 1000 * 4);
  EXPECT_EQ(wire("ok_top_k", 100'000, 2), 12 * 1000);
  EXPECT_EQ(wire("power_sgd", 10'000, 2), 2 * 100 * 4 * 4);  // rank 4
}

TEST(Compression, GroupsHaveAScaleEach) {
  EXPECT_EQ(wire("int8", 1024, 4), 4 * 260);
  EXPECT_EQ(wire("int4", 1024, 4), 4 * 132);
  EXPECT_EQ(wire("int2", 1024, 4), 4 * 68);
  EXPECT_EQ(wire("int8", 257, 4), 260 + 4 + 1);  // the last group is short
  EXPECT_EQ(wire("int4", 261, 4), 132 + 4 + 3);
  // Two ranks exchange their messages; more have two stages.
  for (const char* name : {"int8", "int4", "int2"}) {
    EXPECT_EQ(wire_cost({name, {}}, Payload::kGradient, {1000, 4, 2}).half_startups, 1);
    EXPECT_EQ(wire_cost({name, {}}, Payload::kGradient, {1000, 4, 3}).half_startups, 2);
  }
}

TEST(Compression, AveragesOfParametersAreServedBySome) {
  const auto cost = [](const char* name, std::int64_t numel, std::int64_t workers,
                       std::map<std::string, double> parameters = {}) {
    return wire_cost({name, std::move(parameters)}, Payload::kParameter, {numel, 4, workers});
  };
  EXPECT_EQ(cost("int8", 1024, 4).equivalent_bytes, 4 * 260);
  EXPECT_EQ(cost("int4", 1024, 2).equivalent_bytes, 4 * 132);
  EXPECT_EQ(cost("int2", 1024, 4).equivalent_bytes, 4 * 68);
  EXPECT_EQ(cost("ef_signsgd", 1024, 4).equivalent_bytes, 4 * 36);  // a scale for each group
  EXPECT_EQ(cost("ef_signsgd", 9, 4).equivalent_bytes, 4 + 2);
  EXPECT_EQ(cost("ef_signsgd", 9, 4).half_startups, 2);
  EXPECT_EQ(cost("ef_signsgd", 9, 2).half_startups, 1);
  EXPECT_EQ(cost("top_k", 1000, 8, {{"density", 0.1}}).equivalent_bytes, 100 * 8 * 8 / 2);
  EXPECT_EQ(cost("top_k", 1000, 8, {{"density", 0.1}}).encoded_bytes, 100 * 8);
  for (const CompressorInfo& info : compressors()) {
    if (info.average_cost != nullptr) continue;
    EXPECT_THROW(cost(std::string(info.name).c_str(), 1000, 2), InvalidInput) << info.name;
  }
  EXPECT_EQ(with_defaults({"top_k", {}}).parameters.at("density"), 0.01);
  EXPECT_EQ(with_defaults({"top_k", {{"density", 0.5}}}).parameters.at("density"), 0.5);
}

// The largest workload and cluster that files may describe.
TEST(Compression, IsExactOrRefusedAtAnySize) {
  constexpr std::int64_t kNumel = std::int64_t{1} << 51, kWorkers = 10'000'000;
  EXPECT_EQ(wire("ef_signsgd", kNumel, 8), (kNumel / 8 + 4) * 4);
  EXPECT_EQ(wire("top_k", kNumel, 2, {{"density", 1}}), kNumel * 8);
  for (const char* name : {"ef_signsgd", "top_k", "dgc"})
    EXPECT_THROW(wire(name, kNumel, kWorkers, {}), InvalidInput) << name;
  for (const CompressorInfo& info : compressors()) {
    for (const std::int64_t workers : {std::int64_t{2}, kWorkers}) {
      try {
        EXPECT_GT(wire(std::string(info.name).c_str(), kNumel, workers), 0) << info.name;
      } catch (const InvalidInput&) {
        EXPECT_EQ(workers, kWorkers) << info.name;
      }
    }
  }
  // A given time grows as the bytes do.
  const CostModel model({.name = "w", .layers = {{"a", 0, 0, std::int64_t{1} << 53, {{"a.w", 1000}}}}},
                        cluster_of(kWorkers), {"top_k", {{"density", 1}}});
  EXPECT_THROW(model.all_reduce(0, Slice{0, 0, 1000}), InvalidInput);
}

TEST(Compression, RefusesUnknownNamesAndValues) {
  EXPECT_THROW(wire("zip", 10, 2), InvalidInput);
  EXPECT_THROW(wire("fp16", 10, 2, {{"density", 0.1}}), InvalidInput);
  EXPECT_THROW(wire("top_k", 10, 2, {{"density", 0}}), InvalidInput);
  EXPECT_THROW(wire("power_sgd", 10, 2, {{"rank", 5000}}), InvalidInput);
}

TEST(Compression, ShortensOpsAndChargesMeasuredRates) {
  Workload workload{.name = "w",
                    .layers = {{"a", 0, 0, std::nullopt, {{"a.w", 1000, DType::kFloat32}}},
                               {"b", 0, 0, 8000, {{"b.w", 1000, DType::kFloat32}}}}};
  Cluster cluster = cluster_of(4);
  cluster.compressor_rates["fp16"] = {{1, 3}, {2, 3}};  // 1 and 2 ns a byte
  const CostModel model(workload, cluster, {"fp16", {}});
  const std::vector<Slice> modelled = {{0, 0, 1000}}, given = {{1, 0, 1000}};
  EXPECT_EQ(model.cost(0, Collective::kAllReduce, modelled).startup, 1000 + 4000 + 8000);
  EXPECT_EQ(model.cost(0, Collective::kAllReduce, modelled).work, 2000);
  EXPECT_EQ(model.cost(0, Collective::kAllReduce, given).work, 4000);
  EXPECT_EQ(model.cost(0, Collective::kAllReduce, modelled, {}).work, 4000);
}

}  // namespace
}  // namespace gradweave
