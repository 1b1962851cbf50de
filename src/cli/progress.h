// A line on stderr for what takes longer than a second.
#pragma once

#include <cstddef>
#include <string>

#include "base/mutex.h"
#include "base/thread.h"
#include "cli/commands.h"

namespace gradweave::cli {

// While it lives, and after the first second, a terminal shows what is done and for how long; the line goes with
// the object. Nothing is shown elsewhere, or if the user wants quiet. Make it in the scope of the work, and
// print results after.
class Progress {
 public:
  Progress(const Outcome& outcome, std::string what);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Changes what is shown.
  void say(std::string what) EXCLUDES(mutex_);

 private:
  void show() EXCLUDES(mutex_);

  Mutex mutex_;
  CondVar changed_;
  std::string what_ GUARDED_BY(mutex_);
  bool ended_ GUARDED_BY(mutex_) = false;
  Thread thread_;
};

}  // namespace gradweave::cli
