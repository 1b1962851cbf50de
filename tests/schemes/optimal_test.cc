// The search for the best order, and the scheme on top of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "gradweave/error.h"
#include "gradweave/json.h"
#include "gradweave/schemes.h"
#include "gradweave/simulate.h"
#include "gradweave/validate.h"
#include "simulate/table2.h"
#include "solve/order_search.h"
#include "testing/generators.h"

namespace gradweave {
namespace {

using testing::clusters;
using ::testing::HasSubstr;
using testing::workloads;

constexpr Nanoseconds kNoLimit = std::int64_t{1} << 60;

std::vector<Slice> tensors_of(const CostModel& model) {
  std::vector<Slice> units;
  for (std::size_t t = 0; t < model.index().tensors.size(); ++t)
    units.push_back({t, 0, model.index().tensors[t].numel});
  return units;
}

// Tries every sequence of every message on every link, with no bound and no rule but the definition.
class BruteForce {
 public:
  BruteForce(const CostModel& model, const std::vector<Slice>& units) : model_(model), units_(units) {}

  Nanoseconds run() {
    free_.assign(model_.link_count(), 0);
    best_ = kNoLimit;
    extend((1u << units_.size()) - 1, model_.index().compute_total);
    return best_;
  }

 private:
  struct Pending {
    std::vector<Slice> slices;
    std::size_t link;
    Nanoseconds end;
  };

  void extend(std::uint32_t left, Nanoseconds value) {
    if (value >= best_) return;
    if (left == 0 && pending_.empty()) best_ = value;
    for (std::size_t i = 0; i < pending_.size(); ++i) {
      const Pending gathered = pending_[i];
      pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(i));
      on_link(gathered.link, gathered.end, Collective::kAllGather, gathered.slices,
              [&](Nanoseconds end) { extend(left, std::max(value, end + tail(gathered.slices))); });
      pending_.insert(pending_.begin() + static_cast<std::ptrdiff_t>(i), gathered);
    }
    for (std::uint32_t m = left; m != 0; m = (m - 1) & left) {
      std::vector<Slice> slices;
      for (std::size_t u = 0; u < units_.size(); ++u) {
        if ((m >> u & 1) != 0) slices.push_back(units_[u]);
      }
      if (!one_dtype(slices)) continue;
      for (std::size_t k = 0; k < free_.size(); ++k) {
        on_link(k, ready(slices), Collective::kAllReduce, slices,
                [&](Nanoseconds end) { extend(left & ~m, std::max(value, end + tail(slices))); });
        on_link(k, ready(slices), Collective::kReduceScatter, slices, [&](Nanoseconds end) {
          pending_.push_back({slices, k, end});
          extend(left & ~m, value);
          pending_.pop_back();
        });
      }
    }
  }

  template <typename Then>
  void on_link(std::size_t k, Nanoseconds available, Collective collective, const std::vector<Slice>& slices,
               const Then& then) {
    const Nanoseconds before = free_[k];
    free_[k] = std::max(before, available) + model_.cost(k, collective, slices).total();
    then(free_[k]);
    free_[k] = before;
  }

  bool one_dtype(const std::vector<Slice>& slices) const {
    return std::ranges::all_of(slices, [&](const Slice& slice) {
      return model_.index().tensors[slice.tensor].dtype == model_.index().tensors[slices[0].tensor].dtype;
    });
  }
  Nanoseconds ready(const std::vector<Slice>& slices) const {
    Nanoseconds latest = 0;
    for (const Slice& slice : slices)
      latest = std::max(latest, model_.index().backward_end[model_.index().tensors[slice.tensor].layer]);
    return latest - model_.index().forward_total;
  }
  Nanoseconds tail(const std::vector<Slice>& slices) const {
    Nanoseconds longest = 0;
    for (const Slice& slice : slices) {
      longest =
          std::max(longest, model_.index().forward_total -
                                model_.index().forward_start[model_.index().tensors[slice.tensor].layer]);
    }
    return longest;
  }

