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

  explicit Waiting(std::chrono::milliseconds timeout) : queue({.timeout = timeout, .stall = 0ms}) {
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

TEST(OpQueue, AWaitLeavesTheVerdictToAnOpThatIsUnderWay) {
  Waiting waiting(5ms);
  waiting.queue.arrive(waiting.first(), waiting.queue.missing(waiting.first()));
  std::jthread link([&] {
    EXPECT_EQ(waiting.queue.await_turn(0, 0).execution, &waiting.first());
    waiting.queue.launched(0);
    std::this_thread::sleep_for(100ms);
    waiting.queue.fail("a peer is lost");
  });
  EXPECT_EQ(waiting.error_of_wait(), "a peer is lost");
}

// An accelerator without streams left, for instance.
TEST(Link, AThreadThatFailsInItsFirstLineEndsTrainingAndNotTheProcess) {
  const testing::Outcome outcome = testing::train(testing::decoupled(), testing::three_layers(),
                                                  {.world_size = 2, .broken_threads = true}, {3});
  EXPECT_THAT(outcome.errors, Each(AllOf(HasSubstr("a thread of link"), HasSubstr("no stream is left"))));
}

}  // namespace
}  // namespace gradweave::run
