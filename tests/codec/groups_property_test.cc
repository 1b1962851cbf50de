#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "codec/groups.h"

namespace gradweave::codec {
namespace {

using Bytes = std::vector<std::uint8_t>;
using Floats = std::vector<float>;

constexpr std::array kFormats{Format::kInt8, Format::kInt4, Format::kInt2, Format::kSigns};

bool random_codes(Format format) { return format == Format::kInt8 || format == Format::kInt4; }

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

Floats normal(std::int64_t count, std::uint64_t seed, float scale = 1) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> draw(0, scale);
  Floats values(at(count));
  for (float& value : values) value = draw(random);
  return values;
}

Bytes encoded(Format format, const Floats& values, const Floats& anchor, std::uint64_t key,
              const Kernels& with = kernels()) {
  const auto count = static_cast<std::int64_t>(values.size());
  Bytes bytes(at(encoded_bytes(format, count)), 0xCD);
  with.encode(format, values.data(), anchor.empty() ? nullptr : anchor.data(), count, key, 0, bytes.data());
  return bytes;
}

Floats decoded(Format format, const Bytes& bytes, std::int64_t count) {
  Floats values(at(count));
  kernels().decode(format, bytes.data(), count, 0, count, values.data());
  return values;
}

// The wire format read bit by bit, in double.
struct Plain {
  int bits, limit;
  std::vector<double> scales;  // of each element's group
  std::vector<int> codes;      // in scales

