#include "device/virtual_time.h"

#include <gtest/gtest.h>

#include <array>
#include <stdexcept>
#include <thread>

namespace gradweave::device {
namespace {

TEST(VirtualTime, ACollectiveBeginsWhenTheLastRankComes) {
  constexpr std::array<std::int64_t, 3> kArrivals{100, 900, 300};
  EXPECT_EQ(end_of(kArrivals, {.startup_ns = 50, .ns_per_byte = 0.5}, 33), 900 + 67);
}

TEST(VirtualTime, AStreamGoesOnWhenAllThatItWaitsForHasEnded) {
  const auto early = std::make_shared<Flight>("early"), late = std::make_shared<Flight>("late");
  Moment moment, other;
  moment.pass(10);
  moment.join(early);
  other.join(late);
  moment.join(other);
  EXPECT_FALSE(moment.settled());
  std::thread carrier([&] {
    early->land(700);
    late->land(500);
  });
  EXPECT_EQ(moment.settle(), 700);
  carrier.join();
  EXPECT_TRUE(moment.settled());
  moment.pass(5);
  EXPECT_EQ(moment.settle(), 705);
  moment.not_before(600);
  EXPECT_EQ(moment.settle(), 705);
}

TEST(VirtualTime, AFailureIsEveryonesWhoWaits) {
  const auto flight = std::make_shared<Flight>("allreduce 3");
  Moment moment;
  moment.join(flight);
  flight->fail("a peer is gone");
  EXPECT_TRUE(moment.settled());
  for (int twice = 0; twice < 2; ++twice) {
    try {
      moment.settle();
      FAIL();
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "allreduce 3: a peer is gone");
    }
  }
}

}  // namespace
}  // namespace gradweave::device
