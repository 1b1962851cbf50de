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
  Dump() = default;
  ~Dump() { close(); }
  Dump(const Dump&) = delete;
  Dump& operator=(const Dump&) = delete;

  // From now on this is `rank`'s file in `folder`, which is made: rank-3.json, or rank-3.2.json and so on beside other open
  // ones of this process. What an earlier job left in its place is removed. Errors: InvalidInput.
  void open(const std::filesystem::path& folder, int rank);
  // Nothing is written from now on, and the name is free again.
  void close();
  bool wanted() const;
  // What this rank did last.
  void set_source(std::function<Timeline()> flight);

  // Writes the file, once: the other calls wait until it is whole. What keeps it from being written is said on standard
  // error and changes nothing else.
  void write(const Stop& stop);

 private:
  mutable Mutex mutex_;
  std::filesystem::path path_ GUARDED_BY(mutex_);  // empty: not open
  bool written_ GUARDED_BY(mutex_) = false;
  std::function<Timeline()> flight_ GUARDED_BY(mutex_);
};

}  // namespace gradweave::runtime
