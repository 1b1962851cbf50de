// The parts of a run, each by itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <stdexcept>

#include "gradweave/error.h"
#include "run/arrivals.h"
#include "run/cursor.h"
#include "run/fake_stopwatch.h"
#include "run/flags.h"
#include "run/recorder.h"
#include "testing/plans.h"

namespace gradweave::run {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const AsComputeThread kThisThread;

Workload with_an_empty_layer() {
  Workload workload = testing::three_layers();
  workload.layers.insert(workload.layers.begin() + 1, Layer{.name = "relu"});
  return workload;
}

// ---- which iteration it is

TEST(Cursor, CountsTheRunOverPlansAndDrains) {
  Cursor cursor;
  cursor.begin_at(100);
  cursor.restart();
  for (int i = 0; i < 7; ++i) cursor.advance();
  EXPECT_EQ(cursor.of_run(), 107);
  cursor.begin_drain();
  EXPECT_TRUE(cursor.begins_drain());
  cursor.advance();  // what is on its way is applied two iterations later
  cursor.advance();
  EXPECT_FALSE(cursor.begins_drain());
  EXPECT_TRUE(cursor.exists(6));
  EXPECT_FALSE(cursor.exists(7));
  cursor.restart();
  EXPECT_FALSE(cursor.draining());
  EXPECT_EQ(cursor.now(), 0);
  EXPECT_EQ(cursor.text(), "iteration 107");
}

// ---- what has come

TEST(Arrivals, ALayerEndsWithItsLastGradientAndTheEmptyOnesBehindIt) {
  const WorkloadIndex index(with_an_empty_layer());
  Arrivals arrivals(index);
  arrivals.begin();
  const auto first = static_cast<std::int32_t>(index.first_tensor[0]);
  const auto of_first = static_cast<std::int32_t>(index.first_tensor[1]) - first;
  for (std::int32_t t = first; t < first + of_first; ++t) {
    EXPECT_TRUE(arrivals.come(t));
    const auto ended = arrivals.dealt_with(t);
    ASSERT_EQ(ended.has_value(), t + 1 == first + of_first);
    if (ended) {
      EXPECT_EQ(ended->first, 0);
      EXPECT_EQ(ended->last, 1);
    }
  }
}

TEST(Arrivals, AGradientComesOnceInABackward) {
  const WorkloadIndex index(testing::three_layers());
  Arrivals arrivals(index);
  arrivals.begin();
  EXPECT_TRUE(arrivals.come(1));
  EXPECT_FALSE(arrivals.come(1));
  arrivals.begin();
  EXPECT_TRUE(arrivals.come(1));
}

TEST(Arrivals, WhatWasAccumulatedIsUsedUntilTheIterationEnds) {
  const WorkloadIndex index(testing::three_layers());
  Arrivals arrivals(index);
  arrivals.accumulated(2);
  arrivals.begin();
  arrivals.come(0);
  EXPECT_TRUE(arrivals.used(2) && arrivals.used(0));
  EXPECT_FALSE(arrivals.used(1));
  arrivals.keep(0, true);
  arrivals.keep(2, true);
  EXPECT_TRUE(arrivals.present(0));
  EXPECT_FALSE(arrivals.present(2));  // it was not handed over in the backward
  arrivals.forget_accumulated();
  EXPECT_FALSE(arrivals.has_accumulated(2) || arrivals.used(2));
}

// ---- what ranks tell each other

// The maximum with what other ranks say, given beforehand.
class OtherRanks : public FlagExchange {
 public:
  void begin_exchange(std::size_t slot, std::span<std::uint8_t> flags) override { under_way_[slot] = flags; }
  void finish_exchange(std::size_t slot) override {
    if (lost) throw std::runtime_error("connection reset");
    const std::span<std::uint8_t> flags = under_way_.at(slot);
    for (std::size_t i = 0; i < flags.size(); ++i) flags[i] = std::max(flags[i], says[i]);
    under_way_.erase(slot);
  }
  std::size_t under_way() const { return under_way_.size(); }

  std::vector<std::uint8_t> says;
  bool lost = false;

