// What some ranks refuse and all have to hear.
#pragma once

#include <string>
#include <vector>

namespace gradweave::peers {

// Returns what ranks refuse, of texts by rank: "" if none does, the text where all say the same, else who says what.
std::string refusal_of(const std::vector<std::string>& texts);

}  // namespace gradweave::peers
