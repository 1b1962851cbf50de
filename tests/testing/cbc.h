// COIN-OR's mixed-integer solver as an independent oracle: tests only, never a dependency of the library.
#pragma once

#include <optional>
#include <string>

namespace gradweave::testing {

// Whether the command `cbc` is there.
bool cbc_available();

// Returns the optimal objective value of a model in CPLEX LP format, or nothing if it is infeasible.
// Throws std::runtime_error if cbc can't be run or says neither.
std::optional<double> solve_with_cbc(const std::string& lp_model);

}  // namespace gradweave::testing
