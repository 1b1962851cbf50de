// The device of a rank whose links return at once: one queue of collectives, those of the loop included, and what of the loop's
// program has passed.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "run/execution.h"

namespace gradweave::testing {

// Of the rank's one thread. It knows the plan's meaning from its ops alone, and nothing of the queue that it checks.
class FakeDevice {
 public:
  // Returns the number of the next collective in the device's queue.
  std::size_t enqueue() { return enqueued_++; }

  // The loop comes to a point of an iteration of the plan. Errors: std::logic_error if an op was launched before it was due.
  void pass(PointKind kind, std::int32_t layer, std::int64_t iteration);
  // From now on releases are void.
  void drain();
  // The plan begins anew, and its first iteration.
  void restart();
  // The job goes on in `iteration` from where it was on another one, whose links are not these. What rest() could have run, but for
  // its turn, may be launched whatever its release says.
  void go_on_from(const FakeDevice& before, std::int64_t iteration) {
    passed_ = before.passed_;
    void_through_ = iteration;
  }

  // An op is launched. It is due if its release has passed, or if an op is awaited that is not before it in the plan's list:
  // then that one lands before the loop goes on.
  void launched(const run::Execution& execution);
  void landed(const run::Execution& execution);

 private:
  using Place = std::pair<std::int64_t, std::int32_t>;  // in the list of an iteration
  void require_no_early() const;

  std::size_t enqueued_ = 0;
  std::map<std::pair<PointKind, std::int32_t>, std::int64_t> passed_;  // the last iteration
  std::vector<Place> early_;                                           // launched before their release
  bool draining_ = false;
  std::int64_t void_through_ = -1;  // releases of ops that are listed up to this iteration
};

}  // namespace gradweave::testing
