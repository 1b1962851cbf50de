#include "run/op_queue.h"

#include <algorithm>
#include <utility>

#include "gradweave/error.h"

namespace gradweave::run {
namespace {

std::size_t place_of(const RunPlan& plan, PointKind kind, std::int32_t layer) {
  return static_cast<std::size_t>(kind) * plan.layers + static_cast<std::size_t>(layer);
}

}  // namespace

std::string describe(const RunPlan& plan, const Execution& execution) {
  return "op '" + execution.op->label + "' (iteration " + std::to_string(execution.run_iteration) +
         ", link " + plan.links[static_cast<std::size_t>(execution.op->link)] + ")";
}

void OpQueue::reset(const RunPlan& plan, std::size_t capacity) {
  const MutexLock lock(mutex_);
  plan_ = &plan;
  progress_.assign(capacity, {});
  queues_.clear();
  for (std::size_t link = 0; link < plan.links.size(); ++link) {
    queues_.push_back(std::make_unique<Queue>());
    queues_.back()->ring.resize(capacity + 1);
  }
  queued_ = launches_ = 0;
  flight_.install(plan);
}

void OpQueue::set_ordered_launches(bool on) {
  const MutexLock lock(mutex_);
  ordered_launches_ = on;
}

void OpQueue::launch_by(std::function<void()> launch) { launch_ = std::move(launch); }

void OpQueue::restart(std::int64_t iterations) {
  const MutexLock lock(mutex_);
  flight_.restart(iterations);
  passed_.assign((static_cast<std::size_t>(PointKind::kIterationEnd) + 1) * plan_->layers, {});
}

// ---- compute thread

void OpQueue::open(std::span<const Execution> row) {
  const MutexLock lock(mutex_);
  for (const Execution& execution : row) {
    if (execution.op == nullptr) continue;
    const RunOp& op = *execution.op;
    of(execution) = {};
    if (execution.partner == nullptr)
      of(execution).pending = static_cast<std::int32_t>(op.blocks.size() * op.merges.size());
  }
}

void OpQueue::push(std::span<const Execution> row, std::int64_t iteration) {
  {
    const MutexLock lock(mutex_);
    for (const Execution& execution : row) {
      if (execution.op == nullptr || execution.iteration != iteration || of(execution).done) continue;
      of(execution).order = queued_++;
      Queue& queue = queue_of(execution);
      queue.ring[queue.pushed++ % queue.ring.size()] = &execution;
    }
    wake_links();
  }
  launch_due();
}

void OpQueue::pass(PointKind kind, std::int32_t layer, std::int64_t iteration) {
  {
    const MutexLock lock(mutex_);
    passed_at_ = Clock::now();
    passed_[place_of(*plan_, kind, layer)] = {iteration, passed_at_};
    flight_.pass(kind, layer, iteration, ns_of(passed_at_));
    wake_links();
  }
  launch_due();
}

void OpQueue::arrive(const Execution& execution, std::int32_t parts) {
  {
    const MutexLock lock(mutex_);
    Progress& progress = of(execution);
    progress.pending -= parts;
    if (progress.pending > 0) return;
    Queue& queue = queue_of(execution);
    if (queue.issued < queue.pushed) queue.wake.notify_all();
  }
  launch_due();
}

std::int32_t OpQueue::missing(const Execution& execution) const {
  const MutexLock lock(mutex_);
  return of(execution).pending;
}

bool OpQueue::done(const Execution& execution) const {
  const MutexLock lock(mutex_);
  return of(execution).done;
}

void OpQueue::cut(const Execution& execution, std::int32_t parts, bool absent) {
  {
    const MutexLock lock(mutex_);
    Progress& progress = of(execution);
    progress.forced = true;
    progress.pending -= parts;
    progress.absent = absent;
    wake_links();
  }
  launch_due();
}

std::optional<NextTurn> OpQueue::next_turn() {
  const MutexLock lock(mutex_);
  if (!failure_.empty()) return std::nullopt;
  for (std::size_t link = 0; link < queues_.size(); ++link) {
    const Queue& queue = *queues_[link];
    if (queue.issued == queue.pushed || !busy(queue)) continue;
    const Execution& next = *queue.at(queue.issued);
    return NextTurn{link, queue.issued, is_absent(next) ? Turn{&next, true} : begun(next, Clock::now())};
  }
  return std::nullopt;
}

Waited OpQueue::wait(const Execution& execution, std::int32_t layer) {
  if (launch_) {
    {
      const MutexLock lock(mutex_);
      force_for(execution);
    }
    launch_due();
  }
  const MutexLock lock(mutex_);
  Waited result;
  if (!of(execution).done && failure_.empty()) {
    result = {.waited = true, .begin = Clock::now()};
    const std::int64_t event = flight_.wait_begins(execution, layer, ns_of(result.begin));
    force_for(execution);
    // An op that is under way ends within its own timeout, and where it fails the verdict is told in its name. An op of
    // another link that this one waits for may still be held by its release.
    const auto patience = options_.timeout + options_.stall;
    std::int64_t progress = counters_.ops;
    while (!of(execution).done && failure_.empty()) {
      if (!done_.wait_until(mutex_, Clock::now() + patience) && progress == counters_.ops && !any_busy())
        end_all(describe(*plan_, execution) + " was never started: its data or an op before it is missing");
      progress = counters_.ops;
    }
    result.end = Clock::now();
    if (failure_.empty()) flight_.ended(event, ns_of(result.end));
  }
  require_no_failure();
  return result;
}

void OpQueue::wait_idle() {
  const MutexLock lock(mutex_);
  while (failure_.empty() && any_busy()) done_.wait(mutex_);
  require_no_failure();
}

void OpQueue::run_ready() {
  for (;;) {
    {
      const MutexLock lock(mutex_);
      for (const auto& queue : queues_) {
        for (std::size_t s = queue->issued; s < queue->pushed && has_data(*queue->at(s)); ++s)
          of(*queue->at(s)).forced = true;
      }
      wake_links();
      require_no_failure();
      if (!any_busy()) return;
      if (!launch_) done_.wait(mutex_);
    }
    launch_due();
  }
}

void OpQueue::times(std::span<const Execution> row, std::vector<std::int64_t>& ns) const {
  const MutexLock lock(mutex_);
  ns.clear();
  for (const Execution& execution : row) {
    if (execution.op != nullptr) ns.push_back(of(execution).ns);
  }
}

void OpQueue::archive(Archive& archive, std::span<const Execution> row) {
  const MutexLock lock(mutex_);
  for (const Execution& execution : row) {
    if (execution.op == nullptr) continue;
    Progress& progress = of(execution);
    archive(progress.pending);
    archive(progress.forced);
    archive(progress.done);
  }
}

void OpQueue::archive_points(Archive& archive) {
  const MutexLock lock(mutex_);
  passed_at_ = Clock::now();
  for (Passed& passed : passed_) {
    archive(passed.iteration);
    if (archive.reads()) passed.at = passed_at_;
  }
}

void OpQueue::settle(Clock::duration patience) {
  const MutexLock lock(mutex_);
  const auto begin = Clock::now();
  auto moved = begin;
  std::int64_t ended = counters_.ops;
  while (failure_.empty() && any_busy()) {
    const auto until = std::min(moved + patience, begin + options_.timeout);
    if (Clock::now() >= until) break;
    done_.wait_until(mutex_, until);
    if (std::exchange(ended, counters_.ops) != counters_.ops) moved = Clock::now();
  }
  end_all("training was given up");
}

void OpQueue::check_failure() const {
  const MutexLock lock(mutex_);
  require_no_failure();
}

void OpQueue::require_no_failure() const {
  if (!failure_.empty()) throw RuntimeFailure(failure_);
}

// ---- what may start

bool OpQueue::has_data(const Execution& execution) const {
  return of(execution).pending == 0 && (execution.partner == nullptr || of(*execution.partner).done);
}

bool OpQueue::is_absent(const Execution& execution) const {
  return of(execution.partner == nullptr ? execution : *execution.partner).absent;
}

bool OpQueue::on_turn(const Execution& execution) const {
  return !ordered_launches_ || of(execution).order == launches_;
}

std::optional<Clock::time_point> OpQueue::released_at(const Execution& execution) const {
  const Release& release = execution.op->release;
  const std::int64_t want = execution.iteration + release.point.iteration;
  if (want < 0) return Clock::time_point{};
  const Passed& passed = passed_[place_of(*plan_, release.point.kind, release.point.layer)];
  if (passed.iteration < want) return std::nullopt;
  if (passed.iteration > want) return Clock::time_point{};
  return passed.at + std::chrono::nanoseconds(release.delay_ns);
}

void OpQueue::force_for(const Execution& execution) {
  if (of(execution).done) return;
  force_up_to(execution);
  if (execution.partner != nullptr && !of(*execution.partner).done) force_up_to(*execution.partner);
}

void OpQueue::force_up_to(const Execution& execution) {
  const std::int64_t own = of(execution).order;
  for (std::size_t link = 0; link < queues_.size(); ++link) {
    if (!ordered_launches_ && link != static_cast<std::size_t>(execution.op->link)) continue;
    const Queue& queue = *queues_[link];
    for (std::size_t s = queue.issued; s < queue.pushed; ++s) {
      Progress& before = of(*queue.at(s));
      if (own < 0 || before.order <= own) before.forced = true;
    }
  }
  wake_links();
}

bool OpQueue::busy(const Queue& queue) const {
  if (queue.ended < queue.issued) return true;
  if (queue.issued == queue.pushed) return false;
  const Execution& next = *queue.at(queue.issued);
  if (!has_data(next) || !on_turn(next)) return false;
  return of(next).forced || is_absent(next) || released_at(next).has_value();
}

bool OpQueue::any_busy() const {
  for (const auto& queue : queues_) {
    if (busy(*queue)) return true;
  }
  return false;
}

void OpQueue::wake_links() {
  for (const auto& queue : queues_) {
    if (!failure_.empty() || queue->issued < queue->pushed) queue->wake.notify_all();
  }
}

// ---- links' threads

Turn OpQueue::begun(const Execution& execution, Clock::time_point now) {
  of(execution).event = flight_.op_begins(execution, ns_of(now));
  return {&execution, false};
}

Turn OpQueue::await_turn(std::size_t link, std::size_t sequence) {
  const MutexLock lock(mutex_);
  Queue& queue = *queues_[link];
  for (;;) {
    if (queue.stop || !failure_.empty()) return {};
    if (sequence != queue.issued || sequence >= queue.pushed) {
      queue.wake.wait(mutex_);
      continue;
    }
    const Execution& next = *queue.at(sequence);
    if (!has_data(next) || !on_turn(next)) {
      queue.wake.wait(mutex_);
      continue;
    }
    if (is_absent(next)) return {&next, true};
    if (of(next).forced) return begun(next, Clock::now());
    const std::optional<Clock::time_point> at = released_at(next);
    const Clock::time_point until = at ? *at : passed_at_ + options_.stall;
    if (const auto now = Clock::now(); now >= until) return begun(next, now);
    queue.wake.wait_until(mutex_, until);
  }
}

void OpQueue::count_issued(Queue& queue) {
  ++queue.issued;
  ++launches_;
  if (ordered_launches_) {
    wake_links();
  } else {
    queue.wake.notify_all();
  }
}

void OpQueue::launched(std::size_t link) {
  const MutexLock lock(mutex_);
  count_issued(*queues_[link]);
}

void OpQueue::finish(Queue& queue, const Execution& execution) {
  ++queue.ended;
  of(execution).done = true;
  done_.notify_all();
  if (execution.op->collective == Collective::kReduceScatter) wake_links();  // its all_gather
}

void OpQueue::ended(std::size_t link, const Execution& execution, Clock::time_point begin) {
  const auto end = Clock::now();
  const MutexLock lock(mutex_);
  counters_.ops += 1;
  counters_.bytes += execution.op->bytes;
  of(execution).ns = ns_of(end) - ns_of(begin);
  flight_.ended(of(execution).event, ns_of(end));
  if (options_.timeline) {
    spans_.push_back({.kind = SpanKind::kOp,
                      .track = static_cast<std::int32_t>(link) + 1,
                      .iteration = execution.run_iteration,
                      .op = execution.place,
                      .begin_ns = ns_of(begin),
                      .end_ns = ns_of(end),
                      .bytes = execution.op->bytes,
                      .label = execution.op->label});
  }
  finish(*queues_[link], execution);
}

void OpQueue::skipped(std::size_t link, const Execution& execution) {
  const MutexLock lock(mutex_);
  Queue& queue = *queues_[link];
  count_issued(queue);
  finish(queue, execution);
}

void OpQueue::joined(std::size_t link) {
  const MutexLock lock(mutex_);
  ++queues_[link]->threads;
}

void OpQueue::left(std::size_t link) {
  const MutexLock lock(mutex_);
  --queues_[link]->threads;
  done_.notify_all();
}

bool OpQueue::stop(std::size_t link) {
  const MutexLock lock(mutex_);
  Queue& queue = *queues_[link];
  queue.stop = true;
  queue.wake.notify_all();
  const auto until = Clock::now() + std::chrono::milliseconds(200);
  while (queue.threads > 0) {
    if (failure_.empty()) {
      done_.wait(mutex_);
    } else if (!done_.wait_until(mutex_, until)) {
      return queue.threads == 0;
    }
  }
  return true;
}

// ---- any thread

void OpQueue::fail(const std::string& why) {
  const MutexLock lock(mutex_);
  end_all(why);
}

void OpQueue::end_all(const std::string& why) {
  if (!failure_.empty()) return;  // the first one is the cause of the others
  failure_ = why;
  done_.notify_all();
  wake_links();
}

bool OpQueue::failed() const {
  const MutexLock lock(mutex_);
  return !failure_.empty();
}

std::string OpQueue::failure() const {
  const MutexLock lock(mutex_);
  return failure_;
}

std::int64_t OpQueue::progress() const {
  const MutexLock lock(mutex_);
  return counters_.ops;
}

OpCounters OpQueue::counters() const {
  const MutexLock lock(mutex_);
  return counters_;
}

void OpQueue::set_timeline(bool on) {
  const MutexLock lock(mutex_);
  options_.timeline = on;
}

std::vector<Span> OpQueue::take_spans() {
  const MutexLock lock(mutex_);
  return std::exchange(spans_, {});
}

void OpQueue::name_layers(std::vector<std::string> names) {
  const MutexLock lock(mutex_);
  flight_.name_layers(std::move(names));
}

Timeline OpQueue::flight() const {
  const MutexLock lock(mutex_);
  return flight_.timeline(ns_of(Clock::now()));
}

}  // namespace gradweave::run