  const CostModel& model_;
  const std::vector<Slice>& units_;
  std::vector<Nanoseconds> free_;
  std::vector<Pending> pending_;
  Nanoseconds best_ = kNoLimit;
};

Workload two_layers() {
  Workload workload{.name = "w"};
  workload.layers = {
      {.name = "a", .forward_ns = 100, .backward_ns = 200, .tensors = {{.name = "a.w", .numel = 100}}},
      {.name = "b", .forward_ns = 300, .backward_ns = 400, .tensors = {{.name = "b.w", .numel = 200}}}};
  return workload;
}

Cluster one_link(Nanoseconds startup, Decimal us_per_byte) {
  Cluster cluster{.workers = 2};
  cluster.links.push_back({.name = "net", .startup_ns = startup, .us_per_byte = us_per_byte});
  return cluster;
}

Plan plan_of(std::string_view scheme, const Workload& workload, const Cluster& cluster,
             const std::map<std::string, std::string>& options = {}) {
  return std::get<Plan>(make_plan(scheme, workload, cluster, options));
}

TEST(OrderSearch, FindsWhatHandComputationFinds) {
  // 1 ns a byte: b takes 800 from 400 to 1200, a 400 more, then both forwards: 2000. In halves a's pair may
  // go first where b's all-gather waits: b's 400..800, a's 800..1200, b's 1200..1600; a's forward 1200..1300,
  // b's 1600..1900.
  const Cluster cluster = one_link(0, {1, 3});
  const CostModel model(two_layers(), cluster);
  const OrderSearchResult found = search_order(model, tensors_of(model), kNoLimit, 100'000);
  EXPECT_TRUE(found.complete);
  EXPECT_EQ(found.iteration, 1900);
  const std::vector<OrderedOp> expected = {{OrderedOp::Kind::kReduceScatter, 0, 2},
                                           {OrderedOp::Kind::kAllReduce, 0, 1},
                                           {OrderedOp::Kind::kAllGather, 0, 2}};
  EXPECT_EQ(found.ops, expected);
}

TEST(OrderSearch, FusesWhereStartUpDominates) {
  const Cluster cluster = one_link(10'000, {1, 6});
  const CostModel model(two_layers(), cluster);
  const OrderSearchResult found = search_order(model, tensors_of(model), kNoLimit, 100'000);
  ASSERT_EQ(found.ops.size(), 1u);
  EXPECT_EQ(found.ops[0].units, 3u);
}

TEST(OrderSearch, SaysWhenItDidNotFinish) {
  const Cluster cluster = one_link(10, {1, 3});
  const CostModel model(two_layers(), cluster);
  EXPECT_FALSE(search_order(model, tensors_of(model), kNoLimit, 1).complete);
  const OrderSearchResult nothing = search_order(model, tensors_of(model), 1000, 100'000);
  EXPECT_TRUE(nothing.complete);  // the compute time is a bound
  EXPECT_TRUE(nothing.ops.empty());
}

RC_GTEST_PROP(OrderSearch, EqualsBruteForceOverAllSequences, ()) {
  const Workload workload = *workloads({.max_layers = 3, .max_tensors = 1});
  const Cluster cluster = *clusters({.max_links = 2, .fluid = false});
  const CostModel model(workload, cluster);
  const std::vector<Slice> units = tensors_of(model);
  RC_PRE(units.size() <= 3);
  const OrderSearchResult found = search_order(model, units, kNoLimit, 10'000'000);
  RC_ASSERT(found.complete);
  RC_ASSERT(found.iteration == BruteForce(model, units).run());
}

// Bounds are microseconds, rounded down to 6 places.
constexpr double kRounding = 0.002;  // ns

RC_GTEST_PROP(Optimal, IsNoWorseThanAnyExactSchemeAndNoBetterThanItsBound, ()) {
  const Workload workload = *workloads({.max_layers = 4, .max_tensors = 2});
  const Cluster cluster = *clusters({.max_links = 2, .halves = true});
  const std::string parts = std::to_string(*rc::gen::inRange(1, 3));
  const Plan plan = plan_of("optimal", workload, cluster, {{"parts", parts}, {"node_limit", "3000"}});
  const Validation validation = validate(plan, workload, &cluster);
  RC_ASSERT(validation.violations.empty());
  RC_ASSERT(effects_of(plan) == std::vector<Effect>{Effect::kExact});
  const double time = simulate(plan, workload, cluster).iteration_ns();
  const double bound = plan.search_report->lower_bound_us * 1000;
  RC_ASSERT(bound <= time + kRounding);
  if (plan.search_report->optimum) RC_ASSERT(time <= bound + kRounding);
  // A search over whole tensors proves nothing of a plan that cuts them.
  if (parts == "1" && plan.search_report->proof.starts_with("search")) {
    const WorkloadIndex index(workload);
    for (const Block& block : plan.blocks)
      RC_ASSERT(block.end - block.begin == index.tensors[*index.find_tensor(block.tensor)].numel);
    for (const PlanLink& link : plan.links) RC_ASSERT(link.concurrency == 1);
  }
  for (const SchemeInfo& scheme : schemes()) {
    if (scheme.effect != Effect::kExact || scheme.chooses) continue;
    const PlanResult other = make_plan(scheme.name, workload, cluster);
    if (const Plan* its = std::get_if<Plan>(&other)) {
      const double its_time = simulate(*its, workload, cluster).iteration_ns();
      RC_ASSERT(time <= its_time);
      RC_ASSERT(bound <= its_time + kRounding);
    }
  }
}

RC_GTEST_PROP(Optimal, OfTheLocalFamilyIsNoWorseThanAnyLocalScheme, ()) {
  const Workload workload = *workloads({.max_layers = 5, .max_tensors = 2});
  const Cluster cluster = *clusters({.max_links = 2});
  const std::string period = std::to_string(*rc::gen::inRange(1, 4));
  const Plan plan = plan_of("optimal", workload, cluster,
                            {{"family", "local"}, {"period", period}, {"node_limit", "2000"}});
  RC_ASSERT(validate(plan, workload, &cluster).violations.empty());
  const double time = simulate(plan, workload, cluster).iteration_ns();
  RC_ASSERT(plan.search_report->lower_bound_us * 1000 <= time + kRounding);
  for (std::string_view scheme : {"local_sgd", "partial_sgd", "dreamddp"}) {
    RC_ASSERT(
        time <=
        simulate(plan_of(scheme, workload, cluster, {{"period", period}}), workload, cluster).iteration_ns());
  }
}

// Both layers are sent when the backward ends, and a is awaited 100 us before b: b first, as the queue of
// DreamDDP has it, stalls 100 us, a first 50.
TEST(Optimal, LocalBoundHoldsForAnyOrder) {
  Workload workload{.name = "w"};
  workload.layers = {
      {.name = "a", .forward_ns = 100'000, .communication_ns = 50'000},
      {.name = "b", .forward_ns = 100'000, .backward_ns = 100'000, .communication_ns = 50'000}};
  for (Layer& layer : workload.layers) layer.tensors = {{.name = layer.name + ".w", .numel = 8}};
  const Cluster cluster = one_link(0, {1, 3});
  Plan plan = plan_of("dreamddp", workload, cluster, {{"period", "1"}, {"forward_overlap", "on"}});
  EXPECT_EQ(simulate(plan, workload, cluster).iteration_ns(), 400'000);
  std::vector<Op>& ops = plan.period[0].ops;
  ASSERT_EQ(ops.size(), 1u);
  ops.push_back(ops[0]);
  ops[0].blocks = {0};
  ops[1].blocks = {1};
  EXPECT_TRUE(validate(plan, workload, &cluster).valid());
  EXPECT_EQ(simulate(plan, workload, cluster).iteration_ns(), 350'000);
  const Plan optimal = plan_of("optimal", workload, cluster, {{"family", "local"}, {"period", "1"}});
  EXPECT_EQ(optimal.search_report->lower_bound_us, 350);
}

// H = 2, 800 ns and a start-up of 50. For layer b the window is 1000 - 800 + 100 ns: both are of use, each with a
// start-up: 1000 + (800 + 2 (50 - 300)) / 2. For layer a it is nothing: in one of them, 1000 + (800 + 50) / 2.
TEST(Optimal, LocalBoundUsesAsManyWindowsAsPay) {
  for (const auto& [layer, bound] : {std::pair(1, 1.15), std::pair(0, 1.425)}) {
    Workload workload = two_layers();
    workload.layers[0].tensors.clear();
    std::swap(workload.layers[1].tensors, workload.layers[static_cast<std::size_t>(layer)].tensors);
    const Plan plan =
        plan_of("optimal", workload, one_link(50, {1, 3}), {{"family", "local"}, {"period", "2"}});
    EXPECT_EQ(plan.search_report->lower_bound_us, bound);
  }
}

RC_GTEST_PROP(Optimal, LocalBoundHoldsForPlansOfAnyOrder, ()) {
  const Workload workload = *workloads({.max_layers = 4, .max_tensors = 2});
  const Cluster cluster = *clusters({.max_links = 2});
  const std::string period = std::to_string(*rc::gen::inRange(1, 4));
  const Plan optimal =
      plan_of("optimal", workload, cluster, {{"family", "local"}, {"period", period}, {"node_limit", "200"}});
  Plan plan = plan_of("dreamddp", workload, cluster,
                      {{"period", period}, {"forward_overlap", "on"}, {"fill_bubbles", "off"}});
  for (Iteration& iteration : plan.period) {
    std::vector<Op> ops;  // of one block each
    for (const Op& op : iteration.ops) {
      for (const std::int32_t block : op.blocks) {
        ops.push_back(op);
        ops.back().blocks = {block};
      }
    }
    for (std::size_t i = 0; i < ops.size(); ++i)
      std::swap(ops[i], ops[*rc::gen::inRange<std::size_t>(0, ops.size())]);
    iteration.ops = std::move(ops);
  }
  RC_ASSERT(validate(plan, workload, &cluster).violations.empty());
  RC_ASSERT(optimal.search_report->lower_bound_us * 1000 <=
            simulate(plan, workload, cluster).iteration_ns() + kRounding);
}

TEST(Optimal, FindsTheHandComputedOptimumAndSaysHow) {
  const Plan plan = plan_of("optimal", two_layers(), one_link(0, {1, 3}));
  EXPECT_EQ(simulate(plan, two_layers(), one_link(0, {1, 3})).iteration_ns(), 1900);
  EXPECT_EQ(plan.search_report->lower_bound_us, 1.9);
  EXPECT_TRUE(plan.search_report->optimum);
}

// Table II: the last bucket is ready at 162 us, all links carry 247725 us, then its forward of 103 us.
TEST(Optimal, ProvesThatAPlanOfTable2IsTheBest) {
  const Plan plan = plan_of("optimal", table2_workload(), table2_cluster());
  EXPECT_EQ(plan.search_report->lower_bound_us, 247990);
  EXPECT_EQ(plan.search_report->proof, "critical path through layer 5");
  EXPECT_TRUE(plan.search_report->optimum);
}

TEST(Optimal, NamesTheBoundOfAModelThatIsTooLargeToSearch) {
  Workload workload{.name = "w"};
  for (int l = 0; l < 20; ++l) {
    const std::string name = "l" + std::to_string(l);
    workload.layers.push_back(
        {.name = name, .forward_ns = 100, .backward_ns = 200, .tensors = {{.name = name, .numel = 100}}});
  }
  const Cluster cluster = one_link(50, {1, 3});
  const Plan plan = plan_of("optimal", workload, cluster);
  // Everything, 20 * 400 + 50, after the last layer's backward and before its forward.
  EXPECT_EQ(plan.search_report->lower_bound_us, 8.35);
  EXPECT_FALSE(plan.search_report->optimum);
  EXPECT_EQ(plan.search_report->proof,
            "critical path through layer 19; links are shared or tensors too many to search");
  const double time = simulate(plan, workload, cluster).iteration_ns();
  EXPECT_GT(time, 8350);
  EXPECT_NEAR(plan.search_report->chosen.iteration_us, time / 1000, 1e-6);
  EXPECT_EQ(find_scheme(plan.search_report->chosen.scheme).effect, Effect::kExact);
}

// Halves of 50 and 60 ns on a shared link, start-ups 10 each: the reduce-scatters end at 110 and 120; the gathers'
// start-ups pass beside the second one and the first gather. All is over after 10 + 220: one half start-up.
TEST(Optimal, BoundsASharedLinkByHalfAStartUp) {
  Workload workload{.name = "w"};
  workload.layers = {{.name = "a", .tensors = {{.name = "a.w", .numel = 100, .dtype = DType::kInt8}}},
                     {.name = "b", .tensors = {{.name = "b.w", .numel = 120, .dtype = DType::kInt8}}}};
  Cluster cluster = one_link(20, {1, 3});
  cluster.links[0].concurrency = 0;
  const Plan dear = plan_of("dear", workload, cluster, {{"layers_per_group", "1"}});
  EXPECT_EQ(simulate(dear, workload, cluster).iteration_ns(), 230);
  EXPECT_EQ(plan_of("optimal", workload, cluster).search_report->lower_bound_us, 0.23);
}

TEST(Optimal, ASearchOfWholeTensorsProvesNothingOfACut) {
  const Workload workload = read_workload(GRADWEAVE_SOURCE_DIR "/examples/workloads/covap-table5-vgg19.json");
  const Cluster cluster = read_cluster(GRADWEAVE_SOURCE_DIR "/examples/clusters/deft-table2-two-links.json");
  const Plan plan = plan_of("optimal", workload, cluster);
  EXPECT_GT(plan.blocks.size(), WorkloadIndex(workload).tensors.size());
  EXPECT_FALSE(plan.search_report->optimum);
  EXPECT_LT(plan.search_report->lower_bound_us, plan.search_report->chosen.iteration_us);
  EXPECT_THAT(plan.search_report->proof, HasSubstr("nodes found nothing faster"));
}

// Three messages of 20 ns on two links: halves on both would take 30, which the search doesn't try.
TEST(Optimal, SaysThatHalvesWereOnOneLink) {
  Workload workload{.name = "w"};
  for (const char* name : {"a", "b", "c"})
    workload.layers.push_back(
        {.name = name, .communication_ns = 20, .tensors = {{.name = name, .numel = 1}}});
  Cluster cluster = one_link(0, {1, 3});
  cluster.links.push_back(cluster.links[0]);
  cluster.links[1].name = "other";
  const Plan plan = plan_of("optimal", workload, cluster);
  EXPECT_TRUE(plan.search_report->optimum);
  EXPECT_EQ(plan.search_report->lower_bound_us, 0.04);
  EXPECT_THAT(plan.search_report->proof, HasSubstr("tensors whole, halves on one link"));
}

TEST(Optimal, EmitsAPlanWithoutTensors) {
  Workload workload{.name = "w"};
  workload.layers = {{.name = "a", .forward_ns = 1, .backward_ns = 2}};
  for (const char* family : {"exact", "local"}) {
    const Plan plan = plan_of("optimal", workload, one_link(1, {1, 3}), {{"family", family}});
    EXPECT_EQ(simulate(plan, workload, one_link(1, {1, 3})).iteration_ns(), 3);
  }
}

TEST(Optimal, RefusesToCompressParameters) {
  EXPECT_THROW(
      make_plan("optimal", two_layers(), one_link(1, {1, 3}), {{"family", "local"}, {"compressor", "fp16"}}),
      InvalidInput);
}

}  // namespace
}  // namespace gradweave
