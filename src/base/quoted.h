// Names of any length and of any characters, in messages for people.
#pragma once

#include <string>
#include <string_view>

namespace gradweave {

// Returns `text`, or its first 60 bytes (never half a UTF-8 sequence) and "...".
std::string shortened(std::string_view text);

// Returns `text` with control characters as "\x1b", of which a terminal would do more than show them; UTF-8 stays. O(size).
std::string printable(std::string_view text);

// Returns shortened() in single quotes.
std::string in_quotes(std::string_view text);

}  // namespace gradweave
