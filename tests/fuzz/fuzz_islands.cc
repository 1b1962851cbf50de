// Any bytes of a peer that has the key: a conversation neither crashes, hangs nor grows on them, and what is under way ends
// as it should. Texts at the meeting point, likewise.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "islands/conversation.h"
#include "islands/meeting.h"

namespace {

using namespace gradweave::islands;

// A meeting point takes any text, from one of two names.
void check_texts(std::string_view text) {
  using namespace std::chrono_literals;
  Meeting meeting("m", 0s, 1s);
  Attendee attendee({.name = "a", .life = "1"});
  attendee.connected(0s);
  Time now{};
  for (int line = 0; line < 16 && !text.empty(); ++line, now += 300ms) {
    const std::string_view first = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), first.size() + 1));
    if (const auto message = decode_to_meeting(first)) {
      const std::string again = encode(*message);
      if (encode(*decode_to_meeting(again)) != again) std::abort();
      meeting.take(message->report.island.name, message->report.island.life, *message, now);
    }
    if (const auto message = decode_from_meeting(first)) {
      const std::string again = encode(*message);
      if (encode(*decode_from_meeting(again)) != again) std::abort();
      attendee.take(*message, now);
      attendee.tick(now);
    }
    meeting.tick(now);
    for (const Outgoing& outgoing : meeting.take_outgoing()) {
      if (!decode_from_meeting(encode(*outgoing.message))) std::abort();
    }
  }
}

void check_reading(const std::uint8_t* data, std::size_t size) {
  if (size >= kGreetingBytes) {
    GreetingBytes bytes;
    std::transform(data, data + bytes.size(), bytes.begin(),
                   [](std::uint8_t byte) { return std::byte{byte}; });
    if (const auto greeting = decode(bytes); greeting && encode(*greeting) != bytes) std::abort();
  }
  check_texts({reinterpret_cast<const char*>(data), size});
  if (size < kFrameBytes) return;
  FrameBytes bytes;
  std::transform(data, data + bytes.size(), bytes.begin(), [](std::uint8_t byte) { return std::byte{byte}; });
  if (const auto frame = decode(bytes); frame && encode(*frame) != bytes) std::abort();
}

}  // namespace

// Each step is a byte that says what: a frame whose fields are small numbers, bytes as they are, a line that is lost, or
// something that this side does.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  check_reading(data, size);
  const auto take = [&]() -> std::uint64_t {
    if (size == 0) return 0;
    --size;
    return *data++;
  };
  Conversation conversation;
  std::vector<Line> lines(2);
  std::vector<std::byte> room(2 * kPieceBytes + 100), out;
  std::vector<std::shared_ptr<Transfer>> transfers;
  std::uint64_t sends = 0, receives = 0;
  while (size > 0) {
    const std::uint64_t what = take();
    Line& line = lines[what >> 7];
    std::vector<std::byte> bytes;
    switch (what % 8) {
      case 0:
        transfers.push_back(
            conversation.send({.channel = 1, .sequence = sends++}, std::span(room).first(take() * 512)));
        continue;
      case 1:
        transfers.push_back(conversation.receive({.channel = 1, .sequence = receives++}, room));
        continue;
      case 2:
        out.clear();
        conversation.next(line, out);
        continue;
      case 3:
        if (!transfers.empty()) conversation.end(transfers[take() % transfers.size()], "ended here");
        continue;
      case 4:
        conversation.lost(line);
        continue;
      case 5:
        bytes.resize(std::min<std::size_t>(take(), size));
        std::ranges::generate(bytes, [&] { return static_cast<std::byte>(take()); });
        break;
      default: {
        Frame frame{.kind = static_cast<Kind>(take() % 12), .tag = {.channel = 1, .sequence = take() % 8}};
        frame.offset = take();
        frame.total = take() << (take() % 48);
        if (frame.kind == Kind::kPiece) {
          frame.offset *= kPieceBytes;
          frame.length = static_cast<std::uint32_t>(std::min(kPieceBytes, frame.total - frame.offset));
        }
        const FrameBytes header = encode(frame);
        bytes.assign(header.begin(), header.end());
        bytes.resize(bytes.size() + std::min<std::uint64_t>(frame.length, kPieceBytes));
      }
    }
    if (!conversation.take(line, bytes).empty()) conversation.lost(line);  // as a connection that is closed
  }
  conversation.close("over");
  for (const auto& transfer : transfers) {
    if (transfer->state == Transfer::State::kUnderWay) std::abort();
  }
  return 0;
}
