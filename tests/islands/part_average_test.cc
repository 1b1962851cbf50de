// Parts of islands that average over the loopback, all in one process.
#include "islands/part_average.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <chrono>
#include <cstring>
#include <fstream>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <thread>

#include "gradweave/error.h"
#include "gradweave/goodput.h"
#include "islands/gradient_average.h"
#include "islands/little_endian.h"
#include "islands/part_round.h"
#include "keys.h"

namespace gradweave::islands {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using codec::Format;
using Floats = std::vector<float>;

constexpr auto kWithin = 20s;
constexpr std::array<std::optional<Format>, 5> kFormats{std::nullopt, Format::kInt8, Format::kInt4,
                                                        Format::kInt2, Format::kSigns};

template <typename Condition>
bool wait_for(Condition condition) {
  for (const auto until = Clock::now() + kWithin; !condition();) {
    if (Clock::now() > until) return false;
    std::this_thread::sleep_for(200us);
  }
  return true;
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

struct Isle {
  std::string name;
  std::unique_ptr<Endpoint> endpoint;
  std::vector<std::optional<Peer>> peers;  // by member; nothing: itself
  std::unique_ptr<PartAverage> part;
  Floats x;
  Floats sample;               // of a gradient
  std::span<float> under_way;  // of x, what the average is of

  Progress land() {
    Floats delta(under_way.size());
    part->land(delta);
    for (std::size_t i = 0; i < delta.size(); ++i) under_way[i] += delta[i];
    return part->progress();
  }
};

using Places = std::vector<std::size_t>;

// Islands that are all connected.
class Isles {
 public:
  explicit Isles(std::size_t count) : members(count) {
    for (std::size_t i = 0; i < count; ++i) {
      members[i].name = std::string(1, static_cast<char>('a' + i));
      members[i].endpoint = std::make_unique<Endpoint>(EndpointOptions{
          .key = key_of(1), .name = members[i].name, .listen = Address{"127.0.0.1", 0}, .lines = 1});
      members[i].peers.resize(count);
    }
    for (std::size_t i = 0; i < count; ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        members[j].peers[i] = members[j].endpoint->peer(members[i].name);
        members[i].peers[j] =
            members[i].endpoint->peer(members[j].name, Address{"127.0.0.1", members[j].endpoint->port()});
      }
    }
    for (const Isle& member : members) {
      for (const auto& peer : member.peers)
        EXPECT_TRUE(!peer || peer->wait_while(Presence::kAway, Clock::now() + kWithin) == Presence::kHere);
    }
  }

  // All begin with the same anchor.
  void make_parts(const PartOptions& options) {
    const Floats anchor = random(options.count);
    fragments_ = fragments_of(options);
    for (Isle& member : members) {
      member.part = std::make_unique<PartAverage>(options, anchor);
      member.x = anchor;
      member.sample = random(7);
    }
  }

  Floats random(std::int64_t count) {
    Floats values(static_cast<std::size_t>(count));
    std::normal_distribution<float> normal;
    for (float& value : values) value = normal(engine_);
    return values;
  }
  void train(const Places& places) {
    for (const std::size_t p : places) {
      const Floats gain = random(static_cast<std::int64_t>(members[p].x.size()));
      for (std::size_t i = 0; i < gain.size(); ++i) members[p].x[i] += gain[i];
    }
  }

  void begin(std::size_t place, const Places& places, double weight = 1, bool exact = false) {
    Average average{.number = number, .weight = weight, .exact = exact};
    for (const std::size_t p : places) average.members.push_back(members[place].peers[p]);
    Isle& isle = members[place];
    const auto [first, last] = fragments_[isle.part->turn()];
    isle.under_way = isle.x;
    if (!exact)
      isle.under_way =
          isle.under_way.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(last - first));
    average.sample = isle.sample;
    isle.part->begin(average, isle.under_way);
  }
  void begin_all(const Places& places, const std::vector<double>& weights = {}, bool exact = false) {
    ++number;
    for (std::size_t i = 0; i < places.size(); ++i)
      begin(places[i], places, weights.empty() ? 1 : weights[i], exact);
  }
  void land_all(const Places& places) {
    for (const std::size_t p : places) {
      PartAverage& part = *members[p].part;
      ASSERT_TRUE(wait_for([&] { return part.progress() != Progress::kUnderWay; }));
      ASSERT_EQ(part.progress(), Progress::kComplete) << part.trouble();
    }
    for (const std::size_t p : places) EXPECT_EQ(members[p].land(), Progress::kNone);
    for (const std::size_t p : places) {
      EXPECT_TRUE(same_bits(members[p].part->anchor(), members[places[0]].part->anchor()));
      EXPECT_TRUE(same_bits(members[p].part->momentum(), members[places[0]].part->momentum()));
    }
  }
  void average(const Places& places, const std::vector<double>& weights = {}, bool exact = false) {
    begin_all(places, weights, exact);
    land_all(places);
  }

  std::vector<Isle> members;
  std::int64_t number = 0;

 private:
  std::mt19937 engine_{7};
  std::vector<Elements> fragments_;
};

// In three, of different sizes, and elements behind them.
std::vector<std::int64_t> fragments_of_count(std::int64_t count) { return {count / 2, count / 8, count / 4}; }

Places first_of(std::size_t count) {
  Places places(count);
  std::iota(places.begin(), places.end(), std::size_t{0});
  return places;
}

