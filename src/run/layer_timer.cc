#include "run/layer_timer.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "base/statistics.h"

namespace gradweave::run {

Workload timed(Workload workload, const LayerTimes& times) {
  for (std::size_t l = 0; l < workload.layers.size(); ++l) {
    workload.layers[l].forward_ns = std::llround(times.forward_ns[l]);
    workload.layers[l].backward_ns = std::llround(times.backward_ns[l]);
  }
  return workload;
}

void LayerTimer::reset(std::size_t layers) {
  forget_all();
  const Row row{.layer_forward = std::vector<std::int64_t>(layers),
                .backward = std::vector<std::int64_t>(layers)};
  rows_.assign(kMostKept, row);
  const Moments moments{.layer_start = std::vector<std::int64_t>(layers),
                        .layer_end = std::vector<std::int64_t>(layers)};
  moments_.assign(static_cast<std::size_t>(stopwatch_->of_device() ? kMostAhead + 1 : 1), moments);
  begin_iteration();
}

void LayerTimer::forget_all() {
  for (Moments& moments : moments_) forget(moments);
  known_ = ended_ = 0;
}

void LayerTimer::forget(Moments& moments) {
  for (std::int64_t* const moment :
       {&moments.begin, &moments.forward, &moments.backward, &moments.backward_end, &moments.end})
    clear(*moment);
  for (auto* const layers : {&moments.layer_start, &moments.layer_end}) {
    for (std::int64_t& moment : *layers) clear(moment);
  }
  for (auto* const stretches : {&moments.left_out, &moments.waits}) {
    for (const Stretch& each : *stretches) {
      stopwatch_->forget(each.begin);
      stopwatch_->forget(each.end);
    }
    stretches->clear();
  }
}

void LayerTimer::begin_iteration() {
  forget(here());
  in_backward_ = false;
  mark(here().begin);
}

void LayerTimer::forward_begins() {
  if (here().forward != 0) return;
  for (std::int64_t& start : here().layer_start)
    clear(start);  // of a forward without gradients, as an evaluation is
  mark(here().forward);
}

void LayerTimer::layer_started(std::int32_t layer) {
  std::int64_t& start = here().layer_start[static_cast<std::size_t>(layer)];
  if (start == 0) mark(start);
}

bool LayerTimer::backward_begins() {
  if (std::exchange(in_backward_, true)) return false;
  mark(here().backward);
  return true;
}

void LayerTimer::gradient_came(std::int32_t layer) {
  mark(here().layer_end[static_cast<std::size_t>(layer)]);
}

void LayerTimer::backward_ended() {
  in_backward_ = false;
  mark(here().backward_end);
}

bool LayerTimer::iteration_ended() {
  Moments& now = here();
  bool kept =
      now.begin != 0 && now.forward != 0 && now.backward != 0 && now.backward_end != 0 && !in_backward_;
  if (kept) {
    mark(now.end);
    ++ended_;
    learn();
    kept = ended_ - known_ < static_cast<std::int64_t>(moments_.size());
    if (!kept) --ended_;  // the host is so far ahead: this one is not timed
  }
  begin_iteration();
  return kept;
}

// Reads the iterations that have ended and that the device has passed.
void LayerTimer::learn() {
  for (; known_ < ended_; ++known_) {
    Moments& moments = moments_[static_cast<std::size_t>(known_) % moments_.size()];
    if (!stopwatch_->passed(moments.end)) return;
    Row& row = rows_[static_cast<std::size_t>(known_) % rows_.size()];
    learn(moments, row);
    exposed_ += row.exposed;
    forget(moments);
  }
}

void LayerTimer::learn(const Moments& moments, Row& row) {
  left_out_.assign(1, {moments.begin, 0});
  for (const Stretch& each : moments.left_out)
    left_out_.emplace_back(each.end, left_out_.back().second + stopwatch_->between(each.begin, each.end));
  // From the begin on, of compute.
  const auto at = [&](std::int64_t moment) {
    const auto after =
        std::ranges::upper_bound(left_out_, moment, {}, &decltype(left_out_)::value_type::first);
    return stopwatch_->between(moments.begin, moment) - std::prev(after)->second;
  };
  row.iteration = stopwatch_->between(moments.begin, moments.end);
  row.before = stopwatch_->between(moments.begin, moments.forward);
  row.exposed = 0;
  for (const Stretch& each : moments.waits) row.exposed += stopwatch_->between(each.begin, each.end);
  const std::int64_t forward = at(moments.forward), backward = at(moments.backward);
  row.forward = backward - forward;
  row.every_layer = std::ranges::find(moments.layer_start, 0) == moments.layer_start.end();
  std::int64_t next = backward;
  for (std::size_t l = moments.layer_start.size(); l-- > 0;) {
    row.layer_forward[l] = 0;
    if (l > 0 && moments.layer_start[l] == 0) continue;
    const std::int64_t start = l == 0 ? forward : at(moments.layer_start[l]);
    row.layer_forward[l] = std::max<std::int64_t>(0, next - start);
    next = start;
  }
  std::int64_t before = backward;
  for (std::size_t l = moments.layer_end.size(); l-- > 0;) {
    const std::int64_t end = moments.layer_end[l] == 0 ? before : std::max(before, at(moments.layer_end[l]));
    row.backward[l] = end - before;
    before = end;
  }
  row.backward.front() += at(moments.backward_end) - before;
}

void LayerTimer::await_all() {
  while (known_ < ended_) {
    stopwatch_->await(moments_[static_cast<std::size_t>(known_) % moments_.size()].end);
    learn();
  }
}

void LayerTimer::begin_profile(std::int64_t iterations) {
  forget_all();
  rows_.resize(static_cast<std::size_t>(std::max(iterations, kMostKept)), rows_.front());
  if (stopwatch_->of_device())
    moments_.resize(static_cast<std::size_t>(std::max(iterations, kMostAhead) + 1), moments_.front());
  begin_iteration();
}

LayerTimes LayerTimer::end_profile() {
  await_all();
  const std::size_t layers = here().layer_start.size();
  LayerTimes times{std::vector<double>(layers), std::vector<double>(layers)};
  std::vector<std::vector<double>> found;
  times.every_layer = known_ > 0;
  times.iterations = known_;
  for (std::int64_t n = std::max<std::int64_t>(0, known_ - static_cast<std::int64_t>(rows_.size()));
       n < known_; ++n) {
    std::vector<double>& parts = found.emplace_back(row(n).layer_forward.begin(), row(n).layer_forward.end());
    parts.insert(parts.end(), row(n).backward.begin(), row(n).backward.end());
    auto rest = static_cast<double>(row(n).iteration - row(n).exposed);
    for (const double part : parts) rest -= part;
    parts.push_back(std::max(0.0, rest));  // a step that runs forwards has waits in them
    times.every_layer = times.every_layer && row(n).every_layer;
  }
  if (found.empty()) return times;
  const std::vector<double> typical = typical_row(found);
  const auto middle = typical.begin() + static_cast<std::ptrdiff_t>(layers);
  std::copy(typical.begin(), middle, times.forward_ns.begin());
  std::copy(middle, typical.end() - 1, times.backward_ns.begin());
  times.rest_ns = typical.back();
  return times;
}

}  // namespace gradweave::run
