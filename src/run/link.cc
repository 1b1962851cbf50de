#include "run/link.h"

#include <algorithm>
#include <exception>

namespace gradweave::run {

struct Link::Shared {
  std::size_t number;
  std::shared_ptr<Tables> tables;
  std::shared_ptr<Channel> channel;
  std::shared_ptr<OpQueue> queue;
  std::shared_ptr<Peers> peers;

  void work(std::size_t first, std::size_t step);
  void run(const Execution& execution, std::size_t sequence);
  void fail(const Execution& execution, const std::string& why, Clock::time_point begin);
};

void Link::Shared::work(std::size_t first, std::size_t step) {
  const auto scope = channel->enter_thread();
  for (std::size_t sequence = first;; sequence += step) {
    const Turn turn = queue->await_turn(number, sequence);
    if (turn.execution == nullptr) break;
    turn.absent ? queue->skipped(number, *turn.execution) : run(*turn.execution, sequence);
  }
  queue->left(number);
}

void Link::Shared::run(const Execution& execution, std::size_t sequence) {
  const auto begin = Clock::now();
  try {
    const std::unique_ptr<Pending> pending = channel->start(execution, sequence);
    queue->launched(number);
    pending->wait();
  } catch (const std::exception& error) {
    fail(execution, error.what(), begin);
    return;
  }
  queue->ended(number, execution, begin);
  peers->set_progress(queue->progress());
}

void Link::Shared::fail(const Execution& execution, const std::string& why, Clock::time_point begin) {
  const auto waited = Clock::now() - begin;
  if (!queue->failed()) queue->fail(peers->give_up(describe(tables->calendar, execution), waited, why));
}

Link::Link(std::size_t number, std::shared_ptr<Tables> tables, std::shared_ptr<Channel> channel,
           std::shared_ptr<OpQueue> queue, std::shared_ptr<Peers> peers)
    : shared_(std::make_shared<Shared>(
          Shared{number, std::move(tables), std::move(channel), std::move(queue), std::move(peers)})) {
  // Gloo runs two ops of a group at once, NCCL one: more threads than a few only wait.
  const std::int32_t concurrency = shared_->tables->calendar.concurrency[number];
  const auto count = static_cast<std::size_t>(concurrency == 0 ? 4 : std::min(concurrency, 4));
  for (std::size_t i = 0; i < count; ++i) {
    shared_->queue->joined(number);
    threads_.emplace_back([shared = shared_, i, count] { shared->work(i, count); });
  }
}

Link::~Link() {
  const bool gone = shared_->queue->stop(shared_->number);
  for (std::thread& thread : threads_) gone ? thread.join() : thread.detach();
}

}  // namespace gradweave::run
