#include "base/quoted.h"

#include <cstddef>

namespace gradweave {

std::string shortened(std::string_view text) {
  constexpr std::size_t kMax = 60;
  if (text.size() <= kMax) return std::string(text);
  std::size_t end = kMax;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return std::string(text.substr(0, end)) + "...";
}

std::string printable(std::string_view text) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string shown;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : 0);
    if (byte >= 0x20 && byte != 0x7f && !(byte == 0xC2 && next >= 0x80 && next < 0xA0)) {
      shown += text[i];
      continue;
    }
    const unsigned char control = byte == 0xC2 ? next : byte;  // U+0080 to U+009F take two bytes
    if (byte == 0xC2) ++i;
    shown.append("\\x").append({kDigits[control / 16], kDigits[control % 16]});
  }
  return shown;
}

std::string in_quotes(std::string_view text) { return "'" + shortened(text) + "'"; }

}  // namespace gradweave
