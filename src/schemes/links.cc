// The link of each op, for every scheme without an assignment of its own.
//
// Minimising the iteration over links of different speed is scheduling on unrelated machines with release
// dates, which is NP-hard; greedy lists are within a small factor and local search repairs most of the rest
// (J. K. Lenstra, D. B. Shmoys, E. Tardos, "Approximation algorithms for scheduling unrelated parallel
// machines", 1990).
#include <algorithm>
#include <utility>

#include "schemes/schedule.h"

namespace gradweave {
namespace {

// Ops placed over all trials: about 3 ms. Most trials are given up early.
constexpr std::size_t kBudget = 750'000;
// Exchange partners that are tried on each side in issue order: those that run at about the same time.
constexpr std::size_t kNeighbours = 6;

using Links = std::vector<std::size_t>;

// Each op on that of the first `count` links where it ends first.
Links greedy(const Schedule& schedule, std::size_t count) {
  std::vector<Nanoseconds> free(count, 0);
  Links links(schedule.size());
  for (std::size_t i = 0; i < links.size(); ++i) {
    const std::size_t after = schedule.after(i);
    Nanoseconds best = std::numeric_limits<Nanoseconds>::max();
    for (std::size_t k = 0; k < free.size(); ++k) {
      const Nanoseconds end = std::max(free[k], schedule.ready(i)) + schedule.cost(i, k).total();
      if (end < best) {
        best = end;
        links[i] = k;
      }
    }
    if (after != kNoOp) links[i] = links[after];
    free[links[i]] = std::max(free[links[i]], schedule.ready(i)) + schedule.cost(i, links[i]).total();
  }
  return links;
}

// Search over the first `count` links.
class LinkSearch {
 public:
  LinkSearch(const Schedule& schedule, Links first, std::size_t count)
      : schedule_(schedule),
        count_(count),
        follower_(schedule.size(), kNoOp),
        trials_(schedule, std::move(first)) {
    for (std::size_t i = 0; i < schedule.size(); ++i) {
      if (schedule.after(i) != kNoOp) follower_[schedule.after(i)] = i;
    }
  }

  // Starts from `links` if that is shorter.
  void offer(Links links) {
    std::swap(trials_.links(), links);
    if (!keep_if_shorter(0)) trials_.links() = std::move(links);
  }

  Links run() {
    for (std::size_t k = 0; k < count_; ++k) offer(Links(schedule_.size(), k));
    while (trials_.steps() < kBudget && improve()) {
    }
    return trials_.links();
  }

 private:
  bool keep_if_shorter(std::size_t first) {
    if (!trials_.shorter(first)) return false;
    trials_.keep();
    return true;
  }

  // The op itself, or the one before it that it follows.
  std::size_t leader(std::size_t op) const { return schedule_.after(op) == kNoOp ? op : schedule_.after(op); }

  void assign(std::size_t op, std::size_t link) {
    Links& links = trials_.links();
    links[op] = link;
    if (schedule_.after(op) != kNoOp) links[schedule_.after(op)] = link;
    if (follower_[op] != kNoOp) links[follower_[op]] = link;
  }

  // The critical op and, going back on its link, all ops that run without idle time before it.
  std::vector<std::size_t> critical_chain() {
    const ScheduleTimes& best = trials_.best();
    const Links& links = trials_.links();
    std::vector<std::size_t> chain;
    const std::size_t last = schedule_.critical_op(best);
    if (last == kNoOp) return chain;
    chain.push_back(last);
    for (std::size_t i = last; i-- > 0;) {
      if (links[i] != links[last]) continue;
      if (best.end[i] < best.start[chain.back()]) break;
      chain.push_back(i);
    }
    return chain;
  }

  bool move_helps(std::size_t op, std::size_t to) {
    const std::size_t from = trials_.links()[op];
    assign(op, to);
    if (keep_if_shorter(leader(op))) return true;
    assign(op, from);
    return false;
  }

  bool exchange_helps(std::size_t op, std::size_t other) {
    const std::size_t from = trials_.links()[op];
    const std::size_t to = trials_.links()[other];
    assign(op, to);
    assign(other, from);
    if (keep_if_shorter(std::min(leader(op), leader(other)))) return true;
    assign(other, to);
    assign(op, from);
    return false;
  }

  bool improve() {
    for (std::size_t op : critical_chain()) {
      const std::size_t from = trials_.links()[op];
      for (std::size_t to = 0; to < count_; ++to) {
        if (to == from) continue;
        if (trials_.steps() >= kBudget) return false;
        if (move_helps(op, to)) return true;
      }
      const std::size_t first = op > kNeighbours ? op - kNeighbours : 0;
      const std::size_t past = std::min(schedule_.size(), op + kNeighbours + 1);
      for (std::size_t other = first; other < past; ++other) {
        if (trials_.links()[other] == from) continue;
        if (trials_.steps() >= kBudget) return false;
        if (exchange_helps(op, other)) return true;
      }
    }
    return false;
  }

  const Schedule& schedule_;
  const std::size_t count_;
  Links follower_;
  ScheduleTrials trials_;
};

void set_links(std::vector<ScheduledOp>& ops, const Links& links) {
  for (std::size_t i = 0; i < ops.size(); ++i) ops[i].link = links[i];
}

}  // namespace

void assign_links_greedily(const CostModel& model, std::vector<ScheduledOp>& ops) {
  if (model.link_count() > 1) set_links(ops, greedy(Schedule(model, ops), model.link_count()));
}

void assign_links(const CostModel& model, std::vector<ScheduledOp>& ops) {
  if (model.link_count() == 1) return;
  const Schedule schedule(model, ops);
  // Link after link, so that one more never makes the iteration longer.
  Links links(ops.size(), 0);
  for (std::size_t count = 2; count <= model.link_count(); ++count) {
    LinkSearch search(schedule, greedy(schedule, count), count);
    search.offer(std::move(links));
    links = search.run();
  }
  set_links(ops, links);
}

void improve_links(const CostModel& model, std::vector<ScheduledOp>& ops) {
  if (model.link_count() == 1) return;
  Links links;
  for (const ScheduledOp& op : ops) links.push_back(op.link);
  const Schedule schedule(model, ops);
  set_links(ops, LinkSearch(schedule, std::move(links), model.link_count()).run());
}

}  // namespace gradweave
