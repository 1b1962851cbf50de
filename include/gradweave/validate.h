// The proof that a plan loses nothing, applies everything once and cannot deadlock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "gradweave/cluster.h"
#include "gradweave/plan.h"
#include "gradweave/workload.h"

namespace gradweave {

struct Violation {
  int rule = 0;        // 1..7, as numbered in docs/plan.md
  std::string what;    // the fault, in words
  std::string where;   // "period[2].ops[5], block 7 (conv1.weight[0:4096])"
  std::string remedy;  // what would repair it
  friend bool operator==(const Violation&, const Violation&) = default;
};

// What the validator learns on the way and reports.
struct PlanFacts {
  bool mixed_staleness = false;        // a generation's blocks or merges are applied in different iterations
  std::int32_t generations_alive = 0;  // the most that any block has at once
  std::int64_t extra_bytes = 0;        // peak memory of generations and snapshots (see docs/plan.md)
};

struct Validation {
  std::vector<Violation> violations;  // empty: the plan is valid. At most `kMaxViolations`, in plan order
  PlanFacts facts;                    // meaningful only if valid
  bool valid() const { return violations.empty(); }
};

inline constexpr std::size_t kMaxViolations = 100;

// Returns every violation of the seven rules. Without a cluster, links are checked against Plan::links alone.
// Never throws for a bad plan. O(size of prologue and period, unrolled as far as merges reach).
Validation validate(const Plan& plan, const Workload& workload, const Cluster* cluster = nullptr);

// Throws InvalidInput with the first violation unless the plan is valid. `where` names the plan's file or scheme.
void require_valid(const Validation& validation, const std::string& where);

// The same for a plan of Gradweave's own making, by a scheme. Throws InternalError.
void require_sound(const Validation& validation, const std::string& scheme);

}  // namespace gradweave
