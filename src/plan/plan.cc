#include "gradweave/plan.h"

#include "gradweave/json.h"
#include "model/hash.h"

namespace gradweave {

const Iteration& iteration_at(const Plan& plan, std::int64_t n) {
  const auto prologue = static_cast<std::int64_t>(plan.prologue.size());
  if (n < prologue) return plan.prologue[static_cast<std::size_t>(n)];
  return plan
      .period[static_cast<std::size_t>((n - prologue) % static_cast<std::int64_t>(plan.period.size()))];
}

std::string hash_of(const Plan& plan) { return hash_hex(to_json(plan)); }

}  // namespace gradweave
