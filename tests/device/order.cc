#include "device/order.h"

#include <algorithm>
#include <utility>

namespace gradweave::device {
namespace {

std::string name_of(Stream stream) {
  return stream == kHost ? "the host" : "stream " + std::to_string(stream);
}

}  // namespace

std::uint64_t VectorClock::operator[](Stream stream) const {
  const auto found = ops_.find(stream);
  return found == ops_.end() ? 0 : found->second;
}

void VectorClock::join(const VectorClock& other) {
  for (const auto& [stream, ops] : other.ops_) {
    std::uint64_t& mine = ops_[stream];
    mine = std::max(mine, ops);
  }
}

VectorClock& Order::clock_of(Stream stream) {
  VectorClock& clock = clocks_[stream];
  if (stream != kHost) clock.join(clocks_[kHost]);
  return clock;
}

VectorClock Order::moment(Stream stream) const {
  const auto found = clocks_.find(stream);
  return found == clocks_.end() ? VectorClock() : found->second;
}

void Order::wait(Stream stream, const VectorClock& moment) { clocks_[stream].join(moment); }

void Order::launch(Stream stream, const Op& op) {
  VectorClock& moment = clock_of(stream);
  const Access now{.at = moment.tick(stream), .stream = stream, .op = op.name};
  for (const Bytes& bytes : op.writes) access(now, moment, bytes, true);
  for (const Bytes& bytes : op.reads) access(now, moment, bytes, false);
}

void Order::allocate(Bytes bytes, Stream stream, std::string name) {
  const Access before{.at = clock_of(stream)[stream], .stream = stream, .op = "what used the memory before"};
  Allocation& made = allocations_[bytes.begin];
  made = {.bytes = bytes, .stream = stream, .name = std::move(name)};
  made.pieces[bytes.begin] = {.end = bytes.end, .write = before};
}

void Order::used_on(std::uintptr_t begin, Stream stream) {
  const auto found = allocations_.find(begin);
  if (found != allocations_.end()) found->second.used_on.insert(stream);
}

void Order::free(std::uintptr_t begin) {
  const auto found = allocations_.find(begin);
  if (found == allocations_.end()) return;
  const Allocation& freed = found->second;
  VectorClock moment = clock_of(freed.stream);
  for (const Stream stream : freed.used_on) moment.join(clock_of(stream));
  const Access now{.stream = freed.stream, .op = "the next use of the memory"};
  const auto check = [&](const Access& before, const char* did) {
    if (moment[before.stream] >= before.at) return;
    report(now, "may follow its being freed", before, did, freed);
  };
  for (const auto& [at, piece] : freed.pieces) {
    check(piece.write, "wrote");
    for (const auto& [stream, read] : piece.reads) check(read, "read");
  }
  allocations_.erase(found);
}

std::vector<std::string> Order::take_reports() {
  known_.clear();
  return std::exchange(reports_, {});
}

// Calls each(allocation, piece) for the pieces that `bytes` consist of.
template <typename Visit>
void Order::visit(Bytes bytes, const Visit& each) {
  auto at = allocations_.upper_bound(bytes.begin);
  if (at == allocations_.begin()) return;
  Allocation& allocation = std::prev(at)->second;
  bytes.end = std::min(bytes.end, allocation.bytes.end);
  if (bytes.begin >= bytes.end) return;
  split(allocation, bytes.begin);
  split(allocation, bytes.end);
  for (auto piece = allocation.pieces.find(bytes.begin);
       piece != allocation.pieces.end() && piece->first < bytes.end; ++piece)
    each(allocation, piece->second);
}

// A piece begins at `at`, unless the allocation ends there.
void Order::split(Allocation& allocation, std::uintptr_t at) {
  if (at == allocation.bytes.end) return;
  auto& [begin, piece] = *std::prev(allocation.pieces.upper_bound(at));
  if (begin == at) return;
  allocation.pieces.emplace(at, piece);
  piece.end = at;
}

void Order::access(const Access& now, const VectorClock& moment, Bytes bytes, bool writes) {
  visit(bytes, [&](const Allocation& allocation, Piece& piece) {
    const auto is_before = [&](const Access& other) { return moment[other.stream] >= other.at; };
    if (!is_before(piece.write)) report(now, writes ? "writes" : "reads", piece.write, "wrote", allocation);
    if (!writes) {
      // An op that writes bytes and reads them has them written.
      if (piece.write.stream != now.stream || piece.write.at != now.at) piece.reads[now.stream] = now;
      return;
    }
    for (const auto& [stream, read] : piece.reads)
      if (!is_before(read)) report(now, "writes", read, "read", allocation);
    piece.write = now;
    piece.reads.clear();
  });
}

void Order::report(const Access& now, const char* does, const Access& before, const char* did,
                   const Allocation& to) {
  std::string text = now.op + " on " + name_of(now.stream) + ' ' + does + " and is not ordered after " +
                     before.op + " on " + name_of(before.stream) + ", which " + did + ": " + to.name +
                     " of " + std::to_string(to.bytes.end - to.bytes.begin) + " bytes, allocated on " +
                     name_of(to.stream);
  if (known_.insert(text).second) reports_.push_back(std::move(text));
}

}  // namespace gradweave::device
