#include "crowd.h"

#include <chrono>
#include <cstdio>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "islands/meeting_client.h"

using namespace gradweave::islands;
using namespace std::chrono_literals;

namespace {

// Until it is in an epoch of so many islands; then it has the training's state.
void wait_in(MeetingClient& island, std::size_t count) {
  std::optional<Epoch> epoch = island.epoch();
  while (!epoch || epoch->islands.size() != count)
    epoch = island.wait_past(epoch ? epoch->number : 0, std::chrono::steady_clock::now() + 1min);
  island.set_status({.epoch = epoch->number, .has_state = true, .waits = {}});
}

}  // namespace

int run_crowd(const std::string& key, const std::string& meeting, const std::string& name, int count) {
  std::vector<std::unique_ptr<MeetingClient>> islands;
  for (int i = 0; i < count; ++i) {
    islands.push_back(std::make_unique<MeetingClient>(
        MeetingClientOptions{.key = read_key_file(key),
                             .meeting = parse_address(meeting, "address"),
                             .island = {.name = name + std::to_string(i),
                                        .ranks = 4,
                                        .addresses = std::vector<std::string>(4, "198.51.100.100:29600"),
                                        .trains = "model"}}));
  }
  for (std::string line; std::getline(std::cin, line);) {
    const auto wanted = static_cast<std::size_t>(std::stoul(line));
    for (const auto& island : islands) wait_in(*island, wanted);
    std::printf("%zu\n", wanted);
    std::fflush(stdout);
  }
  return 0;
}
