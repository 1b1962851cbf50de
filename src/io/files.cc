// Files, read whole with a limit and written so that a reader never sees half of one.
#include "io/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "gradweave/error.h"
#include "gradweave/json.h"
#include "io/json_tree.h"

namespace gradweave {
namespace {

namespace fs = std::filesystem;

// Owns a file descriptor.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  bool close() { return ::close(std::exchange(fd_, -1)) == 0; }

 private:
  int fd_;
};

std::string reason() { return std::strerror(errno); }

[[noreturn]] void fail_to_open(const fs::path& path) {
  throw InvalidInput("cannot be written: " + reason(), path.string(),
                     "give a path in a folder that exists and is yours");
}

[[noreturn]] void fail_to_write(const fs::path& path, const fs::path& aside) {
  const std::string why = reason();
  if (!aside.empty()) ::unlink(aside.c_str());
  throw RuntimeFailure(path.string() + ": writing failed: " + why);
}

bool write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

// Makes the rename durable. A file system that can't sync a folder has done what it can.
void sync_folder(const fs::path& folder) {
  const Descriptor directory(
      ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.get() >= 0) ::fsync(directory.get());
}

void replace_file(const fs::path& path, std::string_view text, mode_t mode) {
  const fs::path aside = path.string() + ".writing-" + std::to_string(::getpid());
  Descriptor file(::open(aside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, mode));
  if (file.get() < 0) fail_to_open(path);
  if (!write_all(file.get(), text) || ::fsync(file.get()) != 0 || !file.close()) fail_to_write(path, aside);
  if (::rename(aside.c_str(), path.c_str()) != 0) fail_to_write(path, aside);
  sync_folder(path.parent_path());
}

template <typename Parse>
auto read_with(const fs::path& path, Parse parse) {
  const std::string text = read_file(path);
  try {
    return parse(text);
  } catch (const InvalidInput& error) {
    throw error.within(path.string());
  }
}

}  // namespace

std::string read_file(const fs::path& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0)
    throw InvalidInput("cannot be read: " + reason(), path.string(), "give the path of a file");
  std::string text;
  std::string chunk(std::size_t{1} << 20, '\0');
  for (;;) {
    const ssize_t count = ::read(file.get(), chunk.data(), chunk.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0)
      throw InvalidInput("cannot be read: " + reason(), path.string(), "give the path of a file");
    if (count == 0) return text;
    text.append(chunk, 0, static_cast<std::size_t>(count));
    if (text.size() > kMaxJsonBytes)
      throw InvalidInput("is larger than 1 GiB", path.string(), "split the input");
  }
}

Workload read_workload(const fs::path& path) { return read_with(path, parse_workload); }
Cluster read_cluster(const fs::path& path) { return read_with(path, parse_cluster); }
Plan read_plan(const fs::path& path) { return read_with(path, parse_plan); }
Timeline read_timeline(const fs::path& path) { return read_with(path, parse_timeline); }
Measurements read_measurements(const fs::path& path) { return read_with(path, parse_measurements); }
ClusterMeasurements read_link_measurements(const fs::path& path) {
  return read_with(path, parse_link_measurements);
}

void write_file(const fs::path& path, std::string_view text) {
  struct stat status {};
  const bool exists = ::stat(path.c_str(), &status) == 0;
  if (exists && !S_ISREG(status.st_mode)) {
    // A device or a pipe can't be replaced by a file.
    const Descriptor file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    if (file.get() < 0) fail_to_open(path);
    if (!write_all(file.get(), text)) fail_to_write(path, {});
    return;
  }
  std::error_code error;
  const fs::path target = exists ? fs::canonical(path, error) : path;  // a link stays a link
  replace_file(error ? path : target, text, exists ? status.st_mode & 07777 : 0666);
}

}  // namespace gradweave
