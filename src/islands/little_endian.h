// Numbers in bytes, the lowest first, on every machine.
#pragma once

#include <cstddef>

namespace gradweave::islands {

// Writes an unsigned number and returns where the next one goes.
template <typename Number>
std::byte* put(std::byte* at, Number value) {
  for (std::size_t i = 0; i < sizeof value; ++i) *at++ = static_cast<std::byte>(value >> (8 * i) & 255);
  return at;
}

template <typename Number>
const std::byte* take(const std::byte* at, Number& value) {
  value = 0;
  for (std::size_t i = 0; i < sizeof value; ++i)
    value |= static_cast<Number>(static_cast<Number>(*at++) << (8 * i));
  return at;
}

}  // namespace gradweave::islands
