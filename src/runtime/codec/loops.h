// Loops over float32 in the processor's memory that take several tensor operations elsewhere. No sum changes its
// order and no two operations are contracted: the same bits on every machine.
#pragma once

#include <cstdint>
#include <vector>

namespace gradweave::runtime {

// Returns the places of elements whose magnitude is at least `threshold`, and of NaN, in ascending order.
std::vector<std::int64_t> places_at_least(const float* values, std::int64_t count, float threshold);

// Writes ceil(count / 8) bytes: bit i % 8 of byte i / 8 is element i's sign bit.
void write_signs(const float* values, std::int64_t count, std::uint8_t* bits);

// to[i] -= scale with the sign of bit i.
void subtract_signs(const std::uint8_t* bits, std::int64_t count, float scale, float* to);
// to[i] = the sum over r < sources of scales[r] with the sign of bit i of bits[r].
void sum_signs(const std::uint8_t* const* bits, const float* scales, int sources, std::int64_t count,
               float* to);

// Makes the columns of a (rows, columns) matrix orthonormal, by modified Gram-Schmidt; a column that depends on
// those before, or is too small to be scaled, becomes 0. O(rows columns^2).
void orthonormalize(float* matrix, std::int64_t rows, std::int64_t columns);

// By at most 2 to this, or its inverse, are values scaled: the powers that float32 has.
inline constexpr int kMostExponent = 126;
// to = a (rows, columns) matrix whose columns are multiplied by powers of two, so that their largest magnitudes are 0.5 to 1. O(rows
// columns).
void scale_columns(const float* matrix, std::int64_t rows, std::int64_t columns, float* to);

// to (rows, columns) = left (rows, rank) times the transpose of right (columns, rank). O(rows columns rank).
void multiply_transposed(const float* left, const float* right, std::int64_t rows, std::int64_t columns,
                         std::int64_t rank, float* to);

}  // namespace gradweave::runtime
