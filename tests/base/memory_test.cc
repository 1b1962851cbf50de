#include "base/memory.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <limits>
#include <string>

namespace gradweave {
namespace {

namespace fs = std::filesystem;

// A folder with files of a machine's /proc and /sys.
class Machine {
 public:
  Machine() {
    std::string name = (fs::temp_directory_path() / "gradweave-XXXXXX").string();
    root_ = mkdtemp(name.data());
  }
  ~Machine() { fs::remove_all(root_); }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  void has(const std::string& file, const std::string& text) const {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }
  std::int64_t available() const { return available_memory(root_); }

 private:
  fs::path root_;
};

constexpr const char* kMeminfo =
    "MemTotal:       24684096 kB\nMemFree:          100000 kB\nMemAvailable:    2000000 kB\n";

TEST(AvailableMemory, IsWhatTheMachineHas) {
  const Machine machine;
  EXPECT_EQ(machine.available(), std::numeric_limits<std::int64_t>::max());
  machine.has("proc/meminfo", kMeminfo);
  EXPECT_EQ(machine.available(), 2'000'000 * std::int64_t{1024});
  EXPECT_GT(available_memory(), 1 << 20);
}

TEST(AvailableMemory, IsNoMoreThanControlGroupsLeave) {
  const Machine machine;
  machine.has("proc/meminfo", kMeminfo);
  machine.has("proc/self/cgroup", "0::/jobs/one\n");
  machine.has("sys/fs/cgroup/jobs/one/memory.max", "max\n");
  machine.has("sys/fs/cgroup/jobs/one/memory.current", "700\n");
  EXPECT_EQ(machine.available(), 2'000'000 * std::int64_t{1024});
  machine.has("sys/fs/cgroup/jobs/memory.max", "1000\n");
  machine.has("sys/fs/cgroup/jobs/memory.current", "800\n");
  EXPECT_EQ(machine.available(), 200);
  machine.has("sys/fs/cgroup/jobs/memory.stat", "anon 650\nfile 150\ninactive_file 50\n");
  EXPECT_EQ(machine.available(), 250);
}

TEST(AvailableMemory, IsNoMoreThanGroupsOfTheFirstVersionLeave) {
  const Machine machine;
  machine.has("proc/meminfo", kMeminfo);
  machine.has("proc/self/cgroup", "5:devices:/\n4:memory:/elsewhere\n0::/\n");
  machine.has("sys/fs/cgroup/memory/memory.limit_in_bytes", "1000\n");
  machine.has("sys/fs/cgroup/memory/memory.usage_in_bytes", "1300\n");
  EXPECT_EQ(machine.available(), 0);
  machine.has("sys/fs/cgroup/memory/memory.stat", "cache 500\ntotal_inactive_file 400\n");
  EXPECT_EQ(machine.available(), 100);
}

}  // namespace
}  // namespace gradweave
