#include "run/flight_recorder.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace gradweave::run {

void FlightRecorder::install(const RunPlan& plan) {
  if (events_.empty()) return;
  names_before_ = std::exchange(names_, {});
  ++plan_;
  for (const RunIteration& iteration : plan.iterations) {
    for (const RunOp& op : iteration.ops)
      names_[&op] = {op.label, plan.links[static_cast<std::size_t>(op.link)], op.bytes};
  }
  links_ = plan.links;
}

std::int64_t FlightRecorder::add(const Event& event) {
  Event& place = events_[static_cast<std::size_t>(added_) % events_.size()];
  if (added_ >= static_cast<std::int64_t>(events_.size()))
    lost_through_ = std::max(lost_through_, place.iteration);
  place = event;
  place.plan = plan_;
  return added_++;
}

void FlightRecorder::pass(PointKind kind, std::int32_t layer, std::int64_t iteration, std::int64_t now) {
  if (events_.empty()) return;
  iteration_ = base_ + iteration;
  add({.begin = now, .end = now, .iteration = iteration_, .layer = layer, .point = kind});
}

std::int64_t FlightRecorder::op_begins(const Execution& execution, std::int64_t now) {
  if (events_.empty()) return 0;
  return add({.begin = now,
              .iteration = execution.run_iteration,
              .op = execution.op,
              .place = execution.place,
              .kind = Kind::kOp});
}

std::int64_t FlightRecorder::wait_begins(const Execution& execution, std::int32_t layer, std::int64_t now) {
  if (events_.empty()) return 0;
  return add({.begin = now,
              .iteration = iteration_,
              .op = execution.op,
              .layer = layer,
              .place = execution.place,
              .kind = Kind::kWait});
}

void FlightRecorder::ended(std::int64_t event, std::int64_t now) {
  if (events_.empty() || event + static_cast<std::int64_t>(events_.size()) < added_) return;  // overwritten
  events_[static_cast<std::size_t>(event) % events_.size()].end = now;
}

const FlightRecorder::OpName* FlightRecorder::name_of(const Event& event) const {
  const Names* names = event.plan == plan_ ? &names_ : event.plan + 1 == plan_ ? &names_before_ : nullptr;
  if (names == nullptr) return nullptr;
  const auto found = names->find(event.op);
  return found == names->end() ? nullptr : &found->second;
}

Timeline FlightRecorder::timeline(std::int64_t now) const {
  Timeline timeline{.name = "run", .origin = "measured", .links = links_};
  const auto link_of = [&](const std::string& name) {
    const auto found = std::ranges::find(timeline.links, name);
    const auto place = static_cast<std::int32_t>(found - timeline.links.begin());
    if (found == timeline.links.end()) timeline.links.push_back(name);
    return place;
  };
  const auto size = static_cast<std::int64_t>(events_.size());
  std::int64_t since = 0;  // the end of what compute did before
  for (std::int64_t e = std::max<std::int64_t>(0, added_ - size); e < added_; ++e) {
    const Event& event = events_[static_cast<std::size_t>(e % size)];
    // The last iteration is wanted even where the ring is shorter than it.
    if (event.iteration <= std::min(lost_through_, iteration_ - 1)) continue;
    Span span{.iteration = event.iteration,
              .begin_ns = event.begin,
              .end_ns = event.end == 0 ? now : event.end,
              .ended = event.end != 0};
    if (event.kind == Kind::kPoint) {
      const bool timed = event.point == PointKind::kForwardEnd || event.point == PointKind::kBackwardEnd ||
                         event.point == PointKind::kIterationEnd;
      span.begin_ns = std::exchange(since, event.begin);
      if (!timed || span.begin_ns == 0) continue;
      span.kind = event.point == PointKind::kForwardEnd    ? SpanKind::kForward
                  : event.point == PointKind::kBackwardEnd ? SpanKind::kBackward
                                                           : SpanKind::kOptimizer;
      const auto layer = static_cast<std::size_t>(event.layer);
      if (span.kind != SpanKind::kOptimizer) span.layer = event.layer;
      if (span.kind == SpanKind::kOptimizer)
        span.label = "optimizer";
      else if (layer < layers_.size())
        span.label = layers_[layer];
      timeline.spans.push_back(std::move(span));
      continue;
    }
    const OpName* name = name_of(event);
    if (name == nullptr) continue;
    const std::int32_t link = link_of(name->link);
    span.op = event.place;
    if (event.kind == Kind::kOp) {
      span.kind = SpanKind::kOp;
      span.track = link + 1;
      span.bytes = name->bytes;
      span.label = name->label;
    } else {
      span.kind = SpanKind::kWait;
      span.layer = event.layer;
      span.op_link = link;
      span.label = "wait";
      span.reason = "op '" + name->label + "' on " + name->link;
      since = span.end_ns;
    }
    timeline.spans.push_back(std::move(span));
  }
  std::ranges::sort(timeline.spans, {}, [](const Span& span) {
    return std::tuple(span.begin_ns, span.track, span.kind, span.iteration);
  });
  return timeline;
}

}  // namespace gradweave::run
