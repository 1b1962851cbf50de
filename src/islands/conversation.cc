#include "islands/conversation.h"

#include <algorithm>
#include <utility>

#include "gradweave/error.h"

namespace gradweave::islands {
namespace {

constexpr std::uint64_t kAcknowledgeEach = 8;  // frames, while there is something else to send

std::uint64_t pieces_of(std::uint64_t size) { return size == 0 ? 1 : (size - 1) / kPieceBytes + 1; }

std::string name_of(Tag tag) {
  return "message " + std::to_string(tag.sequence) + " of channel " + std::to_string(tag.channel);
}

bool is_repeated(Kind kind) {
  return kind != Kind::kAcknowledged && kind != Kind::kBeat && kind != Kind::kEcho;
}

void check_order(Tag tag, std::uint64_t& next) {
  if (tag.sequence < next || tag.sequence == ~std::uint64_t{0}) {
    throw InvalidInput("comes after message " + std::to_string(next - 1), name_of(tag),
                       "number the messages of a channel upwards");
  }
  next = tag.sequence + 1;
}

}  // namespace

std::shared_ptr<Transfer> Conversation::send(Tag tag, std::span<const std::byte> data) {
  if (data.size() > kLargestMessage) throw InvalidInput("is too large", name_of(tag), "send it in parts");
  check_order(tag, send_channels_[tag.channel]);
  auto transfer = std::make_shared<Transfer>();
  transfer->tag = tag;
  transfer->sends = true;
  transfer->data = data;
  transfer->size = data.size();
  if (!closed_.empty()) {
    finish(transfer, closed_);
    return transfer;
  }
  sends_[tag] = transfer;
  // Room for messages that were left out here is of no use any more.
  const auto first = ahead_.lower_bound({tag.channel, 0});
  const auto mine = ahead_.lower_bound(tag);
  ahead_.erase(first, mine);
  if (mine != ahead_.end() && mine->first == tag) {
    const Ahead ahead = mine->second;
    ahead_.erase(mine);
    if (ahead.refused) {
      sends_.erase(tag);
      finish(transfer, name_of(tag) + ": the receiver has ended it");
    } else {
      offer_room(transfer, ahead.room);
    }
  }
  return transfer;
}

std::shared_ptr<Transfer> Conversation::receive(Tag tag, std::span<std::byte> room) {
  check_order(tag, receive_channels_[tag.channel]);
  auto transfer = std::make_shared<Transfer>();
  transfer->tag = tag;
  transfer->room = room;
  if (!closed_.empty()) {
    finish(transfer, closed_);
    return transfer;
  }
  const auto mine = abandoned_ahead_.lower_bound(tag);
  const bool abandoned = mine != abandoned_ahead_.end() && *mine == tag;
  abandoned_ahead_.erase(abandoned_ahead_.lower_bound({tag.channel, 0}), abandoned ? std::next(mine) : mine);
  if (abandoned) {
    finish(transfer, name_of(tag) + ": the sender has ended it");
    return transfer;
  }
  receives_[tag] = transfer;
  control_.push_back({.kind = Kind::kRoom, .tag = tag, .total = room.size()});
  return transfer;
}

bool Conversation::is_past(const Channels& channels, Tag tag) {
  const auto channel = channels.find(tag.channel);
  return channel != channels.end() && tag.sequence < channel->second;
}

// With success, or with why not.
void Conversation::finish(const std::shared_ptr<Transfer>& transfer, const std::string& why) {
  transfer->state = why.empty() ? Transfer::State::kDone : Transfer::State::kFailed;
  transfer->why = why;
  ended_.push_back(transfer);
}

void Conversation::end(const std::shared_ptr<Transfer>& transfer, const std::string& why) {
  if (transfer->state != Transfer::State::kUnderWay) return;
  finish(transfer, why);
  const Tag tag = transfer->tag;
  std::erase(ready_, transfer);
  control_.push_back({.kind = transfer->sends ? Kind::kAbandoned : Kind::kRefused, .tag = tag});
  (transfer->sends ? sends_ : receives_).erase(tag);  // `transfer` may be in there
}

void Conversation::close(const std::string& why) {
  if (!closed_.empty()) return;
  closed_ = why;
  for (const auto* transfers : {&sends_, &receives_}) {
    for (const auto& [tag, transfer] : *transfers) finish(transfer, why);
  }
  sends_.clear();
  receives_.clear();
  ready_.clear();
  ahead_.clear();
  abandoned_ahead_.clear();
}

// The receiver has said that there is room.
void Conversation::offer_room(const std::shared_ptr<Transfer>& transfer, std::uint64_t room) {
  if (room < transfer->size) {
    end(transfer, name_of(transfer->tag) + ": the receiver has room for " + std::to_string(room) +
                      " bytes, and it has " + std::to_string(transfer->size));
    return;
  }
  ready_.push_back(transfer);
}

bool Conversation::next_piece(Item& item) {
  if (ready_.empty()) return false;
  Transfer& transfer = *ready_.front();
  item = {.kind = Kind::kPiece,
          .tag = transfer.tag,
          .offset = transfer.next * kPieceBytes,
          .total = transfer.size};
  if (++transfer.next == pieces_of(transfer.size)) ready_.pop_front();
  return true;
}

bool Conversation::next(Line& line, std::vector<std::byte>& out) {
  if (line.beat) {
    write(line, {.kind = Kind::kBeat, .offset = *line.beat}, out);
    line.beat.reset();
    return true;
  }
  if (line.echo) {
    write(line, {.kind = Kind::kEcho, .offset = *line.echo}, out);
    line.echo.reset();
    return true;
  }
  const std::uint64_t untold = line.received - line.told;
  if (untold >= kAcknowledgeEach || (untold > 0 && control_.empty() && ready_.empty())) {
    line.told = line.received;
    write(line, {.kind = Kind::kAcknowledged, .offset = line.received}, out);
    return true;
  }
  Item item;
  while (!control_.empty()) {
    item = control_.front();
    control_.pop_front();
    // A piece that is to be sent again may be of no use any more.
    if (item.kind == Kind::kPiece && !sends_.contains(item.tag)) continue;
    write(line, item, out);
    return true;
  }
  if (!next_piece(item)) return false;
  write(line, item, out);
  return true;
}

void Conversation::write(Line& line, const Item& item, std::vector<std::byte>& out) {
  Frame frame{.kind = item.kind, .tag = item.tag, .offset = item.offset, .total = item.total};
  std::span<const std::byte> bytes;
  if (item.kind == Kind::kPiece) {
    bytes = sends_.at(item.tag)->data.subspan(item.offset, std::min(kPieceBytes, item.total - item.offset));
    frame.length = static_cast<std::uint32_t>(bytes.size());
    bytes_on_way_ += bytes.size();
  }
  const FrameBytes header = encode(frame);
  out.insert(out.end(), header.begin(), header.end());
  out.insert(out.end(), bytes.begin(), bytes.end());
  if (is_repeated(item.kind)) line.sent.push_back(item);
}

std::string Conversation::take(Line& line, std::span<const std::byte> bytes) {
  while (true) {
    if (!line.frame) {
      if (bytes.empty()) return "";
      const std::size_t count = std::min(bytes.size(), kFrameBytes - line.header_bytes);
      std::copy_n(bytes.begin(), count, line.header.begin() + static_cast<std::ptrdiff_t>(line.header_bytes));
      bytes = bytes.subspan(count);
      line.header_bytes += count;
      if (line.header_bytes < kFrameBytes) return "";
      line.header_bytes = 0;
      line.frame = decode(line.header);
      if (!line.frame) return "a frame of no known form";
      if (std::string fault = begin(line); !fault.empty()) return fault;
    }
    const std::size_t count = std::min<std::uint64_t>(bytes.size(), line.frame->length - line.frame_bytes);
    fill(line, bytes.first(count));
    bytes = bytes.subspan(count);
    if (line.frame_bytes < line.frame->length) return "";
    if (line.frame->kind == Kind::kPiece) end_piece(line);
    if (is_repeated(line.frame->kind)) ++line.received;
    line.frame.reset();
    line.frame_bytes = 0;
  }
}

// Acts on a frame whose header is there.
std::string Conversation::begin(Line& line) {
  const Frame& frame = *line.frame;
  const auto end_other_half = [&](auto& transfers, const char* why) {
    const auto found = transfers.find(frame.tag);
    if (found == transfers.end()) return false;
    finish(found->second, name_of(frame.tag) + why);
    std::erase(ready_, found->second);
    transfers.erase(found);
    return true;
  };
  switch (frame.kind) {
    case Kind::kRoom:
    case Kind::kRefused:
      if (frame.kind == Kind::kRefused && end_other_half(sends_, ": the receiver has ended it")) return "";
      return take_room(frame);
    case Kind::kPiece:
      return begin_piece(line);
    case Kind::kDone: {
      const auto found = sends_.find(frame.tag);
      if (found == sends_.end()) return "";
      if (found->second->next < pieces_of(found->second->size))
        return "the end of a message that was not sent";
      finish(found->second);
      sends_.erase(found);
      return "";
    }
    case Kind::kAbandoned:
      if (end_other_half(receives_, ": the sender has ended it")) return "";
      if (!closed_.empty() || is_past(receive_channels_, frame.tag)) return "";
      abandoned_ahead_.insert(frame.tag);
      return abandoned_ahead_.size() > kMostAhead ? "too many messages that were ended" : "";
    case Kind::kAcknowledged:
      return acknowledge(line, frame.offset);
    case Kind::kBeat:
      line.echo = frame.offset;
      return "";
    case Kind::kEcho:
      line.echoed = frame.offset;
      return "";
    case Kind::kBye:
      other_left_ = true;
      return "";
  }
  return "";
}

std::string Conversation::take_room(const Frame& frame) {
  const auto found = sends_.find(frame.tag);
  if (found != sends_.end()) {
    // It comes a second time if the line that it came on was lost before this side could say so.
    if (found->second->next == 0 && std::ranges::find(ready_, found->second) == ready_.end())
      offer_room(found->second, frame.total);
    return "";
  }
  if (!closed_.empty() || is_past(send_channels_, frame.tag)) return "";
  Ahead& ahead = ahead_[frame.tag];
  ahead.room = frame.total;
  ahead.refused = ahead.refused || frame.kind == Kind::kRefused;
  return ahead_.size() > kMostAhead ? "room for too many messages that nobody sends" : "";
}

std::string Conversation::begin_piece(Line& line) {
  const Frame& frame = *line.frame;
  const auto found = receives_.find(frame.tag);
  line.into = found == receives_.end() ? nullptr : found->second;
  if (!line.into) return "";
  Transfer& transfer = *line.into;
  if (frame.total > transfer.room.size()) return "a message that is larger than the room for it";
  if (transfer.here.empty()) {
    transfer.size = frame.total;
    transfer.missing = pieces_of(frame.total);
    transfer.here.assign(transfer.missing, false);
  } else if (frame.total != transfer.size) {
    return "a message of two sizes";
  }
  if (transfer.here[frame.offset / kPieceBytes]) line.into = nullptr;
  return "";
}

void Conversation::fill(Line& line, std::span<const std::byte> bytes) {
  if (line.into && line.into->state == Transfer::State::kUnderWay) {
    const auto at = static_cast<std::ptrdiff_t>(line.frame->offset + line.frame_bytes);
    std::ranges::copy(bytes, line.into->room.begin() + at);
  }
  line.frame_bytes += bytes.size();
}

void Conversation::end_piece(Line& line) {
  const std::shared_ptr<Transfer> transfer = std::exchange(line.into, nullptr);
  if (!transfer || transfer->state != Transfer::State::kUnderWay) return;
  std::vector<bool>::reference here = transfer->here[line.frame->offset / kPieceBytes];
  if (here) return;  // it has come on another line meanwhile
  here = true;
  if (--transfer->missing > 0) return;
  finish(transfer);
  receives_.erase(transfer->tag);
  control_.push_back({.kind = Kind::kDone, .tag = transfer->tag});
}

std::string Conversation::acknowledge(Line& line, std::uint64_t count) {
  if (count < line.acknowledged || count - line.acknowledged > line.sent.size())
    return "an acknowledgement of what was not sent";
  for (; line.acknowledged < count; ++line.acknowledged) {
    const Item& item = line.sent.front();
    if (item.kind == Kind::kPiece) {
      const std::uint64_t bytes = std::min(kPieceBytes, item.total - item.offset);
      acknowledged_bytes_ += bytes;
      bytes_on_way_ -= bytes;
    }
    line.sent.pop_front();
  }
  return "";
}

void Conversation::lost(Line& line) {
  for (const Item& item : line.sent) {
    if (item.kind == Kind::kPiece) bytes_on_way_ -= std::min(kPieceBytes, item.total - item.offset);
    control_.push_back(item);
  }
  line = {};
}

}  // namespace gradweave::islands
