// Ranks of one process on a store in memory.
#include "runtime/peers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <future>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "gradweave/error.h"
#include "runtime/control_group.h"

namespace gradweave::runtime {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

class Ranks : public testing::Test {
 protected:
  // Something that never comes, until the test is over.
  std::function<void()> never() {
    return [over = at_end_] { over.wait(); };
  }
  void TearDown() override { over_.set_value(); }

  c10::intrusive_ptr<c10d::Store> store_ = c10::make_intrusive<c10d::HashStore>();
  Peers first_{store_, 0, 2, 60s}, second_{store_, 1, 2, 60s};

 private:
  std::promise<void> over_;
  std::shared_future<void> at_end_ = over_.get_future().share();
};

std::string failure_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const RuntimeFailure& failure) {
    return failure.what();
  }
  return "";
}

TEST_F(Ranks, AVerdictEndsAWait) {
  std::thread other([this] {
    std::this_thread::sleep_for(100ms);
    second_.report("ValueError: a bad batch");
  });
  EXPECT_THAT(failure_of([this] { first_.together("the broadcast", never()); }),
              HasSubstr("rank 1 ended with ValueError: a bad batch"));
  EXPECT_TRUE(first_.tells());
  other.join();
  // And keeps the next from beginning.
  EXPECT_THAT(failure_of([this] { first_.await([] { FAIL(); }); }), HasSubstr("a bad batch"));
}

TEST_F(Ranks, AWaitThatIsLateIsGivenUp) {
  const std::string failure =
      failure_of([this] { first_.together("making the process groups", never(), {.limit = 200ms}); });
  EXPECT_THAT(failure, HasSubstr("rank 0 reports: making the process groups failed after 0."));
  EXPECT_EQ(failure_of([&] { second_.await(never()); }), failure);
}

TEST_F(Ranks, WhatEndedInTimeIsAsIfItHadBeenCalledHere) {
  int result = 0;
  first_.together("it", [&result] { result = 7; });
  EXPECT_EQ(result, 7);
  EXPECT_THROW(first_.await([] { throw std::out_of_range("its own"); }), std::out_of_range);
  EXPECT_THROW(first_.together("it", [] { throw InvalidInput("what", "where", "remedy"); }), InvalidInput);
  EXPECT_EQ(first_.verdict(), "");
  EXPECT_FALSE(first_.tells());
  EXPECT_THAT(
      failure_of([this] { first_.together("the broadcast", [] { throw std::runtime_error("closed"); }); }),
      HasSubstr("the broadcast failed after 0.0 s"));
}

TEST_F(Ranks, ACollectiveThatDoesNotEndIsGivenUpAtTheTimeout) {
  Peers hasty(c10::make_intrusive<c10d::PrefixStore>("other", store_), 0, 2, 200ms);
  EXPECT_THAT(failure_of([&] { hasty.together("the broadcast", never()); }),
              HasSubstr("rank 0 reports: the broadcast failed after 0."));
}

TEST_F(Ranks, WhoDidNotComeToACollectiveIsBehind) {
  first_.together("the first", [] {});
  second_.together("the first", [] {});
  EXPECT_THAT(failure_of([&] { first_.together("the second", never(), {.limit = 1400ms}); }),
              HasSubstr("suspect: rank 1 (alive, but behind all others"));
}

TEST_F(Ranks, AWaitOfManyPartsLastsAsLongAsTheyEndInTime) {
  Peers hasty(c10::make_intrusive<c10d::PrefixStore>("other", store_), 0, 2, 500ms);
  const auto steps = std::make_shared<std::atomic<std::int64_t>>(0);
  const auto work = [steps] {
    for (; *steps < 40; ++*steps) std::this_thread::sleep_for(20ms);
  };
  EXPECT_EQ(failure_of([&] { hasty.together("the probe of a link", work, {.steps = steps}); }), "");
}

