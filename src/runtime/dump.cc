#include "runtime/dump.h"

#include <exception>
#include <iostream>
#include <string>
#include <utility>

#include "gradweave/json.h"

namespace gradweave::runtime {

void Dump::set_path(std::filesystem::path path) {
  const MutexLock lock(mutex_);
  path_ = std::move(path);
}

bool Dump::wanted() const {
  const MutexLock lock(mutex_);
  return !path_.empty();
}

void Dump::set_source(std::function<Timeline()> flight) {
  const MutexLock lock(mutex_);
  flight_ = std::move(flight);
}

void Dump::write(const Stop& stop) {
  const MutexLock lock(mutex_);
  const std::filesystem::path path = std::exchange(path_, {});
  if (path.empty()) return;
  try {
    Timeline timeline = flight_ ? flight_() : Timeline{.origin = "measured"};
    timeline.name = "rank " + std::to_string(stop.rank);
    timeline.stop = stop;
    write_file(path, to_json(timeline));
  } catch (const std::exception& error) {
    std::cerr << "gradweave: what this rank did last can't be kept: " << error.what() << '\n';
  }
}

}  // namespace gradweave::runtime
