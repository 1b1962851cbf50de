// A slow simulator written plainly from docs/plan.md: every iteration, op and wait in absolute numbers, every
// lookup a search. What the fast ones are compared with.
#pragma once

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <tuple>
#include <vector>

#include "gradweave/cost.h"
#include "gradweave/plan.h"
#include "gradweave/simulate.h"

namespace gradweave::testing {

class Reference {
 public:
  __extension__ using Wide = __int128;

  struct RunningOp {
    std::int64_t iteration = 0;
    std::size_t place = 0;
    const Op* op = nullptr;
    OpCost cost;
    std::size_t link = 0;
    std::optional<Nanoseconds> start, end;
    bool active = false;
    Nanoseconds left = 0;
  };

  // Simulates iterations [0, count) of every class; ops of `margin` more iterations are known.
  Reference(const Plan& plan, std::span<const Workload> classes, const Cluster& cluster,
            const SimulationOptions& options, std::int64_t count, std::int64_t margin)
      : plan_(plan), classes_(classes), model_(classes.front(), cluster), options_(options), count_(count) {
    for (const Block& block : plan.blocks)
      slices_.push_back({*model_.index().find_tensor(block.tensor), block.begin, block.end});
    for (std::int64_t n = 0; n < count + margin; ++n) list_ops(n, cluster);
    for (const Workload& workload : classes) {
      runners_.emplace_back();
      for (std::int64_t n = 0; n < count + margin; ++n) list_tasks(runners_.back(), workload, n);
    }
    run();
  }

  // When class c ended iteration n; nothing if the run got stuck before.
  std::optional<Nanoseconds> iteration_end(std::size_t c, std::int64_t n) const {
    return when(c, n, {PointKind::kIterationEnd});
  }
  const std::vector<RunningOp>& ops() const { return ops_; }

 private:
  // What a class does next: wait for ops, compute, or note that a point or an apply is passed.
  struct Task {
    std::vector<std::size_t> wait;  // indices into ops_
    Nanoseconds compute = 0;
    std::function<void(Nanoseconds)> note;
  };
  struct Runner {
    std::vector<Task> tasks;
    std::size_t next = 0;
    bool computing = false;
    Wide left = 0;
    std::map<std::tuple<std::int64_t, int, std::int32_t>, Nanoseconds> points;
    std::map<std::pair<std::int64_t, std::size_t>, Nanoseconds> applies;
  };

  static bool exists(const std::vector<std::int32_t>& merges, std::int64_t n) {
    return std::ranges::any_of(merges, [n](std::int32_t merge) { return n + merge >= 0; });
  }
  static bool carries(const std::vector<std::int32_t>& merges, std::int64_t n, std::int64_t data) {
    return data >= 0 && std::ranges::find(merges, data - n) != merges.end();
  }
  static bool overlap(const std::vector<std::int32_t>& a, const std::vector<std::int32_t>& b) {
    return std::ranges::any_of(a, [&](std::int32_t block) { return std::ranges::find(b, block) != b.end(); });
  }
  static bool share_data(const std::vector<std::int32_t>& a, std::int64_t at_a,
                         const std::vector<std::int32_t>& b, std::int64_t at_b) {
    return std::ranges::any_of(
        a, [&](std::int32_t merge) { return carries(b, at_b, at_a + merge) && at_a + merge >= 0; });
  }

  void list_ops(std::int64_t n, const Cluster& cluster) {
    const Iteration& iteration = iteration_at(plan_, n);
    for (std::size_t i = 0; i < iteration.ops.size(); ++i) {
      const Op& op = iteration.ops[i];
      if (!exists(op.merges, n)) continue;
      std::vector<Slice> slices;
      for (const std::int32_t block : op.blocks) slices.push_back(slices_[static_cast<std::size_t>(block)]);
      std::size_t link = 0;
      while (plan_.links[link].name != op.link) ++link;
      const auto number =
          has_levels(plan_) ? find_inside_link(cluster, op.link) : std::optional<std::size_t>{};
      const OpCost cost =
          model_.cost(number ? *number : *find_link(cluster, op.link), op.collective, slices, op.compression);
      ops_.push_back({n, i, &op, cost, link});
    }
  }

