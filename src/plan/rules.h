// The validator's rules, as docs/plan.md numbers them. Each reports what breaks it.
#pragma once

#include "gradweave/validate.h"
#include "plan/compiled_plan.h"
#include "plan/report.h"
#include "plan/resolved.h"

namespace gradweave {

// Rule 1: what keeps the known blocks from partitioning the tensors.
void check_partition(const ResolvedPlan& plan, Report& report);

// Rule 3.
void check_pairs(const CompiledPlan& plan, Report& report);

// The parts of rules 4 and 6 that an apply alone can break.
void check_applies(const CompiledPlan& plan, Report& report);

// Rules 2, 4 and 6, and what of rule 5 concerns values, block by block. Returns the facts.
PlanFacts check_blocks(const CompiledPlan& plan, Report& report);

// Rule 5, and the launch order of rule 7.
void check_waits(const CompiledPlan& plan, Report& report);

}  // namespace gradweave
