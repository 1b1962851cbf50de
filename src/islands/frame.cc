#include "islands/frame.h"

#include <algorithm>
#include <cstring>

#include "islands/little_endian.h"
#include "model/hash.h"

namespace gradweave::islands {
namespace {

constexpr std::string_view kMagic = "gradweave-isle-2";

}  // namespace

FrameBytes encode(const Frame& frame) {
  FrameBytes bytes{};
  std::byte* at = put(bytes.data(), static_cast<std::uint64_t>(frame.kind));
  at = put(at, frame.length);
  at = put(at, frame.tag.channel);
  at = put(at, frame.tag.sequence);
  at = put(at, frame.offset);
  put(at, frame.total);
  return bytes;
}

std::optional<Frame> decode(const FrameBytes& bytes) {
  Frame frame;
  std::uint64_t kind = 0;
  const std::byte* at = take(bytes.data(), kind);
  at = take(at, frame.length);
  at = take(at, frame.tag.channel);
  at = take(at, frame.tag.sequence);
  at = take(at, frame.offset);
  take(at, frame.total);
  if (kind < static_cast<std::uint64_t>(Kind::kRoom) || kind > static_cast<std::uint64_t>(Kind::kBye))
    return std::nullopt;
  frame.kind = static_cast<Kind>(kind);
  if (frame.kind != Kind::kPiece) {
    if (frame.length != 0) return std::nullopt;
    return frame;
  }
  const bool on_grid = frame.offset % kPieceBytes == 0 && frame.total <= kLargestMessage &&
                       (frame.offset < frame.total || (frame.offset == 0 && frame.total == 0));
  if (!on_grid || frame.length != std::min(kPieceBytes, frame.total - frame.offset)) return std::nullopt;
  return frame;
}

std::uint32_t mark_of(std::string_view name) { return static_cast<std::uint32_t>(checksum(name)); }

GreetingBytes encode(const Greeting& greeting) {
  GreetingBytes bytes{};
  std::memcpy(bytes.data(), kMagic.data(), kMagic.size());
  std::byte* at = std::ranges::copy(greeting.id, bytes.data() + kMagic.size()).out;
  at = put(at, greeting.line);
  at = put(at, static_cast<std::uint16_t>(greeting.name.size()));
  at = put(at, greeting.to);
  std::memcpy(at, greeting.name.data(), greeting.name.size());
  return bytes;
}

std::optional<Greeting> decode(const GreetingBytes& bytes) {
  if (std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0) return std::nullopt;
  Greeting greeting;
  const std::byte* at = bytes.data() + kMagic.size();
  std::copy_n(at, greeting.id.size(), greeting.id.begin());
  at = take(at + greeting.id.size(), greeting.line);
  std::uint16_t length = 0;
  at = take(take(at, length), greeting.to);
  if (length == 0 || length > kLongestName || greeting.line >= kMostLines) return std::nullopt;
  greeting.name.assign(reinterpret_cast<const char*>(at), length);
  if (encode(greeting) != bytes) return std::nullopt;
  return greeting;
}

}  // namespace gradweave::islands
