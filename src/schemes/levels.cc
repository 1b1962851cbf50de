// A plan of one level over two.
//
// Between nodes the order is the scheme's. On the links inside, steps of several messages meet: the reduce-scatter of one
// has to pass while another is between nodes and a third is gathered. Their order is a list schedule's, first come, first
// served: the plan is simulated as if each link between nodes had links inside of its own for scatters and for gathers,
// so that no step waits for a step of another kind; ops are then listed as they start there. A gather that starts after
// scatters of the next iteration is listed there, if its apply allows it.
//
// Such an order can't deadlock. Whoever stands before an op in the list starts before it in that simulation, and what
// starts later is not waited for; where an apply keeps a gather from moving to the next iteration, that apply passes
// before the scatters there are released. On one link for all steps it may still be the longer one, so the plan competes
// with one whose ops are listed message by message, which, with one link on each level, takes as long as the flat plan at most.
#include "schemes/levels.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gradweave/cost.h"
#include "gradweave/simulate.h"
#include "plan/compiled_plan.h"
#include "schemes/candidates.h"

namespace gradweave {
namespace {

// Iterations of the timeline beyond three periods: messages of short periods may be late by some.
constexpr std::int64_t kMoreIterations = 4;

class LevelSplitter {
 public:
  LevelSplitter(const Plan& flat, const Workload& workload, const Cluster& cluster)
      : flat_(flat), model_(workload, cluster), loads_(cluster.inside->links.size(), 0) {}

  // Returns the plan with the steps of each message one after another.
  Plan split() {
    Plan plan = flat_;
    plan.workers_per_node = model_.cluster().workers_per_node;
    plan.links.clear();
    for (const Link& link : model_.cluster().inside->links)
      plan.links.push_back({link.name, link.concurrency, Level::kInside});
    for (const PlanLink& link : flat_.links)
      plan.links.push_back({link.name, link.concurrency, Level::kBetween});
    for (std::vector<Iteration>* iterations : {&plan.prologue, &plan.period}) {
      for (Iteration& iteration : *iterations) {
        std::vector<Op> steps;
        for (const Op& op : iteration.ops) add_steps(op, steps);
        iteration.ops = std::move(steps);
      }
    }
    return plan;
  }

 private:
  void add_steps(const Op& op, std::vector<Op>& steps) {
    Op inside = op;
    inside.link = model_.cluster().inside->links[link_of(op)].name;
    inside.compression = {};
    const auto add = [&](Collective collective) {
      inside.collective = collective;
      steps.push_back(inside);
    };
    if (op.collective != Collective::kAllGather) add(Collective::kReduceScatter);
    steps.push_back(op);
    if (op.collective != Collective::kReduceScatter) add(Collective::kAllGather);
  }

  // The link inside that carries these blocks, whatever the iteration: the one with the least to do so far.
  std::size_t link_of(const Op& op) {
    const auto [place, is_new] = links_.emplace(op.blocks, 0);
    if (!is_new) return place->second;
    std::vector<Slice> slices;
    for (const std::int32_t b : op.blocks) {
      const Block& block = flat_.blocks[static_cast<std::size_t>(b)];
      slices.push_back({*model_.index().find_tensor(block.tensor), block.begin, block.end});
    }
    const auto loaded = [&](std::size_t k) {
      return loads_[k] +
             model_.cost(model_.link_count() + k, Collective::kAllReduce, slices, {}, op.payload).total();
    };
    for (std::size_t k = 1; k < loads_.size(); ++k) {
      if (loaded(k) < loaded(place->second)) place->second = k;
    }
    loads_[place->second] = loaded(place->second);
    return place->second;
  }

