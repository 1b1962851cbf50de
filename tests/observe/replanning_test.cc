#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "gradweave/observe.h"

namespace gradweave {
namespace {

using Step = Replanning::Step;

Step sample(Replanning& when, bool changed, double iteration_ns = 1) {
  return when.sampled(changed, iteration_ns, /*planning=*/false, /*proposed=*/false);
}

// Samples until something is to be done, but at most `most`; 0: nothing was.
std::int64_t samples_to(Step wanted, Replanning& when, std::int64_t most) {
  for (std::int64_t n = 1; n <= most; ++n)
    if (const Step step = sample(when, false); step != Step::kNone) return step == wanted ? n : -n;
  return 0;
}

TEST(Replanning, PlansOnceSomethingHasChanged) {
  Replanning when;
  when.installed(0);
  EXPECT_EQ(sample(when, false), Step::kNone);
  EXPECT_EQ(sample(when, true), Step::kPlan);
  EXPECT_EQ(samples_to(Step::kPlan, when, 1000), 0);
}

TEST(Replanning, KeepsAnAlarmThatComesWhileAPlanIsMade) {
  Replanning when;
  when.installed(0);
  EXPECT_EQ(when.sampled(true, 1, /*planning=*/true, false), Step::kNone);
  EXPECT_EQ(when.sampled(false, 1, /*planning=*/false, /*proposed=*/true), Step::kPlan);
}

TEST(Replanning, WaitsEverLongerAfterPlansThatAreNoBetter) {
  Replanning when;
  when.installed(0);
  std::vector<std::int64_t> waits;
  for (int n = 0; n < 8; ++n) {
    std::int64_t wait = 1;
    while (sample(when, true) != Step::kPlan) ++wait;
    waits.push_back(wait);
    when.no_better();
  }
  EXPECT_EQ(waits, (std::vector<std::int64_t>{1, 2, 4, 8, 16, 32, 64, 64}));
}

TEST(Replanning, TakesBackAPlanThatProvesSlowerAndTriesAnewLaterAndLater) {
  Replanning when;
  when.installed(0);
  for (const std::int64_t wait : {6, 12, 24}) {
    when.installed(/*before_ns=*/0.9);
    EXPECT_EQ(samples_to(Step::kTakeBack, when, 3), 3);
    when.installed(/*before_ns=*/0.9);  // the plan of before, which is on trial no more
    EXPECT_EQ(samples_to(Step::kPlan, when, 100), wait);
    EXPECT_EQ(samples_to(Step::kPlan, when, 100), 0);
  }
  EXPECT_EQ(sample(when, true), Step::kPlan);
}

TEST(Replanning, PutsAPlanForNowOnTrialThatComesBeforeTheOneIsTakenBack) {
  Replanning when;
  when.installed(/*before_ns=*/0.9);
  EXPECT_EQ(samples_to(Step::kTakeBack, when, 3), 3);
  EXPECT_EQ(when.sampled(true, 1, false, /*proposed=*/true), Step::kPlan);
  when.installed(/*before_ns=*/0.9);
  EXPECT_EQ(samples_to(Step::kTakeBack, when, 3), 3);
}

TEST(Replanning, KeepsAPlanThatIsNoSlower) {
  Replanning when;
  when.installed(/*before_ns=*/1);
  EXPECT_EQ(samples_to(Step::kTakeBack, when, 1000), 0);
}

TEST(Replanning, TakesNothingBackOnceAPlanForNowIsOnItsWay) {
  Replanning when;
  when.installed(/*before_ns=*/0.9);
  EXPECT_EQ(sample(when, true), Step::kPlan);
  EXPECT_EQ(when.sampled(false, 1, /*planning=*/true, false), Step::kNone);
  EXPECT_EQ(when.sampled(false, 1, false, /*proposed=*/true), Step::kNone);
  when.installed(/*before_ns=*/2);
  EXPECT_EQ(samples_to(Step::kPlan, when, 1000), 0);
}

}  // namespace
}  // namespace gradweave
