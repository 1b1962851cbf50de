// The memory that a process could still have.
#pragma once

#include <cstdint>
#include <filesystem>

namespace gradweave {

// Returns how many bytes could be allocated without swapping: what the machine has available (MemAvailable), and no more
// than the limits of this process's control groups, of either version, leave; the largest number where nothing tells.
// `root`: where /proc and /sys are.
std::int64_t available_memory(const std::filesystem::path& root = "/");

}  // namespace gradweave
