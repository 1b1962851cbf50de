#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "gradweave/error.h"
#include "gradweave/json.h"

namespace gradweave {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class Files : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) / ("gradweave-files-" + std::to_string(::getpid()));
    fs::create_directory(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  static std::string content(const fs::path& path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }
  std::ptrdiff_t entries() const {
    return std::distance(fs::directory_iterator(folder_), fs::directory_iterator());
  }

  fs::path folder_;
};

TEST_F(Files, WritesAndReplacesLeavingNothingAside) {
  const fs::path path = folder_ / "plan.json";
  write_file(path, "one");
  write_file(path, "two");
  EXPECT_EQ(content(path), "two");
  EXPECT_EQ(entries(), 1);
}

TEST_F(Files, KeepsModeAndLinkOfAnExistingFile) {
  const fs::path path = folder_ / "plan.json";
  const fs::path link = folder_ / "link.json";
  write_file(path, "one");
  fs::permissions(path, fs::perms::owner_read | fs::perms::owner_write);
  fs::create_symlink(path, link);
  write_file(link, "two");
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_EQ(content(path), "two");
  EXPECT_EQ(fs::status(path).permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST_F(Files, KeepsAModeThatTheUmaskWouldNotGive) {
  const fs::path path = folder_ / "plan.json";
  write_file(path, "one");
  fs::permissions(path, fs::perms{0666});
  write_file(path, "two");
  EXPECT_EQ(fs::status(path).permissions(), fs::perms{0666});
}

TEST_F(Files, WritesToADescriptorAfterWhatIsThere) {
  const fs::path path = folder_ / "log", link = folder_ / "link";
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0666);
  const std::string name = "/dev/fd/" + std::to_string(fd);
  write_file(name, "one ");
  write_file("/proc/self/fd/" + std::to_string(fd), "two ");
  fs::create_symlink(name, link);
  write_file(link, "three");
  EXPECT_THROW(write_file(name + "abc", "x"), InvalidInput);
  ::close(fd);
  EXPECT_EQ(content(path), "one two three");
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_THROW(write_file(name, "x"), InvalidInput);  // closed
}

TEST_F(Files, WritesWhatALinkLeadsTo) {
  const fs::path folder = folder_ / "elsewhere";
  fs::create_directory(folder);
  fs::create_symlink("elsewhere/second.json",
                     folder_ / "first.json");  // relative, over two links, to nothing yet
  fs::create_symlink("plan.json", folder / "second.json");
  write_file(folder_ / "first.json", "one");
  EXPECT_TRUE(fs::is_symlink(folder_ / "first.json"));
  EXPECT_TRUE(fs::is_symlink(folder / "second.json"));
  EXPECT_EQ(content(folder / "plan.json"), "one");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), fs::directory_iterator()), 2);
  fs::create_symlink("round.json", folder_ / "round.json");
  EXPECT_THROW(write_file(folder_ / "round.json", "x"), InvalidInput);
}

TEST_F(Files, WritesToADeviceWithoutReplacingIt) {
  write_file("/dev/null", "nothing");
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

TEST_F(Files, NamesThePathThatFails) {
  const fs::path path = folder_ / "missing" / "plan.json";
  try {
    write_file(path, "x");
    FAIL() << "written";
  } catch (const InvalidInput& error) {
    EXPECT_THAT(error.what(), HasSubstr(path.string()));
  }
  EXPECT_THROW(write_file(folder_, "x"), InvalidInput);
  EXPECT_EQ(entries(), 0);
  try {
    write_file("/dev/full", "x");
    FAIL() << "written";
  } catch (const RuntimeFailure& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("/dev/full"), HasSubstr("free space there")));
  }
}

TEST_F(Files, NamesTheKindOfAFileInTheWrongPlace) {
  const fs::path path = folder_ / "w.json";
  write_file(path, R"({"version": 1, "name": "w", "layers": []})");
  try {
    read_cluster(path);
    FAIL() << "read";
  } catch (const InvalidInput& error) {
    EXPECT_THAT(error.what(), HasSubstr(path.string() + ": is a workload file; give a cluster file"));
  }
  write_file(path, R"({"traceEvents": []})");
  try {
    read_workload(path);
    FAIL() << "read";
  } catch (const InvalidInput& error) {
    EXPECT_THAT(error.what(), HasSubstr("is a trace file"));
  }
}

TEST_F(Files, ReadingNamesFileAndKey) {
  const fs::path path = folder_ / "w.json";
  write_file(path, R"({"version": 1, "name": "w", "layers": [{}]})");
  try {
    read_workload(path);
    FAIL() << "read";
  } catch (const InvalidInput& error) {
    EXPECT_THAT(error.what(), HasSubstr(path.string() + ": layers[0].name: is missing"));
  }
  EXPECT_THROW(read_plan(folder_), InvalidInput);
  EXPECT_THROW(read_cluster(folder_ / "missing.json"), InvalidInput);
}

TEST(Examples, RoundTripExactly) {
  const fs::path examples = fs::path(GRADWEAVE_SOURCE_DIR) / "examples";
  int count = 0;
  for (const auto& file : fs::directory_iterator(examples / "workloads")) {
    const Workload workload = read_workload(file.path());
    EXPECT_EQ(parse_workload(to_json(workload)), workload) << file.path();
    ++count;
  }
  for (const auto& file : fs::directory_iterator(examples / "clusters")) {
    const Cluster cluster = read_cluster(file.path());
    EXPECT_EQ(parse_cluster(to_json(cluster)), cluster) << file.path();
    ++count;
  }
  EXPECT_GT(count, 2);
}

}  // namespace
}  // namespace gradweave