// The weighted mean of parameters.
std::vector<double> mean_of(const Isles& isles, const Places& places, const std::vector<double>& weights) {
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<double> mean(isles.members[0].x.size());
  for (std::size_t i = 0; i < places.size(); ++i) {
    for (std::size_t k = 0; k < mean.size(); ++k)
      mean[k] += weights[i] / total * static_cast<double>(isles.members[places[i]].x[k]);
  }
  return mean;
}

void expect_near(std::span<const float> values, const std::vector<double>& expected, double bound) {
  double largest = 0;
  for (std::size_t i = 0; i < expected.size(); ++i)
    largest = std::max(largest, std::abs(static_cast<double>(values[i]) - expected[i]));
  EXPECT_LE(largest, bound);
}

TEST(PartAverage, MembersSquareTheirSamplesAndTheMeanOfThem) {
  Isles isles(4);
  for (const auto& format : kFormats) {
    isles.make_parts({.count = 600, .format = format});  // one sums nothing
    isles.members[3].sample.assign(7, 0);                // it has stepped by nothing
    isles.average(first_of(4), {1, 0, 3, 2});
    double of_mean = 0, of_each = 0;
    for (std::size_t i = 0; i < 7; ++i) {
      const double a = isles.members[0].sample[i], b = isles.members[2].sample[i];
      of_mean += (a + b) * (a + b) / 4;
      of_each += (a * a + b * b) / 2;
    }
    for (const Isle& member : isles.members) {
      const auto found = member.part->sampled();
      ASSERT_TRUE(found);
      EXPECT_EQ(found->members, 2);
      EXPECT_NEAR(found->of_mean, of_mean, 1e-6);
      EXPECT_NEAR(found->of_each, of_each, 1e-6);
    }
    isles.average({0, 3}, {});  // one of two has a sample
    EXPECT_FALSE(isles.members[0].part->sampled());
    isles.average({0}, {});
    EXPECT_FALSE(isles.members[0].part->sampled());
  }
}

TEST(PartAverage, AllHaveTheSameAnchorAfterEachWhateverTheFormatSizeAndWeights) {
  Isles isles(4);
  for (const auto& format : kFormats) {
    for (const std::int64_t count : {1, 255, 600, 5000}) {
      for (std::size_t size = 1; size <= 4; ++size) {
        SCOPED_TRACE(testing::Message() << "format " << (format ? static_cast<int>(*format) : -1) << ", "
                                        << count << " elements, " << size << " members");
        const Places all = first_of(size);
        const bool outer = (static_cast<std::size_t>(count) + size) % 2 == 1;
        isles.make_parts(
            {.count = count,
             .fragments = size % 2 == 1 ? fragments_of_count(count) : std::vector<std::int64_t>{},
             .format = format,
             .outer = outer ? std::optional(codec::Outer{0.9F, 0.7F}) : std::nullopt,
             .seed = 5});
        for (int r = 0; r < 4; ++r) {
          isles.train(all);
          isles.average(all, std::vector<double>{3, 0, 1.5, 8});
        }
        isles.train(all);
        isles.average(all, std::vector<double>(4, 0));  // nobody has trained
        isles.average(all, std::vector<double>{1, 2, 3, 4}, true);
        for (const std::size_t p : all) EXPECT_FALSE(isles.members[p].part->has_rest());
      }
    }
  }
}

TEST(PartAverage, AFloatMeanIsTheMean) {
  Isles isles(4);
  for (std::size_t size = 1; size <= 4; ++size) {
    const Places all = first_of(size);
    isles.make_parts({.count = 3000});
    const std::vector<double> weights{2, 0, 7, 0.5};
    const std::vector<double> used(weights.begin(), weights.begin() + static_cast<std::ptrdiff_t>(size));
    for (int r = 0; r < 3; ++r) {
      isles.train(all);
      const std::vector<double> mean = mean_of(isles, all, used);
      isles.average(all, weights);
      for (const std::size_t p : all) {
        expect_near(isles.members[p].x, mean, 4e-6);
        expect_near(isles.members[p].part->anchor(), mean, 4e-6);
      }
    }
  }
}

TEST(PartAverage, AverageOfOneFragmentEachInTurn) {
  Isles isles(3);
  const Places all = first_of(3);
  isles.make_parts({.count = 3000, .fragments = {1000, 300, 1600}});
  const std::array<std::pair<std::size_t, std::size_t>, 3> fragments{{{0, 1000}, {1000, 1300}, {1300, 2900}}};
  for (std::size_t r = 0; r < 7; ++r) {
    isles.train(all);
    const std::vector<double> mean = mean_of(isles, all, {1, 1, 1});
    const std::array<Floats, 3> before{isles.members[0].x, isles.members[1].x, isles.members[2].x};
    isles.average(all);
    const auto [first, last] = fragments[r % 3];
    for (const std::size_t p : all) {
      const Isle& isle = isles.members[p];
      for (std::size_t i = 0; i < isle.x.size(); ++i) {
        if (first <= i && i < last) {
          ASSERT_NEAR(static_cast<double>(isle.x[i]), mean[i], 4e-6);
        } else {
          ASSERT_EQ(isle.x[i], before[p][i]);
        }
      }
    }
  }
  const std::vector<double> mean = mean_of(isles, all, {1, 1, 1});
  isles.average(all, {}, true);
  for (const Isle& isle : isles.members) expect_near(isle.x, mean, 4e-6);
  EXPECT_EQ(isles.members[0].part->turn(), 1);
  EXPECT_THROW(PartAverage({.count = 3, .fragments = {2, 2}}, Floats(3)), InvalidInput);
}

