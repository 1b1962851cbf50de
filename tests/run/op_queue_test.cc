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

// A wait for what never comes fails just when another thread has a failure to tell.
TEST(OpQueue, TheFirstFailureStays) {
  for (int i = 0; i < 200; ++i) {
    Tables tables(run_plan_of(testing::synchronous(), testing::three_layers()));
    OpQueue queue({.timeout = 0ms, .grace = 1ms});
    queue.reset(tables.plan, tables.ring.capacity());
    queue.restart(0);
    tables.ring.open(tables.plan, 0, 0);
    queue.open(tables.ring.row(0));
    queue.push(tables.ring.row(0), 0);
    std::string told;
    std::thread other([&, at = Clock::now() + 1ms + std::chrono::microseconds(i)] {
      while (Clock::now() < at) {
      }
      queue.fail("a peer is lost");
      told = queue.failure();
    });
    EXPECT_THROW(queue.wait(tables.ring.at(0, 0), 0), RuntimeFailure);
    other.join();
    EXPECT_EQ(queue.failure(), told);
  }
}

// An accelerator without streams left, for instance.
TEST(Link, AThreadThatFailsInItsFirstLineEndsTrainingAndNotTheProcess) {
  const testing::Outcome outcome = testing::train(testing::decoupled(), testing::three_layers(),
                                                  {.world_size = 2, .broken_threads = true}, {3});
  EXPECT_THAT(outcome.errors, Each(AllOf(HasSubstr("a thread of link"), HasSubstr("no stream is left"))));
}

}  // namespace
}  // namespace gradweave::run
