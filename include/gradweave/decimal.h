// Exact decimals, for rates: 0.0008 us/byte is 8e-4, not the nearest double.
#pragma once

#include <cstdint>
#include <string>

namespace gradweave {

using Nanoseconds = std::int64_t;

// mantissa * 10^-scale, normalised (no trailing zeros in the mantissa while scale > 0; zero has scale 0).
// At most 18 significant digits; 0 <= scale <= 40. Never negative.
struct Decimal {
  std::int64_t mantissa = 0;
  std::int32_t scale = 0;

  friend bool operator==(const Decimal&, const Decimal&) = default;
};

// Returns the shortest decimal that reads back as `value`.
// Errors: InvalidInput(where) if value is negative, not finite, or needs more than the limits above.
Decimal decimal_from_double(double value, const std::string& where);

// Returns the double nearest to the decimal.
double to_double(Decimal value);

// Returns ceil(count * rate) for count >= 0; the result is exact.
// Errors: InvalidInput if it exceeds 2^62.
std::int64_t multiply_ceil(std::int64_t count, Decimal rate);

// Returns rate * numerator / denominator (> 0), half up to 15 digits. Errors: InvalidInput beyond 2^62.
Decimal multiply_ratio(Decimal rate, std::int64_t numerator, std::int64_t denominator);

// Returns the sum, exact where it has at most 18 digits, else half up. Errors: InvalidInput if it has no room.
Decimal sum_of(Decimal a, Decimal b);

// Returns `rate` * 1000 exactly (microseconds to nanoseconds). Errors: InvalidInput if it has no room.
Decimal times_1000(Decimal rate);

// Returns floor(total * part / whole) without overflow. 0 <= total, 0 <= part <= whole, whole > 0.
std::int64_t floor_share(std::int64_t total, std::int64_t part, std::int64_t whole);

}  // namespace gradweave
