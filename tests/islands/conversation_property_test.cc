// Two sides of a conversation over lines that deliver late, cut anywhere, and are lost at any time: each message comes once and
// whole, or both sides say why not.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <array>
#include <vector>

#include "gradweave/error.h"
#include "islands/conversation.h"

namespace gradweave::islands {
namespace {

using State = Transfer::State;

std::vector<std::byte> message(std::uint64_t number, std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i)
    bytes[i] = static_cast<std::byte>((number * 131 + i * 7 + i / 251) & 255);
  return bytes;
}

// Both sides, and what is on its way between them on each line.
class Pair {
 public:
  explicit Pair(std::size_t lines) : lines_(lines) {}

  struct Way {
    Line line;  // of the side that sends here
    std::vector<std::byte> bytes;
  };

  void write(std::size_t line, int side) {
    Way& way = lines_[line][static_cast<std::size_t>(side)];
    sides[static_cast<std::size_t>(side)].next(way.line, way.bytes);
  }
  // Some of what is on its way comes.
  void deliver(std::size_t line, int side, std::size_t count) {
    auto& [first, second] = lines_[line];
    Way& from = side == 0 ? first : second;
    Way& to = side == 0 ? second : first;
    count = std::min(count, from.bytes.size());
    const std::vector<std::byte> chunk(from.bytes.begin(),
                                       from.bytes.begin() + static_cast<std::ptrdiff_t>(count));
    from.bytes.erase(from.bytes.begin(), from.bytes.begin() + static_cast<std::ptrdiff_t>(count));
    ASSERT_EQ(sides[static_cast<std::size_t>(1 - side)].take(to.line, chunk), "");
  }
  // The sides see it together or one after the other; what is on its way is gone.
  void lose(std::size_t line) {
    for (std::size_t side = 0; side < 2; ++side) {
      sides[side].lost(lines_[line][side].line);
      lines_[line][side].bytes.clear();
    }
  }
  void settle() {
    for (int round = 0; round < 400; ++round) {
      for (std::size_t line = 0; line < lines_.size(); ++line) {
        for (int side = 0; side < 2; ++side) {
          write(line, side);
          deliver(line, side, ~std::size_t{0} >> 1);
        }
      }
    }
  }

  std::array<Conversation, 2> sides;

