// Kernels are written once, in loops of fixed length that compilers vectorise, and compiled for each instruction
// set: the bodies are inlined into functions of that target. No std::floor and no float maximum: without SSE4.1
// the one is a call and the other keeps loops scalar.
#include "codec/groups.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>

#include "base/splitmix.h"

namespace gradweave::codec {
namespace {

#define GRADWEAVE_KERNEL [[gnu::always_inline]] inline

constexpr int kSize = static_cast<int>(kGroup);
constexpr int kScaleBytes = 4;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kSmallest = 0x1p-100F;  // below it 127 / magnitude is near overflow

struct Traits {
  int bits, limit, middle;  // codes that are rounded at random are middle - limit to middle + limit
  int step;                 // between two codes, in scales
};

template <Format F>
constexpr Traits traits() {
  if (F == Format::kInt8) return {.bits = 8, .limit = 127, .middle = 128, .step = 1};
  if (F == Format::kInt4) return {.bits = 4, .limit = 7, .middle = 8, .step = 1};
  if (F == Format::kInt2) return {.bits = 2, .limit = 0, .middle = 3, .step = 2};
  return {.bits = 1, .limit = 0, .middle = 1, .step = 2};
}

template <Format F>
constexpr bool kRandom = F == Format::kInt8 || F == Format::kInt4;

// Word j of a group: a 32-bit mixer (Wellons, "lowbias32") over the group's 64 random bits.
GRADWEAVE_KERNEL std::uint32_t random_word(std::uint32_t low, std::uint32_t high, std::uint32_t j) {
  std::uint32_t x = low + j;
  x ^= x >> 16;
  x = (x ^ high) * 0x7FEB352DU;
  x ^= x >> 15;
  x *= 0x846CA68BU;
  return x ^ (x >> 16);
}

// x / s + middle, rounded at random. 128 + u has the 16 bits of u as the last of its 24, so that it is put
// together, and truncating a positive number is floor.
template <Format F>
GRADWEAVE_KERNEL std::uint8_t rounded(float scaled, std::uint32_t random) {
  constexpr Traits t = traits<F>();
  const float dither = std::bit_cast<float>(0x43000000U | random | 1U);
  float sum = scaled + dither;
  constexpr float low = 128 - t.limit, high = 128 + t.limit;  // the quotient may round to just beyond
  sum = sum < low ? low : sum;
  sum = sum > high ? high : sum;
  return static_cast<std::uint8_t>(static_cast<std::int32_t>(sum) - (128 - t.middle));
}

GRADWEAVE_KERNEL float magnitude(float value) {
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) & 0x7FFFFFFFU);
}

// The sum of magnitudes, three times those from `large` on: in 16 lanes and then lane by lane.
GRADWEAVE_KERNEL float sum_of_magnitudes(const float* gain, float large) {
  constexpr int kLanes = 16;
  float lanes[kLanes] = {};
  for (int i = 0; i < kSize; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) {
      const float size = magnitude(gain[i + l]);
      lanes[l] += size >= large ? 3 * size : size;
    }
  }
  float sum = 0;
  for (int l = 0; l < kLanes; ++l) sum += lanes[l];
  return sum;
}

// Of finite floats the order of magnitudes is that of their bits; what is not finite is above.
GRADWEAVE_KERNEL std::int32_t largest_magnitude(const float* gain) {
  std::int32_t top = 0;
  for (int i = 0; i < kSize; ++i) {
    const auto bits = static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(gain[i]) & 0x7FFFFFFFU);
    top = bits > top ? bits : top;
  }
  return top;
}

// Bytes of n codes; `m`: how many.
template <Format F>
GRADWEAVE_KERNEL void pack(const std::uint8_t* code, int m, std::uint8_t* __restrict to) {
  constexpr int bits = traits<F>().bits;
  for (int j = 0; j < m; ++j) {
    std::uint8_t byte = code[j];
    for (int k = 1; k < 8 / bits; ++k) byte = static_cast<std::uint8_t>(byte | code[j + k * m] << (k * bits));
    to[j] = byte;
  }
}

