#include "base/names.h"

#include <gtest/gtest.h>

#include <array>

namespace gradweave {
namespace {

constexpr std::array<std::string_view, 3> kNames = {"compare", "plan", "bucket_cap_bytes"};

TEST(Names, TheNearestIsOffered) {
  EXPECT_EQ(choice_of("compar", kNames, "use one of"),
            "did you mean 'compare'? Use one of compare, plan, bucket_cap_bytes");
  EXPECT_EQ(choice_of("bucket_cap_mb", kNames, "it has").substr(0, 31), "did you mean 'bucket_cap_bytes'");
  EXPECT_EQ(choice_of("paln", kNames, "it has").substr(0, 19), "did you mean 'plan'");  // neighbours swapped
}

TEST(Names, WhatIsFarFromAllIsNot) {
  EXPECT_EQ(choice_of("simulate", kNames, "use one of"), "use one of compare, plan, bucket_cap_bytes");
  EXPECT_EQ(choice_of(std::string(100'000, 'x'), kNames, "use one of"),
            "use one of compare, plan, bucket_cap_bytes");
  EXPECT_EQ(choice_of("x", {}, "use one of"), "use one of ");
}

}  // namespace
}  // namespace gradweave
