// The cost model of links from measurements of their collectives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "gradweave/cluster.h"
#include "gradweave/collective.h"

namespace gradweave {

// One collective on a whole message of `bytes` bytes took `us` microseconds.
struct Measurement {
  std::int64_t bytes = 0;
  double us = 0;

  friend bool operator==(const Measurement&, const Measurement&) = default;
};

// time = startup_us + bytes * us_per_byte.
struct LinkFit {
  double startup_us = 0;
  double us_per_byte = 0;
  double residual = 0;           // root mean square of the relative errors
  double worst = 0;              // the largest relative error, with its sign: (fitted - measured) / measured
  std::int64_t worst_bytes = 0;  // and where it is
};

// Returns the line, neither term negative, that minimises a sum over the *relative* errors: absolute ones
// would let the largest messages alone decide, and give the start-up their noise. Errors count squared up to
// 5% and linearly beyond (P. Huber, Robust Estimation of a Location Parameter, 1964): whatever disturbs a
// measurement makes it longer, most of all a short one, and must not turn the line.
//   minimise  sum_i h((s + r n_i - t_i) / t_i),  s >= 0, r >= 0
//   h(e) = e^2 if |e| <= k, else 2 k |e| - k^2;  k = 0.05
// Both terms are rounded to 9 significant digits, so that the line survives a file unchanged.
// Errors: InvalidInput if a size is negative, a time is not positive and finite, or fewer than two sizes
// differ. Complexity: 10,000 passes over the measurements; 8 of them take a millisecond.
LinkFit fit_link(std::span<const Measurement> measurements);

// What was measured on one link: all-reduces, and its halves or neither of them.
struct LinkMeasurements {
  std::string name;
  std::int32_t concurrency = 1;
  std::vector<Measurement> all_reduce, reduce_scatter, all_gather;

  friend bool operator==(const LinkMeasurements&, const LinkMeasurements&) = default;
};

// Returns the burst that a link sends after a pause from its token bucket (a shaped interface, a cloud's burst credit), in
// microseconds of sending, or 0 where the times don't show one. `rested`: of messages, each sent after a pause. `following`: of
// equal messages, each sent after others that have taken what was saved up. The burst is the difference of the medians, so at
// most what the pause or a message takes. It counts where it is a tenth of a message or more, and three in five of
// the rested messages were faster than three in four of the others. The caller owes one time or more of each. O(n log n).
double burst_of(std::vector<double> rested, std::vector<double> following);

// Returns what the messages would take on a link that never saves up: the whole start-up, and then all bytes at the usual rate.
// While a message starts up the token bucket fills, so that in a train a part of the next one, at most `burst_us`, passes at once.
// The caller owes messages in trains, in order of size, the first so short that it takes only start-up, the last so
// long that start-up is a small part of it. O(n).
LinkMeasurements without_burst(LinkMeasurements measured, double burst_us);

// What was measured within one node, among its workers.
struct InsideMeasurements {
  StartupGrowth startup_growth = StartupGrowth::kLinear;
  std::vector<LinkMeasurements> links;

  friend bool operator==(const InsideMeasurements&, const InsideMeasurements&) = default;
};

// What was measured on the links between `workers` workers, or with `inside` among one worker of each node; the rest is
// as in Cluster.
struct ClusterMeasurements {
  std::int64_t workers = 1;
  std::int64_t workers_per_node = 1;
  StartupGrowth startup_growth = StartupGrowth::kLinear;
  std::string description, source;
  std::vector<LinkMeasurements> links;
  std::optional<InsideMeasurements> inside;

  friend bool operator==(const ClusterMeasurements&, const ClusterMeasurements&) = default;
};

// The line of one collective on one link, and what it rests on.
struct FittedLine {
  std::string link;
  Collective collective = Collective::kAllReduce;
  LinkFit fit;
  std::size_t measurements = 0;
  std::int64_t smallest = 0, largest = 0;  // bytes that were measured; beyond them the line is extrapolated
  std::vector<std::string> doubts;         // sentences with a remedy: what these measurements do not show
};

struct ClusterFit {
  Cluster cluster;
  std::vector<FittedLine> lines;  // of each link its all-reduce first, then its halves; links inside last
};

// Returns the cluster whose links' lines are fit_link() of their measurements. A doubt is raised where
//   the start-up is less than half of the smallest message's time: it is extrapolated to 0 bytes;
//   the bytes take less than half of the largest message's time: the rate drowns in the start-up;
//   the residual exceeds 10 %: no one line is near the measurements.
// Errors: as fit_link() and check(Cluster), with the key; one half measured without the other.
ClusterFit fit_cluster(const ClusterMeasurements& measured);

}  // namespace gradweave
