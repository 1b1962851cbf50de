// Numbers that are random and the same on every machine.
#pragma once

#include <cstdint>

namespace gradweave {

inline constexpr std::uint64_t kSplitmixStep = 0x9e3779b97f4a7c15;

// Returns a hash of `x`, each bit of it random. Of x, x + kSplitmixStep, x + 2 kSplitmixStep, ... it is the generator
// splitmix64 (Steele, Lea and Flood, OOPSLA 2014).
constexpr std::uint64_t splitmix64(std::uint64_t x) {
  x += kSplitmixStep;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace gradweave
