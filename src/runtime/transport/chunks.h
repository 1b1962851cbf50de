// How a message goes over send and receive: in chunks, each under a tag of its own, since sends that are reordered under
// one tag corrupt in silence.
//
// Gloo starts a send when the peer has announced its receive, and an announcement queues behind whatever this rank has
// sent before. Receives are therefore posted before the first send, and as many as memory allows; otherwise two ranks
// send in turns: 1.7 times the time (bench/ring.py).
#pragma once

#include <algorithm>
#include <vector>

#include "runtime/transport/transport.h"

namespace gradweave::runtime {

inline constexpr std::int64_t kChunkBytes = 512 * 1024;
inline constexpr int kTagsPerOp = 1 << 16;
inline constexpr std::size_t kSequences = 1 << 14;

struct Chunk {
  int step;
  std::int64_t begin, end;  // elements of the message
  int tag;
};

// Returns part `part` of call.flat in chunks. Tags differ by sequence number, step (below call.world()) and chunk.
inline std::vector<Chunk> chunks_of(const Call& call, int part, int step) {
  const std::int64_t length = std::max<std::int64_t>(1, kChunkBytes / call.flat.element_size());
  int tag = static_cast<int>(call.sequence % kSequences) * kTagsPerOp + step * (kTagsPerOp / call.world());
  std::vector<Chunk> chunks;
  for (std::int64_t b = call.edge(part); b < call.edge(part + 1); b += length) {
    chunks.push_back({step, b, std::min(b + length, call.edge(part + 1)), tag++});
  }
  return chunks;
}

}  // namespace gradweave::runtime
