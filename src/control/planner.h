// Plans that are made beside the training.
#pragma once

#include <functional>
#include <optional>

#include "base/mutex.h"
#include "base/thread.h"
#include "control/decision.h"

namespace gradweave::control {

// Makes one decision at a time on a thread of its own, at low priority. Of one thread but for that.
class Planner {
 public:
  Planner() = default;
  // Waits for a decision that is being made.
  ~Planner();
  Planner(const Planner&) = delete;
  Planner& operator=(const Planner&) = delete;

  // Begins to make a decision. The caller owes that none is being made and that the last one was taken.
  void start(std::function<Decision()> make);
  // Whether a decision is being made.
  bool busy() const;
  // Returns the decision once it is made, and that only once. O(1), unless it has just been made.
  std::optional<Decision> take();
  // Waits for what is being made, and drops it.
  void close();

 private:
  void take_in(Decision decision) EXCLUDES(mutex_);

  mutable Mutex mutex_;
  bool done_ GUARDED_BY(mutex_) = true;
  std::optional<Decision> made_ GUARDED_BY(mutex_);
  Thread thread_;
};

}  // namespace gradweave::control
