// Ends training on all ranks where something fails that all of them need.
#pragma once

#include <exception>
#include <memory>
#include <string>

#include "gradweave/error.h"
#include "run/cursor.h"
#include "run/op_queue.h"
#include "run/peers.h"

namespace gradweave::run {

class Ending {
 public:
  // The cursor must outlive it.
  Ending(std::shared_ptr<Peers> peers, std::shared_ptr<OpQueue> queue, const Cursor& cursor)
      : peers_(std::move(peers)), queue_(std::move(queue)), cursor_(cursor) {}

  // `what` failed for `cause`, `after` it began: RuntimeFailure with the verdict, which the other ranks get too.
  [[noreturn]] void fail(const std::string& what, Clock::duration after, const std::string& cause) const
      REQUIRES(compute_thread) {
    queue_->fail(peers_->give_up(what + " (" + cursor_.text() + ")", after, cause));
    throw RuntimeFailure(queue_->failure());
  }

  // Makes the attempt at `what`. Any std::exception of it fails().
  template <typename Attempt>
  void guard(const std::string& what, Attempt attempt) const REQUIRES(compute_thread) {
    const auto begin = Clock::now();
    try {
      attempt();
    } catch (const std::exception& error) {
      fail(what, Clock::now() - begin, error.what());
    }
  }

 private:
  std::shared_ptr<Peers> peers_;
  std::shared_ptr<OpQueue> queue_;
  const Cursor& cursor_;
};

}  // namespace gradweave::run
