// The best plan of a family that can be found, and a proof of how far from the optimum it is at most.
//
// Families: `exact`, without staleness, with forward overlap; `local`, each parameter averaged at least once in
// H iterations, as late as the next forward. H = 1 below is for `exact`. A link carries as many messages at once
// as the cluster says, or more if all are all-reduces (asc_wfbp).
//   1. The plans of every scheme of that effect, simulated; for `local` also those of arbitrary_sets()
//      (solve/intervals.h).
//   2. The bound that holds for any plan of the family, however it cuts, fuses and orders, on links shared or
//      not. For each layer l, what layers 0..l send passes in H windows that open with backward_end(l) and close
//      with the next forward_start(l), of
//        window(l) = T_f + T_b - backward_end(l) + forward_start(l)
//      and as much more as that iteration is longer than T_f + T_b. All links together need at least w(0..l) for
//      it and a start-up a in each window that is used, so that with n windows in use
//        H T >= H (T_f + T_b) + w(0..l) + min over 1 <= n <= H of n (a - window(l))                (1)
//   3. `exact`, on links that serve one op at a time, with few tensors: search_order() over all orders, fusions,
//      splits into reduce-scatter and all-gather, and assignments to links, of tensors cut into `parts`
//      (solve/order_search.h). On several links both halves of a message use one of them.
// Proof: the plan meets (1); or it is of the kind that is searched, and the search has ended; else the bound is (1).
//
// Complexity: a plan and a simulation for each scheme, and O(node_limit) nodes.
// On two levels (1) is of the links between nodes, and 1. alone is done.
// The claim of step 3 is over whole parts: cutting finer may still be better, and so may halves on two links. With a
// compressor only T_f + T_b is proved.
#include "schemes/optimal.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <ranges>
#include <span>
#include <string_view>

#include "gradweave/error.h"
#include "schemes/candidates.h"
#include "schemes/common.h"
#include "schemes/dreamddp/plan_of_sets.h"
#include "schemes/option_table.h"
#include "schemes/registry.h"
#include "solve/intervals.h"
#include "solve/order_search.h"

