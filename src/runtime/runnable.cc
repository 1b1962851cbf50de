#include "runtime/runnable.h"

#include <cstddef>
#include <string>

#include "gradweave/error.h"
#include "gradweave/json.h"

namespace gradweave::runtime {
namespace {

void check_op(const Op& op, const std::string& where) {
  if (op.collective == Collective::kCompressed || !op.compression.name.empty()) {
    throw InvalidInput("the engine has no compressed collectives", where, "use a scheme without compression");
  }
  if (op.payload == Payload::kParameter && op.collective != Collective::kAllReduce) {
    throw InvalidInput("parameters are averaged by all_reduce only", where, "use collective 'all_reduce'");
  }
}

void check_iterations(const std::vector<Iteration>& iterations, const std::string& list) {
  for (std::size_t i = 0; i < iterations.size(); ++i) {
    const std::string where = list + "[" + std::to_string(i) + "]";
    const auto item = [&](const char* name, std::size_t k) {
      return where + "." + name + "[" + std::to_string(k) + "]";
    };
    for (std::size_t k = 0; k < iterations[i].ops.size(); ++k) check_op(iterations[i].ops[k], item("ops", k));
    for (std::size_t k = 0; k < iterations[i].applies.size(); ++k) {
      const Apply& apply = iterations[i].applies[k];
      if (apply.slices && apply.source != Source::kAveragedParameter) {
        throw InvalidInput("the engine steps whole tensors", item("applies", k),
                           "use a plan without `slices`");
      }
    }
  }
}

}  // namespace

Calendar runnable_calendar(const Plan& plan, const Workload& workload) {
  check_iterations(plan.prologue, "prologue");
  check_iterations(plan.period, "period");
  Calendar calendar = calendar_of(plan, workload);
  calendar.hash = hash_of(plan);
  return calendar;
}

}  // namespace gradweave::runtime
