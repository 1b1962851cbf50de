// The link of each op, for every scheme without an assignment of its own.
//
// Minimising the iteration over links of different speed is scheduling on unrelated machines with release
// dates, which is NP-hard; greedy lists are within a small factor and local search repairs most of the rest
// (J. K. Lenstra, D. B. Shmoys, E. Tardos, "Approximation algorithms for scheduling unrelated parallel
// machines", 1990).
#include <algorithm>

#include "schemes/schedule.h"

namespace gradweave {
namespace {

// Evaluated ops over all trials: about 5 ms. With 1000 ops this allows 750 trials.
constexpr std::size_t kBudget = 750'000;
// Exchange partners that are tried on each side in issue order: those that run at about the same time.
constexpr std::size_t kNeighbours = 6;

using Links = std::vector<std::size_t>;

class LinkSearch {
 public:
  LinkSearch(const CostModel& model, std::span<const ScheduledOp> ops)
      : schedule_(model, ops), follower_(ops.size(), kNoOp) {
    for (std::size_t i = 0; i < ops.size(); ++i) {
      if (ops[i].after != kNoOp) follower_[ops[i].after] = i;
    }
  }

  Links run(Links first) {
    links_ = std::move(first);
    best_ = schedule_.times(links_);
    for (std::size_t k = 0; k < schedule_.link_count(); ++k) accept_if_better(Links(schedule_.size(), k));
    budget_ = kBudget;
    while (budget_ >= schedule_.steps() && improve()) {
    }
    return links_;
  }

  // Each op where it ends first.
  Links greedy() const {
    std::vector<Nanoseconds> free(schedule_.link_count(), 0);
    Links links(schedule_.size());
    for (std::size_t i = 0; i < links.size(); ++i) {
      const std::size_t after = schedule_.after(i);
      Nanoseconds best = std::numeric_limits<Nanoseconds>::max();
      for (std::size_t k = 0; k < free.size(); ++k) {
        const Nanoseconds end = std::max(free[k], schedule_.ready(i)) + schedule_.cost(i, k).total();
        if (end < best) {
          best = end;
          links[i] = k;
        }
      }
      if (after != kNoOp) links[i] = links[after];
      free[links[i]] = std::max(free[links[i]], schedule_.ready(i)) + schedule_.cost(i, links[i]).total();
    }
    return links;
  }

 private:
  bool accept_if_better(const Links& links) {
    budget_ -= std::min(budget_, schedule_.steps());
    ScheduleTimes times = schedule_.times(links);
    if (times.iteration >= best_.iteration) return false;
    links_ = links;
    best_ = std::move(times);
    return true;
  }

  void assign(Links& links, std::size_t op, std::size_t link) const {
    links[op] = link;
    if (schedule_.after(op) != kNoOp) links[schedule_.after(op)] = link;
    if (follower_[op] != kNoOp) links[follower_[op]] = link;
  }

  // The critical op and, going back on its link, all ops that run without idle time before it.
  std::vector<std::size_t> critical_chain() const {
    std::vector<std::size_t> chain;
    const std::size_t last = schedule_.critical_op(best_);
    if (last == kNoOp) return chain;
    chain.push_back(last);
    for (std::size_t i = last; i-- > 0;) {
      if (links_[i] != links_[last]) continue;
      if (best_.end[i] < best_.start[chain.back()]) break;
      chain.push_back(i);
    }
    return chain;
  }

  bool improve() {
    for (std::size_t op : critical_chain()) {
      const std::size_t from = links_[op];
      for (std::size_t to = 0; to < schedule_.link_count(); ++to) {
        if (to == from) continue;
        if (budget_ < schedule_.steps()) return false;
        Links moved = links_;
        assign(moved, op, to);
        if (accept_if_better(moved)) return true;
      }
      const std::size_t first = op > kNeighbours ? op - kNeighbours : 0;
      const std::size_t past = std::min(schedule_.size(), op + kNeighbours + 1);
      for (std::size_t other = first; other < past; ++other) {
        if (links_[other] == from) continue;
        if (budget_ < schedule_.steps()) return false;
        Links exchanged = links_;
        assign(exchanged, op, links_[other]);
        assign(exchanged, other, from);
        if (accept_if_better(exchanged)) return true;
      }
    }
    return false;
  }

  Schedule schedule_;
  Links follower_;
  Links links_;
  ScheduleTimes best_;
  std::size_t budget_ = kBudget;
};

}  // namespace

void assign_links_greedily(const CostModel& model, std::vector<ScheduledOp>& ops) {
  if (model.link_count() == 1) return;
  const Links links = LinkSearch(model, ops).greedy();
  for (std::size_t i = 0; i < ops.size(); ++i) ops[i].link = links[i];
}

void assign_links(const CostModel& model, std::vector<ScheduledOp>& ops) {
  assign_links_greedily(model, ops);
  improve_links(model, ops);
}

void improve_links(const CostModel& model, std::vector<ScheduledOp>& ops) {
  if (model.link_count() == 1) return;
  LinkSearch search(model, ops);
  Links links;
  for (const ScheduledOp& op : ops) links.push_back(op.link);
  links = search.run(std::move(links));
  for (std::size_t i = 0; i < ops.size(); ++i) ops[i].link = links[i];
}

}  // namespace gradweave
