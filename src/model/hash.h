// Hashes that ranks compare: XXH3, 128 bits, as hex digits.
#pragma once

#include <string>
#include <string_view>

namespace gradweave {

// Returns 32 hex digits. Same bytes, same digits, on every machine.
std::string hash_hex(std::string_view bytes);

}  // namespace gradweave
