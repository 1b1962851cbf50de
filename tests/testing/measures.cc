#include "testing/measures.h"

namespace gradweave::testing {

std::vector<Nanoseconds> communication_times(const Plan& plan, const CostModel& model) {
  std::vector<Nanoseconds> times;
  for (const Iteration& iteration : plan.period) {
    Nanoseconds& sum = times.emplace_back(0);
    for (const Op& op : iteration.ops) {
      std::vector<Slice> slices;
      for (const std::int32_t b : op.blocks) {
        const Block& block = plan.blocks[static_cast<std::size_t>(b)];
        slices.push_back({*model.index().find_tensor(block.tensor), block.begin, block.end});
      }
      sum += model.all_reduce(0, slices);
    }
  }
  return times;
}

}  // namespace gradweave::testing
