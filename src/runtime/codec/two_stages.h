// The exchange of messages of groups (codec/groups.h): every rank gets the sum of what ranks have sent.
//
//   P = world size, r = rank; a message of n elements has G = ceil(n / 256) groups.
//   P = 2:  all_gather of the messages; who reads them adds them up. P = 1: nothing.
//   P > 2:  shard p is groups [p W, min((p + 1) W, G)), W = ceil(G / P); in the wire's buffers each has room for W.
//     1. an exchange: each rank gets every rank's groups of its own shard
//     2. it adds what the encoding before has dropped and those groups, decoded, in the order of ranks; encodes the
//        sum; keeps what that drops
//     3. all_gather of the shards
// Bytes on the wire a rank: (P-1)/P of the encoded message for 1 and for 3 each; padding is at most P - 1 groups.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "codec/groups.h"
#include "runtime/transport/transport.h"

namespace gradweave::runtime {

// A message's form on the wire among `world` ranks.
struct GroupLayout {
  codec::Format format = codec::Format::kInt8;
  std::int64_t count = 0;  // elements
  int world = 1;

  bool two_stages() const { return world > 2; }
  std::int64_t shard_groups() const;
  // Bytes of the buffers for what this rank sends, and for what arrives.
  std::int64_t sent_bytes() const;
  std::int64_t arrived_bytes() const;
  // Elements of a rank's shard, in two stages.
  std::int64_t shard_begin(int rank) const;
  std::int64_t shard_end(int rank) const { return shard_begin(rank + 1); }
};

// A message under way. All tensors are contiguous, of one dimension, on one device.
struct GroupMessage {
  GroupLayout layout;
  at::Tensor sent;     // bytes: this rank's message, encoded
  at::Tensor arrived;  // bytes: in two stages the sum, encoded; with two ranks the message of each
  // In the processor's memory: where the encoded messages arrive whose sum is the result; and this rank's message, one of them
  // if that is possible.
  std::vector<const std::uint8_t*> sources;
  const std::uint8_t* own = nullptr;
  // float32, of this rank's shard: what the second encoding has dropped. Undefined in one stage.
  at::Tensor rest;
  std::uint64_t key = 0;  // of the second encoding's random numbers

  GroupMessage(const GroupLayout& layout, int rank, at::Tensor rest, c10::Device device = c10::kCPU);

  // Adds up what the sources decode to, in their order.
  at::Tensor sum() const;
};

// Starts the exchange. `call` gives group, sequence and timeout; its `flat` is not used. The message outlives it.
std::unique_ptr<Pending> exchange(const Call& call, const GroupMessage& message);

}  // namespace gradweave::runtime
