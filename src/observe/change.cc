#include <cmath>
#include <limits>

#include "base/statistics.h"
#include "gradweave/observe.h"

namespace gradweave {
namespace {

constexpr std::size_t kLeast = 4, kMost = 64;  // measurements that the last two are compared with

}  // namespace

bool ChangeTest::add(double value) {
  values_.push_back(value);
  if (values_.size() < kLeast + 2) return false;
  if (values_.size() > kMost + 2) values_.erase(values_.begin());
  const Sample before = sample_of(std::span(values_).first(values_.size() - 2));
  const double shift = sample_of(std::span(values_).last(2)).mean - before.mean;
  const auto moved = [&](double one) { return shift != 0 && (one - before.mean) / shift >= 0.5; };
  if (!moved(values_[values_.size() - 2]) || !moved(value)) return false;
  const double error = std::sqrt(before.variance * (0.5 + 1.0 / static_cast<double>(before.size)));
  const double t = error > 0 ? std::abs(shift) / error : std::numeric_limits<double>::infinity();
  if (student_tail(t, static_cast<int>(before.size) - 1) >= chance_) return false;
  values_.erase(values_.begin(), values_.end() - 2);
  return true;
}

double ChangeTest::mean() const { return sample_of(values_).mean; }

double ChangeTest::uncertainty() const { return sample_of(values_).uncertainty(); }

}  // namespace gradweave
