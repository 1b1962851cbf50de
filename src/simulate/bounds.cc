#include "simulate/bounds.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <queue>
#include <tuple>
#include <utility>

namespace gradweave {
namespace {

// One op between a backward_start and the next.
struct Job {
  Nanoseconds head = 0;  // earliest start
  Nanoseconds work = 0;
  Nanoseconds tail = 0;  // from its end to the next backward_start, at least
};

// Returns when the last job is through with its tail if one machine serves them with preemption, longest tail
// first: the best that any order can do (Jackson 1955; Carlier 1982). O(n log n).
Nanoseconds one_machine(std::vector<Job> jobs) {
  std::ranges::sort(jobs, {}, &Job::head);
  const auto shorter_tail = [](const Job& a, const Job& b) { return a.tail < b.tail; };
  std::priority_queue<Job, std::vector<Job>, decltype(shorter_tail)> ready(shorter_tail);
  Nanoseconds now = 0;
  Nanoseconds finish = 0;
  for (std::size_t next = 0; next < jobs.size() || !ready.empty();) {
    if (ready.empty()) now = std::max(now, jobs[next].head);
    while (next < jobs.size() && jobs[next].head <= now) ready.push(jobs[next++]);
    Job job = ready.top();
    ready.pop();
    const Nanoseconds until = next < jobs.size() ? std::min(now + job.work, jobs[next].head) : now + job.work;
    job.work -= until - now;
    now = until;
    if (job.work > 0) {
      ready.push(job);
    } else {
      finish = std::max(finish, now + job.tail);
    }
  }
  return finish;
}

double per_iteration(const Program& program, Nanoseconds time) {
  return static_cast<double>(time) / static_cast<double>(program.period);
}

// What is left of an op on a link that has saved up as much as it can.
Nanoseconds least_work(const Program& program, const OpCode& op) {
  return std::max<Nanoseconds>(0, op.work - program.burst);
}

// A link saves up no more than it sends less: while it is idle and, with a token bucket, while ops start up.
Nanoseconds link_work(const Program& program, std::size_t link) {
  Nanoseconds sent = 0, held = 0;
  for (std::size_t code = static_cast<std::size_t>(program.head); code < program.code_count(); ++code) {
    for (const OpCode& op : program.ops_of(code, link)) {
      sent += op.work;
      held += op.startup + least_work(program, op);
    }
  }
  return program.concurrency[link] == 1 ? std::max(sent, held) : sent;
}

class PlanView {
 public:
  PlanView(const ResolvedPlan& plan, const Program& program, const CostModel& model, const Workload& slowest)
      : plan_(plan), program_(program), model_(model), index_(slowest) {}

  // Weights y_k = 1 / (all work on link k) make this the dual of the linear program "spread every op of the level over
  // its links"; exact where links differ by a factor only.
  double all_links(Level level) const {
    std::vector<std::size_t> links;
    for (std::size_t k = 0; k < plan_.cluster_link.size(); ++k) {
      if (plan_.plan.links[k].level == level) links.push_back(plan_.cluster_link[k]);
    }
    std::vector<std::vector<double>> work(links.size());
    std::vector<double> total(links.size(), 0);
    std::vector<Slice> slices;
    for (std::size_t s = static_cast<std::size_t>(plan_.prologue); s < plan_.slots.size(); ++s) {
      for (const ResolvedOp& op : plan_.slots[s].ops) {
        if (op.level != level) continue;
        slices.clear();
        for (const std::int32_t block : op.blocks) slices.push_back(plan_.block(block).slice);
        for (std::size_t k = 0; k < links.size(); ++k) {
          work[k].push_back(static_cast<double>(
              model_.cost(links[k], op.op->collective, slices, op.op->compression, op.op->payload).work));
          total[k] += work[k].back();
        }
      }
    }
    double shares = 0;
    double weights = 0;
    for (const double sum : total) {
      if (sum <= 0) return 0;
      weights += 1 / sum;
    }
    for (std::size_t i = 0; i < work[0].size(); ++i) {
      double least = work[0][i] / total[0];
      for (std::size_t k = 1; k < work.size(); ++k) least = std::min(least, work[k][i] / total[k]);
      shares += least;
    }
    // Sums of doubles may end a few units in the last place too high.
    return shares / weights * (1 - 1e-12) / static_cast<double>(plan_.period);
  }

