// Means of measurements, and how sure they are.
#pragma once

#include <cstddef>
#include <span>

namespace gradweave {

// Returns the probability that the magnitude of Student's t with `degrees` >= 1 degrees of freedom exceeds t >= 0
// (Abramowitz and Stegun, 26.7.3 and 26.7.4). O(degrees).
double student_tail(double t, int degrees);

struct Sample {
  std::size_t size = 0;
  double mean = 0;
  double variance = 0;  // of one value; infinite below two

  // Returns half of the 95 % confidence interval of the mean by Student's t; infinite below two values.
  double uncertainty() const;
};

Sample sample_of(std::span<const double> values);

}  // namespace gradweave
