#include "plan/momentum.h"

#include "gradweave/compression.h"

namespace gradweave {

bool makes_momentum(const Plan& plan) {
  for (const std::vector<Iteration>* iterations : {&plan.prologue, &plan.period}) {
    for (const Iteration& iteration : *iterations) {
      for (const Op& op : iteration.ops) {
        if (op.compression.name.empty()) continue;
        const auto parameters = with_defaults(op.compression).parameters;
        const auto momentum = parameters.find("momentum");
        if (momentum != parameters.end() && momentum->second > 0) return true;
      }
    }
  }
  return false;
}

}  // namespace gradweave
