// The ops of a plan by their place on their link, as compute and other ops wait for them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/compiled_plan.h"
#include "simulate/program.h"

namespace gradweave {

class OpPlaces {
 public:
  // `program`: head and period are set. All must outlive the object. O(ops of all codes).
  OpPlaces(const CompiledPlan& plan, const Program& program);

  // Return the ops whose results apply k of iteration n uses, or its op k goes on with: each once, and on links that serve one op at a time only the last. Valid until the next call.
  const std::vector<OpPlace>& delivering(std::int64_t n, std::size_t k);
  const std::vector<OpPlace>& before(std::int64_t n, std::size_t k);

 private:
  void add(std::int64_t n, OpRef op);
  const std::vector<OpPlace>& last_of_each_link();

  const CompiledPlan& plan_;
  const Program& program_;
  std::vector<std::size_t> first_;       // per code
  std::vector<std::int32_t> positions_;  // per op of a code: its place on its link; -1: does not exist
  std::vector<OpPlace> found_;
  OpRef last_;  // of what was found
};

}  // namespace gradweave
