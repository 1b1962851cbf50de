#include "runtime/group_channel.h"

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "runtime/fence.h"
#include "torch/fake_device.h"

namespace gradweave::runtime {
namespace {

// A reduce-scatter and its all-gather on links of their own: no group, so that only the order of streams counts.
TEST(GroupChannel, AnAllGatherWaitsForTheStreamOfItsOtherHalf) {
  FakeDevice& device = FakeDevice::get();
  const auto messages = std::make_shared<Messages>(2);
  const LinkOptions options{.device = FakeDevice::device()};
  const auto coder = std::make_shared<Coder>(std::vector<Matrix>());
  GroupChannel first({.name = "a"}, options, "", messages, coder);
  GroupChannel second({.name = "b"}, options, "", messages, coder);
  CalendarOp scatter, gather;
  scatter.collective = Collective::kReduceScatter;
  gather.collective = Collective::kAllGather;
  const run::Execution half{.op = &scatter, .slot = 0};
  const run::Execution other{.op = &gather, .slot = 1, .partner = &half};

  (*messages)[0].flat = at::zeros({4});
  {
    const c10::StreamGuard compute(FakeDevice::stream(11));
    device.work("gradient");
    (*messages)[0].data.record(FakeDevice::device());
  }
  {
    const auto thread = first.enter_thread();
    const auto pending = first.start(half, 0);
    EXPECT_TRUE(device.is_after("gradient"));
    device.work("reduced");
    pending->wait();
  }
  {
    const auto thread = second.enter_thread();
    EXPECT_FALSE(device.is_after("reduced"));
    second.start(other, 0)->wait();
    EXPECT_TRUE(device.is_after("reduced"));
    device.work("gathered");
    (*messages)[1].result.record(FakeDevice::device());
  }
  const c10::StreamGuard compute(FakeDevice::stream(12));
  (*messages)[1].result.wait(FakeDevice::device());
  EXPECT_TRUE(device.is_after("gathered"));
}

}  // namespace
}  // namespace gradweave::runtime
