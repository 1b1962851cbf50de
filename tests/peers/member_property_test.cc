// Ranks in random order, each at its own pace, on a store and a clock that are not real.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <random>

#include "gradweave/error.h"
#include "peers/member.h"

namespace gradweave::peers {
namespace {

using namespace std::chrono_literals;

class FakeStore : public Store {
 public:
  void put(const std::string& key, const std::string& text) override {
    ++keys_touched;
    texts[key] = text;
  }
  std::vector<std::string> get(const std::vector<std::string>& keys) override {
    std::vector<std::string> found;
    for (const std::string& key : keys) {
      ++keys_touched;
      const auto text = texts.find(key);
      found.push_back(text == texts.end() ? "" : text->second);
      bytes_read += static_cast<std::int64_t>(found.back().size());
    }
    return found;
  }
  std::string exchange(const std::string& key, const std::string& expected,
                       const std::string& text) override {
    ++keys_touched;
    std::string& held = texts[key];
    if (held == expected) held = text;
    return held;
  }
  void erase(const std::string& key) override { texts.erase(key); }

  std::map<std::string, std::string> texts;
  std::int64_t keys_touched = 0, bytes_read = 0;
};

struct Rank {
  std::unique_ptr<Member> member;
  Outgoing outgoing;
  Incoming incoming;
  std::string verdict;
  std::vector<std::string> posts;
  Time next{};
  bool alive = true;
};

class World {
 public:
  World(int ranks, std::uint32_t seed) : random_(seed), ranks(static_cast<std::size_t>(ranks)) {
    for (int r = 0; r < ranks; ++r)
      this->ranks[static_cast<std::size_t>(r)].member = std::make_unique<Member>(r, ranks, now);
  }

  // Each living rank has a round within every `beat`, and sooner where somebody waits, as the thread does it.
  void run(Time duration, Time beat = 400ms) {
    for (const Time end = now + duration; now < end; now += 10ms) {
      std::vector<Rank*> due;
      for (Rank& rank : ranks) {
        if (rank.alive && rank.next <= now) due.push_back(&rank);
      }
      std::shuffle(due.begin(), due.end(), random_);
      for (Rank* rank : due) round(*rank, beat);
    }
  }

  void round(Rank& rank, Time beat) {
    rank.incoming = rank.member->round(rank.outgoing, store, now);
    if (!rank.incoming.verdict.empty() && rank.verdict.empty()) {
      rank.verdict = rank.incoming.verdict;
      rank.outgoing.sign.state = State::kLeaving;
    }
    if (!rank.incoming.posts.empty()) {
      rank.posts = rank.incoming.posts;
      rank.outgoing.sign.activity = Activity::kOutside;
    }
    const bool soon = rank.incoming.somebody_waits || rank.outgoing.sign.waits();
    std::uniform_int_distribution<int> pace(1, soon ? 5 : static_cast<int>(beat / 10ms));
    rank.next = now + pace(random_) * 10ms;
  }

  void meet(Rank& rank, const std::string& what, std::string post) {
    rank.posts.clear();
    rank.outgoing.sign.activity = Activity::kMeeting;
    rank.outgoing.sign.what = what;
    ++rank.outgoing.sign.meetings;
    rank.outgoing.post = std::move(post);
    rank.next = now;
  }

  std::vector<int> judges() const {
    std::vector<int> found;
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      if (ranks[r].alive && ranks[r].member->judges()) found.push_back(static_cast<int>(r));
    }
    return found;
  }

  int pick(int below) { return std::uniform_int_distribution<int>(0, below - 1)(random_); }

 private:
  std::mt19937 random_;