TEST(PartAverage, WithoutWeightWhatWasGainedStays) {
  Isles isles(2);
  const auto gained = [&](std::size_t place) {
    std::vector<double> gain(isles.members[place].x.begin(), isles.members[place].x.end());
    for (std::size_t i = 0; i < gain.size(); ++i)
      gain[i] -= static_cast<double>(isles.members[place].part->anchor()[i]);
    return gain;
  };
  for (const auto& format : kFormats) {
    if (!format) continue;
    isles.make_parts({.count = 700, .format = format});
    isles.train({0, 1});
    isles.average({0, 1}, {1, 3});
    isles.train({0, 1});
    const std::array<std::vector<double>, 2> before{gained(0), gained(1)};
    isles.average({0, 1}, {0, 0});
    isles.average({0, 1}, {0, 2});
    for (std::size_t i = 0; i < before[0].size(); ++i) ASSERT_NEAR(gained(0)[i], before[0][i], 1e-5);
    EXPECT_NE(gained(1), before[1]);
  }
}

// As where a training ends with its last average.
TEST(PartAverage, WhatEncodingsHaveDroppedIsInAnExactAverageWithoutWeights) {
  Isles isles(3);
  for (const auto& format : kFormats) {
    isles.make_parts({.count = 700, .format = format});
    isles.train(first_of(3));
    const std::vector<double> mean = mean_of(isles, first_of(3), {1, 1, 1});
    isles.average(first_of(3), {2, 2, 2});
    isles.average(first_of(3), {0, 0, 0}, true);
    for (const Isle& isle : isles.members) expect_near(isle.x, mean, 1e-5);
  }
}

TEST(PartAverage, AnOuterOptimizerStepsOnTheMean) {
  Isles isles(2);
  const codec::Outer outer{.momentum = 0.5F, .learning_rate = 0.8F};
  isles.make_parts({.count = 300, .outer = outer});
  Floats anchor(isles.members[0].part->anchor().begin(), isles.members[0].part->anchor().end()), speed(300);
  for (int r = 0; r < 3; ++r) {
    isles.train({0, 1});
    const std::vector<double> mean = mean_of(isles, {0, 1}, {1, 1});
    isles.average({0, 1});
    for (std::size_t i = 0; i < speed.size(); ++i) {
      const float m = static_cast<float>(mean[i]) - anchor[i];
      speed[i] = speed[i] * outer.momentum + m;
      anchor[i] += (m + speed[i] * outer.momentum) * outer.learning_rate;
    }
    const std::vector<double> expected(anchor.begin(), anchor.end());
    expect_near(isles.members[0].part->anchor(), expected, 1e-5);
    expect_near(isles.members[1].x, expected, 1e-5);
  }
}

// As buffers: a variance that it steps on may become negative.
TEST(PartAverage, WhatIsBehindTheFragmentsLandsWithoutTheOuterOptimizer) {
  Isles isles(3);
  const Places all = first_of(3);
  isles.make_parts({.count = 700,
                    .fragments = {200, 100},
                    .outer = codec::Outer{.momentum = 0.9F, .learning_rate = 0.7F}});
  isles.members[0].part->give("c", *isles.members[0].peers[2], 1, {});
  isles.members[2].part->take(*isles.members[2].peers[0], 1);
  for (int r = 0; r < 3; ++r) {
    isles.train(all);
    const std::vector<double> mean = mean_of(isles, {0, 1}, {1, 1});
    isles.average({0, 1}, {}, true);
    ASSERT_TRUE(wait_for([&] { return isles.members[2].part->catch_up() == isles.number; }));
    for (const Isle& isle : isles.members) {
      const std::span anchor = isle.part->anchor();
      expect_near(anchor.subspan(300), {mean.begin() + 300, mean.end()}, 1e-5);
      EXPECT_TRUE(same_bits(anchor, isles.members[0].part->anchor()));
      EXPECT_GT(std::abs(static_cast<double>(anchor[0]) - mean[0]), 1e-3);
      for (const float speed : isle.part->momentum().subspan(300)) ASSERT_EQ(speed, 0);
    }
  }
}

TEST(PartAverage, WhatAnEncodingDropsComesLater) {
  Isles isles(3);
  const std::vector<double> weights{1, 2, 5};
  for (const auto& format : kFormats) {
    if (!format) continue;
    isles.make_parts({.count = 1000, .format = format});
    isles.train(first_of(3));
    const std::vector<double> mean = mean_of(isles, first_of(3), weights);
    isles.average(first_of(3), weights);
    double largest = 0;
    for (std::size_t i = 0; i < mean.size(); ++i)
      largest = std::max(largest, std::abs(static_cast<double>(isles.members[0].x[i]) - mean[i]));
    EXPECT_GT(largest, 1e-3);
    const bool few_bits = *format == Format::kInt2 || *format == Format::kSigns;
    for (int r = 0; r < (few_bits ? 300 : 12); ++r) isles.average(first_of(3), weights);
    // Few bits of what is left bring it down more slowly.
    const double bound = few_bits ? largest / 10 : 1e-3;
    for (const Isle& member : isles.members) expect_near(member.x, mean, bound);
  }
}

TEST(PartAverage, MessagesAreOfTheSizeOfTheirFormat) {
  Isles isles(2);
  isles.make_parts({.count = 51200, .format = Format::kInt8});
  isles.train({0, 1});
  isles.average({0, 1});
  const PartAverage& part = *isles.members[0].part;
  ASSERT_TRUE(wait_for([&] { return part.bytes_sent() == 2 * 100 * 260 + 48; }));
  EXPECT_EQ(part.float_bytes_sent(), 51200 * 4 + 48);
}

