#include "runtime/room.h"

#include <gtest/gtest.h>

#include <limits>

#include "gradweave/error.h"

namespace gradweave::runtime {
namespace {

TEST(Room, IsKnownOfThisMachineAndReadBackFromText) {
  const Room own = room_on(c10::Device(c10::kCPU));
  EXPECT_GT(own.bytes, 1 << 20);
  EXPECT_LT(own.bytes, std::numeric_limits<std::int64_t>::max());
  Room told = own;
  told.held = 17;
  const Room read = room_of(to_text(told));
  EXPECT_EQ(read.bytes, own.bytes);
  EXPECT_EQ(read.held, 17);
  EXPECT_EQ(read.place, own.place);
}

TEST(Room, OfADeviceThatTellsNothingHasNoEnd) {
  EXPECT_EQ(room_on(c10::Device(c10::kPrivateUse1, 0)).bytes, std::numeric_limits<std::int64_t>::max());
}

TEST(Room, IsSharedByTheRanksOfAPlace) {
  EXPECT_NO_THROW(require_room(500, {{"a", 1000}, {"a", 1000}, {"b", 500}}));
  EXPECT_NO_THROW(require_room(1000, {{"a cuda:0", 1000}, {"a cuda:1", 1000}}));
  EXPECT_THROW(require_room(501, {{"a", 1000}, {"a", 1000}, {"b", 501}}), InvalidInput);
  try {
    require_room(3'000'000, {{"a", 4'000'000}, {"b", 2'500'000}});
    FAIL();
  } catch (const InvalidInput& error) {
    const std::string what = error.what();
    EXPECT_NE(what.find("needs 3.0 MB"), std::string::npos) << what;
    EXPECT_NE(what.find("rank 1 has 2.5 MB left"), std::string::npos) << what;
  }
}

TEST(Room, WhatARankHoldsAndGivesUpCountsAsLeftToItAlone) {
  EXPECT_NO_THROW(require_room(800, {{"a", 1000, 300}, {"a", 1000, 300}}));
  EXPECT_THROW(require_room(801, {{"a", 1000, 300}, {"a", 1000, 300}}), InvalidInput);
  EXPECT_THROW(require_room(800, {{"a", 1000, 600}, {"a", 1000, 0}}), InvalidInput);
  const std::int64_t all = std::numeric_limits<std::int64_t>::max();
  EXPECT_NO_THROW(require_room(1000, {{"a", all, 300}}));
}

}  // namespace
}  // namespace gradweave::runtime
