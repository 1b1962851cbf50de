#include "base/text.h"

#include <cmath>
#include <cstddef>
#include <cstdio>
#include <iterator>
#include <string_view>

namespace gradweave {

std::string number_text(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*g", digits, value);
  // Without an exponent while it is short.
  if (std::abs(value) >= 1 && std::abs(value) < 1e9 &&
      std::string_view(text).find('e') != std::string_view::npos)
    std::snprintf(text, sizeof text, "%.0f", value);
  return text;
}

std::string time_text(double nanoseconds) {
  if (nanoseconds >= 1e9) return number_text(nanoseconds / 1e9, 4) + " s";
  if (nanoseconds >= 1e6) return number_text(nanoseconds / 1e6, 4) + " ms";
  return number_text(nanoseconds / 1e3, 4) + " us";
}

std::string fixed_text(double value, int places) {
  char text[512];  // the largest double has 309 digits
  std::snprintf(text, sizeof text, "%.*f", places, value);
  return text;
}

std::string bytes_text(double bytes) {
  constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB"};
  std::size_t unit = 0;
  for (; bytes >= 1000 && unit + 1 < std::size(kUnits); ++unit) bytes /= 1000;
  return fixed_text(bytes, unit == 0 ? 0 : 1) + " " + kUnits[unit];
}

}  // namespace gradweave
