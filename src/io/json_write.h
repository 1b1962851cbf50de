// Pieces of canonical JSON text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "gradweave/decimal.h"

namespace gradweave {

// Returns `text` as a JSON string; bytes that are not UTF-8 become U+FFFD.
std::string json_string(std::string_view text);

// Returns `text` as it reads back from that.
std::string valid_utf8(std::string_view text);

// Returns the shortest number that reads back as `value`. Errors: InvalidInput if it is not finite.
std::string json_number(double value);

// Returns the decimal exactly.
std::string json_number(Decimal value);

// Returns "[1, 2, 3]".
std::string json_array(const std::vector<std::int32_t>& values);
std::string json_array(const std::vector<std::string>& values);

}  // namespace gradweave
