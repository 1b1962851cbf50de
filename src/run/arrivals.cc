#include "run/arrivals.h"

#include <algorithm>

namespace gradweave::run {

Arrivals::Arrivals(const WorkloadIndex& index)
    : index_(index),
      ready_(index.tensors.size()),
      present_(index.tensors.size()),
      touched_(index.tensors.size()),
      touched_next_(index.tensors.size()),
      missing_(index.layer_count) {}

void Arrivals::begin() {
  std::ranges::fill(ready_, 0);
  for (std::size_t l = 0; l < missing_.size(); ++l)
    missing_[l] = static_cast<std::int32_t>(index_.first_tensor[l + 1] - index_.first_tensor[l]);
}

bool Arrivals::come(std::int32_t tensor) { return std::exchange(ready_[place(tensor)], 1) == 0; }

std::optional<Arrivals::Ended> Arrivals::dealt_with(std::int32_t tensor) {
  const std::size_t layer = index_.tensors[place(tensor)].layer;
  if (--missing_[layer] > 0) return std::nullopt;
  std::size_t last = layer;
  while (last + 1 < missing_.size() && index_.first_tensor[last + 1] == index_.first_tensor[last + 2]) ++last;
  return Ended{static_cast<std::int32_t>(layer), static_cast<std::int32_t>(last)};
}

void Arrivals::forget_accumulated() {
  touched_.swap(touched_next_);
  std::ranges::fill(touched_next_, 0);
}

bool Arrivals::missing_from(std::int32_t layer) const {
  return std::any_of(missing_.begin() + layer, missing_.end(), [](std::int32_t left) { return left > 0; });
}

}  // namespace gradweave::run
