// The file that a rank leaves when training can't go on.
#pragma once

#include <filesystem>
#include <functional>

#include "base/mutex.h"
#include "gradweave/timeline.h"

namespace gradweave::runtime {

// Every call is safe from any thread.
class Dump {
 public:
  // Where it goes; until then nothing is written.
  void set_path(std::filesystem::path path);
  bool wanted() const;
  // What this rank did last.
  void set_source(std::function<Timeline()> flight);

  // Writes the file, once: the other calls wait until it is whole. What keeps it from being written is said on standard
  // error and changes nothing else.
  void write(const Stop& stop);

 private:
  mutable Mutex mutex_;
  std::filesystem::path path_ GUARDED_BY(mutex_);
  std::function<Timeline()> flight_ GUARDED_BY(mutex_);
};

}  // namespace gradweave::runtime
