// How ops reach the other ranks. A run knows no more of a network than this.
#pragma once

#include <cstddef>
#include <memory>

#include "run/execution.h"
#include "run/pending.h"

namespace gradweave::run {

// One link's channel to the other ranks. Called by the link's threads, which may outlive the run after a failure:
// it must own what it uses.
class Channel {
 public:
  virtual ~Channel() = default;

  // Whether ranks have to launch the ops of all their links in one order.
  virtual bool ordered_launches() const { return false; }

  // Whether ops only enqueue work for a device: neither start() nor the wait of what it returns blocks the host. Ranks then launch
  // the ops of all their links in one order too.
  virtual bool returns_at_once() const { return false; }

  // What a thread of the link holds while it works, such as a stream of an accelerator; may be null. Where ops return at once
  // the compute thread holds it for each op, which starts after what its own stream was given before.
  struct Scope {
    virtual ~Scope() = default;
  };
  virtual std::unique_ptr<Scope> enter_thread() { return nullptr; }

  // Where ops return at once: the point of the execution's release is this moment of the compute thread's stream. What start()
  // starts for it comes after the release's delay from now on, which is above 0.
  virtual void hold(const Execution& execution) { static_cast<void>(execution); }

  // Makes what the calling thread does from now on with the execution's message come after its data. May wait for them. Errors: any
  // std::exception.
  virtual void await_data(const Execution& /*execution*/) {}

  // After await_data(): starts the collective on the execution's message. Calls come one at a time and in the link's order;
  // `sequence` is the number of the op on its link, the same on all ranks. Errors: any std::exception.
  virtual std::unique_ptr<Pending> start(const Execution& execution, std::size_t sequence) = 0;
};

}  // namespace gradweave::run
