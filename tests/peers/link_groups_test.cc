#include "peers/link_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gradweave/error.h"

namespace gradweave::peers {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(LinkGroups, RanksThatHoldTheSameAreOneOfEachIsland) {
  const std::vector<Holding> rows{{{0, 1}, "a"}, {{0, 1}, "b"}, {{2, 3}, "a"}, {{2, 3}, "b"}};
  EXPECT_THAT(link_groups(rows),
              ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3), ElementsAre(0, 2), ElementsAre(1, 3)));
  const std::vector<Holding> columns{{{0, 2}, "a"}, {{1, 3}, "a"}, {{0, 2}, "b"}, {{1, 3}, "b"}};
  EXPECT_THAT(link_groups(columns),
              ElementsAre(ElementsAre(0, 1), ElementsAre(0, 1), ElementsAre(2, 3), ElementsAre(2, 3)));
}

TEST(LinkGroups, RanksMayShardWithEachOtherByWayOfOthers) {
  // Some parameters over one mesh dimension, some over the other: 0 1 / 2 3.
  const std::vector<Holding> ranks{{{0, 1, 2}, "00"}, {{0, 1, 3}, "01"}, {{0, 2, 3}, "10"},
                                   {{1, 2, 3}, "11"}, {{4, 5, 6}, "00"}, {{4, 5, 7}, "01"},
                                   {{4, 6, 7}, "10"}, {{5, 6, 7}, "11"}};
  EXPECT_THAT(link_groups(ranks)[3], ElementsAre(3, 7));
}

TEST(LinkGroups, OneRankAloneIsAnIsland) {
  EXPECT_THAT(link_groups(std::vector<Holding>{{{0}, "a"}}), ElementsAre(ElementsAre(0)));
  EXPECT_THAT(link_groups(std::vector<Holding>{{{0}, "a"}, {{1}, "a"}})[0], ElementsAre(0, 1));
}

TEST(LinkGroups, WhatCantBeJoinedIsRefused) {
  const auto error = [](std::vector<Holding> ranks, const std::string& says) {
    EXPECT_THAT([&] { link_groups(ranks); }, ThrowsMessage<InvalidInput>(HasSubstr(says)));
  };
  error({{{0, 1}, "a"}, {{0, 1}, "b"}}, "sharded over all 2 ranks");
  error({{{0, 1}, "a"}, {{0, 1}, "a"}, {{2, 3}, "a"}, {{2, 3}, "b"}},
        "ranks 0 1 are of one island and hold the same part");
  error({{{0, 1}, "a"}, {{0, 1}, "b"}, {{2}, "a"}}, "only those of ranks 1 have that part");
  error({{{0, 5}, "a"}, {{1}, "a"}}, "rank 0 shards parameters with ranks outside its plan_group");
  error({{{-1}, "a"}}, "plan_group");
}

}  // namespace
}  // namespace gradweave::peers
