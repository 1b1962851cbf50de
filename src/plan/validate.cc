#include "gradweave/validate.h"

#include "gradweave/error.h"
#include "plan/rules.h"

namespace gradweave {

Validation validate(const Plan& plan, const Workload& workload, const Cluster* cluster) {
  Validation result;
  Report report;
  const WorkloadIndex index(workload);
  ResolvedPlan resolved(plan, index, cluster, report);
  check_partition(resolved, report);
  const CompiledPlan compiled(std::move(resolved), report);
  if (compiled.checkable && !report.full()) {
    check_pairs(compiled, report);
    result.facts = check_blocks(compiled, report);
    if (!report.full()) check_waits(compiled, report);
  }
  result.violations = report.take();
  return result;
}

namespace {

std::string fault_of(const Validation& validation) {
  const Violation& first = validation.violations.front();
  return "is not a valid plan: " + first.what + " at " + first.where;
}

}  // namespace

void require_valid(const Validation& validation, const std::string& where) {
  if (validation.valid()) return;
  const std::size_t more = validation.violations.size() - 1;
  std::string what = fault_of(validation);
  if (more > 0) what += " (and " + std::to_string(more) + " more, see 'gradweave validate')";
  throw InvalidInput(what, where, validation.violations.front().remedy);
}

void require_sound(const Validation& validation, const std::string& scheme) {
  if (validation.valid()) return;
  throw InternalError("what scheme '" + scheme + "' has made " + fault_of(validation) +
                      "; please report it, with the workload and the cluster");
}

}  // namespace gradweave