// One rank's way to the store, which can be cut: then what it says waits.
class Road : public c10d::PrefixStore {
 public:
  explicit Road(c10::intrusive_ptr<c10d::Store> store) : PrefixStore("", std::move(store)) {}

  c10::intrusive_ptr<Store> clone() override {
    return c10::intrusive_ptr<Store>::unsafe_reclaim_from_nonowning(this);
  }
  void set(const std::string& key, const std::vector<std::uint8_t>& value) override {
    {
      std::unique_lock lock(mutex_);
      mended_.wait(lock, [this] { return !cut_; });
    }
    PrefixStore::set(key, value);
  }
  void cut(bool now) {
    const std::lock_guard lock(mutex_);
    cut_ = now;
    mended_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable mended_;
  bool cut_ = false;
};

// Rank 0 judges; rank 1 comes to a meeting, and the way of `lost` to the store is cut meanwhile. Returns rank 1's error.
std::string error_without(std::size_t lost) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const std::vector roads{c10::make_intrusive<Road>(store), c10::make_intrusive<Road>(store)};
  Peers judge(roads[0], 0, 2, 60s), other(roads[1], 1, 2, 60s);
  std::thread both([&] { judge.agree("wrap()", "", 60s); });
  other.agree("wrap()", "", 60s);
  both.join();
  roads[lost]->cut(true);
  const auto begin = std::chrono::steady_clock::now();
  std::string error = failure_of([&] { other.agree("finish()", "", 400ms); });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 400ms + 2s);  // the promise
  roads[lost]->cut(false);
  return error;
}

// Another rank takes over; on a busy machine that may be too late.
TEST(Verdict, ComesInTimeThoughTheJudgeIsOutOfReach) {
  EXPECT_THAT(error_without(0), AllOf(HasSubstr("rank 1 reports: finish() failed after 0.4 s; suspect: "),
                                      AnyOf(HasSubstr("rank 0 (no sign of life"),
                                            HasSubstr("the rank that judges could not be reached in time"))));
}

TEST(Verdict, IsWhatTheRankKnowsWhereTheStoreDoesNotAnswer) {
  EXPECT_THAT(
      error_without(1),
      AllOf(
          HasSubstr("rank 1 reports: finish() failed after 0.4 s; suspect: the store (it does not answer). "),
          HasSubstr(
              "Where ranks are: rank 1: in finish() before its first iteration. Cause: not all ranks")));
}

TEST(Process, OneVerdictEndsAllItsJobsThatTrain) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto of = [&](const char* job) { return c10::make_intrusive<c10d::PrefixStore>(job, store); };
  Peers here(of("a"), 0, 2, 60s), there(of("a"), 1, 2, 60s), other(of("b"), 0, 2, 60s),
      elsewhere(of("b"), 1, 2, 60s);
  here.on_verdict([](const std::string&) {});
  std::promise<std::string> told;
  other.on_verdict([&told](const std::string& verdict) { told.set_value(verdict); });
  there.report("ValueError: a bad batch");
  EXPECT_THAT(told.get_future().get(), HasSubstr("rank 1 ended with ValueError: a bad batch"));
  EXPECT_THAT(failure_of([&] { elsewhere.agree("finish()", "", 60s); }), HasSubstr("a bad batch"));
}

TEST(ControlGroup, OneRankIsAllRanks) {
  const auto peers = std::make_shared<Peers>(c10::intrusive_ptr<c10d::Store>(), 0, 1, 60s);
  const ControlGroup group(peers, {}, {}, c10::kCPU);
  EXPECT_EQ(group.largest({1, 2}, "it"), (std::vector<double>{1, 2}));
  EXPECT_EQ(group.means({1, 2}, "it"), (std::vector<double>{1, 2}));
  EXPECT_EQ(group.begin_smallest({3}, "it")(), std::vector<double>{3});
  EXPECT_EQ(group.of_all({5}, "it"), (std::vector<std::vector<std::int64_t>>{{5}}));
}

}  // namespace
}  // namespace gradweave::runtime
