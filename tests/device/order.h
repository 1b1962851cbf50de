// Which work of an accelerator is ordered after which: a vector clock for each stream and for the host, merged where one waits
// for another (Lamport 1978, Mattern 1989; torch.cuda._sanitizer does the same for CUDA). No device, no torch, no thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace gradweave::device {

using Stream = std::int64_t;
inline constexpr Stream kHost = -1;  // its accesses to memory are ops too

// A moment: how many ops of each stream lie before it.
class VectorClock {
 public:
  std::uint64_t operator[](Stream stream) const;
  std::uint64_t tick(Stream stream) { return ++ops_[stream]; }
  void join(const VectorClock& other);

 private:
  std::map<Stream, std::uint64_t> ops_;
};

// [begin, end) of memory.
struct Bytes {
  std::uintptr_t begin = 0, end = 0;
};

// What an op does to memory. Bytes that it reads and writes count as written.
struct Op {
  std::string name;
  std::span<const Bytes> reads, writes;
};

// Two accesses to the same bytes conflict if one of them writes. They are in order if the later op's moment has the earlier
// one before it. What is reported: an access that is not ordered after an earlier one that it conflicts with; and memory that
// is freed while a stream may still use it. As allocators of accelerators do, freed memory is anyone's who allocates it on the
// same stream: so other streams' accesses must be before that stream's moment, or one that used_on() named; and new memory
// may have been used by what the stream did before.
//
// Ops are told in the order in which the host launches them. Accesses outside of allocations are nobody's.
// O(streams * pieces of the accessed bytes) an op.
class Order {
 public:
  // `op` is launched on `stream`, after all that the host has waited for.
  void launch(Stream stream, const Op& op);
  // Returns the moment of `stream`: what is launched on it so far.
  VectorClock moment(Stream stream) const;
  // What is launched on `stream` (or done by kHost) from now on comes after `moment`.
  void wait(Stream stream, const VectorClock& moment);

  // `bytes` lie outside of all that is allocated. `name` tells the allocation in reports.
  void allocate(Bytes bytes, Stream stream, std::string name);
  // The allocation that begins at `begin` waits, when it is freed, for what `stream` has been given until then.
  void used_on(std::uintptr_t begin, Stream stream);
  void free(std::uintptr_t begin);

  // Returns what was reported since the last call, each once.
  std::vector<std::string> take_reports();

 private:
  struct Access {
    std::uint64_t at = 0;  // number among its stream's
    Stream stream = kHost;
    std::string op;
  };
  // Bytes with one history.
  struct Piece {
    std::uintptr_t end = 0;
    Access write;
    std::map<Stream, Access> reads;  // since then, the last of each stream
  };
  struct Allocation {
    Bytes bytes;
    Stream stream = kHost;
    std::string name;
    std::set<Stream> used_on;
    std::map<std::uintptr_t, Piece> pieces;  // by their begin; they cover it
  };

  template <typename Visit>
  void visit(Bytes bytes, const Visit& each);
  static void split(Allocation& allocation, std::uintptr_t at);
  VectorClock& clock_of(Stream stream);
  void access(const Access& now, const VectorClock& moment, Bytes bytes, bool writes);
  void report(const Access& now, const char* does, const Access& before, const char* did,
              const Allocation& to);

  std::map<Stream, VectorClock> clocks_;
  std::map<std::uintptr_t, Allocation> allocations_;
  std::set<std::string> known_;
  std::vector<std::string> reports_;
};

}  // namespace gradweave::device