  Plain(Format format, const Bytes& bytes, std::int64_t count)
      : bits(format == Format::kInt8   ? 8
             : format == Format::kInt4 ? 4
             : format == Format::kInt2 ? 2
                                       : 1),
        limit(format == Format::kInt8 ? 127 : 7) {
    const std::uint8_t* group = bytes.data();
    for (std::int64_t begin = 0; begin < count; begin += 256) {
      const std::int64_t n = std::min<std::int64_t>(256, count - begin), m = (n * bits + 7) / 8;
      float scale;
      std::memcpy(&scale, group, 4);
      for (std::int64_t i = 0; i < n; ++i) {
        const int code = group[4 + i % m] >> (i / m * bits) & ((1 << bits) - 1);
        scales.push_back(scale);
        codes.push_back(random_codes(format) ? code - (limit + 1) : 2 * code - ((1 << bits) - 1));
      }
      group += 4 + m;
    }
    EXPECT_EQ(group, bytes.data() + bytes.size());
  }
  double operator[](std::int64_t i) const { return codes[at(i)] * scales[at(i)]; }
};

RC_GTEST_PROP(Groups, CodesAreThoseOfTheGroupsScale, ()) {
  const auto format = *rc::gen::elementOf(kFormats);
  const auto count = *rc::gen::inRange<std::int64_t>(1, 1200);
  const auto seed = *rc::gen::arbitrary<std::uint64_t>();
  const float size = std::ldexp(1.0F, *rc::gen::inRange(-60, 60));
  const Floats values = normal(count, seed, size), anchor = normal(count, seed + 1, size);
  const Bytes bytes = encoded(format, values, anchor, seed);
  const Plain plain(format, bytes, count);
  const Floats read = decoded(format, bytes, count);
  for (std::int64_t begin = 0; begin < count; begin += 256) {
    const std::int64_t end = std::min(begin + 256, count);
    double top = 0, sum = 0;
    for (std::int64_t i = begin; i < end; ++i) {
      const double gain = values[at(i)] - anchor[at(i)];
      top = std::max(top, std::abs(gain));
      sum += std::abs(gain);
    }
    const double mean = sum / static_cast<double>(end - begin);
    double scale = format == Format::kSigns ? mean : top / plain.limit;
    if (format == Format::kInt2) {
      double weighted = 0, squares = 0;
      for (std::int64_t i = begin; i < end; ++i) {
        const double size = std::abs(static_cast<double>(values[at(i)] - anchor[at(i)]));
        const double level = size >= 1.25 * mean ? 3 : 1;
        weighted += size * level;
        squares += level * level;
      }
      scale = weighted / squares;
    }
    RC_ASSERT(std::abs(plain.scales[at(begin)] - scale) <= 1e-5 * scale);
    for (std::int64_t i = begin; i < end; ++i) {
      const double gain = values[at(i)] - anchor[at(i)];
      RC_ASSERT(read[at(i)] == static_cast<float>(plain[i]));
      if (!random_codes(format)) {
        RC_ASSERT((plain.codes[at(i)] > 0) == (gain >= 0));
        const double size = std::abs(gain) / scale;  // where it is not between two levels
        if (format == Format::kInt2 && std::abs(size - 2) > 1e-4)
          RC_ASSERT(std::abs(plain.codes[at(i)]) == (size > 2 ? 3 : 1));
      } else {
        RC_ASSERT(std::abs(plain.codes[at(i)]) <= plain.limit);
        RC_ASSERT(std::abs(plain[i] - gain) <= 1.0001 * scale);
      }
    }
  }
}

RC_GTEST_PROP(Groups, EveryInstructionSetGivesTheSameBits, ()) {
  const auto format = *rc::gen::elementOf(kFormats);
  const auto count = *rc::gen::inRange<std::int64_t>(1, 1200);
  const auto begin = *rc::gen::inRange<std::int64_t>(0, count);
  const auto end = *rc::gen::inRange<std::int64_t>(begin, count + 1);
  const auto seed = *rc::gen::arbitrary<std::uint64_t>();
  const bool outer = *rc::gen::arbitrary<bool>();
  const Floats values = normal(count, seed), anchor = normal(count, seed + 1);
  std::vector<std::pair<Bytes, Floats>> results;
  for (const Kernels& with : all_kernels()) {
    const Bytes own = encoded(format, values, anchor, seed, with),
                other = encoded(format, anchor, {}, seed, with);
    RC_ASSERT(own == encoded(format, values, anchor, seed, with));
    const std::array sources{own.data(), other.data()};
    const Landing landing{.sources = sources,
                          .own = own.data(),
                          .count = count,
                          .begin = begin,
                          .end = end,
                          .share = 1.0F / 3,
                          .outer = {.momentum = 0.9F, .learning_rate = 0.7F}};
    Floats all(values), moved(anchor), momentum(values);
    with.land(format, landing, all.data() + begin, moved.data() + begin,
              outer ? momentum.data() + begin : nullptr);
    with.decode(format, other.data(), count, begin, end, momentum.data());
    with.decode_add(format, own.data(), count, begin, end, momentum.data());
    for (const Floats* each : {&moved, &momentum}) all.insert(all.end(), each->begin(), each->end());
    results.emplace_back(own, all);
  }
  for (const auto& result : results) RC_ASSERT(result == results.front());
}

// What is landed, in plain arithmetic, on any range of a message.
RC_GTEST_PROP(Groups, LandsTheMeanLessWhatWasSent, ()) {
  const auto format = *rc::gen::elementOf(kFormats);
  const auto count = *rc::gen::inRange<std::int64_t>(1, 1200);
  const auto begin = *rc::gen::inRange<std::int64_t>(0, count);
  const auto end = *rc::gen::inRange<std::int64_t>(begin, count + 1);
  const auto ranks = *rc::gen::inRange(1, 5);
  const bool outer = *rc::gen::arbitrary<bool>(), in_two_stages = *rc::gen::arbitrary<bool>();
  const auto seed = *rc::gen::arbitrary<std::uint64_t>();
  std::vector<Bytes> messages;
  std::vector<const std::uint8_t*> sources;
  for (int r = 0; r < ranks; ++r) {
    messages.push_back(encoded(format, normal(count, seed + static_cast<std::uint64_t>(r)), {}, seed));
  }
  for (const Bytes& message : messages) sources.push_back(message.data());
  const Bytes own = in_two_stages ? encoded(format, normal(count, seed + 10), {}, seed) : messages.back();
  const Landing landing{.sources = sources,
                        .own = in_two_stages ? own.data() : sources.back(),
                        .count = count,
                        .begin = begin,
                        .end = end,
                        .share = 1.0F / static_cast<float>(ranks),
                        .outer = {.momentum = 0.9F, .learning_rate = 0.7F}};
  const Floats values = normal(end - begin, seed + 20), anchor = normal(end - begin, seed + 21);
  const Floats buffer = normal(end - begin, seed + 22);
  Floats x(values), a(anchor), momentum(buffer);
  kernels().land(format, landing, x.data(), a.data(), outer ? momentum.data() : nullptr);
  const Floats q = decoded(format, own, count);
  Floats sums(at(end - begin)), floats_x(values), floats_a(anchor), floats_momentum(buffer);
  for (std::int64_t i = begin; i < end; ++i) {
    const std::size_t j = at(i - begin);
    double sum = 0;
    for (const Bytes& message : messages) sum += decoded(format, message, count)[at(i)];
    sums[j] = static_cast<float>(sum);
    double step = sum / ranks;
    if (outer) {
      const double speed = 0.9 * buffer[j] + step;
      RC_ASSERT(std::abs(momentum[j] - speed) < 1e-4);
      step = 0.7 * (step + 0.9 * speed);
    }
    RC_ASSERT(std::abs(a[j] - (anchor[j] + step)) < 1e-4);
    RC_ASSERT(std::abs(x[j] - (values[j] + step - q[at(i)])) < 1e-4);
  }
  kernels().land_floats(sums.data(), q.data() + begin, end - begin, landing.share, landing.outer,
                        floats_x.data(), floats_a.data(), outer ? floats_momentum.data() : nullptr);
  for (std::size_t j = 0; j < x.size(); ++j) {
    RC_ASSERT(std::abs(floats_x[j] - x[j]) < 1e-5);
    RC_ASSERT(std::abs(floats_a[j] - a[j]) < 1e-5);
    RC_ASSERT(std::abs(floats_momentum[j] - momentum[j]) < 1e-5);
  }
}

RC_GTEST_PROP(Groups, PartsOfAMessageAreTheWholes, ()) {
  const auto format = *rc::gen::elementOf(kFormats);
  const auto count = *rc::gen::inRange<std::int64_t>(1, 1500);
  const auto begin = *rc::gen::inRange<std::int64_t>(0, count);
  const auto end = *rc::gen::inRange<std::int64_t>(begin, count + 1);
  const auto first = *rc::gen::inRange<std::int64_t>(0, (count + 255) / 256);
  const auto seed = *rc::gen::arbitrary<std::uint64_t>();
  const Floats values = normal(count, seed);
  const Bytes whole = encoded(format, values, {}, seed);
  Bytes behind(whole.begin() + encoded_bytes(format, first * 256), whole.end());
  const Bytes expected = behind;
  kernels().encode(format, values.data() + first * 256, nullptr, count - first * 256, seed, first,
                   behind.data());
  RC_ASSERT(behind == expected);
  const Floats all = decoded(format, whole, count);
  Floats part(at(end - begin));
  kernels().decode(format, whole.data(), count, begin, end, part.data());
  RC_ASSERT(std::equal(part.begin(), part.end(), all.begin() + begin));
  kernels().decode_add(format, whole.data(), count, begin, end, part.data());
  for (std::size_t i = 0; i < part.size(); ++i) RC_ASSERT(part[i] == 2 * all[at(begin) + i]);
}

// For each of many values between two codes, the mean of what is decoded, within four standard errors.
TEST(Groups, StochasticRoundingIsUnbiased) {
  for (const Format format : {Format::kInt8, Format::kInt4}) {
    const double limit = format == Format::kInt8 ? 127 : 7;
    for (const double fraction : {0.03, 0.25, 0.5, 0.81}) {
      for (const double code : {-limit + 1, -1.0, 0.0, limit - 2}) {
        Floats values(256 * 64, static_cast<float>((code + fraction) / limit));
        for (std::size_t g = 0; g < values.size(); g += 256) values[g] = 1;  // the largest: scale = 1 / limit
        double sum = 0, trials = 0;
        for (std::uint64_t key = 0; key < 8; ++key) {
          const Floats read = decoded(format, encoded(format, values, {}, key), 256 * 64);
          for (std::size_t i = 0; i < read.size(); ++i) {
            if (i % 256 == 0) continue;
            sum += (read[i] - static_cast<double>(values[i])) * limit;
            ++trials;
          }
        }
        EXPECT_LT(std::abs(sum / trials), 4 * std::sqrt(fraction * (1 - fraction) / trials))
            << limit << ' ' << code << ' ' << fraction;
      }
    }
  }
}

// Four levels lose an eighth of a normal distribution's energy at best (Max, "Quantizing for Minimum Distortion", 1960: 0.1175 with
// free levels), its signs 1 - 2 / pi.
TEST(Groups, FewBitsKeepMostOfWhatIsNormal) {
  const Floats values = normal(256 * 200, 11);
  const auto lost = [&](Format format) {
    const Floats read = decoded(format, encoded(format, values, {}, 1), 256 * 200);
    double error = 0, energy = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      error += std::pow(static_cast<double>(read[i] - values[i]), 2);
      energy += std::pow(static_cast<double>(values[i]), 2);
    }
    return error / energy;
  };
  EXPECT_NEAR(lost(Format::kInt2), 0.119, 0.002);
  EXPECT_NEAR(lost(Format::kSigns), 0.363, 0.003);
}

