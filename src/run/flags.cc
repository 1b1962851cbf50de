#include "run/flags.h"

#include <algorithm>
#include <utility>

#include "gradweave/error.h"

namespace gradweave::run {

Flags::Flags(FlagExchange& exchange, const Ending& ending, const WorkloadIndex& index, std::size_t depth,
             FindUnused find_unused, int world_size)
    : exchange_(exchange),
      ending_(ending),
      index_(index),
      depth_(depth),
      world_size_(world_size),
      find_unused_(find_unused),
      rows_(depth, Row{.values = std::vector<std::uint8_t>(index.tensors.size() + 2)}) {}

void Flags::restart() {
  settle();
  for (Row& row : rows_) {
    std::ranges::fill(row.values, 0);
    row.left_out = false;
  }
  last_left_out_ = -1;
}

bool Flags::tell(std::int64_t iteration, std::span<const std::uint8_t> used, bool bad, bool ask,
                 std::span<const std::uint8_t> owed) {
  const std::size_t tensors = index_.tensors.size(), slot = slot_of(iteration);
  settle(slot);  // of an iteration long ago that nobody asked about
  Row& row = rows_[slot];
  std::ranges::copy(used, row.values.begin());
  for (std::size_t t = 0; t < owed.size(); ++t) row.values[t] |= owed[t];
  const auto unused = std::ranges::find(used, 0) - used.begin();
  const bool some_unused = static_cast<std::size_t>(unused) != tensors;
  row.values[tensors] = some_unused;
  row.values[tensors + 1] = bad;
  if (find_unused_ == FindUnused::kOff && some_unused) {
    throw InvalidInput(
        "it got no gradient in this backward",
        "parameter '" + index_.tensor_names[static_cast<std::size_t>(unused)] + "'",
        "pass find_unused_parameters=True to gradweave.wrap() (C++: set it in SessionOptions)");
  }
  if ((find_unused_ != FindUnused::kOff || ask) && world_size_ > 1) {
    row.exchanging = true;
    exchange_.begin_exchange(slot, row.values);
    // Every apply from here on depends on what was asked, and the first iteration's answer decides on the next.
    if (find_unused_ == FindUnused::kAuto || ask) settle(slot);
    if (find_unused_ == FindUnused::kAuto)
      find_unused_ = row.values[tensors] ? FindUnused::kOn : FindUnused::kOff;
  }
  row.left_out = false;
  return ask && row.values[tensors + 1] != 0;
}

void Flags::leave_out(std::int64_t iteration) {
  at(iteration).left_out = true;
  last_left_out_ = iteration;
}

bool Flags::left_out_lately(std::int64_t iteration) const {
  return ever_left_out() && last_left_out_ >= iteration - static_cast<std::int64_t>(depth_);
}

bool Flags::used(std::int64_t iteration, std::int32_t tensor) {
  settle(slot_of(iteration));
  return at(iteration).values[static_cast<std::size_t>(tensor)] != 0;
}

void Flags::settle() {
  for (std::size_t slot = 0; slot < depth_; ++slot) settle(slot);
}

void Flags::settle(std::size_t slot) {
  if (!std::exchange(rows_[slot].exchanging, false)) return;
  ending_.guard("the exchange of used parameters",
                [&]() REQUIRES(compute_thread) { exchange_.finish_exchange(slot); });
}

void Flags::archive_iterations(Archive& archive) {
  for (Row& row : rows_) {
    archive(row.values);
    archive(row.left_out);
  }
}

}  // namespace gradweave::run
