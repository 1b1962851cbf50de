// Names that nobody else has.
#pragma once

#include <string>

namespace gradweave::islands {

// Returns 16 random hexadecimal digits. Errors: RuntimeFailure if there are no random numbers.
std::string random_name();

}  // namespace gradweave::islands
