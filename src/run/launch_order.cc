#include "run/launch_order.h"

#include <utility>

namespace gradweave::run {

void PassedPoints::restart(std::size_t layers) {
  layers_ = layers;
  passed_.assign((static_cast<std::size_t>(PointKind::kIterationEnd) + 1) * layers, {});
}

std::optional<Clock::time_point> PassedPoints::released_at(const Execution& execution) const {
  const Release& release = execution.op->release;
  const std::int64_t want = execution.iteration + release.point.iteration;
  if (want < 0) return Clock::time_point{};
  const Passed& passed = passed_[place_of(release.point.kind, release.point.layer)];
  if (passed.iteration < want) return std::nullopt;
  if (passed.iteration > want) return Clock::time_point{};
  return passed.at + std::chrono::nanoseconds(release.delay_ns);
}

void PassedPoints::archive(Archive& archive, Clock::time_point now) {
  last_ = now;
  for (Passed& passed : passed_) {
    archive(passed.iteration);
    if (archive.reads()) passed.at = now;
  }
}

void LaunchOrder::reset(const RunPlan& plan, std::size_t capacity) {
  progress_.assign(capacity, {});
  queues_.assign(plan.links.size(), {});
  for (Queue& queue : queues_) queue.ring.resize(capacity + 1);
  queued_ = launches_ = 0;
}

void LaunchOrder::open(std::span<const Execution> row) {
  for (const Execution& execution : row) {
    if (execution.op == nullptr) continue;
    const RunOp& op = *execution.op;
    of(execution) = {};
    if (execution.before == nullptr)
      of(execution).pending = static_cast<std::int32_t>(op.blocks.size() * op.merges.size());
  }
}

void LaunchOrder::push(std::span<const Execution> row, std::int64_t iteration) {
  for (const Execution& execution : row) {
    if (execution.op == nullptr || execution.iteration != iteration || done(execution)) continue;
    of(execution).order = queued_++;
    Queue& queue = queue_of(execution);
    queue.ring[queue.pushed++ % queue.ring.size()] = &execution;
  }
}

void LaunchOrder::cut(const Execution& execution, std::int32_t parts, bool absent) {
  Progress& progress = of(execution);
  progress.pending -= parts;
  progress.absent = absent;
}

void LaunchOrder::await(const Execution& execution) {
  if (done(execution)) return;
  if (execution.before != nullptr) await(*execution.before);
  const std::int64_t own = of(execution).order;
  for (std::size_t link = 0; link < queues_.size(); ++link) {
    if (!ordered_ && link != static_cast<std::size_t>(execution.op->link)) continue;
    const Queue& queue = queues_[link];
    for (std::size_t s = queue.issued; s < queue.pushed; ++s) {
      const Execution& earlier = *queue.at(s);
      if ((own >= 0 && of(earlier).order > own) || std::exchange(of(earlier).awaited, true)) continue;
      if (earlier.before != nullptr) await(*earlier.before);
    }
  }
}

void LaunchOrder::ended(const Execution& execution) {
  ++queue_of(execution).ended;
  of(execution).done = true;
}

std::optional<Clock::time_point> LaunchOrder::free_at(const Execution& execution) const {
  if (void_) return Clock::time_point{};
  const auto released = points_.released_at(execution);
  return !released && of(execution).awaited ? Clock::time_point{} : released;
}

const Execution* LaunchOrder::due(std::size_t link) const {
  const Execution* next = this->next(link);
  return next != nullptr && (absent(*next) || free_at(*next)) ? next : nullptr;
}

bool LaunchOrder::busy() const {
  for (std::size_t link = 0; link < queues_.size(); ++link) {
    if (queues_[link].ended < queues_[link].issued || due(link) != nullptr) return true;
  }
  return false;
}

void LaunchOrder::archive(Archive& archive, std::span<const Execution> row) {
  for (const Execution& execution : row) {
    if (execution.op == nullptr) continue;
    Progress& progress = of(execution);
    archive(progress.pending);
    archive(progress.awaited);
    archive(progress.done);
  }
}

}  // namespace gradweave::run
