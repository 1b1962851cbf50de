// The memory that ranks have left for what a plan keeps.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

namespace gradweave::runtime {

struct Room {
  std::string place;       // a machine, or an accelerator in one: ranks of the same place share it
  std::int64_t bytes = 0;  // left there; the largest number where that is not known
  std::int64_t held = 0;   // by the rank itself, of what goes before the plan comes
};

// Returns what is left to this process on `device`.
Room room_on(const c10::Device& device);

// To exchange it between ranks: one line of text. Errors: std::invalid_argument for another text.
std::string to_text(const Room& room);
Room room_of(const std::string& text);

// Throws InvalidInput, naming the rank and both sizes, unless so many bytes fit into each rank's share of its place, by rank,
// and what it holds.
void require_room(std::int64_t bytes, const std::vector<Room>& ranks);

}  // namespace gradweave::runtime