TEST(PartAverage, SendsWhatIsPredicted) {
  for (const auto& [format, name] : {std::pair<std::optional<Format>, const char*>{std::nullopt, "none"},
                                     {Format::kInt4, "int4"},
                                     {Format::kInt2, "int2"},
                                     {Format::kSigns, "ef_signsgd"}}) {
    for (const std::int64_t count : {100, 700, 5000}) {  // 700: one island sums nothing
      Isles isles(4);
      isles.make_parts({.count = count, .format = format});
      for (Isle& member : isles.members) member.sample.clear();
      isles.average(first_of(4));
      const std::int64_t predicted = average_traffic(count, name, 4).bytes;
      EXPECT_TRUE(wait_for([&] {
        std::int64_t most = 0;
        for (const Isle& member : isles.members) most = std::max(most, member.part->bytes_sent());
        return most == predicted;
      })) << name
          << ", " << count;
    }
  }
}

// Elements whose summer is another one than before: what it has kept goes into the next mean, exact here.
TEST(PartAverage, RestsAreNotLostWhenMembersChangePlaces) {
  Isles isles(3);
  for (const Format format : {Format::kInt8, Format::kInt4, Format::kInt2, Format::kSigns}) {
    isles.make_parts({.count = 1700,
                      .fragments = format == Format::kInt4 ? std::vector<std::int64_t>{800, 100, 800}
                                                           : std::vector<std::int64_t>{},
                      .format = format});
    isles.train(first_of(3));
    const std::vector<double> mean = mean_of(isles, first_of(3), {1, 1, 1});
    for (int r = 0; r < 4; ++r) isles.average(first_of(3));
    for (const Isle& member : isles.members) EXPECT_TRUE(member.part->has_rest());
    isles.average({1, 2, 0}, {}, true);
    for (const Isle& member : isles.members) {
      EXPECT_FALSE(member.part->has_rest());
      expect_near(member.x, mean, 5e-6);
    }
  }
}

TEST(PartAverage, ARestStaysWithAMemberWithoutWeight) {
  for (const std::vector<std::int64_t>& fragments : {std::vector<std::int64_t>{}, {800, 900}}) {
    Isles isles(3);
    isles.make_parts({.count = 1700, .fragments = fragments, .format = Format::kInt4});
    isles.train(first_of(3));
    for (int r = 0; r < 2; ++r) isles.average(first_of(3));
    isles.average({1, 2, 0}, {1, 1, 0}, true);
    EXPECT_TRUE(isles.members[0].part->has_rest());
    EXPECT_FALSE(isles.members[1].part->has_rest());
    isles.average({1, 2, 0}, {1, 1, 1}, true);
    EXPECT_FALSE(isles.members[0].part->has_rest());
  }
}

TEST(PartAverage, MembersComeAndGo) {
  Isles isles(3);
  const std::size_t count = 1700;
  for (const Format format : {Format::kInt8, Format::kSigns}) {
    isles.make_parts({.count = 1700, .format = format});
    std::vector<Isle>& members = isles.members;
    // Two, and then three: what comes has the anchor, and has gained nothing.
    isles.train({0, 1});
    std::vector<double> whole = mean_of(isles, {0, 1}, {1, 1});
    for (int r = 0; r < 2; ++r) isles.average({0, 1});
    members[2].part->set_anchor(members[0].part->anchor());
    members[2].x.assign(members[0].part->anchor().begin(), members[0].part->anchor().end());
    // Of the anchor, what has been gained, and the rest: the mean of two is `whole`.
    std::vector<double> expected(count);
    for (std::size_t i = 0; i < count; ++i) {
      const double anchor = static_cast<double>(members[0].part->anchor()[i]);
      const double gained =
          static_cast<double>(members[0].x[i]) + static_cast<double>(members[1].x[i]) - 2 * anchor;
      expected[i] = anchor + gained / 3 + (whole[i] - anchor - gained / 2);
    }
    isles.average({0, 1, 2}, {}, true);
    for (const Isle& member : members) expect_near(member.x, expected, 5e-6);
    // Three, and then two: the rest of the third one's block is gone with it.
    isles.train(first_of(3));
    whole = mean_of(isles, first_of(3), {1, 1, 1});
    for (int r = 0; r < 2; ++r) isles.average(first_of(3));
    const std::size_t lost = (1700 + 255) / 256 * 2 / 3 * 256;
    for (std::size_t i = 0; i < count; ++i) {
      const double anchor = static_cast<double>(members[0].part->anchor()[i]);
      const double two =
          static_cast<double>(members[0].x[i]) + static_cast<double>(members[1].x[i]) - 2 * anchor;
      const double three = two + static_cast<double>(members[2].x[i]) - anchor;
      expected[i] = anchor + two / 2 + (i < lost ? whole[i] - anchor - three / 3 : 0);
    }
    isles.average({0, 1}, {}, true);
    for (const std::size_t p : {0, 1}) expect_near(members[p].x, expected, 5e-6);
    for (int r = 0; r < 2; ++r) {  // and on, encoded
      isles.train({0, 1});
      isles.average({0, 1});
    }
  }
}

// Of three members; runs without a drop and with drops at different moments.
enum class DropAt { kNever, kAtOnce, kOnceSomeAreComplete, kWhenOneHasNotBegun };

