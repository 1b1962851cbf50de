// What a collective costs on a link: the only place where times of communication are computed and rounded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gradweave/cluster.h"
#include "gradweave/collective.h"
#include "gradweave/compression.h"
#include "gradweave/workload.h"

namespace gradweave {

// A block by tensor index (WorkloadIndex::tensors) rather than by name.
struct Slice {
  std::size_t tensor = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  friend bool operator==(const Slice&, const Slice&) = default;
};

// Returns how many elements the compressor sends of a gradient's blocks; 0 where it does not ask for shapes, or one of them is
// not known. The caller owes a known compressor. O(number of slices).
std::int64_t sent_elements(const Compression& compression, const WorkloadIndex& index,
                           std::span<const Slice> slices);

// A link of concurrency 1 is held for startup + work. On a fluid link the start-up passes off the link, and
// the work is what the active ops share the bandwidth over.
struct OpCost {
  Nanoseconds startup = 0;
  Nanoseconds work = 0;
  Nanoseconds total() const { return startup + work; }
};

// All that the cost of a message depends on.
struct MessageLoad {
  std::int64_t elements = 0, bytes = 0;
  std::int64_t given_elements = 0, given_bytes = 0;  // of these, of layers with `communication_us`
  Nanoseconds given = 0;                             // and what those cost, uncompressed
  // Of those whose shape is known, if the compressor asks for it; and what it sends of them.
  std::int64_t shaped_elements = 0, sent_elements = 0;
  friend MessageLoad operator+(const MessageLoad& x, const MessageLoad& y) {
    return {x.elements + y.elements,          x.bytes + y.bytes, x.given_elements + y.given_elements,
            x.given_bytes + y.given_bytes,    x.given + y.given, x.shaped_elements + y.shaped_elements,
            x.sent_elements + y.sent_elements};
  }
  // What is left of a load without a part of it.
  friend MessageLoad operator-(const MessageLoad& x, const MessageLoad& y) {
    return {x.elements - y.elements,          x.bytes - y.bytes, x.given_elements - y.given_elements,
            x.given_bytes - y.given_bytes,    x.given - y.given, x.shaped_elements - y.shaped_elements,
            x.sent_elements - y.sent_elements};
  }
};

// Costs of every op of a workload on a cluster. Pure and immutable. Owns copies of what it needs.
class CostModel {
 public:
  // `compression`: what a planner means to do with what it sends, `payload`; the default of the costs below. `outer`: an outer
  // optimizer uses the averages of parameters, whose messages then hold what these have gained (size_of_gain()).
  // Errors: InvalidInput if workload or cluster do not pass check(), or the compressor is unknown or does not
  // serve the payload. O(layers * links + tensors).
  CostModel(const Workload& workload, const Cluster& cluster, Compression compression = {},
            Payload payload = Payload::kGradient, bool outer = false);

  // Returns the cost of one fused op over `slices` on `link` (as link_at() numbers them). Of two levels, what a node's
  // workers do at once: within the node they share the message, between nodes each carries its shard, a
  // workers_per_node-th, and all of a node go over one link, as many bytes as the message has, unless each_worker.
  //   all_reduce without `communication_us`: startup + ceil(bytes * rate)
  //   layers with `communication_us` C (times relative_time R of the link, C' = ceil(C*R)):
  //     elements [b, e) of the layer's n cost floor(C'*e/n) - floor(C'*b/n), with no start-up; parts add up
  //   reduce_scatter: floor of half of start-up and of the total; all_gather: the rest. On a link whose halves
  //     were measured, for what is not given: startup + ceil(bytes * rate) of that half
  //   with a compression: half_startups/2 * startup + encode + decode + ceil(equivalent_bytes * rate), see
  //     compression.h; a given time shrinks as the bytes do. Of two levels a shard is encoded on its own
  // O(number of slices).
  OpCost cost(std::size_t link, Collective collective, std::span<const Slice> slices,
              const Compression& compression, Payload payload = Payload::kGradient) const;
  OpCost cost(std::size_t link, Collective collective, std::span<const Slice> slices) const {
    return cost(link, collective, slices, compression_, payload_);
  }

  // Shorthands for planners: the time of one all-reduce of `slices`, with the model's compression.
  Nanoseconds all_reduce(std::size_t link, std::span<const Slice> slices) const;
  Nanoseconds all_reduce(std::size_t link, Slice slice) const;
  // The same, uncompressed, for `bytes` bytes of layers without `communication_us`.
  Nanoseconds all_reduce_bytes(std::size_t link, std::int64_t bytes) const;

  // Returns what slices amount to on a link, for planners that keep running sums: loads of one dtype add up.
  // O(slices).
  MessageLoad load(std::size_t link, std::span<const Slice> slices) const;
  // Returns the cost of one all-reduce of such a load on that link, with the model's compression. O(1).
  OpCost all_reduce_of(std::size_t link, const MessageLoad& load) const;

  const WorkloadIndex& index() const { return index_; }
  const Cluster& cluster() const { return cluster_; }
  const Compression& compression() const { return compression_; }   // no name: none
  std::size_t link_count() const { return cluster_.links.size(); }  // without those inside nodes
  // Returns whether the tensor's layer has a `communication_us`, which contains the start-up.
  bool has_given_time(std::size_t tensor) const;

  // Returns the bytes that `slices` hold, uncompressed.
  std::int64_t bytes(std::span<const Slice> slices) const;

 private:
  struct Rates {
    Decimal whole, reduce_scatter, all_gather;  // ns per byte; 0 where halves were not measured
    Decimal inside, compressible;               // what `whole` adds up: see Levels
  };

  Nanoseconds startup_of(std::size_t link) const { return link_at(cluster_, link).startup_ns; }

  MessageLoad load(std::size_t link, std::span<const Slice> slices, const Compression& compression,
                   Payload payload) const;
  bool carries_gains(const Compression& compression, Payload payload) const {
    return payload == Payload::kParameter && (outer_ || !compression.name.empty());
  }
  MessageLoad carried(std::size_t link, const MessageLoad& load) const;
  OpCost uncompressed(std::size_t link, const MessageLoad& load) const;
  OpCost half(std::size_t link, Collective collective, const MessageLoad& load) const;
  OpCost compressed(std::size_t link, const MessageLoad& load, const Compression& compression,
                    Payload payload, bool halves) const;
  Nanoseconds given_share(std::size_t link, const Slice& slice) const;

  WorkloadIndex index_;
  Cluster cluster_;
  Compression compression_;
  Payload payload_;
  bool outer_;
  std::vector<Rates> rates_;                        // per link
  std::vector<std::vector<Nanoseconds>> given_ns_;  // [link][layer], -1 where the cost model holds
};

}  // namespace gradweave
