#include "run/link.h"

#include <algorithm>
#include <exception>

namespace gradweave::run {

namespace {

// What a link's thread has: the queue counts it as one until it has ended.
class Membership {
 public:
  Membership(std::shared_ptr<OpQueue> queue, std::size_t link) : queue_(std::move(queue)), link_(link) {
    queue_->joined(link_);
  }
  ~Membership() { queue_->left(link_); }
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

 private:
  std::shared_ptr<OpQueue> queue_;
  std::size_t link_;
};

}  // namespace

struct Link::Shared {
  std::size_t number;
  std::shared_ptr<Tables> tables;
  std::shared_ptr<Channel> channel;
  std::shared_ptr<OpQueue> queue;
  std::shared_ptr<Peers> peers;

  void work(std::size_t first, std::size_t step);
  Stretch take(const Turn& turn, std::size_t sequence, Stopwatch& stopwatch);
  Stretch run(const Execution& execution, std::size_t sequence, Stopwatch& stopwatch);
  void fail(const std::string& what, const std::string& why, Clock::time_point begin);
};

void Link::Shared::work(std::size_t first, std::size_t step) {
  const auto scope = channel->enter_thread();
  HostStopwatch clock;
  for (std::size_t sequence = first;; sequence += step) {
    const Turn turn = queue->await_turn(number, sequence);
    if (turn.execution == nullptr) break;
    take(turn, sequence, clock);
  }
}

Stretch Link::Shared::take(const Turn& turn, std::size_t sequence, Stopwatch& stopwatch) {
  if (!turn.absent) return run(*turn.execution, sequence, stopwatch);
  queue->skipped(*turn.execution);
  return {};
}

Stretch Link::Shared::run(const Execution& execution, std::size_t sequence, Stopwatch& stopwatch) {
  auto begin = Clock::now();
  Stretch ran;
  try {
    channel->await_data(execution);
    begin = Clock::now();
    ran.begin = stopwatch.now();
    const std::unique_ptr<Pending> pending = channel->start(execution, sequence);
    queue->launched(number);
    pending->wait();
    ran.end = stopwatch.now();
  } catch (const std::exception& error) {
    fail(describe(tables->plan, execution), error.what(), begin);
    return {};
  }
  queue->ended(execution, begin, stopwatch.of_device());
  peers->set_progress(queue->progress());
  return ran;
}

void Link::Shared::fail(const std::string& what, const std::string& why, Clock::time_point begin) {
  const auto waited = Clock::now() - begin;
  if (!queue->failed()) queue->fail(peers->give_up(what, waited, why));
}

Link::Link(std::size_t number, std::shared_ptr<Tables> tables, std::shared_ptr<Channel> channel,
           std::shared_ptr<OpQueue> queue, std::shared_ptr<Peers> peers)
    : shared_(std::make_shared<Shared>(
          Shared{number, std::move(tables), std::move(channel), std::move(queue), std::move(peers)})) {
  if (shared_->channel->returns_at_once()) return;
  // Gloo runs two ops of a group at once, NCCL one: more threads than a few only wait.
  const std::int32_t concurrency = shared_->tables->plan.concurrency[number];
  const auto count = static_cast<std::size_t>(concurrency == 0 ? 4 : std::min(concurrency, 4));
  const auto begin = Clock::now();
  const auto failed = [shared = shared_, begin](const std::string& why) {
    const std::string& link = shared->tables->plan.links[shared->number];
    shared->fail("a thread of link " + link, why, begin);
  };
  try {
    for (std::size_t i = 0; i < count; ++i) {
      const auto main = [shared = shared_, i, count,
                         member = std::make_shared<Membership>(shared_->queue, number)] {
        shared->work(i, count);
      };
      threads_.emplace_back(main, failed);
    }
  } catch (...) {
    shared_->queue->stop(number);  // the threads that there are, which are waited for
    throw;
  }
}

Stretch Link::take(const Turn& turn, std::size_t sequence, Stopwatch& stopwatch) {
  const auto scope = shared_->channel->enter_thread();
  return shared_->take(turn, sequence, stopwatch);
}

void Link::hold(const Execution& execution) {
  const auto begin = Clock::now();
  try {
    shared_->channel->hold(execution);
  } catch (const std::exception& error) {
    shared_->fail(describe(shared_->tables->plan, execution), error.what(), begin);
  }
}

Link::~Link() {
  if (shared_->queue->stop(shared_->number)) return;
  for (Thread& thread : threads_) thread.give_up();
}

}  // namespace gradweave::run
