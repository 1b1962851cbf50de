#include "runtime/dump.h"

#include <exception>
#include <iostream>
#include <set>
#include <string>
#include <system_error>
#include <utility>

#include "gradweave/error.h"
#include "gradweave/json.h"

namespace gradweave::runtime {
namespace {

// The files of this process's jobs.
struct OpenPaths {
  Mutex mutex;
  std::set<std::filesystem::path> paths GUARDED_BY(mutex);

  static OpenPaths& get() {
    static OpenPaths open;
    return open;
  }
};

}  // namespace

void Dump::open(const std::filesystem::path& folder, int rank) {
  close();
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  const std::filesystem::path where = error ? folder : std::filesystem::canonical(folder, error);
  const std::string name = "rank-" + std::to_string(rank);
  OpenPaths& open = OpenPaths::get();
  const MutexLock all(open.mutex);
  std::filesystem::path path = where / (name + ".json");
  for (int next = 2; open.paths.contains(path); ++next)
    path = where / (name + "." + std::to_string(next) + ".json");
  if (!error) std::filesystem::remove(path, error);
  if (error)
    throw InvalidInput(error.message(), "dump='" + folder.string() + "'", "give a folder of your own");
  open.paths.insert(path);
  const MutexLock lock(mutex_);
  path_ = std::move(path);
  written_ = false;
}

void Dump::close() {
  std::filesystem::path path;
  {
    const MutexLock lock(mutex_);
    path = std::exchange(path_, {});
  }
  OpenPaths& open = OpenPaths::get();
  const MutexLock all(open.mutex);
  open.paths.erase(path);
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
  if (path_.empty() || std::exchange(written_, true)) return;
  try {
    Timeline timeline = flight_ ? flight_() : Timeline{.origin = "measured"};
    timeline.name = "rank " + std::to_string(stop.rank);
    timeline.stop = stop;
    write_file(path_, to_json(timeline));
  } catch (const std::exception& error) {
    std::cerr << "gradweave: can't keep what this rank did last: " << error.what() << '\n';
  }
}

}  // namespace gradweave::runtime