  void list_tasks(Runner& runner, const Workload& workload, std::int64_t n) {
    const auto layers = static_cast<std::int32_t>(workload.layers.size());
    const auto pass = [&](PointKind kind, std::int32_t layer) {
      const std::size_t c = runners_.size() - 1;
      runner.tasks.push_back({{}, 0, [this, c, n, kind, layer](Nanoseconds now) {
                                runners_[c].points[{n, static_cast<int>(kind), layer}] = now;
                              }});
    };
    pass(PointKind::kIterationStart, 0);
    for (std::int32_t l = 0; l < layers; ++l) {
      list_applies(runner, n, PointKind::kForwardStart, l);
      pass(PointKind::kForwardStart, l);
      runner.tasks.push_back({{}, workload.layers[static_cast<std::size_t>(l)].forward_ns, nullptr});
      pass(PointKind::kForwardEnd, l);
    }
    pass(PointKind::kBackwardStart, 0);
    for (std::int32_t l = layers - 1; l >= 0; --l) {
      runner.tasks.push_back({{}, workload.layers[static_cast<std::size_t>(l)].backward_ns, nullptr});
      pass(PointKind::kBackwardEnd, l);
      list_applies(runner, n, PointKind::kBackwardEnd, l);
    }
    list_applies(runner, n, PointKind::kIterationEnd, 0);
    pass(PointKind::kIterationEnd, 0);
  }

  void list_applies(Runner& runner, std::int64_t n, PointKind kind, std::int32_t layer) {
    const Iteration& iteration = iteration_at(plan_, n);
    for (std::size_t a = 0; a < iteration.applies.size(); ++a) {
      const Apply& apply = iteration.applies[a];
      if (apply.at.kind != kind || apply.at.layer != layer || !exists(apply.merges, n)) continue;
      Task task;
      for (std::size_t i = 0; i < ops_.size(); ++i) {
        if (feeds(ops_[i], apply, n)) task.wait.push_back(i);
      }
      task.compute = optimizer_time(iteration, a, n);
      const std::size_t c = runners_.size() - 1;
      task.note = [this, c, n, a](Nanoseconds now) { runners_[c].applies[{n, a}] = now; };
      runner.tasks.push_back(task);
    }
  }

  bool feeds(const RunningOp& op, const Apply& apply, std::int64_t n) const {
    const Payload payload =
        apply.source == Source::kAveragedParameter ? Payload::kParameter : Payload::kGradient;
    return apply.source != Source::kLocalGradient && op.op->payload == payload &&
           overlap(op.op->blocks, apply.blocks) && share_data(op.op->merges, op.iteration, apply.merges, n);
  }

  Nanoseconds optimizer_time(const Iteration& iteration, std::size_t last, std::int64_t n) const {
    std::int64_t before = 0, after = 0;
    Nanoseconds own = 0;
    for (std::size_t a = 0; a <= last; ++a) {
      const Apply& apply = iteration.applies[a];
      const bool gradient =
          apply.source == Source::kReducedGradient || apply.source == Source::kLocalGradient;
      before = after;
      own = gradient && apply.at.kind != PointKind::kIterationEnd ? options_.apply_ns : 0;
      if (!gradient || !exists(apply.merges, n)) continue;
      for (const std::int32_t block : apply.blocks)
        after += model_.bytes({&slices_[static_cast<std::size_t>(block)], 1});
    }
    const std::int64_t total = model_.index().total_bytes;
    return total == 0 ? 0
                      : own + floor_share(options_.optimizer_ns, after, total) -
                            floor_share(options_.optimizer_ns, before, total);
  }

  std::optional<Nanoseconds> when(std::size_t c, std::int64_t n, const Point& point) const {
    if (n < 0) return 0;
    const auto found = runners_[c].points.find({n, static_cast<int>(point.kind), point.layer});
    return found == runners_[c].points.end() ? std::nullopt : std::optional(found->second);
  }

