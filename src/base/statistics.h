// Means of measurements, and how sure they are.
#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <span>
#include <vector>

namespace gradweave {

// Returns the value in the middle, or the mean of the two in the middle, rounded towards the smaller. The caller owes one
// value or more. O(n).
template <typename Value>
Value median_of(std::vector<Value> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  if (values.size() % 2 == 1) return *middle;
  return std::midpoint(*std::max_element(values.begin(), middle), *middle);
}

// Returns the median of each column, all scaled alike so that they add up to the median of the rows' sums. What
// disturbs now one part of an iteration and now another shows in no part's median, but in every iteration. The caller
// owes one row or more, of one length. O(rows * columns).
std::vector<double> typical_row(const std::vector<std::vector<double>>& rows);

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