 private:
  std::map<std::size_t, std::span<std::uint8_t>> under_way_;
};

class Verdicts : public Peers {
 public:
  void outside(std::int64_t) override {}
  void training(std::int64_t) override {}
  void set_progress(std::int64_t) override {}
  std::vector<std::string> agree(const std::string&, const std::string& post,
                                 std::chrono::milliseconds) override {
    return {post};
  }
  std::string give_up(const std::string& what, std::chrono::nanoseconds, const std::string& cause) override {
    return what + " failed: " + cause;
  }
};

class FlagsTest : public ::testing::Test {
 protected:
  Flags flags(FindUnused find, int world_size = 2) { return {others_, ending_, index_, 3, find, world_size}; }
  std::vector<std::uint8_t> all_but(std::size_t tensor) const {
    std::vector<std::uint8_t> used(index_.tensors.size(), 1);
    if (tensor < used.size()) used[tensor] = 0;
    return used;
  }
  void others_say(const std::vector<std::uint8_t>& used, bool some_unused, bool bad) {
    others_.says = used;
    others_.says.push_back(some_unused);
    others_.says.push_back(bad);
  }

  static constexpr std::size_t kNone = 1000;
  WorkloadIndex index_{testing::three_layers()};
  OtherRanks others_;
  Cursor cursor_;
  std::shared_ptr<OpQueue> queue_ = std::make_shared<OpQueue>(OpQueueOptions(), nullptr);
  Ending ending_{std::make_shared<Verdicts>(), queue_, cursor_};
};

TEST_F(FlagsTest, TheFirstIterationDecidesWhetherRanksExchange) {
  for (const bool others_leave_some_unused : {false, true}) {
    Flags flags = this->flags(FindUnused::kAuto);
    others_say(all_but(kNone), others_leave_some_unused, false);
    flags.tell(0, all_but(kNone), false, false);
    EXPECT_EQ(flags.may_be_unused(), others_leave_some_unused);
  }
}

TEST_F(FlagsTest, ATensorIsUsedIfAnyRankUsedIt) {
  Flags flags = this->flags(FindUnused::kOn);
  others_say(all_but(1), true, false);
  flags.tell(0, all_but(0), false, false);
  EXPECT_EQ(others_.under_way(), 1U);  // nobody has asked
  EXPECT_TRUE(flags.used(0, 0) && flags.used(0, 1));
  EXPECT_EQ(others_.under_way(), 0U);
  others_say(all_but(1), true, false);
  flags.tell(1, all_but(1), false, false);
  EXPECT_FALSE(flags.used(1, 1));
}

TEST_F(FlagsTest, ARankWhoseGradientIsBadIsHeardWhereItIsAskedFor) {
  Flags flags = this->flags(FindUnused::kOff);
  others_say(all_but(kNone), false, true);
  EXPECT_FALSE(flags.tell(0, all_but(kNone), false, false));
  EXPECT_TRUE(flags.tell(1, all_but(kNone), false, true));
  EXPECT_TRUE(this->flags(FindUnused::kOff, 1).tell(0, all_but(kNone), true, true));  // without other ranks
}

TEST_F(FlagsTest, AnUnusedTensorIsNamedWhereThereMayBeNone) {
  Flags flags = this->flags(FindUnused::kOff);
  try {
    flags.tell(0, all_but(1), false, false);
    FAIL();
  } catch (const InvalidInput& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("parameter 'b'"), HasSubstr("find_unused_parameters=True")));
  }
}

TEST_F(FlagsTest, WhatIsLeftOutIsForgottenWithItsPlaceInTheRing) {
  Flags flags = this->flags(FindUnused::kOff, 1);
  EXPECT_FALSE(flags.ever_left_out());
  flags.leave_out(1);
  EXPECT_TRUE(flags.left_out(1));
  EXPECT_FALSE(flags.left_out(2));
  EXPECT_TRUE(flags.left_out_lately(4));
  EXPECT_FALSE(flags.left_out_lately(5));
  flags.tell(4, all_but(kNone), false, false);
  EXPECT_FALSE(flags.left_out(4));
  flags.restart();
  EXPECT_FALSE(flags.ever_left_out());
}

TEST_F(FlagsTest, AnExchangeThatIsLostEndsTraining) {
  Flags flags = this->flags(FindUnused::kOn);
  flags.tell(0, all_but(kNone), false, false);
  others_.lost = true;
  EXPECT_THROW(flags.used(0, 0), RuntimeFailure);
  EXPECT_THAT(queue_->failure(),
              AllOf(HasSubstr("used parameters (iteration 0)"), HasSubstr("connection reset")));
}

