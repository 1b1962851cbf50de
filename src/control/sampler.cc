#include "control/sampler.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace gradweave::control {
namespace {

constexpr const char* kWhat = "the exchange of measured times";
constexpr double kSampleSeconds = 0.2;  // between two samples
constexpr std::int64_t kLeast = 5, kMost = 16;
constexpr double kAlarmsPerHour = 0.1;  // false ones, where times scatter as if at random

}  // namespace

void Sampler::stop() {
  exchange_.reset();
  observer_.reset();
  if (echoing_) job_.echo_on({});
  echoing_ = false;
  iterations_ = -kSettling - job_.behind();
}

void Sampler::start(const Plan& plan, const Workload& workload, const Costs& costs, double iteration_ns,
                    bool of_this_run, const EchoTimes& usual, bool echoes) {
  stop();
  const double seconds = iteration_ns / 1e9;
  choose_interval(seconds);
  const double alarms = kAlarmsPerHour * static_cast<double>(every_) * seconds / 3600;
  observer_ =
      std::make_unique<Observer>(plan, workload, costs.of(plan), alarms, of_this_run, usual, costs.overheads);
  if (!echoes) return;
  job_.echo_on(observer_->idle());
  echoing_ = true;
}

// `seconds`: of an iteration, 0 where that is not known.
void Sampler::choose_interval(double seconds) {
  const double wanted = seconds > 0 ? std::ceil(kSampleSeconds / seconds) : static_cast<double>(kMost);
  every_ = std::max(
      static_cast<std::int64_t>(std::clamp(wanted, static_cast<double>(kLeast), static_cast<double>(kMost))),
      iterations_ + 1);
}

Sampler::Due Sampler::iteration_ended() {
  ++iterations_;
  if (iterations_ < every_) return iterations_ == every_ / 2 && exchange_ ? Due::kEnd : Due::kNothing;
  sample_ = job_.statistics(every_, /*wait=*/false);
  if (sample_.iterations == 0) return Due::kNothing;  // alike on all ranks
  iterations_ = 0;
  return Due::kExchange;
}

void Sampler::exchange(bool announces) {
  std::vector<double> numbers = to_numbers(sample_);
  const std::vector<double> echoes = job_.echo_ns();
  numbers.insert(numbers.end(), echoes.begin(), echoes.end());
  numbers.push_back(announces ? -1.0 : 0.0);
  exchange_ = job_.begin_smallest(kWhat, numbers);
}

Sampler::Ended Sampler::end_exchange() {
  std::vector<double> numbers = std::exchange(exchange_, nullptr)->wait();
  Ended ended{.announced = numbers.back() < 0};
  const std::size_t echoes = observer_->idle().size();
  const std::vector<double> taken(numbers.end() - 1 - static_cast<std::ptrdiff_t>(echoes), numbers.end() - 1);
  numbers.resize(numbers.size() - 1 - echoes);
  const IterationStatistics all = from_numbers(numbers, sample_);
  ended.taken = all.whole;
  if (!ended.taken) return ended;
  ended.changed = observer_->add(all, taken);
  if (std::ranges::find(taken, 0.0) == taken.end()) job_.start_echoes();  // alike on all ranks
  choose_interval(observer_->iteration_ns() / 1e9);
  return ended;
}

bool Sampler::sample_now() {
  const IterationStatistics sample = job_.statistics(every_, /*wait=*/true);
  if (sample.iterations == 0) return false;
  const IterationStatistics all =
      from_numbers(job_.begin_smallest(kWhat, to_numbers(sample))->wait(), sample);
  return all.whole && observer_->add(all);
}

}  // namespace gradweave::control
