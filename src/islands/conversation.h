// What one side sends to a peer and receives from it, whatever connections come and go. No socket, thread or clock: who owns
// it brings bytes, and calls it from one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "islands/frame.h"

namespace gradweave::islands {

// One message on its way. Whose bytes they are keeps them until the state is another one; after that they are not touched.
struct Transfer {
  enum class State { kUnderWay, kDone, kFailed };
  Tag tag;
  bool sends = false;
  std::span<const std::byte> data;  // of one that is sent
  std::span<std::byte> room;        // for one that is received
  State state = State::kUnderWay;
  std::uint64_t size = 0;  // of the message, once it is known
  std::string why;         // kFailed

  // Of a send: the next piece. Of a receive: pieces that have not come, and which have.
  std::uint64_t next = 0, missing = 0;
  std::vector<bool> here;
};

// A frame that is sent again if the line that it went out on is lost before the other side has acknowledged it.
struct Item {
  Kind kind{};
  Tag tag;
  std::uint64_t offset = 0, total = 0;
};

// One connection of a conversation: what is on its way there, and how far the frame is that comes in.
struct Line {
  std::deque<Item> sent;  // and not acknowledged
  std::uint64_t acknowledged = 0, received = 0, told = 0;
  FrameBytes header;
  std::size_t header_bytes = 0;
  std::optional<Frame> frame;  // whose bytes come
  std::uint64_t frame_bytes = 0;
  std::shared_ptr<Transfer> into;           // nothing: they are of no use
  std::optional<std::uint64_t> beat, echo;  // to be sent
  std::optional<std::uint64_t> echoed;      // of a beat that was sent
};

// A message is sent once its receiver has said that it has room, so nothing is kept that nobody waits for. It goes in
// pieces over all lines, each of which takes the next piece when it can. What was not acknowledged on a line that is lost is
// sent again on others; what comes twice is dropped.
class Conversation {
 public:
  // Each returns the transfer, which may have ended already: the other side has ended its half of it. Errors: InvalidInput
  // if the channel had this number or a higher one before, or the message is larger than kLargestMessage.
  std::shared_ptr<Transfer> send(Tag tag, std::span<const std::byte> data);
  std::shared_ptr<Transfer> receive(Tag tag, std::span<std::byte> room);

  // Ends a transfer that is under way: the other side's half fails too. Nothing for one that has ended.
  void end(const std::shared_ptr<Transfer>& transfer, const std::string& why);
  // Ends all that is under way and all that will be posted, with `why`. For good.
  void close(const std::string& why);
  // Tells the other side, as the last thing, that this one leaves.
  void say_bye() { control_.push_back({.kind = Kind::kBye}); }

  // Appends the next frame for `line` to `out`; false if there is none. O(log of what is under way) and the piece's bytes.
  bool next(Line& line, std::vector<std::byte>& out);

  // Takes what has come on `line`, cut anywhere. Returns "", or what no peer sends: the line is to be closed. Keeps nothing
  // but what somebody waits for and kMostAhead notes.
  std::string take(Line& line, std::span<const std::byte> bytes);

  // What was on its way on `line` and not acknowledged is sent on others.
  void lost(Line& line);

  bool other_left() const { return other_left_; }
  // Returns the transfers that have ended since the last call.
  std::vector<std::shared_ptr<Transfer>> take_ended() { return std::exchange(ended_, {}); }
  // Bytes of messages that the other side has acknowledged, and that are on their way.
  std::uint64_t acknowledged_bytes() const { return acknowledged_bytes_; }
  std::uint64_t bytes_on_way() const { return bytes_on_way_; }

  static constexpr std::size_t kMostAhead = 1 << 16;

 private:
  struct Ahead {  // what the receiver has said of a message that is not posted here yet
    std::uint64_t room = 0;
    bool refused = false;
  };
  using Channels =
      std::map<std::uint32_t, std::uint64_t>;  // the lowest number that may still be posted on each

  // Whether what is said of `tag` is about a message that was posted here, and has ended, or never will be.
  static bool is_past(const Channels& channels, Tag tag);
  std::string begin(Line& line);
  std::string begin_piece(Line& line);
  std::string take_room(const Frame& frame);
  std::string acknowledge(Line& line, std::uint64_t count);
  void fill(Line& line, std::span<const std::byte> bytes);
  void end_piece(Line& line);
  void finish(const std::shared_ptr<Transfer>& transfer, const std::string& why = {});
  void offer_room(const std::shared_ptr<Transfer>& transfer, std::uint64_t room);
  bool next_piece(Item& item);
  void write(Line& line, const Item& item, std::vector<std::byte>& out);

  std::map<Tag, std::shared_ptr<Transfer>> sends_, receives_;  // under way
  Channels send_channels_, receive_channels_;
  std::map<Tag, Ahead> ahead_;
  std::set<Tag> abandoned_ahead_;
  std::deque<Item> control_;  // to be sent first, in any order; pieces that are sent again, too
  std::deque<std::shared_ptr<Transfer>>
      ready_;  // sends with room and pieces left, in the order in which room came
  std::vector<std::shared_ptr<Transfer>> ended_;
  std::uint64_t acknowledged_bytes_ = 0, bytes_on_way_ = 0;
  bool other_left_ = false;
  std::string closed_;
};

}  // namespace gradweave::islands
