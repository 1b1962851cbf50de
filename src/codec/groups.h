// Messages of floats as small integers with one scale for each group of 256 elements: encoded, decoded, and
// landed on parameters. No torch.
//
// A group of n <= 256 elements (only the last of a message may be short) is a float32 scale s and then
// m = ceil(n b / 8) bytes of b bits an element, little-endian: element i is in byte i mod m, from bit
// b floor(i / m) on. It decodes to
//   int8    (code - 128) s, b = 8, s = largest magnitude / 127; codes are rounded stochastically
//   int4    (code - 8) s,   b = 4, s = largest magnitude / 7;   the same
//   int2    (2 code - 3) s, b = 2: 3s where a magnitude is 2s or more, else s, with the sign
//   signs   code ? s : -s,  b = 1, s = mean magnitude
// int2's s is one least-squares step from t = 5/8 of the mean magnitude, the best s of normal values: with the l_i that t
// gives (3 where |x_i| is 2t or more, else 1), s = sum |x_i| l_i / sum l_i^2.
// Stochastic rounding: floor(x / s + u) with u odd / 2^16 in (0, 1), so that the mean of what is decoded is x
// up to 2^-16 s (Alistarh et al., "QSGD", NIPS 2017). Groups whose largest magnitude is below 2^-100 are zeros.
// If an element of a group is not finite, or a sum of magnitudes overflows, s and so all that it decodes to is NaN: it is seen.
//
// Same input, same bits, on every machine and every path: each operation is rounded to float32, sums have a
// fixed order, and random numbers are a hash of (key, element).
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace gradweave::codec {

enum class Format : std::uint8_t { kInt8, kInt4, kInt2, kSigns };

inline constexpr std::int64_t kGroup = 256;  // elements

// Returns the format of a compressor ("int8", "int4", "int2", "ef_signsgd"; gradweave/compression.h) or nothing.
std::optional<Format> format_of(std::string_view compressor);

// Returns the bytes of an encoded message of `count` elements.
std::int64_t encoded_bytes(Format format, std::int64_t count);
// The same; without a format it is float32.
inline std::int64_t bytes_of(std::optional<Format> format, std::int64_t count) {
  return format ? encoded_bytes(*format, count) : count * static_cast<std::int64_t>(sizeof(float));
}

// Returns where part `part` of `parts` begins if `count` elements are divided into parts of whole groups; of number `parts`: the
// end. Parts may be empty.
inline std::int64_t begin_of_part(std::int64_t count, std::int64_t part, std::int64_t parts) {
  const std::int64_t groups = (count + kGroup - 1) / kGroup;
  return std::min(groups * part / parts * kGroup, count);
}

// Returns the key of one message's random numbers. `iteration`: or any other number of the message; `op`: what
// tells messages of one iteration apart; `stage`: encodings of one message.
std::uint64_t random_key(std::uint64_t seed, std::uint64_t rank, std::uint64_t iteration, std::uint64_t op,
                         std::uint64_t stage = 0);

// The outer optimizer (Nesterov) on what lands, m: buf = momentum buf + m; m = learning_rate (m + momentum buf).
struct Outer {
  float momentum = 0, learning_rate = 1;
};

// What lands on parameters. m = share * the sum of `sources`, added in their order.
struct Landing {
  std::span<const std::uint8_t* const> sources;  // encoded messages
  const std::uint8_t* own = nullptr;  // what this rank has sent, encoded; may be one of the sources
  std::int64_t count = 0;             // elements of each
  std::int64_t begin = 0, end = 0;    // those that land now
  float share = 1;
  Outer outer{};
};

// One set of kernels for each instruction set; all give the same bits.
struct Kernels {
  std::string_view name;

  // Encodes `count` elements values[i] - anchor[i] (`anchor` null: values[i]) as the groups of a message from
  // number `first_group` on; `to`: where that group begins, of encoded_bytes(format, count) bytes. Only the
  // message's last group may be short: the caller owes that. O(count).
  void (*encode)(Format format, const float* values, const float* anchor, std::int64_t count,
                 std::uint64_t key, std::int64_t first_group, std::uint8_t* to);
  // Writes, or adds, elements [begin, end) of an encoded message of `count` elements.
  void (*decode)(Format format, const std::uint8_t* message, std::int64_t count, std::int64_t begin,
                 std::int64_t end, float* to);
  void (*decode_add)(Format format, const std::uint8_t* message, std::int64_t count, std::int64_t begin,
                     std::int64_t end, float* to);
  // values += m - own, anchor += m; the arrays hold elements [begin, end). `momentum` null: no outer optimizer;
  // else its buffer.
  void (*land)(Format format, const Landing& landing, float* values, float* anchor, float* momentum);
  // The same of messages that are not encoded: m = share * sum.
  void (*land_floats)(const float* sum, const float* own, std::int64_t count, float share, Outer outer,
                      float* values, float* anchor, float* momentum);
};

// Returns the kernels that this processor runs, the fastest first.
std::span<const Kernels> all_kernels();
inline const Kernels& kernels() { return all_kernels().front(); }

}  // namespace gradweave::codec
