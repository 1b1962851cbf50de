#include "device/device.h"

#include <gtest/gtest.h>

#include <cmath>
#include <thread>

namespace gradweave::device {
namespace {

// One of a process, so that each test has streams of its own.
class DeviceTest : public testing::Test {
 protected:
  ~DeviceTest() override { device_.take_reports(); }

  Device& device_ = Device::get();
  const Stream first_ = device_.new_stream(), second_ = device_.new_stream();
};

using DeviceDeathTest = DeviceTest;

TEST_F(DeviceTest, MemoryIsFreshEachTime) {
  for (int twice = 0; twice < 2; ++twice) {
    void* const memory = device_.allocate(40, first_, "empty");
    auto* const floats = static_cast<float*>(device_.arena().for_kernels(memory));
    EXPECT_TRUE(std::isnan(floats[0]) && std::isnan(floats[9]));
    EXPECT_EQ(device_.arena().of_kernels(floats), memory);
    floats[0] = 1;
    device_.free(memory);
  }
  int local = 0;
  EXPECT_EQ(device_.arena().for_kernels(&local), &local);
  EXPECT_EQ(device_.arena().of_kernels(&local), nullptr);
  EXPECT_EQ(device_.allocate(0, first_, "empty"), nullptr);
}

TEST_F(DeviceDeathTest, AHostThatReadsADevicePointerDies) {
  const auto* const memory = static_cast<const volatile float*>(device_.allocate(4, first_, "empty"));
  EXPECT_DEATH(static_cast<void>(memory[0]), "");
}

TEST_F(DeviceTest, TimePassesOnStreamsAndOverEvents) {
  const Event begin = device_.record(first_);
  device_.spend(first_, 300);
  device_.spend(second_, 1000);
  device_.block(first_, device_.record(second_));
  device_.spend(first_, 20);
  EXPECT_EQ(Device::elapsed(begin, device_.record(first_)), 1020);
}

TEST_F(DeviceTest, TheHostWaitsAndThenLaunches) {
  device_.spend(first_, 400);
  const std::int64_t waits = device_.host_waits();
  device_.wait(device_.record(first_));
  EXPECT_EQ(device_.host_waits(), waits + 1);
  device_.spend(second_, 5);
  EXPECT_EQ(Device::elapsed(device_.record(first_), device_.record(second_)), 5);
}

TEST_F(DeviceTest, CopiesArriveWhenTheHostHasWaitedForThem) {
  int arrived = 0;
  device_.spend(first_, 1);
  const Event before = device_.record(first_);
  device_.spend(first_, 1);
  device_.on_host_wait(first_, [&] { ++arrived; });
  device_.wait(before);
  EXPECT_EQ(arrived, 0);
  device_.wait(device_.record(first_));
  device_.wait_for_all();
  EXPECT_EQ(arrived, 1);
}

TEST_F(DeviceTest, AnOpBlocksTheHostUntilItsCollectivesHaveEnded) {
  const Device::Launched launched = device_.launch_collective(first_, {.name = "allreduce"});
  device_.block(second_, device_.record(first_));
  EXPECT_FALSE(device_.reached(device_.record(second_)));
  std::thread carrier([&] {
    Moment start = launched.start;
    launched.flight->land(start.settle() + 70);
  });
  device_.spend(second_, 0);
  EXPECT_TRUE(launched.flight->ended());
  Moment start = launched.start;
  EXPECT_EQ(device_.record(second_).moment.settle(), start.settle() + 70);
  carrier.join();
}

TEST_F(DeviceTest, AWaitThatIsLeftOutOrdersNothing) {
  void* const memory = device_.allocate(8, first_, "empty");
  const auto begin = reinterpret_cast<std::uintptr_t>(memory);
  const Bytes bytes{begin, begin + 8};
  const Op write{.name = "write", .writes = {&bytes, 1}};
  device_.launch(first_, write, 100);
  device_.block(second_, device_.record(first_), false);
  device_.launch(second_, write);
  EXPECT_EQ(device_.take_reports().size(), 1U);
  EXPECT_EQ(Device::elapsed(device_.record(first_), device_.record(second_)), -100);
}

}  // namespace
}  // namespace gradweave::device