  const Plan& flat_;
  const CostModel model_;
  std::vector<Nanoseconds> loads_;
  std::map<std::vector<std::int32_t>, std::size_t> links_;  // by blocks
};

// When the ops of a plan start if no step inside waits for one of another kind: of slot s op k at starts[s][k] after the
// begin of its iteration, which lasts iterations[s]; kUnknown where the timeline is too short.
struct Starts {
  std::vector<std::vector<Nanoseconds>> starts;
  std::vector<Nanoseconds> iterations;
};

constexpr Nanoseconds kUnknown = std::numeric_limits<Nanoseconds>::min();

// The link between nodes that a step inside belongs to is that of the next op between nodes in the list, or, of a gather,
// of the last one.
std::string own_link(const std::vector<Op>& ops, std::size_t k) {
  const bool gathers = ops[k].collective == Collective::kAllGather;
  return ops[k].link + (gathers ? " gathers " + ops[k - 1].link : " scatters " + ops[k + 1].link);
}

Starts starts_of(const Plan& plan, const Workload& workload, const Cluster& cluster) {
  Plan apart = plan;
  Cluster wide = cluster;
  wide.inside->links.clear();
  std::erase_if(apart.links, [](const PlanLink& link) { return link.level == Level::kInside; });
  for (std::vector<Iteration>* iterations : {&apart.prologue, &apart.period}) {
    for (Iteration& iteration : *iterations) {
      const std::vector<Op> ops = iteration.ops;
      for (std::size_t k = 0; k < ops.size(); ++k) {
        const std::optional<std::size_t> inside = find_inside_link(cluster, ops[k].link);
        if (!inside) continue;
        std::string& name = iteration.ops[k].link;
        name = own_link(ops, k);
        if (find_inside_link(wide, name)) continue;
        Link link = link_at(cluster, *inside);
        link.name = name;
        apart.links.push_back({name, link.concurrency, Level::kInside});
        wide.inside->links.push_back(std::move(link));
      }
    }
  }
  const auto prologue = std::ssize(plan.prologue), period = std::ssize(plan.period);
  Starts found{{}, std::vector<Nanoseconds>(static_cast<std::size_t>(prologue + period), kUnknown)};
  for (std::int64_t s = 0; s < prologue + period; ++s)
    found.starts.emplace_back(iteration_at(plan, s).ops.size(), kUnknown);
  const SimulationResult result = simulate(
      apart, workload, wide, {.plan_facts = false, .timeline_iterations = 3 * period + kMoreIterations});
  const auto begins = figures_of(result.timeline).begins;
  const auto slot_of = [&](std::int64_t n) {
    return static_cast<std::size_t>(n < prologue ? n : prologue + (n - prologue) % period);
  };
  for (auto begin = begins.begin(); begin != begins.end(); ++begin) {
    if (const auto next = std::next(begin); next != begins.end() && next->first == begin->first + 1)
      found.iterations[slot_of(begin->first)] = next->second - begin->second;
  }
  for (const Span& span : result.timeline.spans) {
    const auto begin = begins.find(span.iteration);
    if (span.kind != SpanKind::kOp || begin == begins.end()) continue;
    found.starts[slot_of(span.iteration)][static_cast<std::size_t>(span.op)] = span.begin_ns - begin->second;
  }
  return found;
}

// How many iterations later than listed each op may be listed: [slot][op]. 0 with a prologue, whose iterations would have
// to do without those ops, and for all but gathers inside.
std::vector<std::vector<std::int32_t>> slack_of(const Plan& plan, const WorkloadIndex& index) {
  std::vector<std::vector<std::int32_t>> slack;
  const CompiledPlan compiled(resolve(plan, index, nullptr));
  for (const ResolvedIteration& slot : compiled.slots) slack.emplace_back(slot.ops.size(), 0);
  if (compiled.prologue > 0) return slack;
  std::vector<std::vector<bool>> known;
  for (const auto& of_slot : slack) known.emplace_back(of_slot.size(), false);
  const std::int64_t first = (compiled.reach / compiled.period + 1) * compiled.period;
  for (std::int64_t n = first; n < first + compiled.period; ++n) {
    for (std::size_t k = 0; k < compiled.iteration(n).applies.size(); ++k) {
      for (const Delivery& delivery : compiled.deliveries(n, k)) {
        const std::size_t slot = compiled.slot_of(n + delivery.op.delta);
        const auto op = static_cast<std::size_t>(delivery.op.op);
        std::int32_t& least = slack[slot][op];
        least = known[slot][op] ? std::min(least, -delivery.op.delta) : -delivery.op.delta;
        known[slot][op] = true;
      }
    }
  }
  return slack;
}

// One op in the new list of an iteration.
struct Listed {
  Nanoseconds start = 0;
  std::size_t place = 0;  // in the old list; ops from an iteration before come first
  Op op;
};

// Returns the plan with the ops of each iteration in the order in which they start; as it is, if some start too many
// iterations after they are listed.
Plan ordered_by_start(const Plan& plan, const Workload& workload, const Cluster& cluster) {
  const Starts found = starts_of(plan, workload, cluster);
  const auto unknown = [](const std::vector<Nanoseconds>& starts) {
    return std::ranges::find(starts, kUnknown) != starts.end();
  };
  if (std::ranges::any_of(found.starts, unknown)) return plan;
  const auto slack = slack_of(plan, WorkloadIndex(workload));
  const std::size_t prologue = plan.prologue.size(), slots = prologue + plan.period.size();
  std::vector<std::vector<Listed>> lists(slots);
  // When the first scatter of each slot starts.
  std::vector<Nanoseconds> first_scatter(slots, std::numeric_limits<Nanoseconds>::max());
  for (std::size_t s = 0; s < slots; ++s) {
    const std::vector<Op>& ops = iteration_at(plan, static_cast<std::int64_t>(s)).ops;
    for (std::size_t k = 0; k < ops.size(); ++k) {
      if (ops[k].collective == Collective::kReduceScatter && find_inside_link(cluster, ops[k].link))
        first_scatter[s] = std::min(first_scatter[s], found.starts[s][k]);
    }
  }
  for (std::size_t s = 0; s < slots; ++s) {
    const std::vector<Op>& ops = iteration_at(plan, static_cast<std::int64_t>(s)).ops;
    for (std::size_t k = 0; k < ops.size(); ++k) {
      Listed listed{found.starts[s][k], k + ops.size(), ops[k]};
      std::size_t slot = s;
      std::int32_t later = 0;
      for (; later < slack[s][k]; ++later) {
        const std::size_t next = slot + 1 < slots ? slot + 1 : prologue;
        const Nanoseconds start = listed.start - found.iterations[slot];
        if (found.iterations[slot] == kUnknown || start <= first_scatter[next]) break;
        listed.start = start;
        slot = next;
      }
      if (later > 0) listed.place = k;
      for (std::int32_t& merge : listed.op.merges) merge -= later;
      listed.op.release.point.iteration -= later;
      lists[slot].push_back(std::move(listed));
    }
  }
  Plan ordered = plan;
  for (std::size_t s = 0; s < slots; ++s) {
    Iteration& iteration = s < prologue ? ordered.prologue[s] : ordered.period[s - prologue];
    iteration.ops.clear();
    std::ranges::sort(lists[s], {},
                      [](const Listed& listed) { return std::pair(listed.start, listed.place); });
    for (Listed& listed : lists[s]) iteration.ops.push_back(std::move(listed.op));
  }
  return ordered;
}

}  // namespace

Plan over_levels(const Plan& flat, const Workload& workload, const Cluster& cluster) {
  Plan plan = LevelSplitter(flat, workload, cluster).split();
  const auto idle = [](const Iteration& iteration) { return iteration.ops.empty(); };
  if (std::ranges::all_of(plan.prologue, idle) && std::ranges::all_of(plan.period, idle)) return plan;
  Plan ordered = ordered_by_start(plan, workload, cluster);
  const SimulationOptions options{.plan_facts = false};
  const bool longer =
      faster(simulate(plan, workload, cluster, options), simulate(ordered, workload, cluster, options));
  return longer ? plan : ordered;
}

}  // namespace gradweave
