// Tests whose ranks are processes of their own.
#pragma once

#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "gradweave/torch.h"

namespace gradweave {

// Called in the first line of a test. In the test itself it runs this program with that test alone, as `world_size` ranks on
// the loopback interface, expects that each passes, and returns nothing; in a rank it returns its job.
inline std::optional<Job> this_rank(int world_size) {
  if (std::getenv("RANK") != nullptr) return job_of_environment();
  c10d::TCPStoreOptions options;
  options.port = 0;  // any that is free
  options.isServer = true;
  options.waitWorkers = false;
  const auto store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  const std::string filter = std::string("--gtest_filter=") + test->test_suite_name() + "." + test->name();
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < world_size; ++rank) {
    std::vector<std::string> variables{"RANK=" + std::to_string(rank),
                                       "WORLD_SIZE=" + std::to_string(world_size),
                                       "MASTER_ADDR=127.0.0.1",
                                       "MASTER_PORT=" + std::to_string(store->getPort()),
                                       "TORCHELASTIC_USE_AGENT_STORE=True",
                                       "GLOO_SOCKET_IFNAME=lo",
                                       "OMP_NUM_THREADS=1"};
    std::vector<char*> environment, arguments;
    for (std::string& variable : variables) environment.push_back(variable.data());
    environment.push_back(nullptr);
    std::vector<std::string> words{"/proc/self/exe", filter, "--gtest_brief=1"};
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    pid_t process = 0;
    const int error =
        posix_spawn(&process, "/proc/self/exe", nullptr, nullptr, arguments.data(), environment.data());
    EXPECT_EQ(error, 0) << "rank " << rank << " can't be started";
    if (error == 0) ranks.push_back(process);
  }
  for (const pid_t process : ranks) {
    int status = 0;
    EXPECT_EQ(waitpid(process, &status, 0), process);
    EXPECT_EQ(status, 0) << "a rank fails";
  }
  return std::nullopt;
}

}  // namespace gradweave
