// What the baselines fuse, and when they let it go, by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "gradweave/schemes.h"

namespace gradweave {
namespace {

using ::testing::ElementsAre;

struct Gradient {
  std::string name;
  Nanoseconds backward_ns;  // of its layer
  std::int64_t numel;
  DType dtype = DType::kFloat32;
};

// A layer for each gradient, given in the order of the backward. The forward takes 1 us.
Workload network(const std::vector<Gradient>& gradients) {
  Workload workload{.name = "network"};
  for (auto g = gradients.rbegin(); g != gradients.rend(); ++g) {
    workload.layers.push_back({.name = "layer " + g->name,
                               .forward_ns = workload.layers.empty() ? 1'000 : 0,
                               .backward_ns = g->backward_ns,
                               .tensors = {{g->name, g->numel, g->dtype}}});
  }
  return workload;
}

// Start-up 10 us and 0.1 us a byte.
Cluster one_link() {
  return {.workers = 2, .links = {{.name = "net", .startup_ns = 10'000, .us_per_byte = {1, 1}}}};
}

Plan plan_of(std::string_view scheme, const Workload& workload,
             const std::map<std::string, std::string>& options = {}) {
  return std::get<Plan>(make_plan(scheme, workload, one_link(), options));
}

// Each message in the order of issue: its tensors, and, if asked for, the delay after its last gradient.
std::vector<std::string> messages(const Plan& plan, bool delays = false) {
  std::vector<std::string> texts;
  for (const Op& op : plan.period.at(0).ops) {
    std::string text;
    for (const std::int32_t b : op.blocks)
      text += (text.empty() ? "" : " ") + plan.blocks[static_cast<std::size_t>(b)].tensor;
    if (delays) text += " +" + std::to_string(op.release.delay_ns);
    texts.push_back(text);
  }
  return texts;
}

const std::map<std::string, std::string> kSmallBuckets = {{"first_bucket_bytes", "400"},
                                                          {"bucket_cap_bytes", "800"}};

TEST(Ddp, ABucketClosesWhenItReachesOrExceedsItsCap) {
  const auto buckets = [](std::int64_t d, std::int64_t c, std::int64_t b) {
    return messages(
        plan_of("ddp", network({{"d", 1, d}, {"c", 1, c}, {"b", 1, b}, {"a", 1, 1}}), kSmallBuckets));
  };
  EXPECT_THAT(buckets(100, 100, 100), ElementsAre("d", "c b", "a"));  // 400 and 800 bytes are enough
  EXPECT_THAT(buckets(99, 1, 200), ElementsAre("d c", "b", "a"));
  EXPECT_THAT(buckets(500, 199, 500), ElementsAre("d", "c b", "a"));  // the tensor that exceeds is inside
}

TEST(Ddp, TheDefaultCapsAreOneAnd25Mebibytes) {
  EXPECT_THAT(
      messages(plan_of(
          "ddp", network({{"e", 1, 262'143}, {"d", 1, 1}, {"c", 1, 6'553'599}, {"b", 1, 1}, {"a", 1, 1}}))),
      ElementsAre("e d", "c b", "a"));
}

TEST(Ddp, EachDtypeHasBucketsAndAFirstOneOfItsOwn) {
  const Workload workload = network({{"e", 1, 100},
                                     {"half d", 1, 150, DType::kFloat16},
                                     {"c", 1, 100},
                                     {"half b", 1, 50, DType::kFloat16},
                                     {"a", 1, 10}});
  EXPECT_THAT(messages(plan_of("ddp", workload, kSmallBuckets)), ElementsAre("e", "half d half b", "c a"));
}

TEST(Ddp, StartsABucketWithItsLastGradient) {
  const Plan plan = plan_of("ddp", network({{"c", 1, 50}, {"b", 1, 50}, {"a", 1, 1}}), kSmallBuckets);
  ASSERT_THAT(messages(plan), ElementsAre("c b", "a"));
  EXPECT_EQ(plan.period[0].ops[0].release, (Release{{PointKind::kBackwardEnd, 1}}));
  EXPECT_EQ(plan.period[0].ops[1].release, (Release{{PointKind::kBackwardEnd, 0}}));
}

// Ready at 5, 10, 11 and 31 us after the iteration's start: ticks 10, 10, 20, 40.
Workload four_ticks() {
  return network({{"d", 4'000, 100}, {"c", 5'000, 100}, {"b", 1'000, 1}, {"a", 20'000, 1}});
}

TEST(Horovod, FusesWhatIsReadyAtATick) {
  EXPECT_THAT(messages(plan_of("horovod", four_ticks(), {{"cycle_us", "10"}, {"fusion_bytes", "800"}}), true),
              ElementsAre("d c +0", "b +9000", "a +9000"));
  EXPECT_THAT(messages(plan_of("horovod", four_ticks(), {{"cycle_us", "10"}, {"fusion_bytes", "799"}}), true),
              ElementsAre("d +5000", "c +0", "b +9000", "a +9000"));
}

TEST(Horovod, ZeroMeansNoWaitingAndNoFusion) {
  EXPECT_THAT(messages(plan_of("horovod", four_ticks(), {{"cycle_us", "0"}}), true),
              ElementsAre("d +0", "c +0", "b +0", "a +0"));
  EXPECT_THAT(messages(plan_of("horovod", four_ticks(), {{"cycle_us", "100"}, {"fusion_bytes", "0"}})),
              ElementsAre("d", "c", "b", "a"));
}

TEST(Horovod, AResponseSkipsWhatDoesNotFitOrHasAnotherDtype) {
  const Workload workload = network({{"f", 1, 100},
                                     {"e", 1, 200},
                                     {"half d", 1, 100, DType::kFloat16},
                                     {"c", 1, 100},
                                     {"b", 1, 1},
                                     {"half a", 1, 1, DType::kFloat16}});
  EXPECT_THAT(messages(plan_of("horovod", workload, {{"fusion_bytes", "800"}})),
              ElementsAre("f c", "e", "half d half a", "b"));
  // Larger than the buffer: alone.
  EXPECT_THAT(messages(plan_of("horovod", workload, {{"fusion_bytes", "500"}})),
              ElementsAre("f b", "e", "half d half a", "c"));
}

// c and b are ready at once; c takes 10 + 40 us, so b, sent by itself, starts at 50; a is ready then or
// before.
Workload three_at(Nanoseconds a_ready) {
  return network({{"c", 0, 100}, {"b", 0, 100}, {"a", a_ready, 100}});
}

TEST(AscWfbp, MergesWhatIsReadyBeforeTheMessageCouldStart) {
  EXPECT_THAT(messages(plan_of("asc_wfbp", three_at(49'999))), ElementsAre("c", "b a"));
  EXPECT_THAT(messages(plan_of("asc_wfbp", three_at(50'000))), ElementsAre("c", "b", "a"));
  EXPECT_EQ(plan_of("asc_wfbp", three_at(0)).links[0].concurrency, 0);
}

TEST(MgWfbp, MergesWhatIsReadyWithinAStartUp) {
  EXPECT_THAT(messages(plan_of("mg_wfbp", three_at(9'999))), ElementsAre("c b a"));
  EXPECT_THAT(messages(plan_of("mg_wfbp", three_at(10'000))), ElementsAre("c b", "a"));
}

// A given time contains its start-up, so that a merge saves nothing: c and b, ready at once, stay apart.
TEST(MgWfbp, SavesNoStartUpOfGivenTimes) {
  Workload workload = three_at(9'999);
  for (Layer& layer : workload.layers) layer.communication_ns = 50'000;
  EXPECT_THAT(messages(plan_of("mg_wfbp", workload)), ElementsAre("c", "b a"));
}

TEST(MgWfbp, CountsTensorsAndSkipsLayersWithoutAny) {
  Workload workload = three_at(9'999);
  workload.layers.insert(workload.layers.begin() + 1, {.name = "activation"});
  workload.layers[3].tensors.push_back({"c2", 1});
  for (const char* scheme : {"mg_wfbp", "asc_wfbp", "wfbp", "ddp", "horovod", "sequential"}) {
    const Plan plan = plan_of(scheme, workload);
    std::size_t tensors = 0;
    for (const Op& op : plan.period[0].ops) tensors += op.blocks.size();
    EXPECT_EQ(tensors, 4U) << scheme;
  }
  EXPECT_THAT(messages(plan_of("mg_wfbp", workload)), ElementsAre("c2 c b a"));
}

TEST(Wfbp, SendsEachTensorWhenItIsReady) {
  const Plan plan = plan_of("wfbp", four_ticks());
  EXPECT_THAT(messages(plan, true), ElementsAre("d +0", "c +0", "b +0", "a +0"));
  for (std::int32_t i = 0; i < 4; ++i)
    EXPECT_EQ(plan.period[0].ops[static_cast<std::size_t>(i)].release.point,
              (Point{PointKind::kBackwardEnd, 3 - i}));
}

TEST(Sequential, SendsNothingBeforeTheBackwardEnds) {
  const Plan plan = plan_of("sequential", four_ticks());
  ASSERT_EQ(plan.period[0].ops.size(), 4U);
  for (const Op& op : plan.period[0].ops) EXPECT_EQ(op.release, (Release{{PointKind::kBackwardEnd, 0}}));
}

}  // namespace
}  // namespace gradweave
