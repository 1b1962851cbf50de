#include "solve/balance.h"

#include <algorithm>
#include <cassert>
#include <numeric>

namespace gradweave {
namespace {

// Depth first over the items, longest first, each into the emptiest bins first. Bins that are equally full
// are the same.
class Search {
 public:
  Search(std::span<const std::int64_t> costs, std::size_t bins, std::int64_t node_limit)
      : costs_(costs), order_(costs.size()), sums_(bins, 0), bin_(costs.size(), 0), nodes_left_(node_limit) {
    std::iota(order_.begin(), order_.end(), std::size_t{0});
    std::ranges::stable_sort(order_, std::greater<>(), [&](std::size_t i) { return costs[i]; });
    const std::int64_t total = std::accumulate(costs.begin(), costs.end(), std::int64_t{0});
    const auto count = static_cast<std::int64_t>(bins);
    bound_ = (total + count - 1) / count;
    if (!order_.empty()) bound_ = std::max(bound_, costs[order_[0]]);
    longest_first();
  }

  Balance run() {
    visit(0, 0);
    best_.proven = nodes_left_ > 0;
    fill_empty_bins();
    return best_;
  }

 private:
  void longest_first() {
    best_.bin.resize(costs_.size());
    std::vector<std::int64_t> sums(sums_.size(), 0);
    for (const std::size_t i : order_) {
      const auto emptiest = std::ranges::min_element(sums);
      *emptiest += costs_[i];
      best_.bin[i] = static_cast<std::int32_t>(emptiest - sums.begin());
    }
    best_.largest = std::ranges::max(sums);
  }

  // Moves the shortest items of bins that hold several into empty ones: no bin gets fuller than the fullest.
  void fill_empty_bins() {
    std::vector<std::size_t> count(sums_.size(), 0);
    for (const std::int32_t b : best_.bin) ++count[static_cast<std::size_t>(b)];
    for (std::size_t empty = 0; empty < count.size(); ++empty) {
      if (count[empty] > 0) continue;
      for (auto item = order_.rbegin(); item != order_.rend(); ++item) {
        std::size_t& from = count[static_cast<std::size_t>(best_.bin[*item])];
        if (from < 2) continue;
        --from;
        ++count[empty];
        best_.bin[*item] = static_cast<std::int32_t>(empty);
        break;
      }
    }
  }

  void visit(std::size_t depth, std::int64_t largest) {
    if (nodes_left_ <= 0 || best_.largest == bound_ || largest >= best_.largest) return;
    --nodes_left_;
    if (depth == order_.size()) {
      best_.bin = bin_;
      best_.largest = largest;
      return;
    }
    const std::size_t item = order_[depth];
    std::vector<std::size_t> bins(sums_.size());
    std::iota(bins.begin(), bins.end(), std::size_t{0});
    std::ranges::stable_sort(bins, {}, [&](std::size_t b) { return sums_[b]; });
    std::int64_t before = -1;
    for (const std::size_t b : bins) {
      if (sums_[b] == before) continue;
      before = sums_[b];
      sums_[b] += costs_[item];
      bin_[item] = static_cast<std::int32_t>(b);
      visit(depth + 1, std::max(largest, sums_[b]));
      sums_[b] -= costs_[item];
    }
  }

  std::span<const std::int64_t> costs_;
  std::vector<std::size_t> order_;
  std::vector<std::int64_t> sums_;
  std::vector<std::int32_t> bin_;
  std::int64_t nodes_left_;
  std::int64_t bound_ = 0;
  Balance best_;
};

}  // namespace

Balance balance(std::span<const std::int64_t> costs, std::size_t bins, std::int64_t node_limit) {
  assert(bins >= 1);
  return Search(costs, bins, node_limit).run();
}

}  // namespace gradweave
