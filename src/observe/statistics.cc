#include <algorithm>
#include <limits>

#include "gradweave/iteration_statistics.h"

namespace gradweave {

std::vector<double> to_numbers(const IterationStatistics& sample) {
  std::vector<double> numbers = sample.op_ns;
  numbers.insert(numbers.end(), sample.compute_ns.begin(), sample.compute_ns.end());
  numbers.push_back(sample.exposed_ns);
  numbers.push_back(sample.whole ? 1 : 0);
  // Of these the largest is wanted.
  for (const double each : sample.backward_ns) numbers.push_back(-each);
  numbers.push_back(-sample.forward_ns);
  numbers.push_back(-sample.iteration_ns);
  return numbers;
}

IterationStatistics from_numbers(std::span<const double> numbers, const IterationStatistics& shape) {
  IterationStatistics sample = shape;
  const double* next = numbers.data();
  for (double& each : sample.op_ns) each = *next++;
  for (double& each : sample.compute_ns) each = *next++;
  sample.exposed_ns = *next++;
  sample.whole = *next++ > 0;
  for (double& each : sample.backward_ns) each = -*next++;
  sample.forward_ns = -*next++;
  sample.iteration_ns = -*next++;
  return sample;
}

}  // namespace gradweave
