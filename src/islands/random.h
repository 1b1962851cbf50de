// Random bytes, for keys and for names that nobody else has.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace gradweave::islands {

// Errors: RuntimeFailure if there are no random numbers.
void fill_randomly(std::span<std::byte> bytes);

// Returns two hexadecimal digits for each byte.
std::string hex_of(std::span<const std::byte> bytes);

// Returns 16 random hexadecimal digits. Errors: as above.
std::string random_name();

}  // namespace gradweave::islands