namespace gradweave {
namespace {

enum class Family : std::uint8_t { kExact, kLocal };

struct OptimalOptions {
  Family family = Family::kExact;
  std::int64_t parts = 1;  // of each tensor
  std::int64_t node_limit = 200'000;
  std::int64_t period = kDefaultPeriod;  // H
  Compression compression;
};

// What is known of the family's optimum.
struct Proof {
  double bound_ns = 0;
  std::string by;        // what proves it
  bool optimum = false;  // the bound is reached
};

bool one_at_a_time(const Cluster& cluster) {
  return std::ranges::all_of(cluster.links, [](const Link& link) { return link.concurrency == 1; });
}

bool halves_measured(const Cluster& cluster) {
  return std::ranges::any_of(cluster.links, [](const Link& link) { return link.halves.has_value(); });
}

// The least that `slices` cost on one link, by all-reduces or by halves. On shared links start-ups pass beside
// the work of others, and an all-gather's is hidden.
OpCost least_cost_on(const CostModel& model, std::size_t link, std::span<const Slice> slices) {
  const OpCost whole = model.cost(link, Collective::kAllReduce, slices);
  const OpCost scatter = model.cost(link, Collective::kReduceScatter, slices);
  const OpCost gather = model.cost(link, Collective::kAllGather, slices);
  const Nanoseconds startup = one_at_a_time(model.cluster())
                                  ? std::min(whole.startup, scatter.startup + gather.startup)
                                  : std::min({whole.startup / 2, scatter.startup, gather.startup});
  return {startup, std::min(whole.work, scatter.work + gather.work)};
}

// Time in which all links together can carry `slices`, at least, whatever the plan's fusion. Given times hide a
// start-up.
OpCost least_cost(const CostModel& model, const std::vector<Slice>& slices) {
  std::vector<double> speed;  // share of the whole that link k carries in a nanosecond, at most
  Nanoseconds startup = std::numeric_limits<Nanoseconds>::max();
  bool given = false;
  for (const Slice& slice : slices) given |= model.has_given_time(slice.tensor);
  if (model.link_count() == 1) {
    const OpCost cost = least_cost_on(model, 0, slices);
    return {given ? 0 : cost.startup, cost.work};
  }
  // With several links of unlike speed ratios, each byte is taken to go where it is fastest relative to the
  // others: weights as in a dual solution of the fluid relaxation, sum 1.
  double total = 0;
  for (std::size_t k = 0; k < model.link_count(); ++k) {
    const OpCost cost = least_cost_on(model, k, slices);
    startup = std::min(startup, cost.startup);
    speed.push_back(1.0 / static_cast<double>(std::max<Nanoseconds>(1, cost.work)));
    total += speed.back();
  }
  double work = 0;
  for (const Slice& slice : slices) {
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t k = 0; k < model.link_count(); ++k) {
      const Nanoseconds own =
          std::max<Nanoseconds>(0, least_cost_on(model, k, std::span(&slice, 1)).work - 1);
      least = std::min(least, speed[k] / total * static_cast<double>(own));
    }
    work += least;
  }
  return {given ? 0 : startup, static_cast<Nanoseconds>(work * (1 - 1e-12))};
}

// Eq. 1; `period` is H. Exact but for given times on several links: a block's share rounds down on its own link,
// so that a plan of many blocks may be below by 1 ns for each.
Proof window_bound(const CostModel& model, std::int64_t period) {
  const WorkloadIndex& index = model.index();
  const auto compute = static_cast<double>(index.compute_total);
  const auto iterations = static_cast<double>(period);
  Proof proof{compute, "compute"};
  std::vector<Slice> prefix;
  for (std::size_t l = 0; l < index.layer_count; ++l) {
    for (std::size_t t = index.first_tensor[l]; t < index.first_tensor[l + 1]; ++t)
      prefix.push_back({t, 0, index.tensors[t].numel});
    if (index.first_tensor[l] == index.first_tensor[l + 1]) continue;
    const OpCost least = least_cost(model, prefix);
    const Nanoseconds window = index.compute_total - index.backward_end[l] + index.forward_start[l];
    const auto excess = static_cast<double>(least.startup - window);
    const double stalls = static_cast<double>(least.work) + (excess < 0 ? iterations : 1) * excess;
    const double bound = (iterations * compute + stalls) / iterations;
    if (bound > proof.bound_ns) proof = {bound, "critical path through layer " + std::to_string(l)};
  }
  return proof;
}

std::vector<Slice> parts_of(const CostModel& model, std::int64_t parts) {
  std::vector<Slice> units;
  for (std::size_t t = 0; t < model.index().tensors.size(); ++t) {
    const std::int64_t numel = model.index().tensors[t].numel;
    const std::int64_t count = std::min(parts, numel);
    for (std::int64_t i = 0; i < count; ++i)
      units.push_back({t, floor_share(numel, i, count), floor_share(numel, i + 1, count)});
  }
  return units;
}

// Whether the search goes over plans like this one: of whole units, each on one link, that send one message at a time.
bool is_searched(const Plan& plan, const CostModel& model, const std::vector<Slice>& units) {
  for (const PlanLink& link : plan.links) {
    if (link.concurrency != 1) return false;
  }
  for (const Block& block : plan.blocks) {
    const std::size_t tensor = *model.index().find_tensor(block.tensor);
    bool begins = false, ends = false;
    for (const Slice& unit : units) {
      if (unit.tensor != tensor) continue;
      begins |= unit.begin == block.begin;
      ends |= unit.end == block.end;
    }
    if (!begins || !ends) return false;
  }
  std::map<std::int32_t, std::string_view> links;  // by block
  for (const Op& op : plan.period | std::views::transform(&Iteration::ops) | std::views::join) {
    for (const std::int32_t block : op.blocks) {
      if (links.try_emplace(block, op.link).first->second != op.link) return false;
    }
  }
  return true;
}

// The plan that issues `ops` in this order. All are listed in the iteration whose gradients they carry.
Plan plan_of(const CostModel& model, const std::vector<Slice>& units, const std::vector<OrderedOp>& ops) {
  const WorkloadIndex& index = model.index();
  Plan plan = new_plan(model, 1);
  const std::vector<std::int32_t> blocks = add_blocks(plan, model, units);
  for (const OrderedOp& ordered : ops) {
    Op op{.link = plan.links[ordered.link].name, .merges = {0}};
    std::vector<Slice> slices;
    for (std::size_t u = 0; u < units.size(); ++u) {
      if ((ordered.units >> u & 1) == 0) continue;
      op.blocks.push_back(blocks[u]);
      slices.push_back(units[u]);
    }
    op.release = release_when_ready(model, slices);
    if (ordered.kind == OrderedOp::Kind::kReduceScatter) op.collective = Collective::kReduceScatter;
    if (ordered.kind == OrderedOp::Kind::kAllGather) op.collective = Collective::kAllGather;
    plan.period[0].ops.push_back(std::move(op));
  }
  for (std::size_t l = 0; l < index.layer_count; ++l) {
    Apply apply{.at = {.kind = PointKind::kForwardStart, .layer = static_cast<std::int32_t>(l)},
                .merges = {-1}};
    for (std::size_t u = 0; u < units.size(); ++u) {
      if (index.tensors[units[u].tensor].layer == l) apply.blocks.push_back(blocks[u]);
    }
    if (!apply.blocks.empty()) plan.period[0].applies.push_back(std::move(apply));
  }
  return plan;
}

// Returns the plans of every scheme of that effect, tuned from the options on to which `prepare` sets them.
std::vector<Candidate> plans_of(Effect effect, const Workload& workload, const Cluster& cluster,
                                const std::function<void(SchemeOptions&)>& prepare) {
  const CandidateMaker maker(workload, cluster);
  std::vector<Candidate> candidates;
  for (const SchemeInfo& scheme : schemes()) {
    if (scheme.chooses || scheme.effect != effect) continue;
    SchemeOptions options = options_of(scheme.name);
    prepare(options);
    maker.tune(options, candidates);
  }
  if (candidates.empty() && maker.refusal()) throw *maker.refusal();
  return candidates;
}

const Candidate& best_of(const std::vector<Candidate>& candidates) {
  return *std::ranges::min_element(candidates, faster, &Candidate::result);
}

// Returns the plan of `best` with what was found: whose it is, and how good any other of the family can be.
Plan report(const Candidate& best, const Proof& proof) {
  Plan plan = best.plan;
  plan.search_report = SearchReport{.chosen = summary_of(best),
                                    .lower_bound_us = bound_us(proof.bound_ns),
                                    .proof = proof.by,
                                    .optimum = proof.optimum};
  plan.options.clear();
  return plan;
}

// The search's plan beside those of the schemes.
Candidate found_by_search(Plan plan, const Workload& workload, const Cluster& cluster) {
  Candidate found{.scheme = "search", .options = {}, .plan = std::move(plan), .result = {}, .effects = {}};
  found.result = simulate(found.plan, workload, cluster);
  found.effects = effects_of(found.plan);
  return found;
}

Plan plan_exact(const Workload& workload, const Cluster& cluster, const OptimalOptions& options) {
  const CostModel model(workload, cluster);
  const bool compressed = !options.compression.name.empty();
  const std::vector<Candidate> candidates =
      plans_of(Effect::kExact, workload, cluster, [&](SchemeOptions& of_scheme) {
        if (compressed) set_compression(of_scheme, options.compression);
      });
  const Candidate& best = best_of(candidates);
  const double time = best.result.iteration_ns();
  const auto compute = static_cast<double>(model.index().compute_total);
  if (compressed) {
    if (time == compute) return report(best, {compute, "compute", true});
    return report(best, {compute, "none beyond compute, with a compressor"});
  }
  Proof proof = window_bound(model, 1);
  if (time <= proof.bound_ns) return report(best, {time, proof.by, true});

  const std::vector<Slice> units = parts_of(model, options.parts);
  if (has_levels(cluster) || !one_at_a_time(cluster) || halves_measured(cluster) ||
      units.size() > kMaxOrderUnits) {
    proof.by += has_levels(cluster) ? "; no search over two levels of links"
                : halves_measured(cluster)
                    ? "; no search where halves of an all-reduce have costs of their own"
                    : "; links are shared or tensors too many to search";
    return report(best, proof);
  }
  const auto limit = static_cast<Nanoseconds>(std::ceil(time));
  const OrderSearchResult found = search_order(model, units, limit, options.node_limit);
  const std::string nodes = std::to_string(found.nodes) + " nodes";
  if (!found.complete) {
    proof.by += "; the search ended at " + nodes;
  } else if (found.ops.empty() && !is_searched(best.plan, model, units)) {
    proof.by += "; a search of " + nodes + " found nothing faster";
  } else {
    proof = {std::min(time, static_cast<double>(found.iteration)),
             "search of " + nodes + ", tensors " +
                 (options.parts == 1 ? "whole" : "in " + std::to_string(options.parts) + " parts") +
                 (model.link_count() == 1 ? "" : ", halves on one link"),
             true};
  }
  if (found.ops.empty()) return report(best, proof);
  return report(found_by_search(plan_of(model, units, found.ops), workload, cluster), proof);
}

Plan plan_local(const Workload& workload, const Cluster& cluster, const OptimalOptions& options) {
  const CostModel model(workload, cluster);
  std::vector<Candidate> candidates;
  for (const bool overlaps : {false, true}) {
    std::ranges::move(plans_of(Effect::kLocal, workload, cluster,
                               [&](SchemeOptions& of_scheme) {
                                 of_scheme.set("period", options.period);
                                 if (overlaps && of_scheme.spec("forward_overlap") != nullptr)
                                   of_scheme.set("forward_overlap", "on");
                               }),
                      std::back_inserter(candidates));
  }
  if (!has_levels(cluster)) {
    const Packer packer(model, true);
    const Assignment sets =
        arbitrary_sets(packer, static_cast<std::size_t>(options.period), options.node_limit);
    candidates.insert(candidates.begin(),
                      found_by_search(plan_of_sets(model, packer, sets, true), workload, cluster));
  }
  const Candidate& best = best_of(candidates);
  Proof proof = window_bound(model, options.period);
  const double time = best.result.iteration_ns();
  if (time <= proof.bound_ns) proof = {time, proof.by, true};
  return report(best, proof);
}

void check_optimal(const OptimalOptions& options) {
  if (options.family == Family::kLocal && !options.compression.name.empty()) {
    throw InvalidInput("the family 'local' is searched without compression", "option compressor of optimal",
                       "leave it out, or use family=exact");
  }
}

PlanResult plan_optimal(const Workload& workload, const Cluster& cluster, const OptimalOptions& options) {
  if (options.family == Family::kExact) return plan_exact(workload, cluster, options);
  return plan_local(workload, cluster, options);
}

}  // namespace

