// Codecs among ranks that are threads: what they sum, leave behind and forget. tests/runtime compares training with a
// reference in Python.
#include "runtime/codec/codec.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>

#include "gradweave/error.h"
#include "runtime/codec/loops.h"
#include "runtime/codec/sparse.h"
#include "runtime/coder.h"
#include "runtime/rates.h"
#include "torch/fake_group.h"

namespace gradweave::runtime {
namespace {

using namespace std::chrono_literals;

Call call(c10d::ProcessGroup& group, const at::Tensor& flat, Collective collective = Collective::kAllReduce) {
  return {.group = group, .flat = flat, .collective = collective, .timeout = 1000ms};
}

// The same on every run: whole numbers from a sine, none of them twice as large as another's neighbour.
at::Tensor values_of(int rank, std::int64_t numel, int iteration) {
  return (at::arange(numel, at::kDouble) * (1.7 + 0.3 * rank) + iteration).sin().mul(100).to(at::kFloat);
}

Coder coder_of(std::int64_t numel) {
  const auto rows = static_cast<std::int64_t>(std::sqrt(static_cast<double>(numel)));
  return Coder({{.length = numel, .rows = rows, .columns = numel / rows}});
}

const std::vector<std::int32_t> kBlocks = {0};

TEST(Codecs, AreNamedAsCompressors) {
  for (const CodecRow& row : codecs()) EXPECT_EQ(find_compressor(row.name).name, row.name);
  EXPECT_THROW(make_codec({.name = "no such codec"}), InvalidInput);
}

using Collectives = std::vector<Collective>;

class Lossless : public testing::TestWithParam<Collectives> {};

// What has been applied and what is left behind on all ranks is what was given.
TEST_P(Lossless, CodecsLoseNothing) {
  const bool halves = GetParam().size() > 1;
  for (const CodecRow& row : codecs()) {
    const CompressorInfo& info = find_compressor(row.name);
    if (!info.error_feedback || (halves && !info.halves)) continue;
    Compression compression = with_defaults({.name = std::string(row.name)});
    if (compression.parameters.contains("density")) compression.parameters["density"] = 0.1;
    compression.parameters.erase("momentum");
    if (row.name == "dgc") compression.parameters["momentum"] = 0;
    for (const std::int64_t numel : {1, 7, 300, 1000}) {
      std::vector<at::Tensor> left, sums(3);
      for (int r = 0; r < 3; ++r) left.push_back(at::zeros({numel}));
      on_ranks(3, [&](c10d::ProcessGroup& group) {
        const auto rank = static_cast<std::size_t>(group.getRank());
        Coder coder = coder_of(numel);
        at::Tensor total = at::zeros({numel});
        for (int i = 0; i < 5; ++i) {
          at::Tensor flat = values_of(group.getRank(), numel, i);
          for (const Collective collective : GetParam())
            coder.start(call(group, flat, collective), compression, kBlocks, {i, 0})->wait();
          total.add_(flat);
        }
        sums[rank] = total;
        coder.visit_residuals([&](const auto&, const at::Tensor& values) { left[rank].add_(values); });
      });
      at::Tensor given = at::zeros({numel});
      for (int r = 0; r < 3; ++r) {
        for (int i = 0; i < 5; ++i) given.add_(values_of(r, numel, i));
        EXPECT_TRUE(at::equal(sums[static_cast<std::size_t>(r)], sums[0])) << row.name;
      }
      const at::Tensor found = sums[0] + left[0] + left[1] + left[2];
      EXPECT_TRUE(at::allclose(found, given, 1e-4, 2e-2)) << row.name << " of " << numel;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Codecs, Lossless,
                         testing::Values(Collectives{Collective::kAllReduce},
                                         Collectives{Collective::kReduceScatter, Collective::kAllGather}));

// Both halves have been sent, as after gradweave.clip_grad_norm_(), or one.
TEST(Coder, HalvesThatAreLeftOutLeaveNothingBehind) {
  for (const int sent : {1, 2}) {
    on_ranks(3, [&](c10d::ProcessGroup& group) {
      Coder coder = coder_of(1000), plain = coder_of(1000);
      at::Tensor flat;
      const auto send = [&](Coder& by, int iteration, int halves) {
        flat = values_of(group.getRank(), 1000, iteration);
        for (int h = 0; h < halves; ++h) {
          const Collective half = h == 0 ? Collective::kReduceScatter : Collective::kAllGather;
          by.start(call(group, flat, half), {.name = "int4"}, kBlocks, {iteration, h})->wait();
        }
        return flat;
      };
      send(coder, 0, 2);
      send(plain, 0, 2);
      send(coder, 1, sent);
      coder.leave_out(kBlocks, Collective::kReduceScatter, {1, 0});
      coder.leave_out(kBlocks, Collective::kAllGather, {1, 1});
      if (sent == 1)
        coder.start(call(group, flat, Collective::kAllGather), {.name = "int4"}, kBlocks, {1, 1})->wait();
      for (int i = 2; i < 4; ++i) EXPECT_TRUE(at::equal(send(coder, i, 2), send(plain, i, 2))) << sent;
    });
  }
}

TEST(Codecs, PowerSgdSendsWhatItsCostCounts) {
  const Compression compression = with_defaults({.name = "power_sgd"});
  const std::vector<BlockShape> blocks = {
      block_shape(64 * 288, 64, true),  // a matrix
      block_shape(64, 1, true),         // a vector
      block_shape(5 * 7, 5, true),      // whose factors would not be smaller
      block_shape(1000, 64, false),     // a part of a matrix: 31 rows, 32 columns and 8 elements
      block_shape(300 * 3, 300, true),  // narrower than the rank
  };
  std::int64_t length = 0, sent = 0;
  std::vector<std::int32_t> all;
  for (const BlockShape& block : blocks) {
    all.push_back(static_cast<std::int32_t>(all.size()));
    length += block.length;
    sent += find_compressor("power_sgd").sent_elements(block, compression.parameters);
  }
  EXPECT_EQ(sent, 4 * (64 + 288) + 64 + 35 + (4 * (31 + 32) + 8) + 900);
  const std::int64_t given = on_ranks(2, [&](c10d::ProcessGroup& group) {
    Coder coder(blocks);
    coder.start(call(group, values_of(group.getRank(), length, 0)), compression, all, {0, 0})->wait();
  });
  EXPECT_EQ(given, sent);
}

TEST(Codecs, TakeEveryFloat) {
  for (const CodecRow& row : codecs()) {
    for (const auto dtype : {c10::kDouble, c10::kHalf, c10::kBFloat16}) {
      on_ranks(2, [&](c10d::ProcessGroup& group) {
        Coder coder = coder_of(64);
        at::Tensor flat = values_of(0, 64, 0).to(dtype);
        const at::Tensor twice = flat.to(c10::kFloat) * 2;
        Compression compression = with_defaults({.name = std::string(row.name)});
        if (compression.parameters.contains("density")) compression.parameters["density"] = 1;
        coder.start(call(group, flat), compression, kBlocks, {0, 0})->wait();
        EXPECT_EQ(flat.scalar_type(), dtype);
        const bool rounds =
            row.name == "ef_signsgd" || row.name == "power_sgd" || row.name.starts_with("int");
        if (!rounds) {
          EXPECT_TRUE(at::allclose(flat.to(c10::kFloat), twice, 0.02, 0.5)) << row.name;
        }
      });
    }
  }
}

TEST(Coder, WithoutACompressionTheMessageItselfGoesOut) {
  on_ranks(3, [](c10d::ProcessGroup& group) {
    Coder coder = coder_of(7);
    for (const Collective collective :
         {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather}) {
      at::Tensor flat = at::arange(7, at::kFloat) + group.getRank();
      at::Tensor plain = flat.clone();
      coder.start(call(group, flat, collective), {}, kBlocks, {0, 0})->wait();
      start(call(group, plain, collective))->wait();
      EXPECT_TRUE(at::equal(flat, plain));
    }
  });
}

TEST(Coder, KeepsWhatIsLeftByBlocks) {
  on_ranks(2, [](c10d::ProcessGroup& group) {
    Coder coder({{.length = 2, .rows = 1, .columns = 2}, {.length = 3, .rows = 1, .columns = 3}});
    const Compression half = {.name = "top_k", .parameters = {{"density", 0.3}}};
    at::Tensor flat = at::arange(1, 6, at::kFloat);
    coder.start(call(group, flat), half, {0, 1}, {0, 0})->wait();  // 1 2 3 | 4 5
    EXPECT_TRUE(at::equal(flat, at::arange(1, 6, at::kFloat) * 2 * (at::arange(5) > 2)));
    at::Tensor other = at::zeros({3});
    coder.start(call(group, other), half, {1}, {1, 0})->wait();
    EXPECT_EQ(other.sum().item<float>(), 0);
    coder.add_residual({0, 1}, 1, at::full({3}, 10.0f));  // 1 2 | 13 10 10
    at::Tensor next = at::zeros({5});
    coder.start(call(group, next), half, {0, 1}, {2, 0})->wait();
    EXPECT_EQ(next[2].item<float>(), 26);
    EXPECT_EQ(next.count_nonzero().item<std::int64_t>(), 2);
  });
}

// Before or after it has been sent, or without being sent at all.
TEST(Coder, AMessageThatIsLeftOutLeavesNothingBehind) {
  for (const CodecRow& row : codecs()) {
    on_ranks(2, [&](c10d::ProcessGroup& group) {
      const Compression compression = with_defaults({.name = std::string(row.name)});
      Coder coder = coder_of(400), plain = coder_of(400);
      const auto send = [&](Coder& by, int iteration, float factor) {
        at::Tensor flat = values_of(group.getRank(), 400, iteration) * factor;
        by.start(call(group, flat), compression, kBlocks, {iteration, 0})->wait();
        return flat;
      };
      const float kInf = std::numeric_limits<float>::infinity();
      send(coder, 0, 1);
      send(plain, 0, 1);
      send(coder, 1, kInf);
      coder.leave_out(kBlocks, Collective::kAllReduce, {1, 0});
      coder.leave_out(kBlocks, Collective::kAllReduce, {2, 0});
      send(coder, 2, kInf);
      coder.leave_out(kBlocks, Collective::kAllReduce, {3, 0});
      for (int i = 4; i < 6; ++i) EXPECT_TRUE(at::equal(send(coder, i, 1), send(plain, i, 1))) << row.name;
    });
  }
}

TEST(Sparse, FindsTheLargestBySamplingToo) {
  for (const std::int64_t numel : {100, 70'000, 300'001}) {
    for (const double density : {0.0001, 0.01, 0.2, 0.6}) {
      const at::Tensor values = values_of(1, numel, 3) * values_of(2, numel, 5);
      const std::int64_t count = kept_elements(numel, density);
      const at::Tensor found = values.index_select(0, largest(values, count)).abs();
      EXPECT_TRUE(
          at::equal(std::get<0>(found.sort()), std::get<0>(std::get<0>(values.abs().topk(count)).sort())));
    }
  }
  EXPECT_EQ(largest(at::zeros({100'000}), 10).numel(), 10);
  EXPECT_EQ(largest(at::full({100'000}, std::nanf("")), 10).numel(), 10);
}

TEST(Loops, MakeColumnsOrthonormal) {
  at::Tensor matrix = values_of(0, 60, 0).view({20, 3});
  matrix.select(1, 2).copy_(matrix.select(1, 0) * 2);
  orthonormalize(matrix.mutable_data_ptr<float>(), 20, 3);
  at::Tensor identity = at::zeros({3, 3});
  identity[0][0] = identity[1][1] = 1;  // the third depended on the first
  EXPECT_TRUE(at::allclose(matrix.t().matmul(matrix), identity, 1e-5, 1e-5));
}

TEST(Rates, AreMeasuredOfEveryCodec) {
  for (const CodecRow& row : codecs()) {
    const MeasuredRate rate = measure_rate({.name = std::string(row.name)}, 3, 5000, c10::kFloat, c10::kCPU);
    EXPECT_GT(rate.encode_us_per_byte, 0) << row.name;
    EXPECT_GE(rate.decode_us_per_byte, 0) << row.name;
  }
}

TEST(Transports, RunOnABackendWithoutSends) {
  for (const auto dtype : {c10::kFloat, c10::kBFloat16}) {
    for (const std::int64_t numel : {1, 4, 7, 9}) {
      on_ranks(4, [&](c10d::ProcessGroup& group) {
        const auto value = [&](int r) { return (at::arange(numel, at::kFloat) * 8 + r).to(dtype); };
        at::Tensor total = at::zeros({numel}, dtype), gathered = at::zeros({numel}, dtype);
        for (int r = 0; r < 4; ++r) {
          total.add_(value(r));
          const std::int64_t begin = numel * r / 4, end = numel * (r + 1) / 4;
          gathered.slice(0, begin, end).copy_(value(r).slice(0, begin, end));
        }
        at::Tensor flat = value(group.getRank());
        start(call(group, flat))->wait();
        EXPECT_TRUE(at::equal(flat, total));
        flat = value(group.getRank());
        Call half = call(group, flat, Collective::kReduceScatter);
        start(half)->wait();
        half.flat = total;
        EXPECT_TRUE(at::equal(flat.slice(0, half.edge(group.getRank()), half.edge(group.getRank() + 1)),
                              half.part(group.getRank())));
        flat = value(group.getRank());
        start(call(group, flat, Collective::kAllGather))->wait();
        EXPECT_TRUE(at::equal(flat, gathered));
      });
    }
  }
}

}  // namespace
}  // namespace gradweave::runtime