  bool has_forward_overlap() const {
    return std::ranges::any_of(plan_.plan.period, [](const Iteration& iteration) {
      return std::ranges::any_of(iteration.applies, [](const Apply& apply) {
        return apply.at.kind == PointKind::kForwardStart && apply.source != Source::kLocalGradient;
      });
    });
  }

  // Sum over one period of the least time from backward_start(x) to backward_start(x + 1).
  Nanoseconds critical_path() {
    const std::int64_t first = plan_.prologue + program_.reach;
    const std::int64_t last = first + program_.period;  // data iterations [first, last)
    collect_tails(first, last);
    std::map<std::tuple<std::int64_t, std::size_t>, std::vector<Job>> jobs;  // by data iteration and link
    for (std::int64_t n = first; n < last + program_.reach; ++n) add_jobs(n, first, last, jobs);
    Nanoseconds total = 0;
    auto next = jobs.begin();
    for (std::int64_t x = first; x < last; ++x) {
      Nanoseconds least = index_.compute_total;
      for (; next != jobs.end() && std::get<0>(next->first) == x; ++next)
        least = std::max(least, one_machine(next->second));
      total += least;
    }
    return total;
  }

 private:
  std::size_t row(std::int32_t block, std::int64_t data, std::int64_t first) const {
    return static_cast<std::size_t>(data - first) * plan_.blocks.size() + static_cast<std::size_t>(block);
  }

  // tails_[block, data]: from where the value is used to the next backward_start; -1 where it is not used
  // before.
  void collect_tails(std::int64_t first, std::int64_t last) {
    for (std::vector<Nanoseconds>* table : {&gradient_tails_, &parameter_tails_}) {
      table->assign(static_cast<std::size_t>(last - first) * plan_.blocks.size(), -1);
    }
    for (std::int64_t n = first; n <= last; ++n) {
      for (const Apply& apply : iteration_at(plan_.plan, n).applies) {
        if (apply.source == Source::kLocalGradient) continue;
        std::vector<Nanoseconds>& tails =
            apply.source == Source::kReducedGradient ? gradient_tails_ : parameter_tails_;
        const bool forward = apply.at.kind == PointKind::kForwardStart;
        if (apply.at.kind == PointKind::kBackwardEnd) continue;
        const Nanoseconds tail =
            forward ? index_.forward_total - index_.forward_start[static_cast<std::size_t>(apply.at.layer)]
                    : index_.forward_total;
        const std::int64_t data = n - (forward ? 1 : 0);
        if (data < first || data >= last || std::ranges::find(apply.merges, data - n) == apply.merges.end())
          continue;
        for (const std::int32_t block : apply.blocks) {
          Nanoseconds& known = tails[row(block, data, first)];
          known = std::max(known, tail);
        }
      }
    }
    for (std::int64_t n = first; n < last + program_.reach; ++n) {
      for_each_op(n, [&](const Op& op, const OpCode& code, std::size_t k) {
        const std::int64_t data = n + *std::ranges::max_element(op.merges);
        if (data < first || data >= last || (!is_half(op.collective) && !has_level(k))) return;
        std::vector<Nanoseconds>& work = steps_of(op.payload)[step_of(op, k)];
        work.resize(gradient_tails_.size(), 0);
        for (const std::int32_t block : op.blocks) work[row(block, data, first)] = least_work(program_, code);
      });
    }
  }

  template <typename Visit>
  void for_each_op(std::int64_t n, const Visit& visit) const {
    const Iteration& iteration = iteration_at(plan_.plan, n);
    for (std::size_t k = 0; k < program_.link_count(); ++k) {
      for (const OpCode& code : program_.ops_of(program_.code_of(n), k)) {
        visit(iteration.ops[static_cast<std::size_t>(code.plan_op)], code, k);
      }
    }
  }