TEST_F(FlagsTest, AreWrittenAndReadAgain) {
  Flags written = this->flags(FindUnused::kOn);
  others_say(all_but(0), true, false);
  written.tell(2, all_but(0), false, false);
  written.leave_out(2);
  written.settle();
  const auto archive_all = [](Flags& flags, Archive& archive) {
    flags.archive_last_left_out(archive);
    flags.archive_find_unused(archive);
    flags.archive_iterations(archive);
  };
  Archive out;
  archive_all(written, out);
  Flags read = this->flags(FindUnused::kAuto);
  Archive in(out.numbers());
  archive_all(read, in);
  in.end();
  EXPECT_TRUE(read.left_out(2) && read.ever_left_out() && !read.used(2, 0) && read.used(2, 1));
}

// ---- what is noted

TEST(Recorder, CountsAnUpdateOfManyPartsOnceAndWaitsEach) {
  const RunPlan plan = run_plan_of(testing::synchronous(), testing::three_layers());
  Recorder recorder;
  recorder.install(plan);
  recorder.restart();
  const Clock::time_point begin;
  for (int i = 0; i < 3; ++i) {
    recorder.stepped(4);
    recorder.waited({.waited = true, .begin = begin, .end = begin + std::chrono::nanoseconds(5)},
                    []() -> Span { throw std::logic_error("described without a timeline"); });
  }
  recorder.stepped(5);
  EXPECT_EQ(recorder.counters().updates, 2);
  EXPECT_EQ(recorder.counters().waits, 3);
  EXPECT_EQ(recorder.counters().exposed_ns, 15);
  EXPECT_TRUE(recorder.take_spans().empty());
}

TEST(Recorder, ATimelineHasWaitsWithTheirReasons) {
  const RunPlan plan = run_plan_of(testing::synchronous(), testing::three_layers());
  Recorder recorder;
  recorder.install(plan);
  recorder.set_timeline(true);
  recorder.begin_span();
  recorder.end_span(SpanKind::kForward, 7, 2);
  recorder.waited({.waited = true, .begin = {}, .end = {}},
                  [] { return Span{.kind = SpanKind::kWait, .iteration = 7, .reason = "op a"}; });
  const std::vector<Span> spans = recorder.take_spans();
  ASSERT_EQ(spans.size(), 2U);
  EXPECT_EQ(spans[0].layer, 2);
  EXPECT_LE(spans[0].begin_ns, spans[0].end_ns);
  EXPECT_EQ(spans[1].reason, "op a");
  EXPECT_TRUE(recorder.take_spans().empty());
}

TEST(Recorder, ATimelineOfADeviceHasItsTimesOnceTheyAreKnown) {
  const RunPlan plan = run_plan_of(testing::synchronous(), testing::three_layers());
  auto made = std::make_unique<FakeStopwatch>(/*device=*/true);
  FakeStopwatch& watch = *made;
  Recorder recorder(std::move(made));
  recorder.install(plan);
  recorder.set_timeline(true);
  watch.ahead = 1'000;
  const std::size_t alive = watch.moments.size();
  const auto wait = [&](std::int64_t ns) {
    const std::int64_t before = recorder.before_wait();
    watch.time += ns;
    recorder.device_waited(before, [] { return Span{.kind = SpanKind::kWait}; });
  };
  for (int n = 0; n < 10; ++n) {
    recorder.begin_span();
    wait(4);
    watch.time += 20;
    recorder.end_span(SpanKind::kForward, n, 2);
    wait(0);  // what it waits for has ended
    recorder.iteration_ended(false);
  }
  watch.ahead = 0;
  recorder.iteration_ended(false);
  EXPECT_LE(watch.moments.size(), alive + 1);  // others are forgotten
  const std::vector<Span> spans = recorder.take_spans();
  ASSERT_EQ(spans.size(), 20U);
  for (std::size_t n = 0; n < spans.size(); n += 2) {
    EXPECT_EQ(spans[n].kind, SpanKind::kWait);
    EXPECT_EQ(spans[n].end_ns - spans[n].begin_ns, 4);
    EXPECT_EQ(spans[n + 1].begin_ns, spans[n].end_ns);
    EXPECT_EQ(spans[n + 1].end_ns - spans[n + 1].begin_ns, 20);
  }
}

}  // namespace
}  // namespace gradweave::run