template <Format F>
GRADWEAVE_KERNEL void unpack(const std::uint8_t* from, int m, std::uint8_t* __restrict code) {
  constexpr int bits = traits<F>().bits;
  constexpr int mask = (1 << bits) - 1;
  for (int k = 0; k < 8 / bits; ++k) {
    for (int j = 0; j < m; ++j) code[j + k * m] = static_cast<std::uint8_t>(from[j] >> (k * bits) & mask);
  }
}

template <Format F>
constexpr int bytes_of(int n) {
  return (n * traits<F>().bits + 7) / 8;
}

// The scale of a group whose codes are not rounded at random.
template <Format F>
GRADWEAVE_KERNEL float scale_by_magnitudes(const float* gain, int n) {
  const float mean = sum_of_magnitudes(gain, kInfinity) / static_cast<float>(n);
  if constexpr (F == Format::kSigns) return mean;
  const float large = 1.25F * mean;
  std::int32_t count = 0;
  for (int i = 0; i < kSize; ++i) count += magnitude(gain[i]) >= large;
  return sum_of_magnitudes(gain, large) / static_cast<float>(n + 8 * count);
}

// `gain`: a group, zeros behind its n elements.
template <Format F>
GRADWEAVE_KERNEL void encode_group(const float* gain, int n, std::uint64_t key, std::int64_t group,
                                   std::uint8_t* to) {
  constexpr Traits t = traits<F>();
  alignas(64) std::uint8_t code[kSize];
  const float top = std::bit_cast<float>(largest_magnitude(gain));
  float scale = 0;
  if constexpr (kRandom<F>) {
    scale = top < kSmallest ? 0 : top / static_cast<float>(t.limit);
  } else {
    scale = top < kSmallest ? 0 : scale_by_magnitudes<F>(gain, n);
  }
  const bool finite = std::bit_cast<std::uint32_t>(scale) < 0x7F800000U;
  if (!finite) scale = std::bit_cast<float>(0x7FC00000U);
  if constexpr (F == Format::kSigns) {
    for (int i = 0; i < kSize; ++i)
      code[i] = static_cast<std::uint8_t>(~std::bit_cast<std::uint32_t>(gain[i]) >> 31);
  } else if constexpr (F == Format::kInt2) {
    const float large = 2 * scale;
    for (int i = 0; i < kSize; ++i) {
      const std::uint32_t positive = ~std::bit_cast<std::uint32_t>(gain[i]) >> 31;
      const std::uint32_t outer = magnitude(gain[i]) >= large ? 1 : 0;
      code[i] = static_cast<std::uint8_t>(2 * positive + (1 ^ positive ^ outer));
    }
  } else {
    const float inverse = finite && scale > 0 ? static_cast<float>(t.limit) / top : 0;
    const std::uint64_t random = splitmix64(key + static_cast<std::uint64_t>(group));
    const auto low = static_cast<std::uint32_t>(random), high = static_cast<std::uint32_t>(random >> 32);
    if (!finite) {
      std::memset(code, t.middle, kSize);
    } else {
      for (int j = 0; j < kSize / 2; ++j) {
        const std::uint32_t word = random_word(low, high, static_cast<std::uint32_t>(j));
        code[j] = rounded<F>(gain[j] * inverse, word & 0xFFFFU);
        code[j + kSize / 2] = rounded<F>(gain[j + kSize / 2] * inverse, word >> 16);
      }
    }
  }
  std::memcpy(to, &scale, kScaleBytes);
  if (n == kSize) {
    pack<F>(code, bytes_of<F>(kSize), to + kScaleBytes);
  } else {
    pack<F>(code, bytes_of<F>(n), to + kScaleBytes);
  }
}

template <Format F>
GRADWEAVE_KERNEL void encode_groups(const float* values, const float* anchor, std::int64_t count,
                                    std::uint64_t key, std::int64_t first_group, std::uint8_t* to) {
  alignas(64) float gain[kSize];
  for (std::int64_t begin = 0; begin < count; begin += kGroup) {
    const int n = static_cast<int>(std::min(kGroup, count - begin));
    const float* const own = values + begin;
    if (n < kSize) {
      for (int i = 0; i < kSize; ++i) gain[i] = i >= n ? 0 : anchor ? own[i] - anchor[begin + i] : own[i];
    } else if (anchor) {
      for (int i = 0; i < kSize; ++i) gain[i] = own[i] - anchor[begin + i];
    } else {
      for (int i = 0; i < kSize; ++i) gain[i] = own[i];
    }
    encode_group<F>(gain, n, key, first_group + begin / kGroup, to);
    to += kScaleBytes + bytes_of<F>(kSize);
  }
}

