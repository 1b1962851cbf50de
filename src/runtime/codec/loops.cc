#include "runtime/codec/loops.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

namespace gradweave::runtime {

std::vector<std::int64_t> places_at_least(const float* values, std::int64_t count, float threshold) {
  std::vector<std::int64_t> places;
  constexpr std::int64_t kStep = 32;  // most steps hold none
  const auto large = [&](std::int64_t i) { return !(std::fabs(values[i]) < threshold); };
  std::int64_t i = 0;
  for (; i + kStep <= count; i += kStep) {
    int any = 0;
    for (std::int64_t j = i; j < i + kStep; ++j) any |= static_cast<int>(large(j));
    if (any == 0) continue;
    for (std::int64_t j = i; j < i + kStep; ++j) {
      if (large(j)) places.push_back(j);
    }
  }
  for (; i < count; ++i) {
    if (large(i)) places.push_back(i);
  }
  return places;
}

void write_signs(const float* values, std::int64_t count, std::uint8_t* bits) {
  const auto sign = [&](std::int64_t i) {
    std::uint32_t word;
    std::memcpy(&word, values + i, sizeof word);
    return word >> 31;
  };
  for (std::int64_t i = 0; i < count; i += 8) {
    std::uint32_t byte = 0;
    const std::int64_t end = std::min<std::int64_t>(8, count - i);
    if (end == 8) {
      for (std::int64_t j = 0; j < 8; ++j) byte |= sign(i + j) << j;
    } else {
      for (std::int64_t j = 0; j < end; ++j) byte |= sign(i + j) << j;
    }
    bits[i / 8] = static_cast<std::uint8_t>(byte);
  }
}

namespace {

// The eight signs of each byte, as factors.
struct Factors {
  std::array<std::array<float, 8>, 256> of{};
  constexpr Factors() {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      for (std::size_t j = 0; j < 8; ++j) of[byte][j] = (byte >> j & 1) != 0 ? -1.0F : 1.0F;
    }
  }
};
constexpr Factors kFactors;

// to[i] = change(to[i], i's factor)
template <typename Change>
void with_factors(const std::uint8_t* bits, std::int64_t count, float* __restrict to, Change change) {
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const float* const factors = kFactors.of[bits[i / 8]].data();
    for (std::int64_t j = 0; j < 8; ++j) to[i + j] = change(to[i + j], factors[j]);
  }
  if (i == count) return;
  const float* const factors = kFactors.of[bits[i / 8]].data();
  for (std::int64_t j = 0; i + j < count; ++j) to[i + j] = change(to[i + j], factors[j]);
}

}  // namespace

void subtract_signs(const std::uint8_t* bits, std::int64_t count, float scale, float* to) {
  with_factors(bits, count, to, [scale](float value, float factor) { return value - scale * factor; });
}

void sum_signs(const std::uint8_t* const* bits, const float* scales, int sources, std::int64_t count,
               float* to) {
  // A stretch of the sum stays in the cache while all sources are added.
  constexpr std::int64_t kStretch = 4096;
  for (std::int64_t begin = 0; begin < count; begin += kStretch) {
    const std::int64_t length = std::min(kStretch, count - begin);
    for (int r = 0; r < sources; ++r) {
      const float scale = scales[r];
      const std::uint8_t* const from = bits[r] + begin / 8;
      if (r == 0) {
        with_factors(from, length, to + begin, [scale](float, float factor) { return scale * factor; });
      } else {
        with_factors(from, length, to + begin,
                     [scale](float value, float factor) { return value + scale * factor; });
      }
    }
  }
}

void orthonormalize(float* matrix, std::int64_t rows, std::int64_t columns) {
  const auto at = [&](std::int64_t row, std::int64_t column) -> float& {
    return matrix[row * columns + column];
  };
  const auto product = [&](std::int64_t a, std::int64_t b) {
    double sum = 0;
    for (std::int64_t row = 0; row < rows; ++row) sum += static_cast<double>(at(row, a)) * at(row, b);
    return sum;
  };
  // What is left of a column that depends on others is rounding.
  constexpr double kDependent = 1e-10;  // squares
  for (std::int64_t c = 0; c < columns; ++c) {
    const double whole = product(c, c);
    for (std::int64_t before = 0; before < c; ++before) {
      const auto share = static_cast<float>(product(before, c));
      for (std::int64_t row = 0; row < rows; ++row) at(row, c) -= share * at(row, before);
    }
    const double left = product(c, c);
    const bool none = left <= kDependent * whole || std::sqrt(left) < std::numeric_limits<float>::min();
    const auto factor = none ? 0.0F : static_cast<float>(1 / std::sqrt(left));
    for (std::int64_t row = 0; row < rows; ++row) at(row, c) *= factor;
  }
}

void scale_columns(const float* matrix, std::int64_t rows, std::int64_t columns, float* to) {
  std::vector<float> factors(static_cast<std::size_t>(columns), 0.0F);
  for (std::int64_t i = 0; i < rows * columns; ++i) {
    float& largest = factors[static_cast<std::size_t>(i % columns)];
    largest = std::max(largest, std::fabs(matrix[i]));
  }
  for (float& factor : factors) {
    int exponent = 0;
    if (std::isfinite(factor)) static_cast<void>(std::frexp(factor, &exponent));
    factor = std::ldexp(1.0F, std::clamp(-exponent, -kMostExponent, kMostExponent));
  }
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t c = 0; c < columns; ++c)
      to[row * columns + c] = matrix[row * columns + c] * factors[static_cast<std::size_t>(c)];
  }
}

void multiply_transposed(const float* left, const float* right, std::int64_t rows, std::int64_t columns,
                         std::int64_t rank, float* to) {
  std::vector<float> turned(static_cast<std::size_t>(rank * columns));
  for (std::int64_t c = 0; c < columns; ++c) {
    for (std::int64_t k = 0; k < rank; ++k)
      turned[static_cast<std::size_t>(k * columns + c)] = right[c * rank + k];
  }
  for (std::int64_t row = 0; row < rows; ++row) {
    float* const __restrict out = to + row * columns;
    for (std::int64_t k = 0; k < rank; ++k) {
      const float factor = left[row * rank + k];
      const float* const __restrict in = turned.data() + k * columns;
      if (k == 0) {
        for (std::int64_t c = 0; c < columns; ++c) out[c] = factor * in[c];
      } else {
        for (std::int64_t c = 0; c < columns; ++c) out[c] += factor * in[c];
      }
    }
  }
}

}  // namespace gradweave::runtime
