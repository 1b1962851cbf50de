#include "base/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>

namespace gradweave {

std::vector<double> typical_row(const std::vector<std::vector<double>>& rows) {
  std::vector<double> typical(rows.front().size()), sums;
  for (std::size_t c = 0; c < typical.size(); ++c) {
    std::vector<double> column;
    for (const std::vector<double>& row : rows) column.push_back(row[c]);
    typical[c] = median_of(std::move(column));
  }
  for (const std::vector<double>& row : rows) sums.push_back(std::accumulate(row.begin(), row.end(), 0.0));
  const double together = std::accumulate(typical.begin(), typical.end(), 0.0);
  const double scale = together > 0 ? median_of(std::move(sums)) / together : 1;
  for (double& value : typical) value *= scale;
  return typical;
}

double student_tail(double t, int degrees) {
  const bool odd = degrees % 2 == 1;
  const double angle = std::atan(t / std::sqrt(degrees)), cosine = std::cos(angle);
  double sum = 0, term = odd ? cosine : 1;
  for (int k = odd ? 1 : 0; k <= degrees - 2; k += 2) {
    sum += term;
    term *= cosine * cosine * (k + 1) / (k + 2);
  }
  const double inside = std::sin(angle) * sum;
  return std::clamp(1 - (odd ? (angle + inside) * 2 / std::numbers::pi : inside), 0.0, 1.0);
}

Sample sample_of(std::span<const double> values) {
  Sample sample{.size = values.size(), .variance = std::numeric_limits<double>::infinity()};
  if (values.empty()) return sample;
  sample.mean = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  if (values.size() < 2) return sample;
  sample.variance = 0;
  for (const double value : values) sample.variance += (value - sample.mean) * (value - sample.mean);
  sample.variance /= static_cast<double>(values.size() - 1);
  return sample;
}

double Sample::uncertainty() const {
  if (size < 2) return std::numeric_limits<double>::infinity();
  double low = 0, high = 13;  // the quantile of one degree of freedom is 12.7
  for (int i = 0; i < 60; ++i) {
    const double middle = std::midpoint(low, high);
    (student_tail(middle, static_cast<int>(size) - 1) > 0.05 ? low : high) = middle;
  }
  return high * std::sqrt(variance / static_cast<double>(size));
}

}  // namespace gradweave
