#include "runtime/links.h"

#include <ATen/record_function.h>

#include <algorithm>

#include "gradweave/error.h"
#include "runtime/collectives.h"

namespace gradweave::runtime {
namespace {

// A rank that does something else than train, such as waiting for others at a barrier, passes no points. Its
// peers may need its ops meanwhile, so that releases hold only so long.
constexpr auto kStall = std::chrono::seconds(1);

}  // namespace

struct Link::State {
  LinkSpec spec;
  LinkOptions options;
  std::string hash;
  std::int32_t track = 0;
  std::shared_ptr<Exchange> exchange;
  std::shared_ptr<Peers> peers;
  std::shared_ptr<std::atomic<std::int64_t>> progress;

  // Guarded by the exchange's mutex.
  std::condition_variable wake;
  std::vector<OpRun*> queue;
  std::size_t pushed = 0, issued = 0, ended = 0;
  bool stop = false;
  Clock::time_point link_free{};  // emulation: when the op before ends
  std::vector<Span> spans;
  LinkCounters counters;
  std::size_t running = 0;  // threads that have not left

  OpRun*& slot(std::size_t sequence) { return queue[sequence % queue.size()]; }

  void lane(std::size_t first, std::size_t step);
  bool await_turn(std::unique_lock<std::mutex>& lock, std::size_t sequence);
  void run(std::unique_lock<std::mutex>& lock, OpRun& run, std::size_t sequence);
  Clock::time_point emulated_end(const OpRun& run, Clock::time_point begin);
  void fail(const OpRun& run, const std::string& why, Clock::time_point begin);
};

// Returns with the lock held: true if op `sequence` may be issued, false if the thread is to leave.
bool Link::State::await_turn(std::unique_lock<std::mutex>& lock, std::size_t sequence) {
  for (;;) {
    if (stop || exchange->failed()) return false;
    if (sequence != issued || sequence >= pushed || slot(sequence)->pending > 0) {
      wake.wait(lock);
      continue;
    }
    const OpRun& next = *slot(sequence);
    if (next.partner != nullptr && !next.partner->done) {
      exchange->done.wait(lock);
      continue;
    }
    if (next.forced || next.absent) return true;
    const std::optional<Clock::time_point> at = exchange->released_at(next);
    if (!at) {
      const auto stalled = exchange->passed_at + kStall;
      if (Clock::now() >= stalled) return true;
      wake.wait_until(lock, stalled);
    } else if (*at > Clock::now()) {
      wake.wait_until(lock, *at);
    } else {
      return true;
    }
  }
}

Clock::time_point Link::State::emulated_end(const OpRun& run, Clock::time_point begin) {
  const Emulation& model = *spec.emulation;
  const bool half =
      run.op->collective == Collective::kReduceScatter || run.op->collective == Collective::kAllGather;
  const double cost =
      (static_cast<double>(model.startup_ns) + model.ns_per_byte * static_cast<double>(run.op->bytes)) *
      (half ? 0.5 : 1.0);
  const auto start = std::max(begin, link_free);
  link_free = start + std::chrono::nanoseconds(static_cast<std::int64_t>(cost));
  return link_free;
}

void Link::State::run(std::unique_lock<std::mutex>& lock, OpRun& run, std::size_t sequence) {
  if (run.absent) {
    ++issued;
    ++ended;
    run.done = true;
    wake.notify_all();
    exchange->done.notify_all();
    return;
  }
  if (run.partner != nullptr) run.flat = std::move(run.partner->flat);
  const auto begin = Clock::now();
  const Clock::time_point end = spec.emulation ? emulated_end(run, begin) : begin;
  lock.unlock();
  try {
    RECORD_FUNCTION(run.op->label, std::vector<c10::IValue>());
    run.data.wait(options.device);
    std::unique_ptr<Pending> work;
    if (spec.group) {
      if (options.check) check_before(*spec.group, run, sequence, hash, options);
      work = start_collective(*spec.group, run, sequence, options);
    }
    lock.lock();
    ++issued;
    wake.notify_all();
    lock.unlock();
    if (work) work->wait();
    if (run.op->keep_own && run.op->payload == Payload::kGradient) run.flat.sub_(run.own);
    run.result.record(options.device);
    if (spec.emulation) std::this_thread::sleep_until(end);
  } catch (const std::exception& error) {
    fail(run, error.what(), begin);
    lock.lock();
    return;
  }
  const auto finished = Clock::now();
  counters.ops += 1;
  counters.bytes += run.op->bytes;
  counters.busy_ns += std::chrono::nanoseconds(finished - begin).count();
  peers->set_progress(++*progress);
  lock.lock();
  if (options.timeline) {
    spans.push_back({.kind = SpanKind::kOp,
                     .track = track,
                     .iteration = run.run_iteration,
                     .op = run.place,
                     .begin_ns = begin.time_since_epoch() / std::chrono::nanoseconds(1),
                     .end_ns = finished.time_since_epoch() / std::chrono::nanoseconds(1),
                     .bytes = run.op->bytes,
                     .label = run.op->label});
  }
  ++ended;
  run.done = true;
  exchange->done.notify_all();
}

void Link::State::fail(const OpRun& run, const std::string& why, Clock::time_point begin) {
  const auto waited = Clock::now() - begin;
  std::unique_lock lock(exchange->mutex);
  if (exchange->failed()) return;
  const std::string what = exchange->describe(run);
  lock.unlock();
  exchange->fail(peers->give_up(what, waited, why));
}

void Link::State::lane(std::size_t first, std::size_t step) {
  const OwnStream stream(options.device);
  std::unique_lock lock(exchange->mutex);
  for (std::size_t sequence = first; await_turn(lock, sequence); sequence += step)
    run(lock, *slot(sequence), sequence);
  --running;
  exchange->done.notify_all();
}

Link::Link(LinkSpec spec, std::int32_t concurrency, std::int32_t track, std::size_t capacity,
           std::string hash, const LinkOptions& options, std::shared_ptr<Exchange> exchange,
           std::shared_ptr<Peers> peers, std::shared_ptr<std::atomic<std::int64_t>> progress)
    : state_(std::make_shared<State>()) {
  state_->spec = std::move(spec);
  state_->options = options;
  state_->hash = std::move(hash);
  state_->track = track;
  state_->exchange = std::move(exchange);
  state_->peers = std::move(peers);
  state_->progress = std::move(progress);
  state_->queue.resize(std::max<std::size_t>(capacity, 1));
  // Gloo runs two ops of a group at once, NCCL one: more threads than a few only wait.
  const std::int32_t lanes = concurrency == 0 ? 4 : std::min(concurrency, 4);
  state_->running = static_cast<std::size_t>(lanes);
  for (std::int32_t i = 0; i < lanes; ++i) {
    lanes_.emplace_back([state = state_, i, lanes] {
      state->lane(static_cast<std::size_t>(i), static_cast<std::size_t>(lanes));
    });
  }
}

Link::~Link() {
  bool left = false;
  {
    std::unique_lock lock(state_->exchange->mutex);
    state_->stop = true;
    state_->wake.notify_all();
    state_->exchange->done.notify_all();
    const auto gone = [&] { return state_->running == 0; };
    if (state_->exchange->failed()) {
      left = state_->exchange->done.wait_for(lock, std::chrono::milliseconds(200), gone);
    } else {
      state_->exchange->done.wait(lock, gone);
      left = true;
    }
  }
  for (std::thread& lane : lanes_) left ? lane.join() : lane.detach();
}

void Link::push(OpRun* run) {
  state_->slot(state_->pushed++) = run;
  state_->wake.notify_all();
}

void Link::wake() {
  if (state_->exchange->failed() || state_->issued < state_->pushed) state_->wake.notify_all();
}

void Link::force_up_to(const OpRun* run) {
  for (std::size_t s = state_->issued; s < state_->pushed; ++s) {
    state_->slot(s)->forced = true;
    if (state_->slot(s) == run) break;
  }
  state_->wake.notify_all();
}

bool Link::busy() const {
  if (state_->ended < state_->issued) return true;
  if (state_->issued == state_->pushed) return false;
  const OpRun& next = *state_->slot(state_->issued);
  if (next.pending > 0 || (next.partner != nullptr && !next.partner->done)) return false;
  return next.forced || next.absent || state_->exchange->released_at(next).has_value();
}

const std::string& Link::name() const { return state_->spec.name; }
const LinkCounters& Link::counters() const { return state_->counters; }
bool Link::emulated() const { return state_->spec.emulation.has_value(); }

void Link::set_timeline(bool on) {
  const std::lock_guard lock(state_->exchange->mutex);
  state_->options.timeline = on;
}

std::vector<Span> Link::take_spans() {
  const std::lock_guard lock(state_->exchange->mutex);
  return std::exchange(state_->spans, {});
}

}  // namespace gradweave::runtime