enum class Write : std::uint8_t { kSet, kAdd };

// Group number `group`, whole. What is behind the elements of a short one is undefined.
template <Format F, Write W>
GRADWEAVE_KERNEL void decode_group(const std::uint8_t* message, std::int64_t count, std::int64_t group,
                                   float* __restrict to) {
  constexpr Traits t = traits<F>();
  constexpr int kBytes = bytes_of<F>(kSize);
  const std::uint8_t* const from = message + group * (kScaleBytes + kBytes);
  alignas(64) std::uint8_t code[kSize];
  const std::int64_t left = count - group * kGroup;
  if (left >= kGroup) {
    unpack<F>(from + kScaleBytes, kBytes, code);
  } else {
    std::memset(code, 0, kSize);
    unpack<F>(from + kScaleBytes, bytes_of<F>(static_cast<int>(left)), code);
  }
  float scale;
  std::memcpy(&scale, from, kScaleBytes);
  for (int i = 0; i < kSize; ++i) {
    const float value = static_cast<float>(static_cast<int>(code[i]) * t.step - t.middle) * scale;
    if constexpr (W == Write::kAdd) {
      to[i] += value;
    } else {
      to[i] = value;
    }
  }
}

template <Format F, Write W>
GRADWEAVE_KERNEL void decode_groups(const std::uint8_t* message, std::int64_t count, std::int64_t begin,
                                    std::int64_t end, float* to) {
  alignas(64) float part[kSize];
  for (std::int64_t group = begin / kGroup; group * kGroup < end; ++group) {
    const std::int64_t first = group * kGroup;
    if (first >= begin && first + kGroup <= end) {
      decode_group<F, W>(message, count, group, to + (first - begin));
      continue;
    }
    decode_group<F, Write::kSet>(message, count, group, part);
    for (std::int64_t i = std::max(first, begin); i < std::min(first + kGroup, end); ++i) {
      if constexpr (W == Write::kAdd) {
        to[i - begin] += part[i - first];
      } else {
        to[i - begin] = part[i - first];
      }
    }
  }
}

GRADWEAVE_KERNEL void settle(const float* sum, const float* own, std::int64_t count, float share, Outer outer,
                             float* __restrict values, float* __restrict anchor, float* __restrict momentum) {
  if (momentum == nullptr) {
    for (std::int64_t i = 0; i < count; ++i) {
      const float mean = sum[i] * share;
      values[i] += mean - own[i];
      anchor[i] += mean;
    }
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const float mean = sum[i] * share;
    const float speed = momentum[i] * outer.momentum + mean;
    const float step = (mean + speed * outer.momentum) * outer.learning_rate;
    momentum[i] = speed;
    values[i] += step - own[i];
    anchor[i] += step;
  }
}

template <Format F>
GRADWEAVE_KERNEL void land_groups(const Landing& landing, float* values, float* anchor, float* momentum) {
  alignas(64) float sum[kSize];
  alignas(64) float own[kSize];
  for (std::int64_t group = landing.begin / kGroup; group * kGroup < landing.end; ++group) {
    decode_group<F, Write::kSet>(landing.own, landing.count, group, own);
    for (int i = 0; i < kSize; ++i) sum[i] = 0;
    for (const std::uint8_t* const source : landing.sources) {
      if (source == landing.own) {
        for (int i = 0; i < kSize; ++i) sum[i] += own[i];
      } else {
        decode_group<F, Write::kAdd>(source, landing.count, group, sum);
      }
    }
    const std::int64_t first = group * kGroup;
    const std::int64_t from = std::max(first, landing.begin), to = std::min(first + kGroup, landing.end);
    const std::int64_t place = from - landing.begin;
    if (to - from == kGroup) {  // of a length that the compiler knows
      settle(sum, own, kGroup, landing.share, landing.outer, values + place, anchor + place,
             momentum ? momentum + place : nullptr);
    } else {
      settle(sum + (from - first), own + (from - first), to - from, landing.share, landing.outer,
             values + place, anchor + place, momentum ? momentum + place : nullptr);
    }
  }
}

