#include "io/json_write.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "gradweave/error.h"
#include "gradweave/json.h"

namespace gradweave {
namespace {

// Returns magnitude / 10^scale in plain digits, without trailing zeros behind the point.
std::string plain(std::uint64_t magnitude, std::size_t scale) {
  std::string text = std::to_string(magnitude);
  if (scale == 0) return text;
  if (text.size() <= scale) text.insert(0, scale + 1 - text.size(), '0');
  text.insert(text.size() - scale, 1, '.');
  while (text.back() == '0') text.pop_back();
  if (text.back() == '.') text.pop_back();
  return text;
}

}  // namespace

std::string json_string(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string valid_utf8(std::string_view text) {
  const bool ascii = std::ranges::none_of(text, [](char c) { return (c & 0x80) != 0; });
  return ascii ? std::string(text) : nlohmann::json::parse(json_string(text)).get<std::string>();
}

std::string json_number(double value) {
  if (!std::isfinite(value)) throw InvalidInput("is not finite", "number to be written");
  char text[64];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

std::string json_number(Decimal value) {
  constexpr std::int32_t kLongest = 12;  // digits behind the point; below that an exponent reads better
  if (value.scale > kLongest) return std::to_string(value.mantissa) + "e-" + std::to_string(value.scale);
  return plain(static_cast<std::uint64_t>(value.mantissa), static_cast<std::size_t>(value.scale));
}

std::string json_array(const std::vector<std::int32_t>& values) {
  std::string text = "[";
  for (const std::int32_t value : values)
    text.append(text.size() > 1 ? ", " : "").append(std::to_string(value));
  return text + "]";
}

std::string json_array(const std::vector<std::string>& values) {
  std::string text = "[";
  for (const std::string& value : values) text.append(text.size() > 1 ? ", " : "").append(json_string(value));
  return text + "]";
}

std::string microseconds(Nanoseconds nanoseconds) {
  const bool negative = nanoseconds < 0;
  const auto magnitude = negative ? std::uint64_t{0} - static_cast<std::uint64_t>(nanoseconds)
                                  : static_cast<std::uint64_t>(nanoseconds);
  return (negative ? "-" : "") + plain(magnitude, 3);
}

}  // namespace gradweave
