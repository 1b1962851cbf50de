// Where a side listens.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace gradweave::islands {

struct Address {
  std::string host;  // a name or a number; IPv6 without brackets
  std::uint16_t port = 0;
  friend bool operator==(const Address&, const Address&) = default;
};

// Reads "host:29600", "10.0.0.1:29600", "[::1]:29600". Errors: InvalidInput, at `where`.
Address parse_address(std::string_view text, std::string_view where);
std::string to_text(const Address& address);

}  // namespace gradweave::islands
