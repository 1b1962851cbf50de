#include <algorithm>
#include <cmath>
#include <span>

#include "base/statistics.h"
#include "gradweave/observe.h"

namespace gradweave {
namespace {

constexpr std::size_t kLeast = 2, kMost = 64;     // measurements before
constexpr std::size_t kFewest = 2, kLongest = 8;  // measurements after
constexpr double kUsualScatter = 0.05,
                 kUsualDegrees = 10;  // what is believed of the scatter before any is seen
constexpr double kApart = 4;          // standard deviations between measurements that are alike

bool differs(std::span<const double> before, std::span<const double> after, double chance) {
  const Sample old = sample_of(before);
  const double shift = sample_of(after).mean - old.mean;
  const double seen = static_cast<double>(old.size - 1), degrees = kUsualDegrees + seen;
  const double variance = (kUsualDegrees * kUsualScatter * kUsualScatter + seen * old.variance) / degrees;
  const auto [least, most] = std::ranges::minmax(after);
  if (most - least > std::max(kApart * std::sqrt(variance), std::abs(shift) / 4)) return false;
  const double error =
      std::sqrt(variance * (1.0 / static_cast<double>(after.size()) + 1.0 / static_cast<double>(old.size)));
  return student_tail(std::abs(shift) / error, static_cast<int>(degrees)) < chance;
}

}  // namespace

bool ChangeTest::add(double value) {
  values_.push_back(value);
  if (values_.size() > kMost + 1 + kLongest) values_.erase(values_.begin());
  const std::span<const double> all = values_;
  for (std::size_t last = kFewest; last <= kLongest && last + 1 + kLeast <= all.size(); ++last) {
    if (!differs(all.first(all.size() - last - 1), all.last(last), chance_ / (kLongest - kFewest + 1)))
      continue;
    values_.erase(values_.begin(), values_.end() - static_cast<std::ptrdiff_t>(last));
    return true;
  }
  return false;
}

void ChangeTest::keep_last() {
  if (values_.size() > kFewest) values_.erase(values_.begin(), values_.end() - kFewest);
}

double ChangeTest::mean() const { return sample_of(values_).mean; }

double ChangeTest::uncertainty() const { return sample_of(values_).uncertainty(); }

}  // namespace gradweave