 public:
  Time now = 50s;
  FakeStore store;
  std::vector<Rank> ranks;
};

TEST(Member, ARoundOfAllRanksCostsASmallMultipleOfTheirNumber) {
  std::map<int, double> keys, bytes;
  for (int size : {8, 64, 512}) {
    World world(size, 1);
    world.run(2s);
    const std::int64_t keys_before = world.store.keys_touched, bytes_before = world.store.bytes_read;
    for (Rank& rank : world.ranks) world.round(rank, 400ms);
    keys[size] = static_cast<double>(world.store.keys_touched - keys_before) / size;
    bytes[size] = static_cast<double>(world.store.bytes_read - bytes_before) / size;
  }
  EXPECT_LE(keys[512], 5);
  EXPECT_LE(keys[512], 1.1 * keys[8]);
  EXPECT_LE(bytes[512], 1.5 * bytes[8]);
}

TEST(Member, WithoutRankZeroAnotherOneJudges) {
  World world(3, 2);
  world.ranks[0].alive = false;
  world.run(3s);
  EXPECT_EQ(world.judges().size(), 1u);
  world.ranks[0].alive = true;  // it came late
  world.run(3s);
  EXPECT_EQ(world.judges().size(), 1u);
}

RC_GTEST_PROP(Member, JudgesFollowEachOther, ()) {
  const int size = *rc::gen::inRange(2, 9);
  World world(size, *rc::gen::arbitrary<std::uint32_t>());
  world.run(1s);
  RC_ASSERT(world.judges() == std::vector<int>{0});
  for (int alive = size; alive > 1; --alive) {
    const std::vector<int> judges = world.judges();
    RC_ASSERT(judges.size() == 1u);
    Rank& judge = world.ranks[static_cast<std::size_t>(judges.front())];
    if (*rc::gen::arbitrary<bool>()) {  // leaves, or is lost
      judge.outgoing.sign.state = State::kEnded;
      world.round(judge, 400ms);
    }
    judge.alive = false;
    world.run(3s);
  }
  RC_ASSERT(world.judges().size() == 1u);
}

RC_GTEST_PROP(Member, AStoppedJudgeThatWakesStepsBack, ()) {
  World world(*rc::gen::inRange(2, 6), *rc::gen::arbitrary<std::uint32_t>());
  world.run(1s);
  world.ranks[0].alive = false;
  world.run(4s);
  world.ranks[0].alive = true;
  world.run(1s);
  RC_ASSERT(world.judges().size() == 1u && world.judges().front() != 0);
}

RC_GTEST_PROP(Member, EveryRankGetsEverybodysPostsInEachMeeting, ()) {
  const int size = *rc::gen::inRange(2, 7);
  World world(size, *rc::gen::arbitrary<std::uint32_t>());
  for (int m = 1; m <= 4; ++m) {
    if (m == 3 && size > 2)
      world.ranks[static_cast<std::size_t>(world.judges().front())].next = world.now + 2s;
    std::vector<std::string> posts;
    for (int r = 0; r < size; ++r) {
      posts.push_back(*rc::gen::element<std::string>("", "a", "1:x|*", std::string("\0\n", 2)));
      world.run(10ms * world.pick(60));
      world.meet(world.ranks[static_cast<std::size_t>(r)], "finish()", posts.back());
    }
    world.run(5s);
    for (const Rank& rank : world.ranks) {
      RC_ASSERT(rank.verdict == "");
      RC_ASSERT(rank.posts == posts);
    }
  }
  const auto left = [](const auto& entry) { return entry.first.starts_with("post"); };
  RC_ASSERT(std::ranges::count_if(world.store.texts, left) <= 1);  // the last meeting's
}

RC_GTEST_PROP(Member, AllSurvivorsAdoptOneVerdictSoonAndNoneOfThemIsNamed, ()) {
  const int size = *rc::gen::inRange(2, 7);
  World world(size, *rc::gen::arbitrary<std::uint32_t>());
  world.run(1s);
  for (Rank& rank : world.ranks)
    rank.outgoing.sign = {.activity = Activity::kTraining, .iteration = 7, .ops = 40};
  const int lost = world.pick(size);
  world.ranks[static_cast<std::size_t>(lost)].alive = false;
  // Its neighbours' ops fail, one after another.
  world.run(10ms * world.pick(100));
  const Time begin = world.now;
  for (int r = 0; r < size; ++r) {
    if (r == lost || (r != (lost + 1) % size && *rc::gen::arbitrary<bool>())) continue;
    Rank& rank = world.ranks[static_cast<std::size_t>(r)];
    if (!rank.verdict.empty()) continue;
    rank.outgoing.sign.state = State::kStuck;
    rank.outgoing.sign.trouble = "op failed";
    rank.next = world.now;
    world.run(10ms * world.pick(30));
  }
  const auto ended = [&](const Rank& rank) { return !rank.alive || !rank.verdict.empty(); };
  while (!std::ranges::all_of(world.ranks, ended) && world.now < begin + 10s) world.run(10ms);
  RC_ASSERT(world.now - begin < 3500ms);
  std::string verdict;
  for (const Rank& rank : world.ranks) {
    if (!rank.alive) continue;
    if (verdict.empty()) verdict = rank.verdict;
    RC_ASSERT(rank.verdict == verdict);
  }
  const std::string name = "suspect: rank " + std::to_string(lost) + " (no sign of life";
  RC_ASSERT(verdict.find(name) != std::string::npos);
  RC_ASSERT(verdict.find("), rank") == std::string::npos);
  world.run(2s);
  for (const Rank& rank : world.ranks) RC_ASSERT(!rank.alive || rank.incoming.all_know);
}

RC_GTEST_PROP(Member, TheFirstVerdictHolds, ()) {
  World world(*rc::gen::inRange(2, 6), *rc::gen::arbitrary<std::uint32_t>());
  world.run(1s);
  for (std::size_t r = 0; r < 2; ++r) {
    world.ranks[r].outgoing.verdict = "rank " + std::to_string(r) + " ended with ValueError";
    world.ranks[r].next = world.now;
  }
  world.run(1s);
  for (const Rank& rank : world.ranks)
    RC_ASSERT(rank.verdict == world.ranks[0].verdict && !rank.verdict.empty());
}

RC_GTEST_PROP(Sign, SurvivesItsText, ()) {
  const auto number = rc::gen::inRange<std::int64_t>(0, kLargestNumber);
  const Sign sign{.beat = *number,
                  .state = *rc::gen::element(State::kRunning, State::kStuck, State::kLeaving, State::kEnded),
                  .activity = *rc::gen::element(Activity::kOutside, Activity::kTraining, Activity::kMeeting),
                  .iteration = *number,
                  .ops = *number,
                  .meetings = *number,
                  .elsewhere = *number,
                  .ops_elsewhere = *number,
                  .overdue = *rc::gen::arbitrary<bool>(),
                  .what = *rc::gen::arbitrary<std::string>(),
                  .trouble = *rc::gen::arbitrary<std::string>(),
                  .cause = *rc::gen::arbitrary<std::string>()};
  RC_ASSERT(decode_sign(encode(sign)) == sign);
}

RC_GTEST_PROP(Sign, TextsSurviveBeingJoined, (const std::vector<std::string>& texts)) {
  RC_ASSERT(split(join(texts)) == texts);
  RC_ASSERT(!join(texts).empty());
}

TEST(Sign, FieldsThatAreMissingAreAnError) {
  const std::string text = join({"a", ""});
  EXPECT_EQ(fields_of(text, 2), (std::vector<std::string>{"a", ""}));
  EXPECT_THROW(fields_of(text, 3), InvalidInput);
  EXPECT_THROW(fields_of("", 1), InvalidInput);
}

TEST(Sign, TextsOfAnotherFormAreAsGoodAsNone) {
  for (const char* text : {"", "1", "1:", "1:a", "1:-5:a", "2:1:a", "1:1:ab", "1:+1:a",
                           "1:99999999999999999999:a", "1:18446744073709551615:a", "-1:1:a", "x:1:a"}) {
    EXPECT_TRUE(split(text).empty()) << text;
    EXPECT_FALSE(decode_sign(text)) << text;
  }
  const Sign sign{.beat = 1, .iteration = 7};
  for (const auto& [from, to] : {std::pair{"1:7", "2:-7"}, {"1:7", "1:x"}, {"1:r", "1:q"}, {"1:o", "1:z"}}) {
    std::string text = encode(sign);
    text.replace(text.find(from), 3, to);
    EXPECT_FALSE(decode_sign(text)) << text;
  }
}

// Posts, office and news of another form neither end a rank nor hold it.
TEST(Member, TextsOfAnotherFormAreAsGoodAsNone) {
  const std::string of_rank_9 = join({"a", join({"9"})});
  for (const std::string& text :
       {std::string("7:x"), of_rank_9, join({"a", join({"0", "18446744073709551615"})}),
        std::string("1:-99:a"), std::string("9223372036854775807:1"), std::string("3:77")}) {
    World world(2, 3);
    for (const char* key : {"judge", "news", "posts/1", "sign/0", "post/1/0"}) world.store.texts[key] = text;
    for (Rank& rank : world.ranks) world.meet(rank, "finish()", "b");
    world.run(6s);
    for (const Rank& rank : world.ranks) {
      EXPECT_EQ(rank.verdict, "") << text;
      EXPECT_EQ(rank.posts, (std::vector<std::string>{"b", "b"})) << text;
    }
  }
}

TEST(Member, PostsThatNobodyHasReadYetOutliveTheStoresTexts) {
  World world(2, 1);
  world.run(1s);
  for (const std::size_t r : {1, 0}) {  // rank 0 judges: it gathers
    world.meet(world.ranks[r], "finish()", "a");
    world.round(world.ranks[r], 400ms);
  }
  ASSERT_TRUE(world.store.texts.contains("posts/1"));
  world.store.texts.clear();
  for (Rank& rank : world.ranks) rank.member->reconnected(world.store);
  world.run(2s);
  for (const Rank& rank : world.ranks) EXPECT_EQ(rank.posts, (std::vector<std::string>{"a", "a"}));
}

RC_GTEST_PROP(Member, MeetingsGoOnWhenTheStoreHasLostItsTexts, ()) {
  const int size = *rc::gen::inRange(2, 6);
  World world(size, *rc::gen::arbitrary<std::uint32_t>());
  world.run(1s);
  for (Rank& rank : world.ranks) {
    world.meet(rank, "finish()", "a");
    world.run(10ms * world.pick(20));
  }
  world.run(10ms * world.pick(30));  // perhaps some have learned of the others' posts
  world.store.texts.clear();
  for (Rank& rank : world.ranks) {
    rank.member->reconnected(world.store);
    world.run(10ms * world.pick(20));
  }
  world.run(6s);
  for (const Rank& rank : world.ranks) {
    RC_ASSERT(rank.verdict == "");
    RC_ASSERT(rank.posts == std::vector<std::string>(static_cast<std::size_t>(size), "a"));
  }
}

TEST(Sign, NamesRanksInRanges) {
  EXPECT_EQ(name_of({3}), "rank 3");
  EXPECT_EQ(name_of({0, 1}), "ranks 0, 1");
  EXPECT_EQ(name_of({0, 1, 2, 3, 7, 9, 10, 11}), "ranks 0-3, 7, 9-11");
}

}  // namespace
}  // namespace gradweave::peers
