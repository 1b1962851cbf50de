#include "run/op_queue.h"

#include <algorithm>
#include <utility>

#include "gradweave/error.h"

namespace gradweave::run {
namespace {

// The backend's own error says more, if it comes in time. But an op may wait for several messages, each for the timeout.
constexpr auto kGrace = std::chrono::milliseconds(150);

}  // namespace

std::string describe(const RunPlan& plan, const Execution& execution) {
  return "op '" + execution.op->label + "' (iteration " + std::to_string(execution.run_iteration) +
         ", link " + plan.links[static_cast<std::size_t>(execution.op->link)] + ")";
}

void OpQueue::reset(const RunPlan& plan, std::size_t capacity) {
  const MutexLock lock(mutex_);
  plan_ = &plan;
  order_.reset(plan, capacity);
  log_.install(plan, capacity);
  threads_.clear();
  under_way_.clear();
  for (std::size_t link = 0; link < plan.links.size(); ++link)
    threads_.push_back(std::make_unique<Threads>());
}

void OpQueue::set_ordered_launches(bool on) {
  const MutexLock lock(mutex_);
  order_.set_ordered(on);
}

void OpQueue::launch_by(std::function<void()> launch) { launch_ = std::move(launch); }

void OpQueue::restart(std::int64_t iterations) {
  const MutexLock lock(mutex_);
  log_.flight().restart(iterations);
  order_.points().restart(plan_->layers);
  order_.void_releases(false);
}

// ---- compute thread

void OpQueue::open(std::span<const Execution> row) {
  const MutexLock lock(mutex_);
  order_.open(row);
  log_.open(row);
}

void OpQueue::push(std::span<const Execution> row, std::int64_t iteration) {
  {
    const MutexLock lock(mutex_);
    order_.push(row, iteration);
    wake_links();
  }
  launch_due();
}

void OpQueue::pass(PointKind kind, std::int32_t layer, std::int64_t iteration) {
  {
    const MutexLock lock(mutex_);
    const auto now = Clock::now();
    order_.points().pass(kind, layer, iteration, now);
    log_.flight().pass(kind, layer, iteration, ns_of(now));
    wake_links();
  }
  launch_due();
}

void OpQueue::arrive(const Execution& execution, std::int32_t parts) {
  {
    const MutexLock lock(mutex_);
    if (!order_.arrive(execution, parts)) return;
    const auto link = static_cast<std::size_t>(execution.op->link);
    if (order_.waiting(link)) threads_of(link).wake.notify_all();
  }
  launch_due();
}

std::int32_t OpQueue::missing(const Execution& execution) const {
  const MutexLock lock(mutex_);
  return order_.missing(execution);
}

bool OpQueue::done(const Execution& execution) const {
  const MutexLock lock(mutex_);
  return order_.done(execution);
}

void OpQueue::begin_drain() {
  {
    const MutexLock lock(mutex_);
    order_.void_releases(true);
    wake_links();
  }
  launch_due();
}

void OpQueue::cut(const Execution& execution, std::int32_t parts, bool absent) {
  {
    const MutexLock lock(mutex_);
    order_.cut(execution, parts, absent);
    wake_links();
  }
  launch_due();
}

std::optional<NextTurn> OpQueue::next_turn() {
  const MutexLock lock(mutex_);
  if (!failure_.empty()) return std::nullopt;
  for (std::size_t link = 0; link < threads_.size(); ++link) {
    const Execution* due = order_.due(link);
    if (due == nullptr) continue;
    return NextTurn{link, order_.issued(link),
                    order_.absent(*due) ? Turn{due, true} : begun(*due, Clock::now())};
  }
  return std::nullopt;
}

Waited OpQueue::wait(const Execution& execution, std::int32_t layer) {
  if (launch_) {
    {
      const MutexLock lock(mutex_);
      await(execution);
    }
    launch_due();
  }
  Waited result;
  std::optional<Overdue> overdue;
  {
    const MutexLock lock(mutex_);
    if (!order_.done(execution) && failure_.empty()) {
      result = {.waited = true, .begin = Clock::now()};
      const std::int64_t event = log_.flight().wait_begins(execution, layer, ns_of(result.begin));
      await(execution);
      // An op of another link that this one waits for may still be held by its release.
      const auto patience = options_.timeout + options_.stall;
      auto moved = result.begin;
      std::int64_t ended = log_.counters().ops;
      while (!order_.done(execution) && failure_.empty() && !overdue) {
        overdue = await_end(moved + patience);
        if (std::exchange(ended, log_.counters().ops) != log_.counters().ops) moved = Clock::now();
        if (order_.done(execution) || Clock::now() < moved + patience) continue;
        if (!order_.busy())
          end_all(describe(*plan_, execution) + " was never started: its data or an op before it is missing");
        moved = Clock::now();
      }
      result.end = Clock::now();
      if (failure_.empty() && !overdue) log_.flight().ended(event, ns_of(result.end));
    }
  }
  if (overdue) give_up(*overdue);
  check_failure();
  return result;
}

void OpQueue::wait_idle() {
  std::optional<Overdue> overdue;
  {
    const MutexLock lock(mutex_);
    while (failure_.empty() && order_.busy() && !overdue) overdue = await_end();
  }
  if (overdue) give_up(*overdue);
  check_failure();
}

void OpQueue::run_ready() {
  for (;;) {
    std::optional<Overdue> overdue;
    {
      const MutexLock lock(mutex_);
      order_.void_releases(true);
      wake_links();
      require_no_failure();
      if (!order_.busy()) return order_.void_releases(false);
      if (!launch_) overdue = await_end();
    }
    if (overdue) give_up(*overdue);
    launch_due();
  }
}

void OpQueue::times(std::span<const Execution> row, std::vector<std::int64_t>& ns) const {
  const MutexLock lock(mutex_);
  log_.times(row, ns);
}

void OpQueue::archive(Archive& archive, std::span<const Execution> row) {
  const MutexLock lock(mutex_);
  order_.archive(archive, row);
}

void OpQueue::archive_points(Archive& archive) {
  const MutexLock lock(mutex_);
  order_.points().archive(archive, Clock::now());
}

void OpQueue::settle(Clock::duration patience) {
  const MutexLock lock(mutex_);
  const auto begin = Clock::now();
  auto moved = begin;
  std::int64_t ended = log_.counters().ops;
  while (failure_.empty() && order_.busy()) {
    const auto until = std::min(moved + patience, begin + options_.timeout);
    if (Clock::now() >= until) break;
    done_.wait_until(mutex_, until);
    if (std::exchange(ended, log_.counters().ops) != log_.counters().ops) moved = Clock::now();
  }
  end_all("training was given up");
}

void OpQueue::check_failure() const {
  const MutexLock lock(mutex_);
  require_no_failure();
}

void OpQueue::require_no_failure() const {
  if (failure_.empty()) return;
  told_ = true;
  throw RuntimeFailure(failure_);
}

void OpQueue::await(const Execution& execution) {
  if (order_.done(execution)) return;
  order_.await(execution);
  wake_links();
}

std::optional<Overdue> OpQueue::await_end(Clock::time_point until) {
  const auto limit = options_.timeout + kGrace;
  const auto begin = under_way_.empty() ? Clock::now() : under_way_.front().begin;
  done_.wait_until(mutex_, std::min(until, begin + limit));
  if (!failure_.empty() || under_way_.empty()) return std::nullopt;
  const UnderWay& first = under_way_.front();
  const auto after = Clock::now() - first.begin;
  if (after < limit) return std::nullopt;
  return Overdue{describe(*plan_, *first.execution), after};
}

void OpQueue::give_up(const Overdue& overdue) {
  fail(give_up_(overdue.op, overdue.after, "it has not ended within its timeout"));
}

void OpQueue::wake_links() {
  for (std::size_t link = 0; link < threads_.size(); ++link) {
    if (!failure_.empty() || order_.waiting(link)) threads_of(link).wake.notify_all();
  }
}

// ---- links' threads

Turn OpQueue::begun(const Execution& execution, Clock::time_point now) {
  log_.begun(execution, ns_of(now));
  under_way_.push_back({&execution, now});
  return {&execution, false};
}

Turn OpQueue::await_turn(std::size_t link, std::size_t sequence) {
  const MutexLock lock(mutex_);
  Threads& threads = threads_of(link);
  for (;;) {
    if (threads.stop || !failure_.empty()) return {};
    const Execution* next = sequence == order_.issued(link) ? order_.next(link) : nullptr;
    if (next == nullptr) {
      threads.wake.wait(mutex_);
      continue;
    }
    if (order_.absent(*next)) return {next, true};
    const Clock::time_point until = order_.free_at(*next).value_or(order_.points().last() + options_.stall);
    if (const auto now = Clock::now(); now >= until) return begun(*next, now);
    threads.wake.wait_until(mutex_, until);
  }
}

void OpQueue::count_launch(std::size_t link) {
  order_.launched(link);
  if (order_.ordered()) {
    wake_links();
  } else {
    threads_of(link).wake.notify_all();
  }
}

void OpQueue::launched(std::size_t link) {
  const MutexLock lock(mutex_);
  count_launch(link);
}

void OpQueue::finish(const Execution& execution) {
  order_.ended(execution);
  std::erase_if(under_way_, [&](const UnderWay& each) { return each.execution == &execution; });
  done_.notify_all();
  if (execution.op->goes_on) wake_links();
}

void OpQueue::ended(const Execution& execution, Clock::time_point begin, bool on_device) {
  const auto end = Clock::now();
  const MutexLock lock(mutex_);
  log_.ended(execution, ns_of(begin), ns_of(end), !on_device);
  finish(execution);
}

void OpQueue::skipped(const Execution& execution) {
  const MutexLock lock(mutex_);
  count_launch(static_cast<std::size_t>(execution.op->link));
  finish(execution);
}

void OpQueue::joined(std::size_t link) {
  const MutexLock lock(mutex_);
  ++threads_of(link).count;
}

void OpQueue::left(std::size_t link) {
  const MutexLock lock(mutex_);
  --threads_of(link).count;
  done_.notify_all();
}

bool OpQueue::stop(std::size_t link) {
  const MutexLock lock(mutex_);
  Threads& threads = threads_of(link);
  threads.stop = true;
  threads.wake.notify_all();
  const auto until = Clock::now() + std::chrono::milliseconds(200);
  while (threads.count > 0) {
    if (failure_.empty()) {
      done_.wait(mutex_);
    } else if (!done_.wait_until(mutex_, until)) {
      return threads.count == 0;
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
  return log_.counters().ops;
}

OpCounters OpQueue::counters() const {
  const MutexLock lock(mutex_);
  return log_.counters();
}

void OpQueue::set_timeline(bool on) {
  const MutexLock lock(mutex_);
  log_.set_timeline(on);
}

std::vector<Span> OpQueue::take_spans() {
  const MutexLock lock(mutex_);
  return log_.take_spans();
}

void OpQueue::name_layers(std::vector<std::string> names) {
  const MutexLock lock(mutex_);
  log_.flight().name_layers(std::move(names));
}

Timeline OpQueue::flight() const {
  const MutexLock lock(mutex_);
  return log_.flight().timeline(ns_of(Clock::now()));
}

}  // namespace gradweave::run