  // When all that op `op` needs of class c has happened.
  std::optional<Nanoseconds> opened_by(std::size_t c, const RunningOp& op) const {
    std::vector<std::optional<Nanoseconds>> needs;
    const std::int64_t release = op.iteration + op.op->release.point.iteration;
    if (release >= 0) {
      needs.push_back(when(c, release, op.op->release.point));
      if (needs.back()) *needs.back() += op.op->release.delay_ns;
    }
    for (const std::int32_t merge : op.op->merges) {
      const std::int64_t data = op.iteration + merge;
      if (data < 0) continue;
      for (const std::int32_t block : op.op->blocks) {
        const std::size_t layer =
            model_.index().tensors[slices_[static_cast<std::size_t>(block)].tensor].layer;
        needs.push_back(when(c, data, {PointKind::kBackwardEnd, static_cast<std::int32_t>(layer)}));
        if (op.op->payload != Payload::kGradient) add_local_applies(c, op, block, data, needs);
      }
    }
    Nanoseconds latest = 0;
    for (const std::optional<Nanoseconds>& need : needs) {
      if (!need) return std::nullopt;
      latest = std::max(latest, *need);
    }
    return latest + options_.handover_ns;
  }

  void add_local_applies(std::size_t c, const RunningOp& op, std::int32_t block, std::int64_t data,
                         std::vector<std::optional<Nanoseconds>>& needs) const {
    for (std::int64_t n = data; n < op.iteration + 10; ++n) {
      const Iteration& iteration = iteration_at(plan_, n);
      for (std::size_t a = 0; a < iteration.applies.size(); ++a) {
        const Apply& apply = iteration.applies[a];
        if (apply.source != Source::kLocalGradient || !carries(apply.merges, n, data) ||
            !overlap(apply.blocks, {block}))
          continue;
        const auto found = runners_[c].applies.find({n, a});
        needs.push_back(found == runners_[c].applies.end() ? std::nullopt : std::optional(found->second));
      }
    }
  }

  std::optional<Nanoseconds> opened(const RunningOp& op) const {
    Nanoseconds latest = 0;
    for (std::size_t c = 0; c < classes_.size(); ++c) {
      const std::optional<Nanoseconds> time = opened_by(c, op);
      if (!time) return std::nullopt;
      latest = std::max(latest, *time);
    }
    for (const RunningOp& other : ops_) {
      if (step_of(other) >= step_of(op) || other.op->payload != op.op->payload ||
          !overlap(other.op->blocks, op.op->blocks) ||
          !share_data(other.op->merges, other.iteration, op.op->merges, op.iteration)) {
        continue;
      }
      if (!other.end) return std::nullopt;
      const bool goes_on = other.link == op.link && plan_.links[op.link].concurrency == 1;
      latest = std::max(latest, *other.end + (goes_on ? 0 : options_.handover_ns));
    }
    return latest;
  }

  // Where the op stands in the reduction of its message: it waits for all steps before.
  int step_of(const RunningOp& op) const {
    const bool gathers = op.op->collective == Collective::kAllGather;
    if (plan_.links[op.link].level == Level::kBetween) return gathers ? 2 : 1;
    return gathers ? 3 : 0;
  }

  bool finished() const {
    for (std::size_t c = 0; c < classes_.size(); ++c) {
      if (!iteration_end(c, count_ - 1)) return false;
    }
    return true;
  }

  void run() {
    charged_.assign(plan_.links.size(), 0);
    idle_since_.assign(plan_.links.size(), 0);
    saved_.assign(plan_.links.size(), 0);
    while (true) {
      while (step_classes() || step_links()) {
      }
      if (finished()) return;
      for (Runner& runner : runners_) {
        if (runner.computing) runner.left += static_cast<Wide>(started_) * options_.launch_ns * slow();
      }
      started_ = 0;
      Nanoseconds next = std::numeric_limits<Nanoseconds>::max();
      const Wide speed = busy() ? fast() : slow();
      for (const Runner& runner : runners_) {
        if (runner.computing)
          next = std::min(next, now_ + static_cast<Nanoseconds>((runner.left + speed - 1) / speed));
      }
      for (const RunningOp& op : ops_) next = std::min(next, next_event(op));
      if (next == std::numeric_limits<Nanoseconds>::max()) return;
      for (Runner& runner : runners_) {
        if (runner.computing) runner.left -= (next - now_) * speed;
      }
      now_ = next;
    }
  }

  bool step_classes() {
    bool changed = false;
    for (Runner& runner : runners_) {
      while (runner.next < runner.tasks.size()) {
        const Task& task = runner.tasks[runner.next];
        if (!runner.computing) {
          if (std::ranges::any_of(task.wait, [&](std::size_t i) { return !ops_[i].end; })) break;
          runner.computing = true;
          runner.left = static_cast<Wide>(task.compute) * slow();
        }
        if (runner.left > 0) break;
        runner.computing = false;
        if (task.note) task.note(now_);
        ++runner.next;
        changed = true;
      }
    }
    return changed;
  }

