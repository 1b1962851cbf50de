// Keys of jobs.
#pragma once

#include "islands/key.h"

namespace gradweave::islands {

inline Key key_of(unsigned char number) {
  Key key{};
  key.fill(number);
  return key;
}

}  // namespace gradweave::islands
