// A collective under way.
#pragma once

namespace gradweave::run {

// wait() returns when the result is in place (on an accelerator: for the current stream) or throws what went wrong.
// Started on the thread that waits.
class Pending {
 public:
  virtual ~Pending() = default;
  virtual void wait() = 0;
};

}  // namespace gradweave::run
