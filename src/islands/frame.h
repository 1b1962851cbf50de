// What goes over a connection between two peers, after TLS: a greeting, then frames.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace gradweave::islands {

// Which message: both sides know it before it is sent. On a channel, numbers rise in the order in which either side posts.
struct Tag {
  std::uint32_t channel = 0;
  std::uint64_t sequence = 0;
  friend auto operator<=>(const Tag&, const Tag&) = default;
};

enum class Kind : std::uint8_t {
  kRoom = 1,      // there is room for a message of `total` bytes
  kPiece,         // `length` bytes follow, of a message of `total`, from `offset` on
  kDone,          // the whole message is there
  kRefused,       // the receiver has ended it
  kAbandoned,     // the sender has ended it
  kAcknowledged,  // `offset` frames of those that are repeated when a line is lost have come on this line
  kBeat,          // a sign of life, at `offset` of the sender's clock
  kEcho,          // of a beat: its `offset`
  kBye            // the sender leaves; nothing follows
};

inline constexpr std::uint64_t kPieceBytes = 64 * 1024;  // of each piece but a message's last
inline constexpr std::uint64_t kLargestMessage = std::uint64_t{1} << 48;

struct Frame {
  Kind kind{};
  Tag tag;
  std::uint64_t offset = 0, total = 0;
  std::uint32_t length = 0;  // of the bytes that follow
  friend bool operator==(const Frame&, const Frame&) = default;
};

inline constexpr std::size_t kFrameBytes = 40;
using FrameBytes = std::array<std::byte, kFrameBytes>;

FrameBytes encode(const Frame& frame);
// Returns nothing for bytes that encode() does not make of a frame that a peer may send: unknown kinds, pieces off their
// grid or beyond their message, bytes that follow what has none.
std::optional<Frame> decode(const FrameBytes& bytes);

using Id = std::array<std::byte, 16>;

// What both sides say first on each connection.
struct Greeting {
  std::string name;        // of the sender, 1 to kLongestName bytes
  Id id{};                 // of its side of the conversation: another one means that it began anew
  std::uint16_t line = 0;  // which of the connections that the side which connects makes
  std::uint32_t to = 0;    // mark_of() whom it is for: an address may have become another peer's
  friend bool operator==(const Greeting&, const Greeting&) = default;
};

inline constexpr std::size_t kLongestName = 200;
inline constexpr std::size_t kGreetingBytes = 240;
inline constexpr std::uint16_t kMostLines = 32;
using GreetingBytes = std::array<std::byte, kGreetingBytes>;

// Returns a number that, nearly always, only this name has.
std::uint32_t mark_of(std::string_view name);

GreetingBytes encode(const Greeting& greeting);
// Returns nothing for bytes of any other form.
std::optional<Greeting> decode(const GreetingBytes& bytes);

}  // namespace gradweave::islands
