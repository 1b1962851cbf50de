#include "islands/address.h"

#include <charconv>

#include "base/quoted.h"
#include "gradweave/error.h"

namespace gradweave::islands {

Address parse_address(std::string_view text, std::string_view where) {
  const std::size_t colon = text.rfind(':');
  std::string_view host = text.substr(0, colon);
  const std::string_view digits = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  const bool brackets = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (brackets) host = host.substr(1, host.size() - 2);
  Address address{.host = std::string(host)};
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), address.port);
  const bool whole = error == std::errc() && end == digits.data() + digits.size() && !host.empty();
  if (!whole || (!brackets && host.find(':') != std::string_view::npos))
    throw InvalidInput(in_quotes(text) + " is no address", where,
                       "give HOST:PORT, as 0.0.0.0:29600 or [::]:29600");
  return address;
}

std::string to_text(const Address& address) {
  const bool brackets = address.host.find(':') != std::string::npos;
  return (brackets ? "[" + address.host + "]" : address.host) + ':' + std::to_string(address.port);
}

}  // namespace gradweave::islands
