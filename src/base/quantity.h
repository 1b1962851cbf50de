// Sizes, times and rates as people write them: "25MB", "100us", "10Gb/s".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace gradweave {

// What a quantity is of, and the unit that a plain number has.
enum class Measure : std::uint8_t { kBytes, kMicroseconds, kGigabitsPerSecond };

// Returns what `text`, a number or a number with a unit, is in the measure's own unit, rounded once; nothing
// if it is neither. Decimal units of size are powers of 1000 (MB), binary ones of 1024 (MiB). O(length).
std::optional<double> quantity(std::string_view text, Measure measure);

// Returns the number that `text` is, in the measure's own unit and without one, as it is given to a reader of
// numbers: "25MB" becomes "25000000", what is no quantity stays as it is.
std::string without_unit(std::string_view text, Measure measure);

// Returns a remedy for a number with an unknown unit: "did you mean '25MB'? Use a unit of B, kB, ..."; empty for any
// other text. O(length).
std::string unit_remedy(std::string_view text, Measure measure);

// Returns the units, "B, kB, MB, ...".
std::string units_of(Measure measure);

}  // namespace gradweave
