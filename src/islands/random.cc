#include "islands/random.h"

#include <openssl/rand.h>

#include <array>

#include "gradweave/error.h"

namespace gradweave::islands {

void fill_randomly(std::span<std::byte> bytes) {
  if (RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), static_cast<int>(bytes.size())) != 1)
    throw RuntimeFailure("no random numbers: OpenSSL's generator has failed");
}

std::string hex_of(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) {
    text += "0123456789abcdef"[std::to_integer<unsigned>(byte >> 4)];
    text += "0123456789abcdef"[std::to_integer<unsigned>(byte & std::byte{15})];
  }
  return text;
}

std::string random_name() {
  std::array<std::byte, 8> bytes;
  fill_randomly(bytes);
  return hex_of(bytes);
}

}  // namespace gradweave::islands
