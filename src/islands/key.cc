#include "islands/key.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "gradweave/error.h"
#include "islands/random.h"

namespace gradweave::islands {
namespace {

constexpr std::string_view kHead = "gradweave-key-1 ";
constexpr std::string_view kDigits = "0123456789abcdef";
constexpr std::size_t kLength = kHead.size() + 2 * std::tuple_size_v<Key> + 1;

// A file that is closed in any case.
class File {
 public:
  File(const std::filesystem::path& path, int flags)
      : descriptor_(open(path.c_str(), flags | O_CLOEXEC, 0600)) {}
  ~File() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  int descriptor() const { return descriptor_; }
  bool is_open() const { return descriptor_ >= 0; }

 private:
  int descriptor_;
};

std::string reason() {
  return std::strerror(errno);
}  // NOLINT(concurrency-mt-unsafe): glibc's is of the thread

}  // namespace

void make_key_file(const std::filesystem::path& path) {
  Key key;
  const auto bytes = std::as_writable_bytes(std::span(key));
  fill_randomly(bytes);
  const std::string text = std::string(kHead) + hex_of(bytes) + '\n';
  OPENSSL_cleanse(key.data(), key.size());
  const File file(path, O_WRONLY | O_CREAT | O_EXCL);
  if (!file.is_open()) {
    if (errno == EEXIST)
      throw InvalidInput("is there already", path.string(),
                         "give another name; a job's key is never overwritten");
    throw InvalidInput("can't be written: " + reason(), path.string(), "give a folder that you may write to");
  }
  if (write(file.descriptor(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    const std::string why = reason();
    unlink(path.c_str());
    throw InvalidInput("can't be written: " + why, path.string(), "free space");
  }
}

Key read_key_file(const std::filesystem::path& path) {
  const File file(path, O_RDONLY);
  struct stat about {};
  if (!file.is_open() || fstat(file.descriptor(), &about) != 0) {
    throw InvalidInput("can't be read: " + reason(), path.string(),
                       "make one with `gradweave meet --make-key FILE` and give every island a copy");
  }
  if (!S_ISREG(about.st_mode))
    throw InvalidInput("is no file", path.string(), "give the file of the job's key");
  if ((about.st_mode & 077) != 0)
    throw InvalidInput("users other than its owner may read it", path.string(), "chmod 600 it");
  std::array<char, kLength + 1> text;
  const ssize_t count = read(file.descriptor(), text.data(), text.size());
  const std::string_view line(text.data(), count < 0 ? 0 : static_cast<std::size_t>(count));
  Key key;
  bool whole = line.size() == kLength && line.starts_with(kHead) && line.ends_with('\n');
  for (std::size_t i = 0; whole && i < key.size(); ++i) {
    const std::size_t high = kDigits.find(line[kHead.size() + 2 * i]);
    const std::size_t low = kDigits.find(line[kHead.size() + 2 * i + 1]);
    whole = high != std::string_view::npos && low != std::string_view::npos;
    if (whole) key[i] = static_cast<unsigned char>(high << 4 | low);
  }
  OPENSSL_cleanse(text.data(), text.size());
  if (!whole) {
    throw InvalidInput("is not a job's key", path.string(),
                       "make one with `gradweave meet --make-key FILE` and give every island a copy");
  }
  return key;
}

}  // namespace gradweave::islands