 private:
  std::vector<std::array<Way, 2>> lines_;
};

RC_GTEST_PROP(Conversation, DeliversEachMessageOnceWhateverIsLost, ()) {
  const auto lines = *rc::gen::inRange<std::size_t>(1, 4);
  Pair pair(lines);
  struct Half {
    std::vector<std::byte> sent, room;
    std::shared_ptr<Transfer> send, receive;
    bool ended = false;
  };
  std::array<std::vector<Half>, 2> all;  // by the side that sends
  std::array<std::size_t, 2> received{};
  for (int step = *rc::gen::inRange(10, 300); step > 0; --step) {
    const auto side = *rc::gen::inRange(0, 2);
    const auto other = static_cast<std::size_t>(1 - side);
    const auto line = *rc::gen::inRange<std::size_t>(0, lines);
    std::vector<Half>& sends = all[static_cast<std::size_t>(side)];
    switch (*rc::gen::inRange(0, 12)) {
      case 0: {  // room for the next message is there before or after it is sent
        const bool first = received[other] < sends.size();
        if (!first)
          sends.push_back({.sent = message(sends.size(), *rc::gen::inRange<std::size_t>(0, 200'000))});
        Half& half = sends[received[other]];
        half.room.resize(half.sent.size() + *rc::gen::inRange<std::size_t>(0, 3));
        half.receive = pair.sides[other].receive({.channel = 1, .sequence = received[other]++}, half.room);
        break;
      }
      case 1: {
        const auto next = std::ranges::find(sends, nullptr, &Half::send);
        const auto number = static_cast<std::uint64_t>(next - sends.begin());
        if (next == sends.end())
          sends.push_back({.sent = message(number, *rc::gen::inRange<std::size_t>(0, 200'000))});
        sends[number].send = pair.sides[static_cast<std::size_t>(side)].send(
            {.channel = 1, .sequence = number}, sends[number].sent);
        break;
      }
      case 2:
        if (*rc::gen::inRange(0, 3) == 0) pair.lose(line);
        break;
      case 3:
        if (!sends.empty() && *rc::gen::inRange(0, 4) == 0) {
          Half& half = sends[*rc::gen::inRange<std::size_t>(0, sends.size())];
          const bool at_sender = *rc::gen::arbitrary<bool>();
          const auto& transfer = at_sender ? half.send : half.receive;
          if (transfer && transfer->state == State::kUnderWay) {
            pair.sides[at_sender ? static_cast<std::size_t>(side) : other].end(transfer, "ended here");
            half.ended = true;
          }
        }
        break;
      case 4:
      case 5:
      case 6:
        pair.write(line, side);
        break;
      default:
        pair.deliver(line, side, *rc::gen::inRange<std::size_t>(1, 100'000));
    }
    for (auto& halves : all) {
      for (Half& half : halves) {
        if (half.send && half.send->state == State::kDone) RC_ASSERT(half.receive->state == State::kDone);
      }
    }
  }
  for (std::size_t side = 0; side < 2; ++side) {  // the halves that are missing
    for (std::size_t i = 0; i < all[side].size(); ++i) {
      Half& half = all[side][i];
      if (!half.send) half.send = pair.sides[side].send({.channel = 1, .sequence = i}, half.sent);
      if (half.receive) continue;
      half.room.resize(half.sent.size());
      half.receive = pair.sides[1 - side].receive({.channel = 1, .sequence = i}, half.room);
    }
  }
  pair.settle();
  for (const auto& halves : all) {
    for (const Half& half : halves) {
      RC_ASSERT(half.send->state != State::kUnderWay);
      RC_ASSERT(half.receive->state != State::kUnderWay);
      if (half.receive->state == State::kDone) {
        RC_ASSERT(half.receive->size == half.sent.size());
        RC_ASSERT(std::equal(half.sent.begin(), half.sent.end(), half.room.begin()));
      } else {
        RC_ASSERT(half.ended);
        RC_ASSERT(half.send->state == State::kFailed);
      }
    }
  }
}

TEST(Conversation, AMessageWithoutRoomFailsOnBothSides) {
  Pair pair(1);
  const auto bytes = message(1, 100);
  std::vector<std::byte> room(99);
  const auto send = pair.sides[0].send({.sequence = 1}, bytes);
  const auto receive = pair.sides[1].receive({.sequence = 1}, room);
  pair.settle();
  EXPECT_EQ(send->why, "message 1 of channel 0: the receiver has room for 99 bytes, and it has 100");
  EXPECT_EQ(receive->why, "message 1 of channel 0: the sender has ended it");
}

TEST(Conversation, NumbersOfAChannelRise) {
  Conversation conversation;
  std::vector<std::byte> room(1);
  conversation.receive({.channel = 3, .sequence = 7}, room);
  EXPECT_THROW(conversation.receive({.channel = 3, .sequence = 7}, room), InvalidInput);
  conversation.receive({.channel = 4, .sequence = 0}, room);
  conversation.send({.channel = 3, .sequence = 7}, room);  // each direction has numbers of its own
}

TEST(Conversation, KeepsNoMoreNotesThanItMay) {
  Conversation conversation;
  Line line;
  std::string fault;
  std::uint64_t notes = 0;
  while (fault.empty() && notes < 2 * Conversation::kMostAhead)
    fault = conversation.take(line,
                              encode(Frame{.kind = Kind::kRoom, .tag = {.channel = 1, .sequence = ++notes}}));
  EXPECT_EQ(fault, "room for too many messages that nobody sends");
  EXPECT_EQ(notes, Conversation::kMostAhead + 1);
}

TEST(Conversation, RefusesWhatNoPeerSends) {
  const auto fault_of = [](const Frame& frame) {
    Conversation conversation;
    Line line;
    std::vector<std::byte> room(10);
    conversation.receive({.sequence = 1}, room);
    return conversation.take(line, encode(frame));
  };
  EXPECT_EQ(fault_of({.kind = Kind::kPiece, .tag = {.sequence = 1}, .total = 11, .length = 11}),
            "a message that is larger than the room for it");
  EXPECT_EQ(fault_of({.kind = Kind::kPiece, .tag = {.sequence = 1}, .offset = 1, .total = 11, .length = 10}),
            "a frame of no known form");
  EXPECT_EQ(fault_of({.kind = Kind::kPiece, .total = kPieceBytes + 1, .length = 1}),
            "a frame of no known form");
  EXPECT_EQ(fault_of({.kind = Kind::kAcknowledged, .offset = 1}), "an acknowledgement of what was not sent");
  EXPECT_EQ(fault_of({.kind = static_cast<Kind>(77)}), "a frame of no known form");
}

}  // namespace
}  // namespace gradweave::islands
