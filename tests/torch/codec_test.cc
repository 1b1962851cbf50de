// Codecs that exist for these tests alone take a message through the whole way of an op.
#include "runtime/codec/codec.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "gradweave/compression.h"
#include "gradweave/error.h"
#include "torch/fake_group.h"

namespace gradweave::runtime {
namespace {

using namespace std::chrono_literals;

// Whole numbers only; the rest stays behind. The sum of encoded messages is the encoded sum.
class Whole : public Codec {
 public:
  Whole() : Codec(true) {}
  std::int64_t wire_bytes(std::int64_t numel, c10::ScalarType) const override { return numel; }
  at::Tensor encode(const at::Tensor& message, at::Tensor& left_behind) override {
    const at::Tensor floor = message.floor();
    left_behind = message - floor;
    return floor.to(c10::kChar);
  }
  void decode(const at::Tensor& arrived, const at::Tensor& message) const override { message.copy_(arrived); }
};

// The largest element and its place: every rank gets those of all.
class Largest : public Codec {
 public:
  Largest() : Codec(false) {}
  std::int64_t wire_bytes(std::int64_t, c10::ScalarType) const override { return 8; }
  at::Tensor encode(const at::Tensor& message, at::Tensor& left_behind) override {
    const at::Tensor place = message.argmax();
    at::Tensor wire = at::empty({2}, message.options());
    wire[0] = place;
    wire[1] = message[place.item<std::int64_t>()];
    left_behind = message.clone();
    left_behind[place.item<std::int64_t>()] = 0;
    return wire;
  }
  void decode(const at::Tensor& arrived, const at::Tensor& message) const override {
    message.zero_();
    for (std::int64_t r = 0; r < arrived.numel() / 2; ++r)
      message[arrived[2 * r].item<std::int64_t>()] += arrived[2 * r + 1];
  }
};

Call call(c10d::ProcessGroup& group, const at::Tensor& flat, Collective collective = Collective::kAllReduce) {
  return {.group = group, .flat = flat, .collective = collective, .timeout = 1000ms};
}

TEST(Coder, WithoutACodecTheMessageItselfGoesOut) {
  on_ranks(3, [](c10d::ProcessGroup& group) {
    Coder coder(make_codec({}));
    EXPECT_EQ(coder.codec().wire_bytes(7, c10::kFloat), 28);
    for (const Collective collective :
         {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather}) {
      at::Tensor flat = at::arange(7, at::kFloat) + group.getRank();
      at::Tensor plain = flat.clone(), lost;
      EXPECT_TRUE(coder.codec().summable());
      coder.start(call(group, flat, collective), {0})->wait();
      start(call(group, plain, collective))->wait();
      EXPECT_TRUE(at::equal(flat, plain));
    }
    at::Tensor lost;
    const at::Tensor flat = at::zeros({4});
    EXPECT_TRUE(make_codec({})->encode(flat, lost).is_same(flat));
    EXPECT_FALSE(lost.defined());
  });
}

TEST(Coder, WhatWasLeftBehindGoesOutWithTheNextMessageOfItsKind) {
  on_ranks(2, [](c10d::ProcessGroup& group) {
    Coder coder(std::make_unique<Whole>());
    EXPECT_EQ(coder.codec().wire_bytes(5, c10::kFloat), 5);
    // Each rank sends 0.75: whole parts 0, 1, 0 (rest 0.75, 0.5, 0.25), 1.
    const auto sent = [&](const std::vector<std::int32_t>& kind) {
      at::Tensor flat = at::full({5}, 0.75f);
      coder.start(call(group, flat), kind)->wait();
      return flat[0].item<float>();
    };
    EXPECT_EQ(sent({1}), 0);
    EXPECT_EQ(sent({1}), 2);
    EXPECT_EQ(sent({2}), 0);  // another message has its own
    EXPECT_EQ(sent({1}), 2);
    EXPECT_EQ(sent({1}), 2);
    EXPECT_EQ(sent({1}), 0);
  });
}

TEST(Coder, ACodecThatDoesNotSumGetsTheMessagesOfAllRanks) {
  on_ranks(3, [](c10d::ProcessGroup& group) {
    Coder coder(std::make_unique<Largest>());
    at::Tensor flat = at::zeros({4});
    flat[group.getRank()] = 10 + group.getRank();
    flat[3] = 1;
    coder.start(call(group, flat), {0})->wait();
    EXPECT_TRUE(at::equal(flat, at::arange(10, 14, at::kFloat) * (at::arange(4) < 3)));
    at::Tensor next = at::zeros({4});
    coder.start(call(group, next), {0})->wait();
    EXPECT_EQ(next[3].item<float>(), 3);  // each rank's 1, which was not sent before
  });
}

TEST(Coder, AHalfThatGathersLeavesNothingBehind) {
  on_ranks(2, [](c10d::ProcessGroup& group) {
    Coder coder(std::make_unique<Whole>());
    for (int i = 0; i < 2; ++i) {
      at::Tensor flat = at::full({4}, 0.75f);
      coder.start(call(group, flat, Collective::kAllGather), {0})->wait();
      EXPECT_TRUE(at::equal(flat, at::zeros({4})));
    }
  });
}

TEST(Codecs, AreNamedAsCompressors) {
  EXPECT_EQ(codecs().front().name, "none");
  for (const CodecRow& row : codecs().subspan(1)) EXPECT_EQ(find_compressor(row.name).name, row.name);
  EXPECT_THROW(make_codec({.name = "no such codec"}), InvalidInput);
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
