#include "islands/part_round.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <exception>
#include <utility>

#include "base/quoted.h"
#include "gradweave/error.h"
#include "islands/little_endian.h"
#include "model/hash.h"

namespace gradweave::islands {
namespace {

constexpr std::int64_t kNumbers =
    2 * sizeof(std::uint64_t);  // of a head: the weight, and a checksum of the anchor

const std::uint8_t* codes(const std::byte* bytes) { return reinterpret_cast<const std::uint8_t*>(bytes); }
const float* floats(const std::byte* bytes) { return reinterpret_cast<const float*>(bytes); }

// Calls `use` with each of elements [begin, end) of which there is a rest, and that.
template <typename Use>
void for_rest(const Rest& rest, std::int64_t begin, std::int64_t end, Use use) {
  const std::int64_t first = std::max(begin, rest.begin);
  const std::int64_t last = std::min(end, rest.begin + static_cast<std::int64_t>(rest.values.size()));
  for (std::int64_t i = first; i < last; ++i) use(i, rest.values[static_cast<std::size_t>(i - rest.begin)]);
}

}  // namespace

std::vector<Elements> fragments_of(const PartOptions& options) {
  if (options.fragments.empty()) return {{.begin = 0, .end = options.count}};
  std::vector<Elements> fragments;
  std::int64_t end = 0;
  for (const std::int64_t count : options.fragments) {
    fragments.push_back({.begin = end, .end = end + count});
    end += count;
  }
  return fragments;
}

void check_average(const Average& average, std::int64_t last) {
  const std::string where = "average " + std::to_string(average.number);
  if (average.number <= std::max(last, std::int64_t{0}))
    throw InvalidInput("follows average " + std::to_string(last), where, "number averages upwards from 1");
  if (std::ranges::count_if(average.members, [](const auto& each) { return !each; }) != 1)
    throw InvalidInput("this rank is not one of its members, once", where, "put nothing in its place");
  if (!std::isfinite(average.weight) || average.weight < 0) {
    throw InvalidInput("has weight " + std::to_string(average.weight), where,
                       "give one that is finite and not negative");
  }
}

void check_count(std::size_t count, std::int64_t expected, const std::string& where) {
  if (count != static_cast<std::size_t>(expected)) {
    throw InvalidInput("has " + std::to_string(count) + " elements and not " + std::to_string(expected),
                       where, "give one for each element");
  }
}

void land_floats(const float* mean, const float* own, std::int64_t count, std::int64_t behind,
                 codec::Outer outer, float* values, float* anchor, float* momentum) {
  const std::int64_t first = std::clamp(behind, std::int64_t{0}, count);
  const auto land = codec::kernels().land_floats;
  land(mean, own, first, 1, outer, values, anchor, momentum);
  land(mean + first, own + first, count - first, 1, {}, values + first, anchor + first, nullptr);
}

Round::Round(std::shared_ptr<Workshop> workshop, const PartOptions& options, const Average& average,
             std::shared_ptr<const Rest> rest, std::span<const float> values, std::span<const float> anchor)
    : workshop_(std::move(workshop)),
      format_(average.exact ? std::nullopt : options.format),
      seed_(options.seed),
      average_(average),
      rest_(std::move(rest)),
      of_parameters_(!anchor.empty()),
      anchor_(checksum({reinterpret_cast<const char*>(anchor.data()), anchor.size_bytes()})) {
  const auto world = static_cast<std::int64_t>(members()), count = std::ssize(values);
  for (std::int64_t i = 0; i < world; ++i) {
    blocks_.push_back(
        {.begin = codec::begin_of_part(count, i, world), .end = codec::begin_of_part(count, i + 1, world)});
    if (!average_.members[static_cast<std::size_t>(i)]) place_ = static_cast<std::size_t>(i);
  }
  own_ = room_for(world * head_bytes() + bytes_of(format_, count));
  result_ = room_for(bytes_of(format_, count));
  if (format_) gain_ = std::make_unique_for_overwrite<float[]>(values.size());
  {
    const MutexLock lock(mutex_);
    plan();
  }
  for (std::size_t b = 0; b < members(); ++b) {
    const std::int64_t begin = blocks_[b].begin, end = blocks_[b].end;
    float* const gain = format_ ? gain_.get() + begin : reinterpret_cast<float*>(own_at(b));
    if (average_.weight == 0 && format_) {  // what encodings have dropped is no part of the mean, and stays
      std::fill_n(gain, end - begin, 0.0F);
    } else if (anchor.empty()) {
      std::copy_n(values.data() + begin, end - begin, gain);
    } else {
      for (std::int64_t i = begin; i < end; ++i)
        gain[i - begin] = values[static_cast<std::size_t>(i)] - anchor[static_cast<std::size_t>(i)];
    }
    if (b == place_ || !moves_rest()) continue;
    for_rest(*rest_, begin, end,
             [&](std::int64_t i, float left) { gain[i - begin] += static_cast<float>(world) * left; });
  }
}

void Round::start() {
  workshop_->queue.post([self = shared_from_this()] { self->guard([&] { self->run(); }); });
}

Progress Round::progress() const {
  const MutexLock lock(mutex_);
  return progress_;
}

std::string Round::trouble() const {
  const MutexLock lock(mutex_);
  return trouble_;
}

void Round::end() { stop(Progress::kNone, ""); }

std::int64_t Round::head_bytes() const {
  const std::int64_t sample = bytes_of(std::nullopt, std::ssize(average_.sample));
  return kNumbers + (sample + kNumbers - 1) / kNumbers * kNumbers;
}

std::byte* Round::own_at(std::size_t block) const {
  return own_.get() + static_cast<std::int64_t>(block + 1) * head_bytes() +
         bytes_of(format_, blocks_[block].begin);
}

std::uint64_t Round::key_of(std::size_t block, std::uint64_t stage) const {
  return codec::random_key(seed_, place_, static_cast<std::uint64_t>(average_.number), block, stage);
}

template <typename Step>
void Round::guard(Step step) {
  try {
    step();
  } catch (const std::exception& error) {
    fail(error.what());
  }
}

// In the order in which they are posted: what comes has its room before anything is sent.
void Round::plan() {
  const std::int64_t mine = blocks_[place_].count();
  contributions_.resize(members());
  std::vector<Entry> contributions, means;
  for (std::size_t i = 0; i < members(); ++i) {
    if (i == place_) continue;
    const std::int64_t theirs = blocks_[i].count();
    if (takes_messages(place_)) {
      const std::int64_t size = head_bytes() + bytes_of(format_, mine);
      contributions_[i] = room_for(size);
      ++missing_contributions_;
      entries_.push_back({.member = i, .size = size, .bytes = contributions_[i].get()});
    }
    if (mine > 0) {
      means.push_back({.sends = true,
                       .mean = true,
                       .member = i,
                       .size = bytes_of(format_, mine),
                       .count = mine,
                       .bytes = result_at(place_)});
    }
    if (theirs > 0) {
      ++missing_means_;
      entries_.push_back(
          {.mean = true, .member = i, .size = bytes_of(format_, theirs), .bytes = result_at(i)});
    }
    if (takes_messages(i)) {
      contributions.push_back({.sends = true,
                               .member = i,
                               .size = head_bytes() + bytes_of(format_, theirs),
                               .count = theirs,
                               .bytes = own_at(i) - head_bytes()});
    }
  }
  first_contribution_ = entries_.size();
  entries_.insert(entries_.end(), contributions.begin(), contributions.end());
  first_mean_ = entries_.size();
  entries_.insert(entries_.end(), means.begin(), means.end());
  under_way_ = entries_.size();
}

void Round::run() {
  weights_.assign(members(), 0);
  weights_[place_] = average_.weight;
  std::size_t index = 0;
  while (index < first_contribution_) post(index++);
  for (std::size_t i = 0; i < members(); ++i) {
    if (progress() != Progress::kUnderWay) return;
    encode(i);
    std::byte* const after =
        put(put(own_at(i) - head_bytes(), std::bit_cast<std::uint64_t>(average_.weight)), anchor_);
    std::ranges::copy(std::as_bytes(std::span(average_.sample)), after);
    if (i != place_ && takes_messages(i)) post(index++);
  }
  gain_.reset();
  if (missing_contributions_ == 0) sum();
  complete_if_all_is_there();
}

void Round::encode(std::size_t block) {
  const auto [begin, end] = blocks_[block];
  if (!format_ || begin == end) return;
  codec::kernels().encode(*format_, gain_.get() + begin, nullptr, end - begin, key_of(block, 0), 0,
                          reinterpret_cast<std::uint8_t*>(own_at(block)));
}

Message Round::posted(const Entry& entry, std::span<std::byte> bytes, std::function<void()> over) const {
  const Tag tag{.channel = average_.channel + (entry.mean ? 1 : 0),
                .sequence = static_cast<std::uint64_t>(average_.number)};
  Peer peer = *average_.members[entry.member];
  return entry.sends ? peer.send(tag, bytes, std::move(over)) : peer.receive(tag, bytes, std::move(over));
}

void Round::post(std::size_t index) {
  const MutexLock lock(mutex_);
  if (progress_ != Progress::kUnderWay) return;
  const auto over = [workshop = workshop_, weak = weak_from_this(), index] {
    workshop->queue.post([weak, index] {
      if (const auto self = weak.lock()) self->guard([&] { self->over(index); });
    });
  };
  Entry& entry = entries_[index];
  entry.message = posted(entry, {entry.bytes, static_cast<std::size_t>(entry.size)}, over);
  if (entry.message->over()) over();  // nobody tells if the endpoint is gone
}

void Round::over(std::size_t index) {
  Entry entry;
  {
    const MutexLock lock(mutex_);
    if (entries_[index].over) return;
    entries_[index].over = true;
    --under_way_;
    entry = entries_[index];
    release_if_over();
    if (progress_ != Progress::kUnderWay && !entry.sends) return;
  }
  std::size_t size = 0;
  try {
    size = entry.message->wait();
  } catch (const RuntimeFailure& failure) {
    return fail(failure.what());
  }
  if (entry.sends) {
    workshop_->bytes_sent += entry.size;
    workshop_->float_bytes_sent += bytes_of(std::nullopt, entry.count) + (entry.mean ? 0 : head_bytes());
    return;
  }
  const std::string peer = "peer " + in_quotes(average_.members[entry.member]->name());
  if (size == 0) return fail(peer + " has ended the average");
  if (size != static_cast<std::size_t>(entry.size)) {
    return fail(peer + ": its message has " + std::to_string(size) + " bytes and not " +
                std::to_string(entry.size) + "; start all islands with the same model and options");
  }
  if (entry.mean) {
    --missing_means_;
  } else {
    take_contribution(entry);
  }
  complete_if_all_is_there();
}

void Round::take_contribution(const Entry& entry) {
  std::uint64_t bits = 0, anchor = 0;
  take(take(entry.bytes, bits), anchor);
  const double weight = weights_[entry.member] = std::bit_cast<double>(bits);
  if (!std::isfinite(weight) || weight < 0) {
    return fail("peer " + in_quotes(average_.members[entry.member]->name()) + ": its weight is " +
                std::to_string(weight) + "; weights are finite and not negative");
  }
  if (anchor != anchor_) {
    unlike_ = true;
    return fail("peer " + in_quotes(average_.members[entry.member]->name()) +
                " began from other parameters than this rank: islands are not equal any more, which is an "
                "error in Gradweave; end all of them, and go on from a checkpoint");
  }
  if (--missing_contributions_ == 0) sum();
}

// By groups, which stay in the cache.
void Round::sum() {
  const std::int64_t first = blocks_[place_].begin, count = blocks_[place_].count();
  double total = 0;
  for (const double weight : weights_) total += weight;
  const bool alike = total == 0 && of_parameters_;
  if (format_ || rest_) fresh_.assign(static_cast<std::size_t>(count), 0);
  const std::uint64_t key = key_of(place_, 1);
  std::byte* const to = result_at(place_);
  std::array<double, codec::kGroup> sum{};
  std::array<float, codec::kGroup> part{};
  for (std::int64_t begin = 0; begin < count; begin += codec::kGroup) {
    const std::int64_t end = std::min(begin + codec::kGroup, count);
    const auto length = static_cast<std::size_t>(end - begin);
    sum.fill(0);
    for (std::size_t i = 0; i < members(); ++i) {
      if (weights_[i] == 0 && !alike) continue;
      const double share = alike ? 1.0 / static_cast<double>(members()) : weights_[i] / total;
      const std::byte* const from = i == place_ ? own_at(i) : contributions_[i].get() + head_bytes();
      if (format_) {
        codec::kernels().decode(*format_, codes(from), count, begin, end, part.data());
      } else {
        std::copy_n(floats(from) + begin, length, part.begin());
      }
      for (std::size_t j = 0; j < sum.size(); ++j) sum[j] += share * static_cast<double>(part[j]);
    }
    if (rest_) {
      for_rest(*rest_, first + begin, first + end, [&](std::int64_t i, float left) {
        sum[static_cast<std::size_t>(i - first - begin)] += static_cast<double>(left);
      });
    }
    std::array<float, codec::kGroup> mean;
    for (std::size_t j = 0; j < sum.size(); ++j) mean[j] = static_cast<float>(sum[j]);
    if (!format_) {
      std::memcpy(to + bytes_of(format_, begin), mean.data(), length * sizeof(float));
      continue;
    }
    codec::kernels().encode(*format_, mean.data(), nullptr, end - begin, key, begin / codec::kGroup,
                            reinterpret_cast<std::uint8_t*>(to + bytes_of(format_, begin)));
    codec::kernels().decode(*format_, codes(to), count, begin, end, part.data());
    for (std::size_t j = 0; j < length; ++j) fresh_[static_cast<std::size_t>(begin) + j] = mean[j] - part[j];
  }
  square_samples();
  contributions_.clear();
  for (std::size_t index = first_mean_; index < first_mean_ + (count > 0 ? members() - 1 : 0); ++index)
    post(index);
  summed_ = true;
}

void Round::square_samples() {
  std::vector<double> total(average_.sample.size());
  for (std::size_t i = 0; i < members(); ++i) {
    if (weights_[i] == 0) continue;
    const float* const sample =
        i == place_ ? average_.sample.data() : floats(contributions_[i].get() + kNumbers);
    double squares = 0;
    for (std::size_t j = 0; j < total.size(); ++j) {
      total[j] += sample[j];
      squares += static_cast<double>(sample[j]) * sample[j];
    }
    if (squares == 0) continue;
    sampled_.of_each += squares;
    ++sampled_.members;
  }
  if (sampled_.members == 0) return;
  const double count = sampled_.members;
  sampled_.of_each /= count;
  for (const double each : total) sampled_.of_mean += each * each / (count * count);
}

std::optional<SampleSquares> Round::sampled() const {
  return sampled_.members > 1 ? std::optional(sampled_) : std::nullopt;
}

void Round::complete_if_all_is_there() {
  if (!summed_ || missing_means_ > 0) return;
  const MutexLock lock(mutex_);
  if (progress_ == Progress::kUnderWay) progress_ = Progress::kComplete;
}

void Round::fail(const std::string& why) {
  {
    const MutexLock lock(mutex_);
    if (progress_ != Progress::kUnderWay) return;
  }
  stop(Progress::kFailed, "average " + std::to_string(average_.number) + ": " + why);
}

// Others learn of what was not posted yet as of what was: it is posted, with no bytes, and ended.
void Round::stop(Progress progress, const std::string& why) {
  const MutexLock lock(mutex_);
  const bool was_under_way = progress_ == Progress::kUnderWay;
  progress_ = progress;
  trouble_ = why;
  for (Entry& entry : entries_) {
    if (entry.message) {
      entry.message->end();
    } else if (was_under_way) {
      try {
        posted(entry, {}, nullptr).end();
      } catch (const InvalidInput&) {  // its number was used before: nobody waits for it
      }
    }
  }
}

void Round::land(codec::Outer outer, std::int64_t behind, float* delta, float* anchor,
                 float* momentum) const {
  std::fill_n(delta, blocks_.back().end, 0.0F);
  for (std::size_t b = 0; b < members(); ++b) {
    const auto [begin, end] = blocks_[b];
    if (begin == end) continue;
    if (b != place_ && moves_rest()) {
      for_rest(*rest_, begin, end,
               [&](std::int64_t i, float left) { delta[i] = static_cast<float>(members()) * left; });
    }
    float* const speed = momentum ? momentum + begin : nullptr;
    if (!format_) {
      land_floats(floats(result_at(b)), floats(own_at(b)), end - begin, behind - begin, outer, delta + begin,
                  anchor + begin, speed);
      continue;
    }
    const std::array sources{codes(result_at(b))};
    codec::kernels().land(*format_,
                          {.sources = sources,
                           .own = codes(own_at(b)),
                           .count = end - begin,
                           .begin = 0,
                           .end = end - begin,
                           .outer = outer},
                          delta + begin, anchor + begin, speed);
  }
}

std::shared_ptr<const Rest> Round::rest_after() const {
  const auto [begin, end] = blocks_[place_];
  auto next = std::make_shared<Rest>();
  next->begin = begin;
  next->values = fresh_;
  if (rest_ && !moves_rest()) {  // a message without weight carries none of it
    next->begin = std::min(begin, rest_->begin);
    const std::int64_t last = std::max(end, rest_->begin + static_cast<std::int64_t>(rest_->values.size()));
    next->values.assign(static_cast<std::size_t>(last - next->begin), 0);
    std::ranges::copy(rest_->values, next->values.begin() + (rest_->begin - next->begin));
    std::ranges::copy(fresh_, next->values.begin() + (begin - next->begin));
  }
  const bool any = std::ranges::any_of(next->values, [](float left) { return left != 0; });
  return any ? next : nullptr;
}

void Round::retire() {
  const MutexLock lock(mutex_);
  retired_ = true;
  release_if_over();
}

bool Round::is_over() const {
  const MutexLock lock(mutex_);
  return under_way_ == 0;
}

void Round::release_if_over() {
  if (!retired_ || under_way_ > 0) return;
  own_.reset();
  result_.reset();
}

}  // namespace gradweave::islands
