#include "control/gradient_watch.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "gradweave/error.h"
#include "gradweave/ranked_plans.h"
#include "gradweave/schemes.h"

namespace gradweave::control {
namespace {

constexpr std::int64_t kAgainEvery = 50;  // iterations
constexpr std::size_t kSamples = 25;      // that count together

constexpr std::size_t kSums = 7;       // numbers in them
constexpr std::size_t kEstimates = 8;  // numbers in them

bool allows_change(const Request& request) {
  return std::ranges::any_of(allowed_effects(parse_options(kAuto, request.options)), has_to_be_seen);
}

void add_to(std::vector<double>& numbers, const GradientSums& sums) {
  numbers.insert(numbers.end(), {sums.own, sums.mean, sums.own_change, sums.mean_change, sums.change,
                                 sums.step, sums.noise_in_change});
}

// Those of a batch whose gradients are not all finite, which the loop drops, say nothing.
std::vector<GradientSums> sums_in(std::span<const double> numbers) {
  std::vector<GradientSums> all;
  for (; numbers.size() >= kSums; numbers = numbers.subspan(kSums)) {
    if (!std::ranges::all_of(numbers.first(kSums), [](double n) { return std::isfinite(n); })) continue;
    all.push_back({numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5], numbers[6]});
  }
  return all;
}

}  // namespace

int iterations_compared(const Request& request, bool compares, int warm_up) {
  if (!compares) return 0;
  if (request.scheme == kAuto) return allows_change(request) ? std::max(warm_up, kCompared) : 0;
  const bool changes = has_to_be_seen(find_scheme(request.scheme).effect);
  return changes && warm_up >= kLeastCompared ? warm_up : 0;
}

void GradientWatch::compare(const std::vector<std::string>& late) {
  job_.compare_gradients(late);
  comparing_ = true;
}

void GradientWatch::begin() { compare({}); }

// Each iteration's, of all ranks.
std::vector<GradientSums> GradientWatch::sums_of_all() {
  comparing_ = false;
  std::vector<double> numbers;
  for (const GradientSums& sums : job_.compared_gradients()) add_to(numbers, sums);
  return sums_in(job_.means("the exchange of gradients' norms", numbers));
}

void GradientWatch::end() {
  std::vector<GradientSums> sums = sums_of_all();
  if (sums.size() < 2) return;
  estimates_ = estimate(sums, job_.size());
  samples_.push_back({std::move(sums), job_.learning_rate()});
}

std::optional<GradientsSeen> GradientWatch::seen() const {
  if (!estimates_) return std::nullopt;
  return GradientsSeen{*estimates_, job_.step_rule()};
}

std::vector<double> GradientWatch::numbers() const {
  if (!estimates_) return {};
  const GradientEstimates& seen = *estimates_;
  std::vector<double> numbers{seen.gradient_square.low,
                              seen.gradient_square.high,
                              seen.noise.low,
                              seen.noise.high,
                              seen.step.low,
                              seen.step.high,
                              seen.dissimilarity,
                              seen.workers_differ ? 1.0 : 0.0};
  for (const SeenIterations& sample : samples_) {
    numbers.push_back(sample.learning_rate);
    numbers.push_back(static_cast<double>(sample.sums.size()));
    for (const GradientSums& sums : sample.sums) add_to(numbers, sums);
  }
  return numbers;
}

void GradientWatch::restore(std::span<const double> numbers) {
  estimates_.reset();
  samples_.clear();
  if (numbers.empty()) return;
  const auto take = [&](std::size_t count) {
    if (numbers.size() < count)
      throw InvalidInput("what gradients showed is cut off", "checkpoint", "give what state_dict() returned");
    return std::exchange(numbers, numbers.subspan(count)).first(count);
  };
  const auto n = take(kEstimates);
  estimates_ = {.gradient_square = {n[0], n[1]},
                .noise = {n[2], n[3]},
                .dissimilarity = n[6],
                .workers_differ = n[7] > 0,
                .step = {n[4], n[5]}};
  while (!numbers.empty()) {
    const auto sample = take(2);
    samples_.push_back({sums_in(take(kSums * static_cast<std::size_t>(sample[1]))), sample[0]});
  }
}

void GradientWatch::plan_installed(const Plan& plan, const Workload& workload) {
  if (comparing_) job_.compared_gradients();
  comparing_ = false;
  late_.clear();
  if (estimates_ && job_.step_rule()) late_ = late_tensors(plan, workload);
  plan_ = plan, workload_ = workload;
  iterations_ = 0;
}

std::string GradientWatch::iteration_ended() {
  if (late_.empty()) return "";
  const std::int64_t place = ++iterations_ % kAgainEvery;
  if (place == 0) compare(late_);
  if (!comparing_ || place != std::min<std::int64_t>(static_cast<std::int64_t>(plan_.period.size()) + 4, 20))
    return "";
  std::vector<GradientSums> sums = sums_of_all();
  if (std::ranges::none_of(sums, [](const GradientSums& each) { return each.step > 0; })) return "";
  samples_.push_back({std::move(sums), job_.learning_rate()});
  if (samples_.size() > kSamples) samples_.pop_front();
  estimates_->step = step_seen_again(std::vector(samples_.begin(), samples_.end()), job_.size());
  const std::string mine = job_.decides() ? seen()->objection(plan_, workload_) : "";
  std::string objection = job_.gather("the Preserver's sample", mine)[0];
  if (!objection.empty()) late_.clear();
  return objection;
}

}  // namespace gradweave::control
