// Files, read whole with a limit and written so that a reader never sees half of one.
#include "io/files.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
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
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
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

[[noreturn]] void fail_to_write(const std::string& path) {
  throw RuntimeFailure(path + ": writing failed: " + reason() + "; free space there, or give another path");
}

constexpr char kStdin[] = "stdin";

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

// A file beside `path` of its mode, if it has one, that did not exist before, and goes with the object unless it was renamed to `path`.
class Aside {
 public:
  Aside(const fs::path& path, std::optional<mode_t> mode) : path_(path) {
    do {
      std::uint64_t number = 0;
      if (::getrandom(&number, sizeof number, 0) != sizeof number) fail_to_open(path);
      name_ = path.parent_path() / (".gradweave-" + std::to_string(number));
      file_ = Descriptor(::open(name_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode.value_or(0666)));
    } while (file_.get() < 0 && errno == EEXIST);
    if (file_.get() < 0) fail_to_open(path);
    if (mode) ::fchmod(file_.get(), *mode);  // the umask has taken some of it
  }
  ~Aside() {
    if (!name_.empty()) ::unlink(name_.c_str());
  }
  Aside(const Aside&) = delete;
  Aside& operator=(const Aside&) = delete;

  void replace_with(std::string_view text) {
    const bool written = write_all(file_.get(), text) && ::fsync(file_.get()) == 0 && file_.close() &&
                         ::rename(name_.c_str(), path_.c_str()) == 0;
    if (!written) fail_to_write(path_.string());
    name_.clear();
    sync_folder(path_.parent_path());
  }

 private:
  fs::path path_, name_;
  Descriptor file_{-1};
};

// The descriptor of this process that the path is, "/dev/fd/3" or what "/dev/stdout" leads to.
std::optional<int> descriptor_at(const fs::path& path) {
  std::error_code error;
  const fs::path folder = fs::canonical(fs::absolute(path, error).parent_path(), error);
  if (error || folder != fs::canonical("/proc/self/fd", error)) return std::nullopt;
  const std::string name = path.filename();
  int fd = -1;
  const char* const end = name.data() + name.size();
  return std::from_chars(name.data(), end, fd).ptr == end ? std::optional(fd) : std::nullopt;
}

[[noreturn]] void fail_as_too_large(const std::string& name) {
  throw InvalidInput("is larger than 1 GiB", name, "split the input");
}

std::string read_all(int fd, const std::string& name) {
  std::string text;
  std::string chunk(std::size_t{1} << 20, '\0');
  for (;;) {
    const ssize_t count = ::read(fd, chunk.data(), chunk.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw InvalidInput("cannot be read: " + reason(), name, "give the path of a file");
    if (count == 0) break;
    text.append(chunk, 0, static_cast<std::size_t>(count));
    if (text.size() > kMaxJsonBytes) fail_as_too_large(name);
  }
  if (text.starts_with("\x1f\x8b")) throw InvalidInput("is gzipped", name, "unpack it with gunzip");
  return text;
}

template <typename Parse>
auto read_with(const fs::path& path, Parse parse) {
  const std::string text = read_file(path);
  try {
    return parse(text);
  } catch (const InvalidInput& error) {
    throw error.within(path == "-" ? std::string(kStdin) : path.string());
  }
}

}  // namespace

fs::path target_of(fs::path path) {
  constexpr int kMostLinks = 40;  // as the kernel follows
  for (int i = 0; i < kMostLinks; ++i) {
    std::error_code error;
    const fs::path next = fs::read_symlink(path, error);
    if (error || descriptor_at(path)) return path;
    path = path.parent_path() / next;
  }
  errno = ELOOP;
  fail_to_open(path);
}

std::string read_file(const fs::path& path) {
  if (path == "-") {
    std::string text = read_all(STDIN_FILENO, kStdin);
    if (text.empty()) throw InvalidInput("is empty", kStdin, "it can be read once: give one '-' only");
    return text;
  }
  if (path.empty()) throw InvalidInput("a path is empty", "", "give the path of a file");
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0)
    throw InvalidInput("cannot be read: " + reason(), path.string(), "give the path of a file");
  struct stat status {};
  if (::fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode) && status.st_size > off_t{kMaxJsonBytes})
    fail_as_too_large(path.string());
  return read_all(file.get(), path.string());
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
  if (path == "-") {
    if (!write_all(STDOUT_FILENO, text)) fail_to_write("stdout");
    return;
  }
  // What a shell has redirected stays the file that it opened, with what else was written there.
  const fs::path target = target_of(path);
  if (const auto fd = descriptor_at(target)) {
    if (write_all(*fd, text)) return;
    errno == EBADF ? fail_to_open(path) : fail_to_write(path.string());
  }
  struct stat status {};
  const bool exists = ::stat(path.c_str(), &status) == 0;
  if (exists && !S_ISREG(status.st_mode)) {
    // A device or a pipe can't be replaced by a file.
    const Descriptor file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    if (file.get() < 0) fail_to_open(path);
    if (!write_all(file.get(), text)) fail_to_write(path.string());
    return;
  }
  Aside(target, exists ? std::optional(status.st_mode & 07777) : std::nullopt).replace_with(text);
}

}  // namespace gradweave
