#include "base/memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

namespace gradweave {
namespace {

namespace fs = std::filesystem;

// The number behind `key` in a file of lines "key number"; that of the first line if the key is empty.
std::optional<std::int64_t> number_in(const fs::path& path, std::string_view key) {
  std::ifstream file(path);
  std::string word;
  std::int64_t number = 0;
  if (key.empty()) {
    if (file >> number) return number;
    return std::nullopt;
  }
  for (; file >> word; file.ignore(std::numeric_limits<std::streamsize>::max(), '\n'))
    if (word == key && file >> number) return number;
  return std::nullopt;
}

// What a group may still allocate: files that are cached make room.
std::optional<std::int64_t> left_in(const fs::path& group, const char* limit, const char* used,
                                    const char* cached) {
  const auto most = number_in(group / limit, ""), now = number_in(group / used, "");
  if (!most || !now) return std::nullopt;  // "max": no limit
  return std::max<std::int64_t>(0, *most - *now + number_in(group / "memory.stat", cached).value_or(0));
}

}  // namespace

std::int64_t available_memory(const fs::path& root) {
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  if (const auto kilobytes = number_in(root / "proc/meminfo", "MemAvailable:")) least = *kilobytes * 1024;
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "0::/path", or "4:memory:/path" of version 1
    const bool first = line.find(":memory:") != std::string::npos, second = line.starts_with("0::");
    const std::size_t slash = line.find('/');
    if ((!first && !second) || slash == std::string::npos) continue;
    const fs::path top = root / (first ? "sys/fs/cgroup/memory" : "sys/fs/cgroup");
    // In a container the group's path may be the host's: the container then sees it as the top.
    for (fs::path group = line.substr(slash + 1);; group = group.parent_path()) {
      const auto left = first ? left_in(top / group, "memory.limit_in_bytes", "memory.usage_in_bytes",
                                        "total_inactive_file")
                              : left_in(top / group, "memory.max", "memory.current", "inactive_file");
      if (left) least = std::min(least, *left);
      if (group.empty()) break;
    }
  }
  return least;
}

}  // namespace gradweave
