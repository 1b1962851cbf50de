// Who carries a block's value of a given iteration: ops and local applies, looked up by (block, iteration).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gradweave/plan.h"
#include "simulate/program.h"
#include "simulate/resolved.h"

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

  // Must follow the last add() and precede the first find(). O(n + blocks), and the log of a block's carriers
  // where they were not added in order.
  void freeze();

  // Returns the carriers of `block`'s value of iteration `data`. O(log of the block's carriers).
  std::span<const Carrier> find(std::int32_t block, std::int64_t data) const;

 private:
  std::vector<Carrier> carriers_;   // by block, data, iteration, item
  std::vector<std::size_t> begin_;  // per block, and the end
};

// What a carrier brings.
enum class Cargo : std::uint8_t {
  kGradient,    // reduced, by all ops but reduce-scatters
  kScattered,   // by reduce-scatters
  kParameter,   // averaged
  kLocalApply,  // no op: the apply that makes the local step
  kCount,
};

// The carriers of a plan's iterations, and references to its ops by their place on their link.
class Carriers {
 public:
  // `calendar`: head, period and reach are set. All must outlive the object. O(unrolled ops and applies), log
  // factors aside.
  Carriers(const Plan& plan, const ResolvedPlan& resolved, const Program& calendar);

  std::span<const Carrier> find(Cargo cargo, std::int32_t block, std::int64_t data) const {
    return table(cargo).find(block, data);
  }

  // Returns the ops that carry `blocks` for `merges` of iteration n, without repetition, and on links that
  // serve one op at a time only the last. Valid until the next call.
  const std::vector<OpPlace>& ops_for(Cargo cargo, const std::vector<std::int32_t>& blocks,
                                      const std::vector<std::int32_t>& merges, std::int64_t n);

 private:
  CarrierTable& table(Cargo cargo) { return tables_[static_cast<std::size_t>(cargo)]; }
  const CarrierTable& table(Cargo cargo) const { return tables_[static_cast<std::size_t>(cargo)]; }
  void add(Cargo cargo, const std::vector<std::int32_t>& blocks, const std::vector<std::int32_t>& merges,
           std::int64_t n, std::size_t item);
  void number_ops(const Plan& plan);
  OpPlace reference(const Carrier& carrier, std::int64_t from) const;

  const ResolvedPlan& resolved_;
  const Program& calendar_;
  std::array<CarrierTable, static_cast<std::size_t>(Cargo::kCount)> tables_;
  std::vector<std::size_t> position_begin_;  // per code
  std::vector<std::int32_t> positions_;      // per op of a code: its place on its link; -1: does not exist
  std::vector<OpPlace> refs_;
};

}  // namespace gradweave
