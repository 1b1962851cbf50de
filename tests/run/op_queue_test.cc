// What compute and the links' threads share, and what becomes of threads that fail.
#include "run/op_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "gradweave/error.h"
#include "run/fake.h"
#include "run/tables.h"
#include "testing/plans.h"

namespace gradweave::run {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

// A queue that has the ops of iteration 0, without data.
struct Waiting {
  Tables tables{run_plan_of(testing::synchronous(), testing::three_layers())};
  OpQueue queue;

  explicit Waiting(std::chrono::milliseconds timeout)
      : queue({.timeout = timeout, .stall = 0ms},
              [](const std::string& what, Clock::duration, const std::string& cause) {
                return "the verdict on " + what + ": " + cause;
              }) {
    queue.reset(tables.plan, tables.ring.capacity());
    queue.restart(0);
    tables.ring.open(tables.plan, 0, 0);
    queue.open(tables.ring.row(0));
    queue.push(tables.ring.row(0), 0);
  }
  const Execution& first() { return tables.ring.at(0, 0); }
  std::string error_of_wait() {
    try {
      queue.wait(first(), 0);
    } catch (const RuntimeFailure& error) {
      return error.what();
    }
    return "";
  }
};

// A wait for what never comes fails just when another thread has a failure to tell.
TEST(OpQueue, TheFirstFailureStays) {
  for (int i = 0; i < 200; ++i) {
    Waiting waiting(1ms);
    OpQueue& queue = waiting.queue;
    std::string told;
    std::thread other([&, at = Clock::now() + 1ms + std::chrono::microseconds(i)] {
      while (Clock::now() < at) {
      }
      queue.fail("a peer is lost");
      told = queue.failure();
    });
    const std::string raised = waiting.error_of_wait();
    EXPECT_EQ(queue.failure(), raised);
    EXPECT_TRUE(queue.told());
    other.join();
    EXPECT_EQ(told, raised);
  }
}

TEST(OpQueue, AWaitForAnOpThatNeverStartsEndsAtTheTimeout) {
  Waiting waiting(20ms);
  std::jthread late([&, until = Clock::now() + 2s](const std::stop_token& stop) {
    while (!stop.stop_requested() && Clock::now() < until) std::this_thread::sleep_for(1ms);
    waiting.queue.fail("2 s past the timeout");
  });
  EXPECT_THAT(waiting.error_of_wait(), HasSubstr("was never started"));
}

// Whatever its link's thread waits for.
TEST(OpQueue, EveryWaitEndsWithAnOpThatIsUnderWayForTooLong) {
  const std::vector<std::function<void(Waiting&)>> waits{
      [](Waiting& waiting) { waiting.queue.wait(waiting.first(), 0); },
      [](Waiting& waiting) { waiting.queue.wait_idle(); },
      [](Waiting& waiting) { waiting.queue.run_ready(); },
  };
  for (const auto& wait : waits) {
    Waiting waiting(20ms);
    waiting.queue.arrive(waiting.first(), waiting.queue.missing(waiting.first()));
    waiting.queue.begin_drain();
    std::jthread link([&] {
      EXPECT_EQ(waiting.queue.await_turn(0, 0).execution, &waiting.first());
      waiting.queue.launched(0);
      EXPECT_EQ(waiting.queue.await_turn(0, 1).execution, nullptr);  // once all has ended
    });
    std::string error;
    try {
      wait(waiting);
    } catch (const RuntimeFailure& failure) {
      error = failure.what();
    }
    EXPECT_THAT(error, AllOf(HasSubstr("the verdict on op '"), HasSubstr("not ended within its timeout")));
  }
}

TEST(OpQueue, AWaitLeavesTheVerdictToAnOpThatIsUnderWay) {
  Waiting waiting(2s);
  waiting.queue.arrive(waiting.first(), waiting.queue.missing(waiting.first()));
  std::jthread link([&] {
    EXPECT_EQ(waiting.queue.await_turn(0, 0).execution, &waiting.first());
    waiting.queue.launched(0);
    std::this_thread::sleep_for(100ms);
    waiting.queue.fail("a peer is lost");
  });
  EXPECT_EQ(waiting.error_of_wait(), "a peer is lost");
}

// Where ops return at once the compute thread takes turns: what is due is launched before its call returns, in the plan's order.
TEST(OpQueue, TheComputeThreadLaunchesWhatHasBecomeDue) {
  Waiting waiting(1s);
  OpQueue& queue = waiting.queue;
  queue.set_ordered_launches(true);
  std::vector<const Execution*> launched;
  queue.launch_by([&] {
    while (const std::optional<NextTurn> next = queue.next_turn()) {
      EXPECT_EQ(next->sequence, launched.size());
      EXPECT_FALSE(next->turn.absent);
      launched.push_back(next->turn.execution);
      queue.launched(next->link);
      queue.ended(*next->turn.execution, Clock::now());
    }
  });
  std::vector<const Execution*> ops;
  for (const Execution& execution : waiting.tables.ring.row(0))
    if (execution.op != nullptr) ops.push_back(&execution);
  ASSERT_GE(ops.size(), 2U);
  const auto arrive = [&](const Execution* op) { queue.arrive(*op, queue.missing(*op)); };
  for (std::size_t op = ops.size(); op-- > 1;) arrive(ops[op]);
  for (std::int32_t layer = 0; layer < 3; ++layer) queue.pass(PointKind::kBackwardEnd, layer, 0);
  queue.pass(PointKind::kIterationEnd, 0, 0);
  EXPECT_TRUE(launched.empty());  // the first one's data are missing
  arrive(ops[0]);
  EXPECT_EQ(launched, ops);
  EXPECT_FALSE(queue.wait(*ops.back(), -1).waited);
}

TEST(OpQueue, AWaitOfTheComputeThreadLaunchesWhatItWaitsFor) {
  Waiting waiting(1s);
  OpQueue& queue = waiting.queue;
  queue.set_ordered_launches(true);
  queue.arrive(waiting.first(), queue.missing(waiting.first()));
  int launched = 0;
  queue.launch_by([&] {
    while (const std::optional<NextTurn> next = queue.next_turn()) {
      ++launched;
      queue.launched(next->link);
      queue.ended(*next->turn.execution, Clock::now());
    }
  });
  EXPECT_EQ(launched, 0);  // its release has not passed
  EXPECT_FALSE(queue.wait(waiting.first(), 0).waited);
  EXPECT_EQ(launched, 1);
}

// An accelerator without streams left, for instance.
TEST(Link, AThreadThatFailsInItsFirstLineEndsTrainingAndNotTheProcess) {
  const testing::Outcome outcome = testing::train(testing::decoupled(), testing::three_layers(),
                                                  {.world_size = 2, .broken_threads = true}, {3});
  EXPECT_THAT(outcome.errors, Each(AllOf(HasSubstr("a thread of link"), HasSubstr("no stream is left"))));
}

}  // namespace
}  // namespace gradweave::run