// The kernels of one instruction set.
#define GRADWEAVE_PER_FORMAT(call)         \
  switch (format) {                        \
    case Format::kInt8: {                  \
      constexpr Format F = Format::kInt8;  \
      return call;                         \
    }                                      \
    case Format::kInt4: {                  \
      constexpr Format F = Format::kInt4;  \
      return call;                         \
    }                                      \
    case Format::kInt2: {                  \
      constexpr Format F = Format::kInt2;  \
      return call;                         \
    }                                      \
    case Format::kSigns: {                 \
      constexpr Format F = Format::kSigns; \
      return call;                         \
    }                                      \
  }

// An attribute can't be in parentheses. NOLINTBEGIN(bugprone-macro-parentheses)
#define GRADWEAVE_KERNELS(Set, target)                                                                     \
  struct Set {                                                                                             \
    target static void encode(Format format, const float* values, const float* anchor, std::int64_t count, \
                              std::uint64_t key, std::int64_t first_group, std::uint8_t* to){              \
        GRADWEAVE_PER_FORMAT(encode_groups<F>(values, anchor, count, key, first_group, to))} target        \
        static void decode(Format format, const std::uint8_t* message, std::int64_t count,                 \
                           std::int64_t begin, std::int64_t end, float* to){                               \
            GRADWEAVE_PER_FORMAT((decode_groups<F, Write::kSet>(message, count, begin, end, to)))} target  \
        static void decode_add(Format format, const std::uint8_t* message, std::int64_t count,             \
                               std::int64_t begin, std::int64_t end, float* to){                           \
            GRADWEAVE_PER_FORMAT((decode_groups<F, Write::kAdd>(message, count, begin, end, to)))} target  \
        static void land(Format format, const Landing& landing, float* values, float* anchor,              \
                         float* momentum){                                                                 \
            GRADWEAVE_PER_FORMAT(land_groups<F>(landing, values, anchor, momentum))} target                \
        static void land_floats(const float* sum, const float* own, std::int64_t count, float share,       \
                                Outer outer, float* values, float* anchor, float* momentum) {              \
      settle(sum, own, count, share, outer, values, anchor, momentum);                                     \
    }                                                                                                      \
    static constexpr Kernels table(std::string_view name) {                                                \
      return {name, encode, decode, decode_add, land, land_floats};                                        \
    }                                                                                                      \
  }
// NOLINTEND(bugprone-macro-parentheses)

GRADWEAVE_KERNELS(Baseline, );
#if defined(__x86_64__)
GRADWEAVE_KERNELS(Avx2, [[gnu::target("avx2")]]);
#endif

template <Format F>
constexpr std::int64_t bytes_of_message(std::int64_t count) {
  const auto rest = static_cast<int>(count % kGroup);
  return count / kGroup * (kScaleBytes + bytes_of<F>(kSize)) +
         (rest > 0 ? kScaleBytes + bytes_of<F>(rest) : 0);
}

}  // namespace

std::optional<Format> format_of(std::string_view compressor) {
  if (compressor == "int8") return Format::kInt8;
  if (compressor == "int4") return Format::kInt4;
  if (compressor == "int2") return Format::kInt2;
  if (compressor == "ef_signsgd") return Format::kSigns;
  return std::nullopt;
}

std::int64_t encoded_bytes(Format format, std::int64_t count) {
  GRADWEAVE_PER_FORMAT(bytes_of_message<F>(count))
  return 0;
}

std::uint64_t random_key(std::uint64_t seed, std::uint64_t rank, std::uint64_t iteration, std::uint64_t op,
                         std::uint64_t stage) {
  std::uint64_t key = splitmix64(seed);
  for (const std::uint64_t part : {rank, iteration, op, stage}) key = splitmix64(key + part);
  return key;
}

std::span<const Kernels> all_kernels() {
#if defined(__x86_64__)
  static constexpr std::array table{Avx2::table("avx2"), Baseline::table("baseline")};
  static const bool avx2 = __builtin_cpu_supports("avx2");
  return avx2 ? std::span<const Kernels>(table) : std::span<const Kernels>(table).subspan(1);
#else
  static constexpr std::array table{Baseline::table("baseline")};
  return table;
#endif
}

}  // namespace gradweave::codec