bool optimal_searches(const Workload& workload, const Cluster& cluster) {
  return !has_levels(cluster) && one_at_a_time(cluster) && !halves_measured(cluster) &&
         WorkloadIndex(workload).tensors.size() <= kMaxOrderUnits;
}

SchemeInfo optimal_scheme() {
  return scheme_row<OptimalOptions>(
      {.name = "optimal",
       .summary = "the exact optimum where a search can prove it, else the best plan known and a lower bound",
       .paper = "",
       .effect = Effect::kExact,
       .chooses = true},
      {option(&OptimalOptions::family, {{"exact", Family::kExact}, {"local", Family::kLocal}},
              {.name = "family",
               .default_source = "Gradweave",
               .meaning = "over which plans: without staleness, or averages of parameters once in `period`"}),
       option(&OptimalOptions::parts,
              {.name = "parts",
               .default_source = "Gradweave: whole tensors",
               .minimum = 1,
               .maximum = kMaxOrderUnits,
               .meaning = "family exact: the search cuts each tensor into this many equal parts"}),
       option(&OptimalOptions::node_limit,
              {.name = "node_limit",
               .unit = Unit::kNodes,
               .default_source = "Gradweave: below a second",
               .minimum = 0,
               .maximum = 1e9,
               .meaning = "after this many nodes the search ends with the best found"}),
       option(&OptimalOptions::period, {.name = "period",
                                        .unit = Unit::kIterations,
                                        .default_source = "DreamDDP, Sections 4.5 and 4.6: H = 5",
                                        .minimum = 1,
                                        .maximum = 1000,
                                        .meaning = "family local: H"})},
      plan_optimal, check_optimal);
}

}  // namespace gradweave