  // Messages are reduced in up to four steps, one after another: scattered, on two levels reduced between nodes or
  // scattered and gathered there, gathered.
  using Steps = std::array<std::vector<Nanoseconds>, 4>;
  Steps& steps_of(Payload payload) { return steps_[static_cast<std::size_t>(payload)]; }
  bool has_level(std::size_t link) const { return plan_.plan.links[link].level != Level::kAll; }
  std::size_t step_of(const Op& op, std::size_t link) const {
    const bool gathers = op.collective == Collective::kAllGather;
    if (plan_.plan.links[link].level == Level::kBetween) return gathers ? 2 : 1;
    return gathers ? 3 : 0;
  }

  void add_jobs(std::int64_t n, std::int64_t first, std::int64_t last,
                std::map<std::tuple<std::int64_t, std::size_t>, std::vector<Job>>& jobs) {
    for_each_op(n, [&](const Op& op, const OpCode& code, std::size_t k) {
      const std::int64_t data = n + *std::ranges::max_element(op.merges);
      if (data < first || data >= last) return;
      const std::vector<Nanoseconds>& tails =
          op.payload == Payload::kGradient ? gradient_tails_ : parameter_tails_;
      Job job{.work = least_work(program_, code) + (program_.concurrency[k] == 1 ? code.startup : 0),
              .tail = -1};
      std::array<Nanoseconds, 4> work{};  // of each step
      for (const std::int32_t block : op.blocks) {
        const auto layer = static_cast<std::size_t>(plan_.block(block).layer);
        job.head = std::max(job.head, index_.backward_end[layer] - index_.forward_total);
        job.tail = std::max(job.tail, tails[row(block, data, first)]);
        for (std::size_t s = 0; s < work.size(); ++s) {
          const std::vector<Nanoseconds>& of_step = steps_of(op.payload)[s];
          if (!of_step.empty()) work[s] = std::max(work[s], of_step[row(block, data, first)]);
        }
      }
      if (job.tail < 0) return;
      if (program_.concurrency[k] != 1) job.head += code.startup;
      const std::size_t step = step_of(op, k);
      const auto here = work.begin() + static_cast<std::ptrdiff_t>(step);
      if (is_half(op.collective) || has_level(k)) job.tail = std::accumulate(here + 1, work.end(), job.tail);
      if (has_level(k)) job.head = std::accumulate(work.begin(), here, job.head);
      jobs[{data, k}].push_back(job);
    });
  }

  const ResolvedPlan& plan_;
  const Program& program_;
  const CostModel& model_;
  const WorkloadIndex index_;
  std::vector<Nanoseconds> gradient_tails_, parameter_tails_;
  std::array<Steps, 2> steps_;  // by payload; work of each (block, data), empty where no op is such a step
};

}  // namespace

std::vector<Bound> lower_bounds(const ResolvedPlan& plan, const Program& program, const CostModel& model,
                                const Workload& slowest, Nanoseconds compute_ns) {
  std::vector<Bound> bounds{{"compute", static_cast<double>(compute_ns)}};
  for (std::size_t k = 0; k < program.link_count(); ++k) {
    bounds.push_back({"link " + plan.plan.links[k].name, per_iteration(program, link_work(program, k))});
  }
  PlanView view(plan, program, model, slowest);
  constexpr std::pair<Level, const char*> kNames[] = {{Level::kAll, "all links"},
                                                      {Level::kInside, "all links inside"},
                                                      {Level::kBetween, "all links between"}};
  for (const auto& [level, name] : kNames) {
    if (std::ranges::count(plan.plan.links, level, &PlanLink::level) > 1)
      bounds.push_back({name, view.all_links(level)});
  }
  if (view.has_forward_overlap())
    bounds.push_back({"critical path", per_iteration(program, view.critical_path())});
  return bounds;
}

}  // namespace gradweave
