#include "solve/knapsack.h"

#include <algorithm>
#include <cassert>

namespace gradweave {
namespace {

__extension__ using Wide = __int128;

// Depth-first branch and bound over the items in order: each goes into one of the knapsacks or is left out.
class Search {
 public:
  Search(std::span<const KnapsackItem> items, std::span<const Knapsack> knapsacks, std::int64_t node_limit)
      : items_(items),
        nodes_left_(node_limit),
        best_(fill_greedy(items, knapsacks)),
        current_(items.size(), kLeftOut) {
    for (const Knapsack& knapsack : knapsacks) schedules_.emplace_back(knapsack);
    best_value_ = value_of(items, best_);
    rest_.assign(items.size() + 1, 0);
    // densest_[k * (n + 1) + i]: the item from i on with the most value per time in knapsack k; n if none
    // takes time.
    const std::size_t n = items.size();
    densest_.assign(knapsacks.size() * (n + 1), n);
    for (std::size_t i = n; i-- > 0;) {
      rest_[i] = rest_[i + 1] + items[i].value;
      for (std::size_t k = 0; k < knapsacks.size(); ++k) {
        const std::size_t other = densest_[k * (n + 1) + i + 1];
        densest_[k * (n + 1) + i] = denser(i, other, k) ? i : other;
      }
    }
  }

  ExactFill run() {
    visit(0, 0);
    return {best_, nodes_left_ > 0};
  }

 private:
  bool denser(std::size_t a, std::size_t b, std::size_t k) const {
    if (b == items_.size()) return true;
    return Wide{items_[a].value} * items_[b].time[k] > Wide{items_[b].value} * items_[a].time[k];
  }

  std::int64_t bound(std::size_t i) const {
    Wide gain = 0;
    for (std::size_t k = 0; k < schedules_.size(); ++k) {
      const std::size_t item = densest_[k * (items_.size() + 1) + i];
      if (item == items_.size()) continue;
      if (items_[item].time[k] == 0) return rest_[i];
      gain +=
          Wide{std::max<std::int64_t>(schedules_[k].left(), 0)} * items_[item].value / items_[item].time[k];
      gain += 1;  // the division rounds down
    }
    return gain < rest_[i] ? static_cast<std::int64_t>(gain) : rest_[i];
  }

  void visit(std::size_t i, std::int64_t value) {
    if (nodes_left_ <= 0 || best_value_ == rest_[0]) return;
    --nodes_left_;
    if (value > best_value_) {
      best_value_ = value;
      best_ = current_;
    }
    if (i == items_.size() || value + bound(i) <= best_value_) return;
    for (std::size_t k = 0; k < schedules_.size(); ++k) {
      if (!schedules_[k].insert({items_[i].ready, items_[i].time[k], i})) continue;
      current_[i] = static_cast<std::int32_t>(k);
      visit(i + 1, value + items_[i].value);
      current_[i] = kLeftOut;
      schedules_[k].remove(i);
    }
    visit(i + 1, value);
  }

  std::span<const KnapsackItem> items_;
  std::int64_t nodes_left_;
  Placement best_;
  Placement current_;
  std::int64_t best_value_ = 0;
  std::vector<KnapsackSchedule> schedules_;
  std::vector<std::int64_t> rest_;  // value of items i and after
  std::vector<std::size_t> densest_;
};

}  // namespace

std::int64_t value_of(std::span<const KnapsackItem> items, const Placement& placement) {
  std::int64_t value = 0;
  for (std::size_t i = 0; i < items.size(); ++i) value += placement[i] == kLeftOut ? 0 : items[i].value;
  return value;
}

std::int64_t KnapsackSchedule::end_with(const Entry& entry) const {
  std::int64_t end = knapsack_.open;
  bool joined = false;
  for (const Entry& other : entries_) {
    if (!joined && entry.ready < other.ready) {
      end = std::max(end, entry.ready) + entry.time;
      joined = true;
    }
    end = std::max(end, other.ready) + other.time;
  }
  return joined ? end : std::max(end, entry.ready) + entry.time;
}

bool KnapsackSchedule::insert(const Entry& entry) {
  if (entry.time > left() || end_with(entry) > knapsack_.close) return false;
  entries_.insert(std::ranges::upper_bound(entries_, entry.ready, {}, &Entry::ready), entry);
  total_ += entry.time;
  return true;
}

void KnapsackSchedule::remove(std::size_t item) {
  const auto found = std::ranges::find(entries_, item, &Entry::item);
  assert(found != entries_.end());
  total_ -= found->time;
  entries_.erase(found);
}

std::int64_t KnapsackSchedule::end() const {
  std::int64_t end = knapsack_.open;
  for (const Entry& entry : entries_) end = std::max(end, entry.ready) + entry.time;
  return end;
}

Placement fill_greedy(std::span<const KnapsackItem> items, std::span<const Knapsack> knapsacks) {
  Placement placement(items.size(), kLeftOut);
  for (std::size_t k = 0; k < knapsacks.size(); ++k) {
    KnapsackSchedule schedule(knapsacks[k]);
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (placement[i] != kLeftOut) continue;
      if (schedule.insert({items[i].ready, items[i].time[k], i})) placement[i] = static_cast<std::int32_t>(k);
    }
  }
  return placement;
}

ExactFill fill_exact(std::span<const KnapsackItem> items, std::span<const Knapsack> knapsacks,
                     std::int64_t node_limit) {
  return Search(items, knapsacks, node_limit).run();
}

}  // namespace gradweave
