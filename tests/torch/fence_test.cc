#include "runtime/fence.h"

#include <gtest/gtest.h>

#include <thread>

#include "torch/fake_device.h"

namespace gradweave::runtime {
namespace {

C10_REGISTER_GUARD_IMPL(PrivateUse1, FakeGuard);

TEST(Fence, AWaitIsForEveryStreamThatWrote) {
  FakeDevice& device = FakeDevice::get();
  Fence fence;
  for (const int number : {1, 2}) {
    const c10::StreamGuard writer(FakeDevice::stream(number));
    device.work("write " + std::to_string(number));
    fence.record(FakeDevice::device());
    device.work("later " + std::to_string(number));
  }
  const c10::StreamGuard reader(FakeDevice::stream(3));
  EXPECT_FALSE(device.is_after("write 1"));
  fence.wait(FakeDevice::device());
  EXPECT_TRUE(device.is_after("write 1"));
  EXPECT_TRUE(device.is_after("write 2"));
  EXPECT_FALSE(device.is_after("later 2"));
}

TEST(Fence, ALaterMarkOfAStreamReplacesTheOneBefore) {
  FakeDevice& device = FakeDevice::get();
  Fence fence;
  {
    const c10::StreamGuard writer(FakeDevice::stream(4));
    fence.record(FakeDevice::device());
    device.work("second use");
    fence.record(FakeDevice::device());
  }
  const c10::StreamGuard reader(FakeDevice::stream(5));
  fence.wait(FakeDevice::device());
  EXPECT_TRUE(device.is_after("second use"));
}

TEST(Fence, AThreadsOwnStreamIsNobodyElses) {
  c10::StreamId first = 0, second = 0;
  const auto own = [](c10::StreamId& id) {
    const OwnStream stream(FakeDevice::device());
    id = FakeDevice::current().id();
  };
  std::thread(own, std::ref(first)).join();
  std::thread(own, std::ref(second)).join();
  EXPECT_NE(first, FakeDevice::stream(0).id());
  EXPECT_NE(first, second);
}

TEST(Fence, CostsNothingOnTheProcessor) {
  Fence fence;  // events of the processor throw
  fence.record(c10::kCPU);
  fence.wait(c10::kCPU);
}

}  // namespace
}  // namespace gradweave::runtime
