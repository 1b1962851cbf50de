#include "gradweave/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>

#include "gradweave/error.h"
#include "testing/plans.h"

namespace gradweave {
namespace {

using namespace testing;  // the plans
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

std::vector<std::string> texts_of(const Plan& plan, const Cluster* cluster = nullptr) {
  std::vector<std::string> texts;
  for (const Violation& v : validate(plan, three_layers(), cluster).violations) {
    EXPECT_FALSE(v.remedy.empty());
    texts.push_back("rule " + std::to_string(v.rule) + ": " + v.where + ": " + v.what);
  }
  return texts;
}

// What is wrong with a plan of a scheme is no fault of the user's.
TEST(Validate, APlanOfOnesOwnMakingIsSoundOrAnInternalError) {
  EXPECT_NO_THROW(require_sound(validate(synchronous(), three_layers()), "ddp"));
  Plan lossy = synchronous();
  lossy.period[0].ops.pop_back();
  const Validation validation = validate(lossy, three_layers());
  EXPECT_THAT([&] { require_sound(validation, "ddp"); },
              ThrowsMessage<InternalError>(AllOf(HasSubstr("scheme 'ddp'"), HasSubstr("please report"))));
  EXPECT_THROW(require_valid(validation, "plan.json"), InvalidInput);
}

TEST(Validate, AcceptsEveryFamily) {
  for (const auto& [name, plan] : all_families()) EXPECT_THAT(texts_of(plan), IsEmpty()) << name;
}

// As delayed_average(), but each average lands two iterations after its reading, so that a local step comes
// between.
Plan late_average() {
  Plan plan = delayed_average();
  for (Iteration& iteration : plan.period) iteration.applies[0].merges = {-2};
  std::swap(plan.period[0].applies[0].blocks, plan.period[1].applies[0].blocks);
  return plan;
}

// Layer 0's gradient is scattered behind layer 2's op on one link, gathered at once on the other, and applied
// at the iteration's end; layer 2's is needed in the next forward.
Plan decoupled_beside_a_late_op() {
  Plan plan = synchronous();
  plan.links.push_back({"other", 1});
  Iteration& iteration = plan.period[0];
  Op scatter = iteration.ops[2];
  scatter.collective = Collective::kReduceScatter;
  Op gather = scatter;
  gather.collective = Collective::kAllGather;
  gather.link = "other";
  Op middle = iteration.ops[1];
  middle.link = "other";
  iteration.ops = {iteration.ops[0], scatter, gather, middle};
  iteration.applies = {{.at = iteration_end(), .blocks = {0, 1, 2}, .merges = {0}},
                       {.at = forward_start(2), .blocks = {3}, .merges = {-1}}};
  return plan;
}

// Blocks 2 and 3 are averaged in the background, 0 and 1 reduced and applied at the iteration's end.
Plan averaged_beside_reduced() {
  Plan plan = delayed_average();
  plan.period.resize(1);
  Iteration& iteration = plan.period[0];
  Op reduce = synchronous().period[0].ops[2];
  Op average = iteration.ops[0];
  average.blocks = {2, 3};
  average.release = at_backward_end(0);
  iteration.ops = {reduce, average};
  iteration.applies[1].blocks = {2, 3};
  iteration.applies.push_back({.at = iteration_end(), .blocks = {0, 1}, .merges = {0}});
  return plan;
}

TEST(Validate, AcceptsLateAveragesAndHalvesOnTwoLinks) {
  EXPECT_THAT(texts_of(late_average()), IsEmpty());
  EXPECT_THAT(texts_of(decoupled_beside_a_late_op()), IsEmpty());
  EXPECT_THAT(texts_of(averaged_beside_reduced()), IsEmpty());
}

// A valid plan, a change that breaks one rule alone, and words of the violation.
struct Break {
  std::string name;
  int rule;
  Plan plan;
  std::function<void(Plan&)> change;
  std::string words;
};

std::vector<Break> breaks() {
  return {
      {"gap", 1, synchronous(), [](Plan& p) { p.blocks[1].begin = 5; }, "blocks of tensor a: elements [4:5)"},
      {"tail", 1, synchronous(), [](Plan& p) { p.blocks[2].end = 5; }, "blocks of tensor b: elements [5:6)"},
      {"overlap", 1, synchronous(), [](Plan& p) { p.blocks[1].begin = 3; },
       "overlaps with blocks[0] (a[0:4])"},
      {"outside", 1, synchronous(), [](Plan& p) { p.blocks[3].end = 9; },
       "is not a slice of the tensor's 4 elements"},
      {"inverted", 1, synchronous(),
       [](Plan& p) {
         p.blocks[3] = {"c", 4, 0};
       },
       "is not a slice"},
      {"empty", 1, synchronous(), [](Plan& p) { p.blocks[3].begin = 4; }, "is not a slice"},
      {"negative", 1, synchronous(), [](Plan& p) { p.blocks[3].begin = -1; }, "is not a slice"},
      {"unknown_tensor", 1, synchronous(), [](Plan& p) { p.blocks[3].tensor = "d"; },
       "the workload has no such tensor"},

      {"lost_apply_and_op", 2, synchronous(),
       [](Plan& p) {
         p.period[0].ops.erase(p.period[0].ops.begin());
         p.period[0].applies[0].blocks = {0, 1, 2};
       },
       "period[0], block 3 (c[0:4]): the gradient of this iteration is neither reduced"},
      {"reduced_twice", 2, synchronous(), [](Plan& p) { p.period[0].ops.push_back(p.period[0].ops[0]); },
       "2 times reduced"},
      {"reduced_and_stepped", 2, synchronous(),
       [](Plan& p) {
         p.period[0].applies.push_back(
             {.at = iteration_end(), .blocks = {3}, .merges = {0}, .source = Source::kLocalGradient});
       },
       "1 times applied locally"},
      {"dropped_twice", 2, filtered(), [](Plan& p) { p.period[0].dropped.push_back(2); }, "2 times dropped"},
      {"dropped_for_good", 2, filtered(), [](Plan& p) { p.residual = {}; }, "no residual"},
      {"lost_at_the_start", 2, delayed(), [](Plan& p) { p.prologue.resize(3); }, "prologue[0]"},
      {"half_a_generation", 2, delayed(),
       [](Plan& p) {
         for (Iteration& i : p.period) {
           for (Op& op : i.ops) op.merges.erase(op.merges.begin());
           for (Apply& apply : i.applies) apply.merges.erase(apply.merges.begin());
         }
       },
       "neither reduced"},
      {"corrected_without_step", 2, corrected(), [](Plan& p) { p.period[0].applies.clear(); },
       "with correction 'local'"},

      {"no_gather", 3, decoupled(), [](Plan& p) { p.period[0].ops.erase(p.period[0].ops.begin()); },
       "period[0].ops[4]: no all_gather has its blocks"},
      {"other_order", 3, decoupled(),
       [](Plan& p) { std::swap(p.period[0].ops[0].blocks[0], p.period[0].ops[0].blocks[1]); },
       "no reduce_scatter has its blocks"},
      {"gathered_twice", 3, decoupled(), [](Plan& p) { p.period[0].ops.push_back(p.period[0].ops[0]); },
       "gathers again"},
      {"gathered_before", 3, decoupled(),
       [](Plan& p) {
         Op& gather = p.period[0].ops[0];
         gather.merges = {0};
         gather.release = at_backward_end(0);
         p.period[0].applies[0] = {.at = iteration_end(), .blocks = {0, 1}, .merges = {0}};
       },
       "comes before its reduce_scatter"},

      {"never_applied", 4, synchronous(),
       [](Plan& p) {
         p.period[0].applies[0].blocks = {0, 1, 2};
       },
       "is never applied"},
      {"applied_twice", 4, synchronous(),
       [](Plan& p) { p.period[0].applies.push_back(p.period[0].applies[0]); }, "is applied 2 times"},
      {"applied_unreduced", 4, filtered(), [](Plan& p) { p.period[0].applies[0].blocks.push_back(3); },
       "which no op reduces"},
      {"split_generation", 4, delayed(),
       [](Plan& p) {
         p.period[1].applies[0].merges = {-3};
         p.period[0].applies = {{.at = iteration_end(), .blocks = {0, 1, 2, 3}, .merges = {-3}}};
       },
       "is applied in parts"},
      {"part_of_a_tensor", 4, synchronous(),
       [](Plan& p) {
         p.period[0].applies = {{.at = iteration_end(), .blocks = {0, 2, 3}, .merges = {0}},
                                {.at = iteration_end(), .blocks = {1}, .merges = {0}, .slices = true}};
       },
       "applies a part of the tensor"},
      {"average_not_applied", 4, local_steps(), [](Plan& p) { p.period[1].applies.pop_back(); },
       "are applied 0 times"},
      {"average_not_sent", 4, delayed_average(), [](Plan& p) { p.period[0].applies[0].merges = {-2}; },
       "which no op sends"},
      {"stepped_before_computed", 4, local_steps(),
       [](Plan& p) { p.period[0].applies[0].at = forward_start(0); }, "not computed yet"},

      {"stepped_an_iteration_late", 4, local_steps(),
       [](Plan& p) {
         for (Iteration& i : p.period) i.applies[0].merges = {-1};
       },
       "local gradient of another iteration, which is gone"},
      {"corrected_in_part", 4, corrected(),
       [](Plan& p) {
         Apply rest = p.period[1].applies[0];
         p.period[1].applies[0].blocks = {0, 1, 2};
         rest.blocks = {3};
         rest.correction = Correction::kNone;
         p.period[1].applies.push_back(rest);
         for (Iteration& i : p.period) {
           for (Apply& apply : i.applies) {
             if (apply.source == Source::kLocalGradient) apply.blocks = {0, 1, 2};
           }
           i.ops.clear();
         }
         p.period[0].ops = {delayed().period[0].ops[0]};
         p.period[0].ops[0].blocks = {0, 1, 2, 3};
       },
       "period[0].ops[0] carries blocks that are corrected and blocks that are not"},

      {"released_early", 5, synchronous(), [](Plan& p) { p.period[0].ops[2].release = at_backward_end(1); },
       "period[0].ops[2]: is released at backward_end(1), before its data exists, at backward_end(0)"},
      {"released_an_iteration_early", 5, synchronous(),
       [](Plan& p) { p.period[0].ops[0].release = at_backward_end(2, -1); }, "before its data exists"},
      {"read_early", 5, local_steps(), [](Plan& p) { p.period[1].ops[0].release = at_backward_end(1); },
       "before the parameters that it reads exist"},
      {"circle_of_release", 5, forward_overlap(),
       [](Plan& p) {
         p.period[0].ops[0].release = {{PointKind::kForwardStart, 1}};
       },
       "period[0].applies[0]: waits for period[0].ops[0], which can't start before forward_start(1)"},
      {"circle_through_the_link", 5, forward_overlap(),
       [](Plan& p) {
         std::swap(p.period[0].ops[0], p.period[0].ops[2]);
         p.period[0].ops[0].release = {{PointKind::kForwardEnd, 1}};
       },
       "which comes after period[0].ops[0]"},
      {"circle_through_a_scatter", 5, decoupled_beside_a_late_op(),
       [](Plan& p) { p.period[0].ops[0].release = {iteration_end()}; }, "training would hang"},
      {"circle_of_data", 5, synchronous(), [](Plan& p) { p.period[0].ops[0].release = {iteration_end()}; },
       "training would hang"},
      {"reduced_behind_a_step", 5, averaged_beside_reduced(),
       [](Plan& p) { std::swap(p.period[0].ops[0], p.period[0].ops[1]); },
       "period[0].applies[2]: waits for period[0].ops[1], which comes after period[0].ops[0], which needs a "
       "step of "
       "this iteration_end"},
      {"listed_after_its_use", 5, delayed(),
       [](Plan& p) {
         Op late = p.period[1].ops[0];
         p.period[1].ops.clear();
         for (std::int32_t& m : late.merges) --m;
         late.release.point.iteration = -1;
         p.period[0].ops.insert(p.period[0].ops.begin(), late);
       },
       "period[1].applies[0]: waits for period[0].ops[0], which is listed in a later iteration"},
      {"no_update", 5, synchronous(),
       [](Plan& p) {
         p.residual.enabled = true;
         p.period[0].ops.clear();
         p.period[0].applies.clear();
         p.period[0].dropped = {0, 1, 2, 3};
       },
       "updates nothing"},
      {"no_period", 5, synchronous(), [](Plan& p) { p.period.clear(); }, "has no iteration"},

      {"between_forward_and_backward", 6, forward_overlap(),
       [](Plan& p) { p.period[0].applies[0].at = forward_start(2); },
       "forward and backward of the block's layer 0"},
      {"before_backward", 6, partial(), [](Plan& p) { p.period[0].applies[2].at = backward_end(1); },
       "forward and backward of the block's layer 0"},
      {"step_under_average", 6, local_steps(),
       [](Plan& p) {
         p.period[0].applies.push_back(p.period[1].applies[1]);
         p.period[0].applies[1].merges = {-1};
         p.period[1].applies.pop_back();
       },
       "changes the parameters between their reading"},
      {"step_under_late_average", 6, late_average(),
       [](Plan& p) { p.period[0].applies[0].mode = Mode::kReplace; }, "which replaces them"},
      {"read_before_correction", 6, delayed_average(),
       [](Plan& p) {
         for (Iteration& i : p.period) i.ops[0].blocks = {0, 1, 2, 3}, i.applies[0].blocks = {0, 1, 2, 3};
         for (Iteration& i : p.period) std::swap(i.applies[0], i.applies[1]);
       },
       "are read again before the average"},
      {"never_averaged", 6, local_steps(),
       [](Plan& p) {
         p.period[1].ops[0].blocks = {0, 1, 2};
         p.period[1].applies[1].blocks = {0, 1, 2};
       },
       "block 3 (c[0:4]): is stepped locally but its parameters are never averaged"},

      {"stepped_around_an_average", 6, averaged_beside_reduced(),
       [](Plan& p) {
         p.period.push_back(p.period[0]);
         p.period[0].applies.pop_back();
         std::vector<Apply>& applies = p.period[1].applies;
         applies.insert(applies.begin(), applies.back());
         applies[0].merges = {-1};
       },
       "is stepped twice at one iteration_end"},
      {"correction_of_nothing", 6, corrected(),
       [](Plan& p) {
         for (Iteration& i : p.period) {
           for (Apply& apply : i.applies) {
             if (apply.source == Source::kLocalGradient) apply.at = backward_end(0);
           }
         }
       },
       "without a local step to correct"},
      {"local_and_reduced", 6, local_steps(),
       [](Plan& p) {
         p.period[0].ops = synchronous().period[0].ops;
         p.period[0].applies.clear();
         p.period[1].applies.insert(p.period[1].applies.begin(),
                                    {.at = iteration_end(), .blocks = {0, 1, 2, 3}, .merges = {-1}});
       },
       "is stepped by its local and by a reduced gradient"},

      {"halves_of_parameters", 7, local_steps(),
       [](Plan& p) {
         Op& scatter = p.period[1].ops[0];
         scatter.collective = Collective::kReduceScatter;
         Op gather = scatter;
         gather.collective = Collective::kAllGather;
         p.period[1].ops.push_back(gather);
       },
       "averages parameters in two halves"},
      {"unknown_link", 7, synchronous(), [](Plan& p) { p.period[0].ops[1].link = "nit"; },
       "period[0].ops[1]: names the unknown link 'nit'"},
      {"block_index", 7, synchronous(), [](Plan& p) { p.period[0].ops[1].blocks.push_back(4); },
       "blocks names a block that does not exist"},
      {"negative_block", 7, filtered(), [](Plan& p) { p.period[0].dropped.push_back(-1); },
       "dropped names a block"},
      {"layer_index", 7, synchronous(), [](Plan& p) { p.period[0].ops[0].release = at_backward_end(3); },
       "names layer 3"},
      {"empty_op", 7, synchronous(),
       [](Plan& p) { p.period[0].ops.push_back({.link = "net", .merges = {0}}); }, "carries no block"},
      {"later_release", 7, synchronous(), [](Plan& p) { p.period[0].applies[0].at.iteration = 1; },
       "of another iteration"},
      {"release_ahead", 7, forward_overlap(), [](Plan& p) { p.period[0].ops[0].release.point.iteration = 1; },
       "is released in an iteration after its own"},
      {"several_readings", 7, local_steps(),
       [](Plan& p) {
         p.period[1].ops[0].merges = {-1, 0};
         p.period[1].applies[1].merges = {-1};
         p.period[1].applies[1].mode = Mode::kCorrect;
       },
       "reads parameters of several iterations"},
      {"negative_delay", 7, synchronous(), [](Plan& p) { p.period[0].ops[0].release.delay_ns = -1; },
       "delay out of range"},
      {"apply_point", 7, synchronous(),
       [](Plan& p) { p.period[0].applies[0].at = {PointKind::kBackwardStart}; }, "is at backward_start"},
      {"same_links", 7, synchronous(), [](Plan& p) { p.links.push_back(p.links[0]); }, "repeats the name"},
      {"launch_order", 7, decoupled(),
       [](Plan& p) {
         // Each link alone would do; all launches in one list would not.
         std::rotate(p.period[0].ops.begin(), p.period[0].ops.begin() + 5, p.period[0].ops.end());
       },
       "which launches after"},
      {"uncompressed", 7, synchronous(),
       [](Plan& p) { p.period[0].ops[0].collective = Collective::kCompressed; }, "belong together"},
      {"unknown_compressor", 7, synchronous(),
       [](Plan& p) {
         p.period[0].ops[0].collective = Collective::kCompressed;
         p.period[0].ops[0].compression.name = "zip";
       },
       "unknown compressor 'zip'"},
      {"compressed_replaced", 6, compressed_average(),
       [](Plan& p) {
         p.outer.reset();
         p.period[0].applies[0].mode = Mode::kReplace;
       },
       "by an average that is compressed"},
      {"outer_replaced", 6, compressed_average(),
       [](Plan& p) {
         for (Op& op : p.period[1].ops)
           op = {op.link, Collective::kAllReduce, op.payload, op.blocks, op.merges, op.release, {}};
         p.period[0].applies[0].mode = Mode::kReplace;
       },
       "that the outer optimizer changes"},
      {"partly_compressed", 6, compressed_average(),
       [](Plan& p) {
         p.prologue = p.period;
         p.prologue[0].ops[0].collective = Collective::kAllReduce;
         p.prologue[0].ops[0].compression = {};
       },
       "both compressed and exact"},
      {"average_of_a_gradients_compressor", 7, compressed_average(),
       [](Plan& p) { p.period[0].ops[0].compression.name = "power_sgd"; }, "works for gradients only"},
      {"density_of_integers", 7, compressed_average(),
       [](Plan& p) {
         p.period[0].ops[0].compression.parameters = {{"density", 0.1}};
       },
       "unknown parameter"},
      {"outer_momentum", 7, compressed_average(), [](Plan& p) { p.outer->momentum = 1; },
       "outer.momentum: is out of range"},
      {"outer_rate", 7, compressed_average(), [](Plan& p) { p.outer->learning_rate = 0; },
       "outer.learning_rate: is out of range"},
      {"outer_of_gradients", 7, synchronous(), [](Plan& p) { p.outer.emplace(); }, "averages no parameters"},
      {"far_merges", 7, delayed(), [](Plan& p) { p.period[1].applies[0].merges[0] = INT32_MIN; },
       "looks back more than"},
      {"future_merges", 7, synchronous(),
       [](Plan& p) {
         p.period[0].ops[0].merges = {0, 1};
       },
       "0 or less"},
  };
}

class EachRule : public ::testing::TestWithParam<Break> {};

TEST_P(EachRule, IsReportedWithItsPlace) {
  ASSERT_THAT(texts_of(GetParam().plan), IsEmpty());
  Plan plan = GetParam().plan;
  GetParam().change(plan);
  EXPECT_THAT(texts_of(plan), Contains(AllOf(HasSubstr("rule " + std::to_string(GetParam().rule) + ":"),
                                             HasSubstr(GetParam().words))));
}

INSTANTIATE_TEST_SUITE_P(Rules, EachRule, ::testing::ValuesIn(breaks()),
                         [](const auto& info) { return info.param.name; });

// Changes that break their rule and no other.
TEST(Validate, ReportsOneFaultOnce) {
  for (const Break& broken : breaks()) {
    static const std::vector<std::string> kAlone = {
        "reduced_twice",    "no_gather",         "never_applied",
        "applied_twice",    "released_early",    "between_forward_and_backward",
        "never_averaged",   "unknown_link",      "block_index",
        "dropped_for_good", "lost_apply_and_op", "part_of_a_tensor"};
    if (std::ranges::find(kAlone, broken.name) == kAlone.end()) continue;
    Plan plan = broken.plan;
    broken.change(plan);
    const Validation validation = validate(plan, three_layers());
    EXPECT_THAT(validation.violations, Each(Field(&Violation::rule, broken.rule))) << broken.name;
    EXPECT_LE(validation.violations.size(), 4U) << broken.name;
  }
}

TEST(Validate, MergesOfFusedDtypesDiffer) {
  Workload workload = three_layers();
  workload.layers[1].tensors[0].dtype = DType::kFloat16;
  Plan plan = synchronous();
  plan.period[0].ops[0].blocks = {3, 2};
  plan.period[0].ops[0].release = at_backward_end(1);
  plan.period[0].ops.erase(plan.period[0].ops.begin() + 1);
  EXPECT_TRUE(validate(plan, three_layers()).valid());
  EXPECT_THAT(validate(plan, workload).violations,
              Contains(Field(&Violation::what, HasSubstr("different dtypes"))));
}

TEST(Validate, KnowsTheClustersLinks) {
  Cluster cluster{.links = {{.name = "net"}}};
  EXPECT_THAT(texts_of(synchronous(), &cluster), IsEmpty());
  cluster.links[0].name = "eth0";
  EXPECT_THAT(texts_of(synchronous(), &cluster),
              Contains(HasSubstr("links[0] ('net'): is not a link of the cluster")));
}

TEST(Validate, AcceptsTheSamePlanWrittenOtherwise) {
  // Listed in the iteration of its gradient; rotated period; a prologue that is the period unrolled.
  Plan listed = synchronous();
  for (Op& op : listed.period[0].ops) {
    op.merges = {-1};
    op.release.point.iteration = -1;
  }
  listed.period[0].applies = {{.at = forward_start(0), .blocks = {0, 1, 2, 3}, .merges = {-1}}};
  EXPECT_THAT(texts_of(listed), IsEmpty());
  for (auto [name, plan] : all_families()) {
    std::rotate(plan.period.begin(), plan.period.begin() + 1, plan.period.end());
    const bool rotates =
        name != "delayed" && name != "corrected";  // a generation would begin at iteration -1
    if (rotates) {
      EXPECT_THAT(texts_of(plan), IsEmpty()) << name;
    }
  }
  for (auto [name, plan] : all_families()) {
    plan.prologue = plan.period;
    EXPECT_THAT(texts_of(plan), IsEmpty()) << name;
  }
}

TEST(Facts, CountGenerationsAndBytes) {
  const auto facts = [](const Plan& plan) {
    const Validation validation = validate(plan, three_layers());
    EXPECT_TRUE(validation.valid());
    return validation.facts;
  };
  const std::int64_t all = 4 * (8 + 6 + 4);
  EXPECT_EQ(facts(synchronous()).generations_alive, 1);
  EXPECT_EQ(facts(synchronous()).extra_bytes, 0);
  EXPECT_EQ(facts(forward_overlap()).extra_bytes, 0);
  EXPECT_EQ(facts(delayed()).generations_alive, 2);
  EXPECT_EQ(facts(delayed()).extra_bytes, all);
  EXPECT_EQ(facts(corrected()).extra_bytes, 3 * all);  // two generations of two copies, one of them .grad
  EXPECT_EQ(facts(filtered()).extra_bytes, all);       // the residual
  EXPECT_EQ(facts(local_steps()).extra_bytes, 0);
  EXPECT_EQ(facts(delayed_average()).extra_bytes, 4 * 10);  // b and c in flight, or a
  // Anchors and momenta of all, and 10 elements in 4 bits with a scale, in two shares that are rounded up.
  EXPECT_EQ(facts(compressed_average()).extra_bytes, 2 * all + 4 + 5 + 1);
  Plan no_momentum = compressed_average();
  no_momentum.outer->momentum = 0;
  EXPECT_EQ(facts(no_momentum).extra_bytes, all + 10);
  Plan exact = delayed_average();
  exact.outer.emplace();
  EXPECT_EQ(facts(exact).extra_bytes, all + 4 * 10);
  Workload halves = three_layers();
  for (Layer& layer : halves.layers) {
    for (Tensor& tensor : layer.tensors) tensor.dtype = DType::kBFloat16;
  }
  EXPECT_EQ(validate(exact, halves).facts.extra_bytes, all + 4 * 10);  // gains are float32
  EXPECT_EQ(validate(delayed_average(), halves).facts.extra_bytes, 2 * 10);
  EXPECT_FALSE(facts(delayed()).mixed_staleness);
  Plan mixed = delayed();
  mixed.period[1].applies[0].blocks = {0, 1, 2};
  mixed.period[0].applies = {{.at = iteration_end(), .blocks = {3}, .merges = {-2, -1}}};
  EXPECT_TRUE(facts(mixed).mixed_staleness);
}

TEST(Validate, StopsAtTheLimitOfViolations) {
  Plan plan = synchronous();
  plan.period.resize(1000);
  for (Iteration& iteration : plan.period) iteration.ops = {{.link = "?", .blocks = {9}, .merges = {1}}};
  EXPECT_EQ(validate(plan, three_layers()).violations.size(), kMaxViolations);
}

TEST(Validate, NeedsNoTensors) {
  Workload workload{.name = "empty", .layers = {{.name = "l", .forward_ns = 1}}};
  Plan plan;
  plan.period.resize(1);
  EXPECT_TRUE(validate(plan, workload).valid());
}

// 100,000 blocks, ops and applies in less than a few seconds even in a slow build: the time is near linear.
TEST(Validate, IsQuickOnLargePlans) {
  constexpr std::int32_t kBlocks = 100'000;
  const Workload workload{
      .name = "big",
      .layers = {{.name = "l", .forward_ns = 1, .backward_ns = 1, .tensors = {{"t", kBlocks}}}}};
  Plan plan;
  plan.links = {{"net", 1}};
  plan.period.resize(1);
  for (std::int32_t b = 0; b < kBlocks; ++b) {
    plan.blocks.push_back({"t", b, b + 1});
    plan.period[0].ops.push_back(
        {.link = "net", .blocks = {b}, .merges = {-1}, .release = at_backward_end(0, -1)});
    plan.period[0].applies.push_back({.at = forward_start(0), .blocks = {b}, .merges = {-1}, .slices = true});
  }
  const auto start = std::chrono::steady_clock::now();
  EXPECT_TRUE(validate(plan, workload).valid());
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

TEST(Validate, RefusesWhatIsTooLargeToUnroll) {
  Plan plan = synchronous();
  plan.period[0].ops[0].merges = {-1'000'000};
  plan.prologue.resize(10);
  for (int i = 0; i < 1000; ++i) plan.period[0].ops.push_back(plan.period[0].ops[0]);
  EXPECT_THAT(texts_of(plan), Contains(HasSubstr("too large to be checked")));
}

}  // namespace
}  // namespace gradweave
