// Names of any length in messages of bounded length.
#pragma once

#include <string>
#include <string_view>

namespace gradweave {

// Returns `text`, or its first 60 bytes (never half a UTF-8 sequence) and "...".
std::string shortened(std::string_view text);

// Returns the same in single quotes.
std::string in_quotes(std::string_view text);

}  // namespace gradweave
