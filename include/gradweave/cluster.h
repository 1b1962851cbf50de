// The machines: number of workers and the links between them, each with a linear cost model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gradweave/decimal.h"

namespace gradweave {

// How a collective's start-up cost grows with the number of workers P.
enum class StartupGrowth : std::uint8_t {
  kLinear,  // 2(P-1): ring
  kLog,     // log2 P: tree
  kConstant,
};

// What one collective of n bytes costs: startup + ceil(n * rate). n counts the whole message, of which a
// half of an all-reduce moves one half.
struct Line {
  Nanoseconds startup_ns = 0;
  Decimal us_per_byte;

  friend bool operator==(const Line&, const Line&) = default;
};

// The halves of an all-reduce, where they were measured on their own.
struct Halves {
  Line reduce_scatter, all_gather;

  friend bool operator==(const Halves&, const Halves&) = default;
};

// The messages that a link's line rests on; beyond them it is extrapolated.
struct MeasuredBytes {
  std::int64_t smallest = 0, largest = 0;

  friend bool operator==(const MeasuredBytes&, const MeasuredBytes&) = default;
};

// Of a link of flattened(): what it adds up. An op goes through the node's own link uncompressed; between nodes each
// of the node's workers carries its shard.
struct Levels {
  Line inside, between;
  std::int64_t shards = 1;
  friend bool operator==(const Levels&, const Levels&) = default;
};

// A channel that ops are issued on. One all-reduce of n bytes costs startup + ceil(n * rate).
struct Link {
  std::string name;
  Nanoseconds startup_ns = 0;
  Decimal us_per_byte;             // exact
  std::int32_t concurrency = 1;    // ops outstanding at once; 0: unlimited; above 1 they share the bandwidth
  Decimal relative_time = {1, 0};  // multiplies times that a workload gives as `communication_us`
  std::optional<Halves> halves =
      std::nullopt;  // without: reduce-scatter and all-gather take half of an all-reduce each
  std::optional<MeasuredBytes> measured = std::nullopt;  // where that is known; not part of the hash
  // Between nodes of several workers: each of them has one to itself, on which its shard goes alone. If not, they share
  // it, and the shards of a node go at once.
  bool each_worker = false;
  std::optional<Levels> levels = std::nullopt;  // set by flattened() alone

  friend bool operator==(const Link&, const Link&) = default;
};

// Measured speed of one compressor, for its cost. See compression.h.
struct CompressorRate {
  Decimal encode_us_per_byte;  // of uncompressed input
  Decimal decode_us_per_byte;  // of uncompressed output

  friend bool operator==(const CompressorRate&, const CompressorRate&) = default;
};

// The links within one node: what a collective among its workers costs.
struct Inside {
  StartupGrowth startup_growth = StartupGrowth::kLinear;
  std::vector<Link> links;  // at least one; the first is what planners reckon with

  friend bool operator==(const Inside&, const Inside&) = default;
};

// One level, or two: nodes of several workers with links of their own, `inside`. Then the cost of `links` is that of a
// collective of as many bytes among one worker of each node.
struct Cluster {
  std::int64_t workers = 1;           // in all
  std::int64_t workers_per_node = 1;  // without `inside` it says nothing: see not_modelled()
  StartupGrowth startup_growth = StartupGrowth::kLinear;
  std::string description, source;                         // free text, for people
  std::vector<Link> links;                                 // at least one; the first is the default
  std::optional<Inside> inside;                            // nothing: one level
  std::map<std::string, CompressorRate> compressor_rates;  // optional; by compressor name

  friend bool operator==(const Cluster&, const Cluster&) = default;
};

// Returns whether nodes have several workers with links of their own.
bool has_levels(const Cluster& cluster);

// Returns how many take part in a collective on one of `links`: the nodes of two levels, all workers of one.
std::int64_t participants(const Cluster& cluster);

// Returns the index of the one of `links` called `name`, or nothing.
std::optional<std::size_t> find_link(const Cluster& cluster, std::string_view name);

// Links of both levels are numbered through: first `links`, then those inside. Return the link of a number, and the
// number of the link called `name` within a node, or nothing.
const Link& link_at(const Cluster& cluster, std::size_t number);
std::optional<std::size_t> find_inside_link(const Cluster& cluster, std::string_view name);

// Throws InvalidInput naming the JSON key of the first fault: no link, duplicate or empty names, a number out
// of its range, workers that don't fill whole nodes.
void check(const Cluster& cluster);

// Returns a sentence on what of the cluster plans and predictions leave out, empty if they leave out nothing.
std::string not_modelled(const Cluster& cluster);

// Returns a hash (32 hex digits) of all that influences planning; not the description.
std::string hash_of(const Cluster& cluster);

// Returns the cluster with `workers` workers: start-up scales by startup_growth, us_per_byte as 2(P-1)/P, and
// relative_time as us_per_byte, since a given communication time is mostly bandwidth. Of two levels the number of nodes
// changes, P being that number, and what is inside a node stays.
// Errors: InvalidInput if workers < 1 or no whole nodes, or if it differs while P is 1 (nothing to scale from).
Cluster scaled_to(const Cluster& cluster, std::int64_t workers);

// Returns the cluster with as many nodes of `workers_per_node` workers: the links inside scale as those of scaled_to().
// Errors: InvalidInput if it has one level, or for less than 1 or more than 10,000,000 workers in all.
Cluster with_workers_per_node(const Cluster& cluster, std::int64_t workers_per_node);

// Returns the cluster of one level whose workers are the nodes, and whose links cost what an op takes on both levels,
// one after the other: reduce-scatter on the first link inside, all-reduce of the shards, all-gather inside. What
// planners plan on. The caller owes a cluster of two levels that passes check().
Cluster flattened(const Cluster& cluster);

// Returns the cluster whose first link moves an all-reduce's bytes at `gigabits` Gb/s on the wire (a ring
// moves 2(P-1)/P bytes for each byte); the others, and relative_time, change in proportion. 15 significant
// digits. Links inside nodes stay. Errors: InvalidInput if participants() is 1 or the first link's us_per_byte is 0.
Cluster with_bandwidth(const Cluster& cluster, double gigabits);

}  // namespace gradweave
