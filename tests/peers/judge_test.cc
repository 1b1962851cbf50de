#include "peers/judge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

namespace gradweave::peers {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr Time kNow = 100s;

// A rank that was heard of a moment ago.
Seen rank(Activity activity, std::int64_t iteration, std::int64_t ops = 0) {
  return {.came = true,
          .sign = {.activity = activity, .iteration = iteration, .ops = ops},
          .heard = kNow - 100ms,
          .since = kNow - 60s};
}
Seen outside(std::int64_t iteration, std::int64_t ops = 0) {
  return rank(Activity::kOutside, iteration, ops);
}
Seen training(std::int64_t iteration, std::int64_t ops = 0) {
  return rank(Activity::kTraining, iteration, ops);
}
Seen meeting(std::int64_t number, std::int64_t iteration, std::string what = "finish()") {
  Seen seen = rank(Activity::kMeeting, iteration);
  seen.sign.meetings = number;
  seen.sign.what = std::move(what);
  return seen;
}
Seen been_to(std::int64_t meetings, Seen seen) {
  seen.sign.meetings = meetings;
  return seen;
}
Seen ended(Seen seen) {
  seen.sign.state = State::kEnded;
  seen.heard = kNow - 50s;
  return seen;
}
Seen silent(Time quiet, Seen seen) {
  seen.heard = kNow - quiet;
  return seen;
}
Seen stuck(Time since, Seen seen) {
  seen.sign.state = State::kStuck;
  seen.sign.trouble = "op 'all_reduce a' (iteration 7, link eth0) failed after 3.0 s";
  seen.sign.cause = "connection closed by peer";
  seen.since = kNow - since;
  return seen;
}
Seen overdue(Seen seen) {
  seen.sign.overdue = true;
  return seen;
}
std::string verdict(const std::vector<Seen>& ranks, Time listening = 50s) {
  return judge(ranks, kNow, listening);
}

TEST(Judge, SaysNothingWhileNothingIsWrong) {
  EXPECT_EQ(verdict({training(7), outside(7), training(8), outside(6)}), "");
  EXPECT_EQ(verdict({silent(30s, training(7)), training(7)}), "");  // nobody waits for it
  EXPECT_EQ(verdict({Seen{}, meeting(1, 0, "wrap()")}), "");
}

TEST(Judge, AMeetingWaitsForRanksThatCanStillCome) {
  EXPECT_EQ(verdict({meeting(1, 9), training(8), outside(9), outside(4)}), "");
  EXPECT_EQ(verdict({meeting(1, 9), been_to(1, training(9))}), "");  // has been there
  EXPECT_EQ(verdict({meeting(1, 9), been_to(1, ended(outside(9)))}), "");
  EXPECT_EQ(verdict({meeting(1, 9), meeting(2, 9, "the change of plan")}), "");
}

TEST(Judge, ARankThatHasTrainedPastAMeetingEndsIt) {
  for (const Seen& past : {training(9), outside(10), training(10), stuck(0s, training(9))}) {
    EXPECT_THAT(verdict({meeting(1, 9), training(8), past}), StartsWith("ranks are at different points"));
  }
  EXPECT_THAT(
      verdict({meeting(1, 9), meeting(1, 9), training(9)}),
      HasSubstr("ranks 0, 1: in finish() after 9 iterations; rank 2: training iteration 9. Every rank "
                "has to be in finish() after the same iteration"));
}

TEST(Judge, MeetingsThatDifferEnd) {
  EXPECT_THAT(verdict({meeting(1, 9), meeting(1, 9, "the change of plan")}),
              StartsWith("ranks are at different"));
  EXPECT_THAT(verdict({meeting(1, 9), meeting(1, 8)}),
              HasSubstr("rank 0: in finish() after 9 iterations; rank 1: in finish() after 8 iterations"));
}

TEST(Judge, ARankThatHasEndedCanComeToNoMeeting) {
  EXPECT_THAT(
      verdict({meeting(1, 9), meeting(1, 9), ended(outside(9))}),
      AllOf(StartsWith("rank 2 has ended its training after 9 iterations and can't reach finish(). "
                       "Where ranks are: ranks 0, 1: in finish() after 9 iterations; rank 2: has ended"),
            HasSubstr("same number of batches"),
            HasSubstr("If rank 2 should not have ended there, its own")));
  // Nobody has had a batch yet.
  EXPECT_THAT(
      verdict({meeting(1, 0, "wrap()"), ended(outside(0))}),
      AllOf(StartsWith("rank 1 has ended its training before its first iteration and can't reach wrap()"),
            Not(HasSubstr("batches")), HasSubstr("The output of rank 1 says why it ended.")));
}

TEST(Judge, ASilentRankMayComeToAMeetingUntilSomebodysTimeout) {
  EXPECT_EQ(verdict({meeting(1, 9), silent(250s, training(8))}), "");
  EXPECT_THAT(verdict({stuck(0s, meeting(1, 9)), silent(300s, training(8))}),
              HasSubstr("suspect: rank 1 (no sign of life for 300.0 s; training iteration 8)."));
}

TEST(Judge, TrainingPastAnEndedRankEnds) {
  EXPECT_EQ(verdict({ended(outside(9)), training(8), outside(9)}), "");
  EXPECT_EQ(verdict({ended(training(9)), training(9)}), "");  // both stop after this backward
  EXPECT_THAT(
      verdict({ended(outside(9)), training(9)}),
      StartsWith(
          "rank 0 has ended its training after 9 iterations, and others train on. Where ranks are: "
          "rank 0: has ended its training after 9 iterations; rank 1: training iteration 9. Give all"));
}

TEST(Judge, SilentRanksAreSuspectedAtOnce) {
  EXPECT_THAT(
      verdict({stuck(0s, training(7)), silent(1300ms, training(7)), training(7)}),
      StartsWith("rank 0 reports: op 'all_reduce a' (iteration 7, link eth0) failed after 3.0 s; suspect: "
                 "rank 1 (no sign of life for 1.3 s; training iteration 7)."));
  EXPECT_THAT(
      verdict({stuck(0s, training(7)), silent(2s, training(7)), silent(3s, outside(7))}),
      HasSubstr("suspect: rank 1 (no sign of life for 2.0 s; training iteration 7), rank 2 (no sign of"));
}

TEST(Judge, SurvivorsAreNotSuspected) {
  Seen leaving = silent(20s, training(7));
  leaving.sign.state = State::kLeaving;
  EXPECT_EQ(verdict({stuck(0s, training(7)), leaving, training(7)}), "");
  EXPECT_THAT(verdict({stuck(2s, training(7)), silent(2s, stuck(1s, training(7))), training(7)}),
              HasSubstr("suspect: nobody"));
}

TEST(Judge, AnEndedRankIsSuspectedBeforeOneThatIsBehind) {
  EXPECT_THAT(verdict({stuck(2s, training(7)), ended(training(8)), outside(3)}),
              HasSubstr("suspect: rank 1 (has ended its training after 8 iterations)."));
}

TEST(Judge, TheOneRankBehindAllOthersIsSuspectedInTheEnd) {
  const std::vector<Seen> early{stuck(1s, training(7)), training(6), training(7)};
  EXPECT_EQ(verdict(early), "");
  EXPECT_THAT(verdict({stuck(2s, training(7)), training(6), training(7)}),
              HasSubstr("suspect: rank 1 (alive, but behind all others: training iteration 6)."));
  EXPECT_THAT(verdict({stuck(2s, training(7)), outside(7), training(7)}),
              HasSubstr("suspect: rank 1 (alive"));
  EXPECT_THAT(verdict({stuck(2s, training(7, 40)), training(7, 40), training(7, 39)}),
              HasSubstr("suspect: rank 2 (alive"));
}

TEST(Judge, NobodyIsGivenTimeToShowOnceTheTimeoutHasPassed) {
  const std::vector<Seen> late{overdue(stuck(0s, training(7))), training(6), training(7)};
  EXPECT_THAT(verdict(late), HasSubstr("suspect: rank 1 (alive, but behind all others"));
  EXPECT_EQ(verdict(late, 1s), "");  // a new judge does not know yet who is silent
  EXPECT_THAT(verdict({stuck(1s, training(7)), training(6), overdue(stuck(0s, training(7)))}),
              HasSubstr("suspect: rank 1"));
}

TEST(Judge, OtherJobsOfTheProcessCountForWhoIsBehind) {
  Seen reporter = stuck(2s, training(7, 40)), waits_elsewhere = outside(7, 40), lost = outside(7, 40);
  reporter.sign.elsewhere = 16;
  waits_elsewhere.sign.elsewhere = 15;  // trains iteration 7 of another model
  lost.sign.elsewhere = 14;
  EXPECT_THAT(verdict({reporter, waits_elsewhere, lost}),
              HasSubstr("suspect: rank 2 (alive, but behind all others"));
}

TEST(Judge, NobodyIsNamedOnATie) {
  for (const std::vector<Seen>& ranks :
       {std::vector{stuck(2s, training(7, 40)), training(7, 40), training(7, 40)},
        std::vector{stuck(2s, training(7, 40)), training(7, 39), training(7, 39)},
        std::vector{stuck(2s, training(7, 39)), training(7, 40), training(7, 40)}}) {
    EXPECT_THAT(verdict(ranks), HasSubstr("suspect: nobody"));
    EXPECT_THAT(verdict(ranks), HasSubstr("Where ranks are: ranks 0-2: training iteration 7."));
  }
}

TEST(Judge, OfAMeetingThoseWhoDidNotComeAreSuspected) {
  const std::vector<Seen> ranks{stuck(2s, meeting(3, 9)), meeting(3, 9), been_to(2, outside(4)),
                                been_to(2, training(8))};
  EXPECT_THAT(verdict(ranks), HasSubstr("suspect: rank 2 (alive, before the backward of iteration 4), rank 3 "
                                        "(alive, training iteration 8)."));
  Seen nowhere{.heard = kNow - 2s};
  EXPECT_THAT(verdict({stuck(0s, meeting(1, 0, "wrap()")), nowhere}),
              HasSubstr("suspect: rank 1 (has not arrived)"));
}

TEST(Judge, TheFirstWhoWasStuckReports) {
  EXPECT_THAT(verdict({stuck(2s, training(7)), stuck(3s, training(7)), outside(7)}),
              StartsWith("rank 1 reports"));
}

}  // namespace
}  // namespace gradweave::peers
