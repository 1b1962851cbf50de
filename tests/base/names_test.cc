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

TEST(Names, CaseCountsLeast) {
  constexpr std::array<std::string_view, 4> kMixed = {"bf16", "fp16", "Mb/s", "MB/s"};
  EXPECT_EQ(nearest("FP16", kMixed), "fp16");  // bf16 is as near with its case
  EXPECT_EQ(nearest("mb/s", kMixed), "Mb/s");
  EXPECT_EQ(nearest("mB/s", kMixed), "MB/s");
}

TEST(Names, AWordCutShortIsNear) {
  EXPECT_EQ(nearest("bucket", kNames), "bucket_cap_bytes");
  EXPECT_EQ(nearest("M", std::array<std::string_view, 3>{"B", "MB", "MiB"}), "MB");
  EXPECT_EQ(nearest("", kNames), std::nullopt);
}

TEST(Names, WordsOfTwoLettersAreNoSlips) {
  EXPECT_EQ(nearest("-v", std::array<std::string_view, 1>{"-h"}), std::nullopt);
  EXPECT_EQ(nearest("xy", std::array<std::string_view, 2>{"us", "ms"}), std::nullopt);
}

TEST(Names, WhatIsFarFromAllIsNot) {
  EXPECT_EQ(choice_of("simulate", kNames, "use one of"), "use one of compare, plan, bucket_cap_bytes");
  EXPECT_EQ(choice_of(std::string(100'000, 'x'), kNames, "use one of"),
            "use one of compare, plan, bucket_cap_bytes");
  EXPECT_EQ(choice_of("x", {}, "use one of"), "use one of ");
}

}  // namespace
}  // namespace gradweave
