// Hashes that ranks compare: XXH3.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace gradweave {

// Returns 128 bits as 32 hex digits. Same bytes, same digits, on every machine.
std::string hash_hex(std::string_view bytes);
// Returns 64 bits.
std::uint64_t checksum(std::string_view bytes);

}  // namespace gradweave