  bool step_links() {
    for (std::size_t i = 0; i < ops_.size(); ++i) {
      RunningOp& op = ops_[i];
      if (op.end || !op.start) {
        if (!op.start && may_start(i)) {
          op.cost.work -= spared(i);
          op.start = now_;
          const bool alone = plan_.links[op.link].concurrency == 1;
          op.left = alone ? op.cost.total() : op.cost.work;
          if (alone) op.cost.startup = 0;
          ++started_;
          return true;
        }
        continue;
      }
      if (!op.active && now_ >= *op.start + op.cost.startup) {
        charge(op.link);
        op.active = true;
        return true;
      }
      if (op.active && left_now(op) <= 0) {
        charge(op.link);
        op.active = false;
        op.end = idle_since_[op.link] = now_;
        return true;
      }
    }
    return false;
  }

  // What the link has saved up for op i, which takes it.
  Nanoseconds spared(std::size_t i) {
    const RunningOp& op = ops_[i];
    Nanoseconds& saved = saved_[op.link];
    const bool idle = std::ranges::none_of(
        ops_, [&](const RunningOp& other) { return other.link == op.link && other.start && !other.end; });
    if (idle) saved = std::min(options_.burst_ns, saved + now_ - idle_since_[op.link]);
    if (plan_.links[op.link].concurrency == 1) saved = std::min(options_.burst_ns, saved + op.cost.startup);
    const Nanoseconds taken = std::min(saved, op.cost.work);
    saved -= taken;
    return taken;
  }

  bool may_start(std::size_t i) const {
    const RunningOp& op = ops_[i];
    std::int64_t outstanding = 0;
    for (std::size_t j = 0; j < ops_.size(); ++j) {
      if (ops_[j].link != op.link) continue;
      if (j < i && !ops_[j].start) return false;
      outstanding += ops_[j].start && !ops_[j].end;
    }
    const std::int32_t limit = plan_.links[op.link].concurrency;
    if (limit != 0 && outstanding >= limit) return false;
    const std::optional<Nanoseconds> time = opened(op);
    return time && *time <= now_;
  }

  std::int64_t active_on(std::size_t link) const {
    return std::ranges::count_if(ops_, [link](const RunningOp& op) { return op.link == link && op.active; });
  }
  Nanoseconds left_now(const RunningOp& op) const {
    return op.left - (now_ - charged_[op.link]) / active_on(op.link);
  }
  void charge(std::size_t link) {
    const std::int64_t active = active_on(link);
    for (RunningOp& op : ops_) {
      if (op.link == link && op.active) op.left -= (now_ - charged_[link]) / active;
    }
    charged_[link] = now_;
  }
  bool busy() const {
    return std::ranges::any_of(ops_, [](const RunningOp& op) { return op.active; });
  }
  std::int64_t slow() const { return options_.contention.mantissa; }
  std::int64_t fast() const {
    std::int64_t power = 1;
    for (int i = 0; i < options_.contention.scale; ++i) power *= 10;
    return power;
  }

  Nanoseconds next_event(const RunningOp& op) const {
    constexpr Nanoseconds kNever = std::numeric_limits<Nanoseconds>::max();
    if (op.end) return kNever;
    if (op.active) return charged_[op.link] + op.left * active_on(op.link);
    if (op.start) return *op.start + op.cost.startup;
    const std::optional<Nanoseconds> time = opened(op);
    return time && *time > now_ ? *time : kNever;
  }

  const Plan& plan_;
  std::span<const Workload> classes_;
  const CostModel model_;
  const SimulationOptions options_;
  const std::int64_t count_;
  std::vector<Slice> slices_;
  std::vector<RunningOp> ops_;  // in issue order
  std::vector<Runner> runners_;
  std::vector<Nanoseconds> charged_;  // per link: when its active ops were last charged
  std::vector<Nanoseconds> idle_since_, saved_;
  Nanoseconds now_ = 0;
  std::int64_t started_ = 0;  // ops at now_
};

}  // namespace gradweave::testing