std::vector<Floats> run_with_drop(const std::optional<Format>& format, DropAt when) {
  Isles isles(3);
  isles.make_parts(
      {.count = 1700,
       .fragments = format == Format::kInt4 ? fragments_of_count(1700) : std::vector<std::int64_t>{},
       .format = format,
       .outer = codec::Outer{0.9F, 0.7F}});
  const Places all = first_of(3);
  isles.train(all);
  isles.average(all);
  isles.train(all);
  if (when == DropAt::kNever) ++isles.number;
  if (when == DropAt::kAtOnce) isles.begin_all(all);
  if (when == DropAt::kWhenOneHasNotBegun) {
    ++isles.number;
    for (const std::size_t p : {0, 1}) isles.begin(p, {2, 1, 0});
    std::this_thread::sleep_for(10ms);
  }
  if (when == DropAt::kOnceSomeAreComplete) {
    isles.begin_all({1, 2, 0});
    EXPECT_TRUE(wait_for([&] { return isles.members[0].part->progress() == Progress::kComplete; }));
  }
  for (Isle& member : isles.members) {
    member.part->drop();
    EXPECT_EQ(member.part->progress(), Progress::kNone);
  }
  std::vector<Floats> states;
  for (int r = 0; r < 2; ++r) {
    isles.average(all);
    for (const Isle& member : isles.members) {
      states.push_back(member.x);
      states.emplace_back(member.part->anchor().begin(), member.part->anchor().end());
      states.emplace_back(member.part->momentum().begin(), member.part->momentum().end());
    }
  }
  return states;
}

TEST(PartAverage, OneThatIsDroppedLeavesNoTrace) {
  for (const auto& format : kFormats) {
    const std::vector<Floats> expected = run_with_drop(format, DropAt::kNever);
    for (const DropAt when : {DropAt::kAtOnce, DropAt::kOnceSomeAreComplete, DropAt::kWhenOneHasNotBegun}) {
      const std::vector<Floats> states = run_with_drop(format, when);
      ASSERT_EQ(states.size(), expected.size());
      for (std::size_t i = 0; i < states.size(); ++i) EXPECT_TRUE(same_bits(states[i], expected[i])) << i;
    }
  }
}

