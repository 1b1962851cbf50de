#include <algorithm>
#include <numeric>

#include "solve/intervals.h"

namespace gradweave {
namespace {

// Layers in backward order, each into one of the sets; sets are interchangeable, so of the empty ones only
// the first.
//
// Bound of a node: link k of set h can take at most Z + e_h - max(end(h, k), ready of the next layer) more
// work without e_h growing, where Z is the latest that any layer is awaited; a growth of e_h by d gives d
// more on each link. So
//   sum of e >= sum of e_h now + (work left - room) / links.
class BranchAndBound {
 public:
  BranchAndBound(const Packer& packer, std::size_t period, std::int64_t max_nodes)
      : packer_(packer),
        nodes_left_(max_nodes),
        best_(exact_intervals(packer, period)),
        queues_(period, Packer::Queue(packer)),
        stalls_(period, 0),
        sets_(period),
        work_left_(packer.layer_count() + 1, 0) {
    for (std::size_t p = packer.layer_count(); p-- > 0;) {
      work_left_[p] = work_left_[p + 1] + packer.least_work(p);
      latest_ = std::max(latest_, packer.awaited(p));
    }
  }

  Assignment run() {
    least_ = bound(0);
    descend(0);
    return std::move(best_);
  }

 private:
  Nanoseconds bound(std::size_t position) const {
    const Nanoseconds now = std::accumulate(stalls_.begin(), stalls_.end(), Nanoseconds{0});
    if (position == packer_.layer_count()) return now;
    Nanoseconds excess = work_left_[position];
    for (std::size_t h = 0; h < queues_.size(); ++h) {
      for (std::size_t k = 0; k < packer_.link_count(); ++k) {
        const Nanoseconds busy = std::max(queues_[h].end(k), packer_.ready(position));
        excess -= std::max<Nanoseconds>(0, latest_ + stalls_[h] - busy);
        if (excess <= 0) return now;
      }
    }
    const auto links = static_cast<Nanoseconds>(packer_.link_count());
    return now + (excess + links - 1) / links;
  }

  void descend(std::size_t position) {
    if (position == packer_.layer_count()) {
      best_.sets = sets_;
      best_.stall = bound(position);
      return;
    }
    struct Child {
      Nanoseconds growth;
      std::size_t set;
      Packer::Queue queue;
    };
    std::vector<Child> children;
    for (std::size_t h = 0; h < sets_.size(); ++h) {
      Packer::Queue queue = queues_[h];
      queue.append(position);
      children.push_back({queue.stall() - stalls_[h], h, std::move(queue)});
      if (sets_[h].empty()) break;
    }
    std::ranges::stable_sort(children, {}, &Child::growth);
    for (Child& child : children) {
      if (nodes_left_ <= 0 || best_.stall == least_) return;
      --nodes_left_;
      std::swap(queues_[child.set], child.queue);
      stalls_[child.set] += child.growth;
      sets_[child.set].push_back(position);
      if (bound(position + 1) < best_.stall) descend(position + 1);
      sets_[child.set].pop_back();
      stalls_[child.set] -= child.growth;
      std::swap(queues_[child.set], child.queue);
    }
  }

  const Packer& packer_;
  std::int64_t nodes_left_;
  Assignment best_;
  std::vector<Packer::Queue> queues_;
  std::vector<Nanoseconds> stalls_;
  std::vector<std::vector<std::size_t>> sets_;
  std::vector<Nanoseconds> work_left_;  // of the layers from a position on
  Nanoseconds latest_ = 0;
  Nanoseconds least_ = 0;  // no assignment stalls less
};

}  // namespace

Assignment arbitrary_sets(const Packer& packer, std::size_t period, std::int64_t max_nodes) {
  return BranchAndBound(packer, period, max_nodes).run();
}

}  // namespace gradweave
