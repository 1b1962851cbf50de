// The ops of a plan by their place on their link, and which of them compute and other ops wait for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/resolved.h"
#include "plan/uses.h"
#include "simulate/program.h"

namespace gradweave {

class OpPlaces {
 public:
  // `calendar`: head and period are set. All must outlive the object. O(ops of all codes).
  OpPlaces(const ResolvedPlan& plan, const Uses& uses, const Program& calendar);

  // Returns the ops of a role that carry `blocks` for `merges` of iteration n, without repetition, and on links
  // that serve one op at a time only the last. Valid until the next call.
  const std::vector<OpPlace>& carrying(Role role, Indices blocks, Indices merges, std::int64_t n);

 private:
  OpPlace place(std::int64_t iteration, std::size_t item, std::int64_t from) const;

  const ResolvedPlan& plan_;
  const Uses& uses_;
  const Program& calendar_;
  std::vector<std::size_t> first_;       // per code
  std::vector<std::int32_t> positions_;  // per op of a code: its place on its link; -1: does not exist
  std::vector<OpPlace> found_;
};

}  // namespace gradweave
