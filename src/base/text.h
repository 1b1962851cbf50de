// Numbers in sentences.
#pragma once

#include <string>

namespace gradweave {

// Returns a time with four digits and the unit that suits it, e.g. "12.35 ms".
std::string time_text(double nanoseconds);

// Returns a size in decimal units, e.g. "25.0 MB".
std::string bytes_text(double bytes);

// Returns a number with at most `digits` digits that count, e.g. "1.92".
std::string number_text(double value, int digits = 3);

// Returns a number with `places` decimal places, e.g. "1.90".
std::string fixed_text(double value, int places);

}  // namespace gradweave
