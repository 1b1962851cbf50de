#include "run/layer_timer.h"

#include <algorithm>
#include <cmath>
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
  layer_start_.assign(layers, 0);
  layer_end_.assign(layers, 0);
  passed_.reserve(2 * layers + 5);
  rows_.assign(kMostKept, {.layer_forward = std::vector<std::int64_t>(layers),
                           .backward = std::vector<std::int64_t>(layers)});
  kept_ = 0;
  begin_iteration();
}

void LayerTimer::begin_iteration() {
  forward_begin_ = backward_begin_ = backward_end_ = 0;
  std::ranges::fill(layer_end_, 0);
  in_backward_ = false;
  left_out_ = 0;
  begin_ = 0;
  mark(begin_);
}

void LayerTimer::forward_begins() {
  if (forward_begin_ != 0) return;
  std::ranges::fill(layer_start_, 0);  // of a forward without gradients, as an evaluation is
  mark(forward_begin_);
}

void LayerTimer::layer_started(std::int32_t layer) {
  std::int64_t& start = layer_start_[static_cast<std::size_t>(layer)];
  if (start == 0) mark(start);
}

bool LayerTimer::backward_begins() {
  if (std::exchange(in_backward_, true)) return false;
  mark(backward_begin_);
  return true;
}

void LayerTimer::gradient_came(std::int32_t layer) { mark(layer_end_[static_cast<std::size_t>(layer)]); }

void LayerTimer::backward_ended() {
  in_backward_ = false;
  mark(backward_end_);
}

void LayerTimer::read() {
  passed_.clear();
  for (std::int64_t* moment : {&begin_, &forward_begin_, &backward_begin_, &backward_end_, &end_})
    passed_.push_back(moment);
  for (auto* moments : {&layer_start_, &layer_end_}) {
    for (std::int64_t& moment : *moments) {
      if (moment != 0) passed_.push_back(&moment);
    }
  }
  stopwatch_->read(passed_);
}

bool LayerTimer::iteration_ended() {
  const bool whole =
      begin_ != 0 && forward_begin_ != 0 && backward_begin_ != 0 && backward_end_ != 0 && !in_backward_;
  if (!whole) {
    stopwatch_->read({});
  } else {
    mark(end_);
    read();
    Row& here = rows_[static_cast<std::size_t>(kept_++) % rows_.size()];
    here.iteration = end_ - begin_ + left_out_;
    here.forward = backward_begin_ - forward_begin_;
    here.every_layer = std::ranges::find(layer_start_, 0) == layer_start_.end();
    layer_start_.front() = forward_begin_;
    std::int64_t next = backward_begin_;
    for (std::size_t l = layer_start_.size(); l-- > 0;) {
      here.layer_forward[l] = 0;
      if (layer_start_[l] == 0) continue;
      here.layer_forward[l] = std::max<std::int64_t>(0, next - layer_start_[l]);
      next = layer_start_[l];
    }
    std::int64_t before = backward_begin_;
    for (std::size_t l = layer_end_.size(); l-- > 0;) {
      const std::int64_t end = std::max(before, layer_end_[l]);
      here.backward[l] = end - before;
      before = end;
    }
    here.backward.front() += backward_end_ - before;
  }
  begin_iteration();
  return whole;
}

void LayerTimer::begin_profile(std::int64_t iterations) {
  on_ = true;
  rows_.resize(static_cast<std::size_t>(std::max(iterations, kMostKept)), rows_.front());
  kept_ = 0;
  begin_iteration();
}

LayerTimes LayerTimer::end_profile() {
  on_ = stopwatch_->cheap();
  const std::size_t layers = layer_start_.size();
  LayerTimes times{std::vector<double>(layers), std::vector<double>(layers)};
  std::vector<std::vector<double>> found;
  times.every_layer = kept_ > 0;
  for (std::int64_t n = std::max<std::int64_t>(0, kept_ - static_cast<std::int64_t>(rows_.size())); n < kept_;
       ++n) {
    std::vector<double>& parts = found.emplace_back(row(n).layer_forward.begin(), row(n).layer_forward.end());
    parts.insert(parts.end(), row(n).backward.begin(), row(n).backward.end());
    double rest = static_cast<double>(row(n).iteration);
    for (const double part : parts) rest -= part;
    parts.push_back(rest);
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