TEST(Groups, RandomNumbersDifferByKeyAndGroup) {
  const Floats values = [] {
    Floats same(512, 0.5F / 7);
    same[0] = same[256] = 1;
    return same;
  }();
  const Bytes first = encoded(Format::kInt4, values, {}, random_key(1, 2, 3, 4));
  EXPECT_FALSE(std::equal(first.begin(), first.begin() + 132, first.begin() + 132));
  for (const std::uint64_t key : {random_key(2, 2, 3, 4), random_key(1, 3, 3, 4), random_key(1, 2, 4, 4),
                                  random_key(1, 2, 3, 5), random_key(1, 2, 3, 4, 1)}) {
    EXPECT_NE(first, encoded(Format::kInt4, values, {}, key));
  }
}

TEST(Groups, SizesAreThoseOfTheTable) {
  EXPECT_EQ(encoded_bytes(Format::kInt8, 256), 260);
  EXPECT_EQ(encoded_bytes(Format::kInt4, 256), 132);
  EXPECT_EQ(encoded_bytes(Format::kInt2, 256), 68);
  EXPECT_EQ(encoded_bytes(Format::kSigns, 256), 36);
  EXPECT_EQ(encoded_bytes(Format::kInt4, 256 + 5), 132 + 4 + 3);
  EXPECT_EQ(encoded_bytes(Format::kInt8, 3), 7);
  EXPECT_EQ(encoded_bytes(Format::kInt2, 9), 7);
  EXPECT_EQ(encoded_bytes(Format::kSigns, 9), 6);
  EXPECT_EQ(encoded_bytes(Format::kInt4, 0), 0);
  EXPECT_EQ(format_of("int4"), Format::kInt4);
  EXPECT_EQ(format_of("int2"), Format::kInt2);
  EXPECT_EQ(format_of("power_sgd"), std::nullopt);
}

