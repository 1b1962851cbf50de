#include "runtime/dump.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "gradweave/error.h"

namespace gradweave::runtime {
namespace {

class DumpTest : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::remove_all(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  bool is_there(const std::string& name) const { return std::filesystem::exists(folder_ / name); }
  void leave(const std::string& name) const { std::ofstream(folder_ / name) << "an earlier job's"; }

  const std::filesystem::path folder_ = std::filesystem::path(testing::TempDir()) / "dumps";
};

TEST_F(DumpTest, IsWrittenOnceAndNotBeforeItIsOpen) {
  Dump dump;
  dump.write({.rank = 3, .ranks = 4});
  EXPECT_FALSE(dump.wanted());
  dump.open(folder_ / "below", 3);
  EXPECT_TRUE(dump.wanted());
  dump.write({.rank = 3, .ranks = 4});
  EXPECT_TRUE(is_there("below/rank-3.json"));
  std::filesystem::remove_all(folder_);
  dump.write({.rank = 3, .ranks = 4});
  EXPECT_FALSE(is_there("below/rank-3.json"));
}

TEST_F(DumpTest, JobsOfOneProcessHaveFilesOfTheirOwn) {
  Dump first, third;
  auto second = std::make_unique<Dump>();
  first.open(folder_, 0);
  second->open(folder_, 0);
  second->write({.rank = 0, .ranks = 2});
  EXPECT_TRUE(is_there("rank-0.2.json"));
  first.write({.rank = 0, .ranks = 2});
  EXPECT_TRUE(is_there("rank-0.json"));

  second.reset();
  third.open(folder_ / ".", 0);
  EXPECT_FALSE(is_there("rank-0.2.json"));
  third.write({.rank = 0, .ranks = 2});
  EXPECT_TRUE(is_there("rank-0.2.json"));
}

TEST_F(DumpTest, WhatAnEarlierJobLeftIsRemoved) {
  std::filesystem::create_directories(folder_);
  leave("rank-0.json"), leave("rank-1.json");
  Dump dump;
  dump.open(folder_, 0);
  EXPECT_FALSE(is_there("rank-0.json"));
  EXPECT_TRUE(is_there("rank-1.json"));  // another rank's to remove
  dump.close();
  dump.write({.rank = 0, .ranks = 2});
  EXPECT_FALSE(is_there("rank-0.json"));
}

TEST_F(DumpTest, AFolderThatCannotBeIsRefused) {
  std::filesystem::create_directories(folder_);
  leave("file");
  Dump dump;
  try {
    dump.open(folder_ / "file" / "below", 0);
    FAIL();
  } catch (const InvalidInput& error) {
    EXPECT_NE(std::string(error.what()).find("below"), std::string::npos) << error.what();
    EXPECT_EQ(error.remedy(), "give a folder of your own");
  }
  EXPECT_FALSE(dump.wanted());
}

}  // namespace
}  // namespace gradweave::runtime