TEST(PartAverage, ALostMemberFailsAllOthersAndTheyGoOnWithoutIt) {
  for (const bool begins : {false, true}) {
    Isles isles(3);
    isles.make_parts({.count = 400'000, .format = Format::kInt8});
    isles.train(first_of(3));
    ++isles.number;
    for (const std::size_t p : {0, 1}) isles.begin(p, first_of(3));
    if (begins) isles.begin(2, first_of(3));
    isles.members[2].endpoint.reset();
    std::string troubles;
    for (const std::size_t p : {0, 1}) {
      PartAverage& part = *isles.members[p].part;
      ASSERT_TRUE(wait_for([&] { return part.progress() != Progress::kUnderWay; }));
      EXPECT_TRUE(begins || part.progress() == Progress::kFailed);
      troubles += part.trouble();
      part.drop();
    }
    EXPECT_TRUE(begins || troubles.find("average 1: peer 'c': ") != std::string::npos) << troubles;
    if (begins) {
      EXPECT_TRUE(wait_for([&] { return isles.members[2].part->progress() != Progress::kUnderWay; }));
      isles.members[2].part->drop();
    }
    // One whose endpoint is gone fails too, and doesn't wait.
    ++isles.number;
    isles.begin(2, first_of(3));
    EXPECT_TRUE(wait_for([&] { return isles.members[2].part->progress() == Progress::kFailed; }));
    isles.average({0, 1});
  }
}

TEST(PartAverage, EndsWithWhatIsUnderWay) {
  Isles isles(2);
  isles.make_parts({.count = 100'000, .format = Format::kInt4});
  isles.begin_all({0, 1});
  isles.members[0].part.reset();
  EXPECT_TRUE(wait_for([&] { return isles.members[1].part->progress() != Progress::kUnderWay; }));
}

// The second member is a peer that sends what no part does.
TEST(PartAverage, RefusesMessagesOfAWrongFormAndNamesTheirSender) {
  Isles isles(2);
  isles.make_parts({.count = 512});
  for (Isle& member : isles.members) member.sample.clear();
  PartAverage& part = *isles.members[0].part;
  Peer a = *isles.members[1].peers[0];
  const auto trouble_after = [&](double weight, std::size_t size) {
    ++isles.number;
    isles.begin(0, {0, 1});
    std::vector<std::byte> message(size);
    std::memcpy(message.data(), &weight, std::min(size, sizeof weight));
    Message sends = a.send({.channel = 1, .sequence = static_cast<std::uint64_t>(isles.number)}, message);
    EXPECT_TRUE(wait_for([&] { return part.progress() == Progress::kFailed; }));
    sends.end();
    std::string why = part.trouble();
    part.drop();
    return why;
  };
  EXPECT_EQ(
      trouble_after(1, 100),
      "average 1: peer 'b': its message has 100 bytes and not 1040; start all islands with the same model "
      "and options");
  EXPECT_NE(trouble_after(1, 5000).find("average 2: peer 'b': "), std::string::npos);
  EXPECT_NE(trouble_after(-1, 1040).find("peer 'b': its weight is -1"), std::string::npos);
  EXPECT_NE(trouble_after(std::nan(""), 1040).find("its weight is"), std::string::npos);
  EXPECT_NE(trouble_after(HUGE_VAL, 1040).find("its weight is"), std::string::npos);
}

TEST(PartAverage, RefusesWhatIsOutOfOrder) {
  Isles isles(2);
  isles.make_parts({.count = 10});
  PartAverage& part = *isles.members[0].part;
  Floats values(10);
  const std::vector<std::optional<Peer>> members{std::nullopt, isles.members[0].peers[1]};
  EXPECT_THROW(part.begin({.number = 0, .members = members}, values), InvalidInput);
  EXPECT_THROW(part.begin({.number = 1, .members = {members[1]}}, values), InvalidInput);
  EXPECT_THROW(part.begin({.number = 1, .members = members, .weight = -1}, values), InvalidInput);
  EXPECT_THROW(part.begin({.number = 1, .members = members}, Floats(9)), InvalidInput);
  EXPECT_THROW(part.land(values), InvalidInput);
  EXPECT_THROW(part.catch_up(), InvalidInput);
  EXPECT_THROW(PartAverage({.count = 3}, values), InvalidInput);
  part.begin({.number = 1, .members = members}, values);
  EXPECT_THROW(part.begin({.number = 2, .members = members}, values), InvalidInput);
  EXPECT_THROW(part.set_anchor(values), InvalidInput);
  EXPECT_THROW(part.land(values), InvalidInput);
  part.drop();
  EXPECT_THROW(part.begin({.number = 1, .members = members}, values), InvalidInput);
  part.take(*isles.members[0].peers[1], 1);
  EXPECT_THROW(part.begin({.number = 2, .members = members}, values), InvalidInput);
  EXPECT_THROW(part.give("b", *isles.members[0].peers[1], 1, {}), InvalidInput);
  part.taken();
  part.begin({.number = 2, .members = members}, values);
}

bool catches_up(PartAverage& part, std::int64_t number) {
  return wait_for([&] { return part.catch_up() == number; });
}

TEST(PartState, IsTakenWhileAveragesLandAndTheTakerThenTakesPart) {
  const std::string said = "step 12";
  bool fragmented = false;
  for (const auto& format : kFormats) {
    fragmented = !fragmented;
    Isles isles(4);
    isles.make_parts({.count = 3000,
                      .fragments = fragmented ? fragments_of_count(3000) : std::vector<std::int64_t>{},
                      .format = format,
                      .outer = codec::Outer{0.9F, 0.7F}});
    PartAverage &giver = *isles.members[0].part, &taker = *isles.members[2].part,
                &other = *isles.members[3].part;
    const auto equal = [&](const PartAverage& part) {
      return same_bits(part.anchor(), giver.anchor()) && same_bits(part.momentum(), giver.momentum());
    };
    for (Isle& member : isles.members) {
      if (&member == &isles.members[2]) member.part->set_anchor(isles.random(3000));
    }
    for (int r = 0; r < 2; ++r) {
      isles.train({0, 1});
      isles.average({0, 1});
    }
    taker.take(*isles.members[2].peers[0], 5);
    EXPECT_EQ(taker.catch_up(), std::nullopt);
    giver.give("c", *isles.members[0].peers[2], 5, {nullptr, std::as_bytes(std::span(said))});
    giver.give("d", *isles.members[0].peers[3], 6, {});  // who takes late: nobody waits for it
    for (int r = 0; r < 7; ++r) {
      isles.train({0, 1});
      isles.average({0, 1}, {1, 3}, r == 4);
      if (r != 3) continue;
      ASSERT_TRUE(catches_up(taker, isles.number));
    }
    giver.set_anchor(isles.members[0].x);
    isles.members[1].part->set_anchor(isles.members[0].x);
    ASSERT_TRUE(wait_for([&] { return taker.catch_up() == isles.number && equal(taker); }));
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(taker.extra().data()), taker.extra().size()), said);
    other.take(*isles.members[3].peers[0], 6);
    ASSERT_TRUE(wait_for([&] { return other.catch_up() == isles.number && equal(other); }));
    EXPECT_TRUE(other.extra().empty());
    taker.taken();
    giver.give_no_more("c");
    isles.members[2].x.assign(taker.anchor().begin(), taker.anchor().end());
    for (int r = 0; r < 2; ++r) {
      isles.train(first_of(3));
      isles.average(first_of(3));
      EXPECT_TRUE(equal(taker));
    }
    ASSERT_TRUE(catches_up(other, isles.number));
    EXPECT_TRUE(equal(other));
  }
}

std::string failure_of(PartAverage& part) {
  std::string why;
  EXPECT_TRUE(wait_for([&] {
    try {
      part.catch_up();
    } catch (const RuntimeFailure& failure) {
      why = failure.what();
    }
    return !why.empty();
  }));
  return why;
}

TEST(PartState, AGiverThatDiesIsSeen) {
  for (const bool has_given : {false, true}) {
    Isles isles(2);
    isles.make_parts({.count = 3000});
    PartAverage& taker = *isles.members[1].part;
    taker.take(*isles.members[1].peers[0], 1);
    if (has_given) {
      isles.members[0].part->give("b", *isles.members[0].peers[1], 1, {});
      ASSERT_TRUE(catches_up(taker, 0));
    }
    isles.members[0].endpoint.reset();
    EXPECT_NE(failure_of(taker).find("the state of peer 'a': peer 'a': "), std::string::npos);
  }
}

TEST(PartState, ATakerThatDiesDisturbsNobody) {
  Isles isles(3);
  isles.make_parts({.count = 3000, .format = Format::kInt8});
  isles.members[0].part->give("c", *isles.members[0].peers[2], 1, {});
  isles.members[2].part->take(*isles.members[2].peers[0], 1);
  isles.members[2].endpoint.reset();
  for (int r = 0; r < 3; ++r) isles.average({0, 1});
  isles.members[0].part->give_no_more("c");
}

TEST(PartState, IsTakenAgainFromTheSamePeer) {
  Isles isles(2);
  isles.make_parts({.count = 300, .format = Format::kInt8});
  PartAverage &giver = *isles.members[0].part, &taker = *isles.members[1].part;
  Peer to = *isles.members[0].peers[1], from = *isles.members[1].peers[0];
  // A give that ends before it is taken.
  giver.give("b", to, 1, {});
  giver.give_no_more("b");
  taker.take(from, 1);
  EXPECT_NE(failure_of(taker).find("the sender has ended it"), std::string::npos);
  // One that begins anew.
  giver.give("b", to, 2, {});
  giver.give("b", to, 3, {});
  taker.take(from, 2);
  failure_of(taker);
  taker.take(from, 3);
  ASSERT_TRUE(catches_up(taker, 0));
  giver.give_no_more("b");  // to one that has all: no error
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(taker.catch_up(), 0);
  // Takes that were given up before anybody gave.
  for (int transfer = 4; transfer < 7; ++transfer) taker.take(from, transfer);
  giver.give("b", to, 6, {});
  ASSERT_TRUE(catches_up(taker, 0));
}

TEST(PartState, ATransferThatTheTakerNeverHeardOfIsNotTaken) {
  Isles isles(2);
  isles.make_parts({.count = 300, .format = Format::kInt8});
  PartAverage &giver = *isles.members[0].part, &taker = *isles.members[1].part;
  giver.give("b", *isles.members[0].peers[1], 1, {});
  giver.give_no_more("b");
  giver.set_anchor(isles.random(300));
  giver.give("b", *isles.members[0].peers[1], 2, {});
  taker.take(*isles.members[1].peers[0], 2);
  ASSERT_TRUE(catches_up(taker, 0));
  EXPECT_TRUE(same_bits(taker.anchor(), giver.anchor()));
}

TEST(PartAverage, AnchorsThatDifferAreSeen) {
  Isles isles(2);
  isles.make_parts({.count = 3000, .format = Format::kInt8});
  isles.members[0].part->set_anchor(isles.random(3000));
  const Floats values(3000);
  for (std::size_t i = 0; i < 2; ++i) {
    Isle& isle = isles.members[i];
    std::vector<std::optional<Peer>> members(2);
    members[1 - i] = isle.peers[1 - i];
    isle.part->begin({.number = 1, .members = members}, values);
  }
  ASSERT_TRUE(wait_for([&] {
    return std::ranges::all_of(isles.members,
                               [](const Isle& isle) { return isle.part->progress() == Progress::kFailed; });
  }));
  EXPECT_TRUE(std::ranges::any_of(isles.members, [](const Isle& isle) { return isle.part->unlike(); }));
}

TEST(PartState, OfAnotherPartIsRefused) {
  Isles isles(2);
  isles.make_parts({.count = 300, .format = Format::kInt8});
  const auto refusal = [&](const PartOptions& options) {
    Isles two(2);
    two.make_parts({.count = 300, .format = Format::kInt8});
    Isle& taker = two.members[1];
    taker.part = std::make_unique<PartAverage>(options, Floats(static_cast<std::size_t>(options.count)));
    two.members[0].part->give("b", *two.members[0].peers[1], 1, {});
    taker.part->take(*taker.peers[0], 1);
    return failure_of(*taker.part);
  };
  EXPECT_EQ(
      refusal({.count = 299, .format = Format::kInt8}),
      "the state of peer 'a': elements: 300 there and 299 here; start both islands with the same version, "
      "model and options");
  EXPECT_NE(refusal({.count = 300}).find("format: 1 there and 0 here"), std::string::npos);
  EXPECT_NE(refusal({.count = 300, .format = Format::kInt8, .outer = codec::Outer{}}).find("outer optimizer"),
            std::string::npos);
}

std::size_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::size_t all = 0, resident = 0;
  file >> all >> resident;
  return resident * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

// Whatever a peer says that it adds.
TEST(PartState, TakesNoMemoryBeforeBytesCome) {
  Isles isles(2);
  isles.make_parts({.count = 300});
  PartAverage& taker = *isles.members[1].part;
  const std::size_t before = resident_bytes();
  for (const std::uint64_t extra : {std::uint64_t{1} << 31, std::uint64_t{1} << 60}) {
    const std::uint64_t transfer = extra >> 31;
    taker.take(*isles.members[1].peers[0], static_cast<std::int64_t>(transfer));
    std::vector<std::byte> head(10 * sizeof(std::uint64_t));
    std::byte* at = head.data();
    const std::uint64_t form = 0x32575047, rate = std::bit_cast<std::uint32_t>(1.0F);
    for (const std::uint64_t each :
         {form, std::uint64_t{300}, std::uint64_t{0}, std::uint64_t{0}, std::uint64_t{0}, std::uint64_t{0},
          rate, std::uint64_t{0}, std::uint64_t{0}, extra})
      at = put(at, each);
    Peer to = *isles.members[0].peers[1];
    to.send({.channel = 3, .sequence = transfer << 32}, head).wait();
    const std::vector<std::byte> anchor(300 * sizeof(float));
    if (extra < std::uint64_t{1} << 40) {
      to.send({.channel = 3, .sequence = (transfer << 32) + 1}, anchor).wait();  // it has the header
    } else {
      EXPECT_NE(failure_of(taker).find("it adds 1152921504606846976 bytes"), std::string::npos);
    }
    EXPECT_LT(resident_bytes(), before + (std::size_t{1} << 30));
  }
}

// Gradients, in buckets (gradient_average.h).
class Gradients : public testing::Test {
 protected:
  static constexpr std::array<std::int64_t, 3> kCounts{1000, 0, 300};

  void begin(const Places& places) {
    ++isles.number;
    for (const std::size_t p : places) {
      std::vector<std::optional<Peer>> members;
      for (const std::size_t other : places) members.push_back(isles.members[p].peers[other]);
      of(p).begin(isles.number, std::move(members));
    }
  }
  // Returns what it has supplied, all buckets one after another.
  Floats supply(std::size_t place, double weight, std::size_t buckets = kCounts.size()) {
    Floats all;
    for (std::size_t b = 0; b < buckets; ++b) {
      const Floats values = isles.random(kCounts[b]);
      of(place).supply(b, weight, values);
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }
  Floats land(std::size_t place) {
    EXPECT_TRUE(wait_for([&] { return of(place).progress() != Progress::kUnderWay; }));
    Floats means(1300);
    of(place).land(means);
    EXPECT_EQ(of(place).progress(), Progress::kNone);
    return means;
  }
  GradientAverage& of(std::size_t place) { return *averages[place]; }

  Isles isles{3};
  std::vector<std::unique_ptr<GradientAverage>> averages = [] {
    std::vector<std::unique_ptr<GradientAverage>> made;
    for (int i = 0; i < 3; ++i)
      made.push_back(
          std::make_unique<GradientAverage>(std::vector<std::int64_t>{kCounts.begin(), kCounts.end()}));
    return made;
  }();
};

TEST_F(Gradients, AreMeansByWeightOnAll) {
  const std::array<double, 3> weights{3, 0, 1};
  for (int averages = 0; averages < 3; ++averages) {
    begin({0, 1, 2});
    std::array<Floats, 3> supplied;
    for (const std::size_t p : {2U, 0U, 1U}) {
      EXPECT_EQ(of(p).progress(), Progress::kUnderWay);
      supplied[p] = supply(p, weights[p]);
    }
    Floats mean(1300);
    for (std::size_t i = 0; i < mean.size(); ++i) {
      mean[i] = static_cast<float>(0.75 * static_cast<double>(supplied[0][i]) +
                                   0.25 * static_cast<double>(supplied[2][i]));
    }
    for (std::size_t p = 0; p < 3; ++p) EXPECT_TRUE(same_bits(land(p), mean));
  }
  EXPECT_TRUE(wait_for([&] { return of(0).bytes_sent() > 0; }));
}

TEST_F(Gradients, OfOneAloneAreItsOwn) {
  begin({1});
  EXPECT_EQ(of(1).progress(), Progress::kUnderWay);
  const Floats supplied = supply(1, 2.5);
  EXPECT_TRUE(same_bits(land(1), supplied));
}

TEST_F(Gradients, AreZeroIfNobodyHasAny) {
  begin({0, 2});
  for (const std::size_t p : {0U, 2U}) supply(p, 0);
  for (const std::size_t p : {0U, 2U}) EXPECT_TRUE(same_bits(land(p), Floats(1300)));
}

TEST_F(Gradients, ThatAreDroppedBeginAnew) {
  begin({0, 1, 2});
  supply(0, 1);
  supply(1, 1, 1);
  for (const std::size_t p : {0U, 1U, 2U}) of(p).drop();
  EXPECT_EQ(of(0).progress(), Progress::kNone);
  begin({0, 1});
  const Floats a = supply(0, 1), b = supply(1, 1);
  const Floats mean = land(0);
  EXPECT_EQ(mean[7], static_cast<float>((static_cast<double>(a[7]) + static_cast<double>(b[7])) / 2));
  EXPECT_TRUE(same_bits(land(1), mean));
}

TEST_F(Gradients, FailWhereAMemberIsLost) {
  begin({0, 1, 2});
  for (const std::size_t p : {0U, 1U}) supply(p, 1);
  averages[2].reset();
  isles.members[2].endpoint.reset();
  for (const std::size_t p : {0U, 1U}) {
    EXPECT_TRUE(wait_for([&] { return of(p).progress() == Progress::kFailed; }));
    EXPECT_NE(of(p).trouble().find("average 1: peer '"), std::string::npos) << of(p).trouble();
  }
}

TEST_F(Gradients, OutOfOrderAreRefused) {
  const Floats values(1000);
  EXPECT_THROW(of(0).supply(0, 1, values), InvalidInput);
  begin({0});
  EXPECT_THROW(of(0).supply(1, 1, Floats{}), InvalidInput);
  EXPECT_THROW(of(0).supply(0, 1, Floats(999)), InvalidInput);
  EXPECT_THROW(of(0).supply(0, -1, values), InvalidInput);
  EXPECT_THROW(of(0).begin(2, {std::nullopt}), InvalidInput);
  Floats means(1300);
  EXPECT_THROW(of(0).land(means), InvalidInput);
  of(0).drop();
  EXPECT_THROW(of(0).begin(1, {std::nullopt}), InvalidInput);
}

}  // namespace
}  // namespace gradweave::islands
