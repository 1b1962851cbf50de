#include "islands/random_name.h"

#include <openssl/rand.h>

#include <array>

#include "gradweave/error.h"

namespace gradweave::islands {

std::string random_name() {
  std::array<unsigned char, 8> bytes;
  if (RAND_bytes(bytes.data(), static_cast<int>(bytes.size())) != 1)
    throw RuntimeFailure("no random numbers: OpenSSL's generator has failed");
  std::string name;
  for (const unsigned char byte : bytes) {
    name += "0123456789abcdef"[byte >> 4];
    name += "0123456789abcdef"[byte & 15];
  }
  return name;
}

}  // namespace gradweave::islands