TEST(Groups, ZerosStayZeros) {
  for (const Format format : kFormats) {
    for (const float tiny : {0.0F, -0.0F, 0x1p-101F, -1e-40F}) {
      for (const float read : decoded(format, encoded(format, Floats(300, tiny), {}, 1), 300))
        EXPECT_EQ(read, 0);
    }
    Floats mixed(256);  // a zero among others is sent as one, except by its sign
    mixed[7] = 3;
    const Floats read = decoded(format, encoded(format, mixed, {}, 5), 256);
    for (std::size_t i = 0; i < mixed.size() && random_codes(format); ++i) EXPECT_FLOAT_EQ(read[i], mixed[i]);
  }
}

TEST(Groups, WhatIsNotFiniteMakesItsGroupNaN) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const Kernels& with : all_kernels()) {
    for (const Format format : kFormats) {
      for (const float bad : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN(), -3e38F}) {
        Floats values = normal(600, 3), anchor(600);
        values[260] = bad;
        anchor[260] = 3e38F;  // finite values may be further apart than a float can say
        const Floats read = decoded(format, encoded(format, values, anchor, 1, with), 600);
        for (std::size_t i = 0; i < read.size(); ++i) EXPECT_EQ(std::isnan(read[i]), i / 256 == 1) << i;
      }
    }
  }
}

TEST(Groups, ValuesOfAnySizeAreKept) {
  for (const Format format : kFormats) {
    for (const float size : {0x1p-99F, 1e-20F, 1.0F, 1e30F, 1e36F}) {
      Floats values(256);
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = i % 2 ? size : -size;
      const Floats read = decoded(format, encoded(format, values, {}, 9), 256);
      for (std::size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(read[i] / values[i], 1, 1e-5);
    }
  }
}

}  // namespace
}  // namespace gradweave::codec
