#include "islands/part_state.h"

#include <algorithm>
#include <array>
#include <bit>
#include <exception>

#include "base/quoted.h"
#include "gradweave/error.h"
#include "islands/little_endian.h"

namespace gradweave::islands {
namespace {

constexpr std::uint32_t kStates = 3;         // channel
constexpr std::uint64_t kForm = 0x32575047;  // of what follows, by number
constexpr std::size_t kNoteBytes = 3 * sizeof(std::uint64_t);
constexpr std::size_t kMostChanges = 4;  // that wait to be applied, before more may come
constexpr int kStreamBits = 32;          // of a sequence: which stream, and then the message in it

std::uint64_t first_of_stream(std::int64_t transfer) {
  return static_cast<std::uint64_t>(transfer) << kStreamBits;
}

// What both sides have the same of.
std::vector<std::pair<const char*, std::uint64_t>> traits_of(const PartOptions& options) {
  const codec::Outer outer = options.outer.value_or(codec::Outer{});
  return {{"form", kForm},
          {"elements", static_cast<std::uint64_t>(options.count)},
          {"fragments", options.fragments.size()},
          {"format", options.format ? 1 + static_cast<std::uint64_t>(*options.format) : 0},
          {"outer optimizer", options.outer.has_value()},
          {"outer momentum's bits", std::bit_cast<std::uint32_t>(outer.momentum)},
          {"outer learning rate's bits", std::bit_cast<std::uint32_t>(outer.learning_rate)}};
}

std::vector<std::byte> bytes_of_numbers(const std::vector<std::uint64_t>& numbers) {
  std::vector<std::byte> bytes(numbers.size() * sizeof(std::uint64_t));
  std::byte* at = bytes.data();
  for (const std::uint64_t number : numbers) at = put(at, number);
  return bytes;
}

// What a change is of, and how it is encoded.
std::pair<Elements, std::optional<codec::Format>> form_of(const Change& change, const PartOptions& options) {
  if (change.what == Change::What::kMean) return {fragments_of(options).at(change.fragment), options.format};
  return {{.begin = 0, .end = options.count}, std::nullopt};
}

std::int64_t payload_bytes(const Change& change, const PartOptions& options) {
  const auto [elements, format] = form_of(change, options);
  return bytes_of(format, elements.count());
}

std::byte* bytes_in(std::vector<float>& values) { return reinterpret_cast<std::byte*>(values.data()); }

}  // namespace

void apply(const Change& change, const PartOptions& options, Snapshot& to) {
  const auto* const from = change.bytes.get();
  const auto* const values = reinterpret_cast<const float*>(from);
  if (change.what == Change::What::kAnchor) {
    to.anchor.assign(values, values + options.count);
    return;
  }
  const codec::Outer outer = options.outer.value_or(codec::Outer{});
  const std::array sources{reinterpret_cast<const std::uint8_t*>(from)};
  const auto [elements, format] = form_of(change, options);
  const std::int64_t count = elements.count(), behind = fragments_of(options).back().end - elements.begin;
  for (std::int64_t begin = 0; begin < count; begin += codec::kGroup) {
    const std::int64_t end = std::min(begin + codec::kGroup, count);
    std::array<float, codec::kGroup> parameters{};  // nobody's
    float* const anchor = to.anchor.data() + elements.begin + begin;
    float* const momentum = options.outer ? to.momentum.data() + elements.begin + begin : nullptr;
    if (!format) {
      land_floats(values + begin, values + begin, end - begin, behind - begin, outer, parameters.data(),
                  anchor, momentum);
      continue;
    }
    codec::kernels().land(
        *format,
        {.sources = sources, .own = sources[0], .count = count, .begin = begin, .end = end, .outer = outer},
        parameters.data(), anchor, momentum);
  }
  if (change.what == Change::What::kMean) to.turn = (change.fragment + 1) % fragments_of(options).size();
}

Giver::Giver(std::shared_ptr<Workshop> workshop, const PartOptions& options, Peer to, std::int64_t transfer)
    : workshop_(std::move(workshop)),
      options_(options),
      to_(std::move(to)),
      sequence_(first_of_stream(transfer)) {}

// The first message is posted at once: a taker that waits for a stream which has ended is told.
void Giver::start(const std::shared_ptr<const Snapshot>& snapshot, std::int64_t number, const Extra& extra) {
  std::vector<std::uint64_t> head;
  for (const auto& [what, trait] : traits_of(options_)) head.push_back(trait);
  head.insert(head.end(), {static_cast<std::uint64_t>(number), snapshot->turn, extra.bytes.size()});
  const MutexLock lock(mutex_);
  push(bytes_of_numbers(head));
  for (const std::vector<float>* const values : {&snapshot->anchor, &snapshot->momentum})
    push(snapshot, values->data(), values->size() * sizeof(float));
  push(extra.keeps, extra.bytes.data(), extra.bytes.size());
  send_next();
}

void Giver::push(std::vector<std::byte> bytes) {
  const auto kept = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
  push(kept, kept->data(), kept->size());
}

void Giver::push(std::shared_ptr<const void> keeps, const void* bytes, std::size_t size) {
  pieces_.push_back({std::move(keeps), {static_cast<const std::byte*>(bytes), size}});
}

void Giver::add(const Change& change) {
  const MutexLock lock(mutex_);
  if (ended_) return;
  const bool idle = pieces_.empty();
  push(bytes_of_numbers(
      {static_cast<std::uint64_t>(change.what), static_cast<std::uint64_t>(change.number), change.fragment}));
  push(change.bytes, change.bytes.get(), static_cast<std::size_t>(payload_bytes(change, options_)));
  if (idle) send_next();
}

// A taker that has all is told so by a message without bytes. Whether one has the last that is under way may not be known here
// yet, so that the message after it ends too.
void Giver::end() {
  const MutexLock lock(mutex_);
  if (std::exchange(ended_, true)) return;
  static constexpr std::byte kNothingOfUse{};
  const std::size_t left = pieces_.size();
  if (left > 0) message_->end();
  const Tag next{.channel = kStates, .sequence = sequence_ + (left > 0 ? 1 : 0)};
  if (left <= 1) {
    to_.send(next, {});
  } else {
    to_.send(next, {&kNothingOfUse, 1}).end();
  }
  pieces_.clear();
}

void Giver::send_next() {
  if (ended_ || pieces_.empty()) return;
  const auto over = [workshop = workshop_, weak = weak_from_this(), sequence = sequence_] {
    workshop->queue.post([weak, sequence] {
      if (const auto self = weak.lock()) self->over(sequence);
    });
  };
  message_ = to_.send({.channel = kStates, .sequence = sequence_}, pieces_.front().bytes, over);
  if (message_->over()) over();  // nobody tells if the endpoint is gone
}

void Giver::over(std::uint64_t sequence) {
  const MutexLock lock(mutex_);
  if (ended_ || sequence != sequence_) return;
  try {
    message_->wait();
  } catch (const RuntimeFailure&) {
    ended_ = true;
    pieces_.clear();
    return;
  }
  const auto size = static_cast<std::int64_t>(pieces_.front().bytes.size());
  workshop_->bytes_sent += size;
  workshop_->float_bytes_sent += size;
  pieces_.pop_front();
  ++sequence_;
  send_next();
}

Taker::Taker(std::shared_ptr<Workshop> workshop, const PartOptions& options, Peer from, std::int64_t transfer)
    : workshop_(std::move(workshop)),
      options_(options),
      from_(std::move(from)),
      sequence_(first_of_stream(transfer)) {}

void Taker::start() {
  const MutexLock lock(mutex_);
  head_.resize((traits_of(options_).size() + 3) * sizeof(std::uint64_t));
  expect(Expected::kHeader, head_.data(), head_.size());
}

void Taker::end() {
  const MutexLock lock(mutex_);
  if (std::exchange(ended_, true)) return;
  if (expected_ == Expected::kNothing) return refuse();
  message_->end();
}

// The giver learns that no more is taken.
void Taker::refuse() { from_.receive({.channel = kStates, .sequence = sequence_}, {}).end(); }

std::string Taker::trouble() const {
  const MutexLock lock(mutex_);
  return trouble_;
}

std::optional<Taker::State> Taker::take_state() {
  const MutexLock lock(mutex_);
  if (!std::exchange(has_state_, false)) return std::nullopt;
  return std::move(state_);
}

std::optional<Change> Taker::take_change() {
  const MutexLock lock(mutex_);
  if (changes_.empty()) return std::nullopt;
  Change change = std::move(changes_.front());
  changes_.pop_front();
  if (expected_ == Expected::kNothing) expect_note();
  return change;
}

void Taker::expect(Expected expected, std::byte* room, std::size_t size) {
  if (ended_) return;
  expected_ = expected;
  size_ = size;
  const auto over = [workshop = workshop_, weak = weak_from_this(), sequence = sequence_] {
    workshop->queue.post([weak, sequence] {
      if (const auto self = weak.lock()) self->over(sequence);
    });
  };
  message_ = from_.receive({.channel = kStates, .sequence = sequence_}, {room, size}, over);
  if (message_->over()) over();  // nobody tells if the endpoint is gone
}

void Taker::expect_note() {
  if (changes_.size() >= kMostChanges) {
    expected_ = Expected::kNothing;
    return;
  }
  head_.resize(kNoteBytes);
  expect(Expected::kNote, head_.data(), head_.size());
}

void Taker::over(std::uint64_t sequence) {
  const MutexLock lock(mutex_);
  if (ended_ || sequence != sequence_) return;
  ended_ = true;
  try {
    const std::size_t size = message_->wait();
    ++sequence_;
    ended_ = false;
    came(size);
  } catch (const std::exception& error) {
    fail(error.what());
  }
}

void Taker::came(std::size_t size) {
  if (expected_ == Expected::kNote && size == 0) {
    ended_ = true;
    return;
  }
  if (size != size_)
    return fail("a message has " + std::to_string(size) + " bytes and not " + std::to_string(size_));
  switch (expected_) {
    case Expected::kHeader:
      return read_header();
    case Expected::kAnchor:
      return expect(Expected::kMomentum, bytes_in(state_.snapshot.momentum),
                    state_.snapshot.momentum.size() * sizeof(float));
    case Expected::kMomentum:
      return expect(Expected::kExtra, extra_.get(), extra_bytes_);
    case Expected::kExtra:
      state_.extra = {extra_, {extra_.get(), extra_bytes_}};
      has_state_ = true;
      return expect_note();
    case Expected::kNote:
      return read_note();
    case Expected::kChange:
      changes_.push_back(std::exchange(change_, {}));
      return expect_note();
    case Expected::kNothing:
      return;
  }
}

void Taker::read_header() {
  const std::byte* at = head_.data();
  for (const auto& [what, own] : traits_of(options_)) {
    std::uint64_t theirs = 0;
    at = take(at, theirs);
    if (theirs != own) {
      return fail(std::string(what) + ": " + std::to_string(theirs) + " there and " + std::to_string(own) +
                  " here; start both islands with the same version, model and options");
    }
  }
  std::uint64_t number = 0, turn = 0, extra = 0;
  take(take(take(at, number), turn), extra);
  if (turn >= fragments_of(options_).size())
    return fail("there is no fragment " + std::to_string(turn) +
                "; start both islands with the same version");
  state_.number = static_cast<std::int64_t>(number);
  state_.snapshot.turn = turn;
  if (extra > kLargestMessage)
    return fail("it adds " + std::to_string(extra) + " bytes; start both islands with the same version");
  extra_ = room_for(static_cast<std::int64_t>(extra));
  extra_bytes_ = extra;
  state_.snapshot.anchor.resize(static_cast<std::size_t>(options_.count));
  if (options_.outer) state_.snapshot.momentum.resize(static_cast<std::size_t>(options_.count));
  expect(Expected::kAnchor, bytes_in(state_.snapshot.anchor), state_.snapshot.anchor.size() * sizeof(float));
}

void Taker::read_note() {
  std::uint64_t what = 0, number = 0, fragment = 0;
  take(take(take(head_.data(), what), number), fragment);
  if (what < static_cast<std::uint64_t>(Change::What::kMean) ||
      what > static_cast<std::uint64_t>(Change::What::kAnchor) || fragment >= fragments_of(options_).size())
    return fail("a change of an unknown kind; start both islands with the same version");
  change_.what = static_cast<Change::What>(what);
  change_.number = static_cast<std::int64_t>(number);
  change_.fragment = fragment;
  const std::int64_t size = payload_bytes(change_, options_);
  change_.bytes = room_for(size);
  expect(Expected::kChange, change_.bytes.get(), static_cast<std::size_t>(size));
}

void Taker::fail(const std::string& why) {
  trouble_ = "the state of peer " + in_quotes(from_.name()) + ": " + why;
  if (!std::exchange(ended_, true)) refuse();
}

}  // namespace gradweave::islands
