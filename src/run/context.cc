#include "run/context.h"

#include <algorithm>

namespace gradweave::run {

bool Context::holds_left_out(const RunApply& apply) const {
  if (!flags.ever_left_out()) return false;
  return std::ranges::any_of(apply.merges, [&](std::int32_t m) REQUIRES(compute_thread) {
    const std::int64_t iteration = cursor.now() + m;
    return cursor.exists(iteration) && flags.left_out(iteration);
  });
}

}  // namespace gradweave::run
