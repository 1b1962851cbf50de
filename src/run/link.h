// A link's threads: they take its ops strictly in plan order and hand them to its channel. One whose ops return at once has none: the
// compute thread launches them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/thread.h"
#include "run/channel.h"
#include "run/op_queue.h"
#include "run/peers.h"
#include "run/stopwatch.h"
#include "run/tables.h"

namespace gradweave::run {

// A link of concurrency k has k threads, and op s belongs to thread s mod k; ops are issued in order whatever
// k is.
class Link {
 public:
  Link(std::size_t number, std::shared_ptr<Tables> tables, std::shared_ptr<Channel> channel,
       std::shared_ptr<OpQueue> queue, std::shared_ptr<Peers> peers);
  // Waits for the ops that run, unless all has failed: threads that an op holds are then given up.
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // For ops that return at once: takes the op's turn on the calling thread. Returns when it runs, by the stopwatch.
  Stretch take(const Turn& turn, std::size_t sequence, Stopwatch& stopwatch);
  // For these too: Channel::hold().
  void hold(const Execution& execution);

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
  std::vector<Thread> threads_;
};

}  // namespace gradweave::run
