// Who carries a block's value of a given iteration: ops and local applies, looked up by (block, iteration).
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace gradweave {

struct Carrier {
  std::int32_t block = 0;
  std::int64_t data = 0;       // the iteration whose gradient or parameter is carried
  std::int64_t iteration = 0;  // that lists the item
  std::int32_t item = 0;       // place among its ops or applies
  friend auto operator<=>(const Carrier&, const Carrier&) = default;
};

class CarrierTable {
 public:
  void add(const Carrier& carrier) { carriers_.push_back(carrier); }

  // Must follow the last add() and precede the first find(). O(n log n); O(n) if added in order.
  void freeze() {
    if (!std::ranges::is_sorted(carriers_)) std::ranges::sort(carriers_);
  }

  // Returns the carriers of `block`'s value of iteration `data`. O(log n).
  std::span<const Carrier> find(std::int32_t block, std::int64_t data) const {
    const auto before = [](const Carrier& a, const Carrier& b) {
      return a.block != b.block ? a.block < b.block : a.data < b.data;
    };
    const auto [first, last] =
        std::equal_range(carriers_.begin(), carriers_.end(), Carrier{block, data}, before);
    return {first, last};
  }

 private:
  std::vector<Carrier> carriers_;
};

}  // namespace gradweave
