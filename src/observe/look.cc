#include <algorithm>
#include <limits>

#include "gradweave/observe.h"

namespace gradweave {

std::vector<double> to_numbers(const Look& look) {
  std::vector<double> numbers = look.op_ns;
  numbers.insert(numbers.end(), look.compute_ns.begin(), look.compute_ns.end());
  numbers.push_back(look.exposed_ns);
  // Of these the largest is wanted.
  for (const double each : look.backward_ns) numbers.push_back(-each);
  numbers.push_back(-look.forward_ns);
  numbers.push_back(-look.iteration_ns);
  return numbers;
}

Look from_numbers(std::span<const double> numbers, const Look& shape) {
  Look look = shape;
  const double* next = numbers.data();
  for (double& each : look.op_ns) each = *next++;
  for (double& each : look.compute_ns) each = *next++;
  look.exposed_ns = *next++;
  for (double& each : look.backward_ns) each = -*next++;
  look.forward_ns = -*next++;
  look.iteration_ns = -*next++;
  return look;
}

}  // namespace gradweave
