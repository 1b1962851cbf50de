// Epochs as texts.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "islands/meeting.h"

namespace gradweave::islands {

std::string encode(const Epoch& epoch);
// Returns nothing for a text of any other form.
std::optional<Epoch> decode_epoch(std::string_view text);

}  // namespace gradweave::islands
