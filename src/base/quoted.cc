#include "base/quoted.h"

namespace gradweave {

std::string shortened(std::string_view text) {
  constexpr std::size_t kMax = 60;
  if (text.size() <= kMax) return std::string(text);
  std::size_t end = kMax;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return std::string(text.substr(0, end)) + "...";
}

std::string in_quotes(std::string_view text) { return "'" + shortened(text) + "'"; }

}  // namespace gradweave
