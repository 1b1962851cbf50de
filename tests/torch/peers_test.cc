// Ranks of one process on a store in memory.
#include "runtime/peers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <stdexcept>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "gradweave/error.h"
#include "runtime/control_group.h"

namespace gradweave::runtime {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

class Ranks : public testing::Test {
 protected:
  // Something that never comes, until the test is over.
  std::function<void()> never() {
    return [over = at_end_] { over.wait(); };
  }
  void TearDown() override { over_.set_value(); }

  c10::intrusive_ptr<c10d::Store> store_ = c10::make_intrusive<c10d::HashStore>();
  Peers first_{store_, 0, 2}, second_{store_, 1, 2};

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
  other.join();
  // And keeps the next from beginning.
  EXPECT_THAT(failure_of([this] { first_.await([] { FAIL(); }); }), HasSubstr("a bad batch"));
}

TEST_F(Ranks, AWaitThatIsLateIsGivenUp) {
  const std::string failure =
      failure_of([this] { first_.together("making the process groups", never(), 200ms); });
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
  EXPECT_THAT(
      failure_of([this] { first_.together("the broadcast", [] { throw std::runtime_error("closed"); }); }),
      HasSubstr("the broadcast failed after 0.0 s"));
}

TEST(Process, OneVerdictEndsAllItsJobsThatTrain) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto of = [&](const char* job) { return c10::make_intrusive<c10d::PrefixStore>(job, store); };
  Peers here(of("a"), 0, 2), there(of("a"), 1, 2), other(of("b"), 0, 2), elsewhere(of("b"), 1, 2);
  here.on_verdict([](const std::string&) {});
  std::promise<std::string> told;
  other.on_verdict([&told](const std::string& verdict) { told.set_value(verdict); });
  there.report("ValueError: a bad batch");
  EXPECT_THAT(told.get_future().get(), HasSubstr("rank 1 ended with ValueError: a bad batch"));
  EXPECT_THAT(failure_of([&] { elsewhere.agree("finish()", "", 60s); }), HasSubstr("a bad batch"));
}

TEST(ControlGroup, OneRankIsAllRanks) {
  const auto peers = std::make_shared<Peers>(c10::intrusive_ptr<c10d::Store>(), 0, 1);
  const ControlGroup group(peers, {}, {}, c10::kCPU);
  EXPECT_EQ(group.largest({1, 2}, "it"), (std::vector<double>{1, 2}));
  EXPECT_EQ(group.means({1, 2}, "it"), (std::vector<double>{1, 2}));
  EXPECT_EQ(group.begin_smallest({3}, "it")(), std::vector<double>{3});
  EXPECT_EQ(group.of_all({5}, "it"), (std::vector<std::vector<std::int64_t>>{{5}}));
}

}  // namespace
}  // namespace gradweave::runtime
