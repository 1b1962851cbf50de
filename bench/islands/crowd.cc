#include "crowd.h"

#include <chrono>
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "islands/meeting_client.h"

using namespace gradweave::islands;

namespace {

// Each has the training's state, as soon as it is in.
bool all_in(const std::vector<std::unique_ptr<MeetingClient>>& islands, std::size_t count) {
  for (const auto& island : islands) {
    const auto epoch = island->epoch();
    if (!epoch || epoch->islands.size() != count) return false;
    island->set_status({.epoch = epoch->number, .has_state = true, .waits = {}});
  }
  return true;
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
    while (!all_in(islands, wanted)) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    std::printf("%zu\n", wanted);
    std::fflush(stdout);
  }
  return 0;
}
