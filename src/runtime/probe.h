// What collectives take between these ranks, as training has them.
#pragma once

#include <c10/core/Device.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "base/thread.h"
#include "gradweave/collective.h"
#include "gradweave/fit.h"
#include "runtime/control_group.h"
#include "runtime/group_channel.h"
#include "runtime/peers.h"

namespace gradweave::runtime {

inline constexpr std::array<std::int64_t, 8> kProbeBytes{1 << 13, 1 << 16, 1 << 18, 1 << 19,
                                                         1 << 20, 1 << 21, 1 << 22, 1 << 23};

struct Probe {
  Collective collective = Collective::kAllReduce;
  std::vector<std::int64_t> bytes{kProbeBytes.begin(), kProbeBytes.end()};
  int repeats = 1000;                      // of a size, at most
  double seconds = 4;                      // in all, roughly
  double startup_us = 0, us_per_byte = 0;  // what an all-reduce takes at least: of an emulated link
  bool beside_compute = true;              // which takes the processors, if the messages are in their memory
  bool burst = false;                      // whether it is measured
  std::shared_ptr<std::atomic<std::int64_t>> steps;  // counts collectives that have ended; may be null
};

// Keeps as many processors busy as a training step of this process would, while it lives.
class Computing {
 public:
  Computing();
  ~Computing();
  Computing(const Computing&) = delete;
  Computing& operator=(const Computing&) = delete;

  // Returns how many equal pieces of work have been done.
  std::int64_t pieces() const { return pieces_; }

 private:
  std::atomic<bool> done_ = false;
  std::atomic<std::int64_t> pieces_ = 0;
  Thread thread_;
};

// What measure() finds.
struct Found {
  std::vector<Measurement> times;  // of a collective for each size, the slowest rank's
  double contention = 1;  // of all-reduces: how many times longer this rank computes beside large ones; >= 1
  double burst_us = 0;    // burst_of(), the smallest of all ranks'
};

// Collective; the group's own timeout holds for each op.
//
// Ops go in trains, since they follow each other in training: an idle token bucket (a shaped interface, a cloud's burst credit) lets
// a first part pass at the speed of the wire, and an idle connection starts slowly. Where training computes on the processors, they
// compute meanwhile: the backend's threads then wait for their turn. A train gives its mean, and trains the mean of their middle half,
// because a short op takes one of several very different times then and a plan has many of them; for the same reason the trains of all
// sizes take turns. Each size has the same time: it repeats less often the larger it is, but at least twice, and the largest are left
// out where one op takes longer than its share. The burst is measured while nothing computes, which scatters less: by messages of the
// first size that takes 10 ms, after nine pauses of 20 ms, fewer in less than 1.5 s, and not after pauses. Mostly that takes less than
// a second; where a message takes more than 100 ms, it isn't measured.
Found measure(const c10::intrusive_ptr<c10d::ProcessGroup>& group, c10::Device device, const Probe& probe);

struct LinkFound {
  LinkMeasurements link;
  double contention = 1, burst_us = 0;  // as of Found
};

// Returns what to fit a link's costs to, by measure() of the all-reduce, in half of the time, and of its halves; collective
// and sizes are not the probe's. `peers`: a verdict of theirs ends it. Collective. Errors: RuntimeFailure with the verdict.
LinkFound measure_link(const std::string& name, const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                       c10::Device device, const Probe& probe, Peers* peers = nullptr);

// Returns a cluster of `workers` without links yet, measured by this torch.
ClusterMeasurements nothing_measured(int workers, const std::string& description);

struct ClusterFound {
  Cluster cluster;
  double contention = 1;  // as of Found, of the link and the rank where it is largest
  Nanoseconds burst = 0;  // as of Found, of the link where it is smallest; the cluster's costs are without it
};

// Returns the cluster of a job of `workers` ranks that train alike: what each of its links costs, measured where that isn't
// given, for so many seconds each, with messages on `device`; `gains`: or in the processor's memory all the same, as averages of
// gains have them (LinkSpec::control). An emulated link costs what it is set to; that of a job of one rank 1 us. Where links have
// levels, of these: between nodes all shards go at once, as in training, so that each has a link to itself. Where several such
// jobs have one plan, `planners` are all of them, and each cost is that of the job where it is largest. Collective.
// Errors: as measure_link().
ClusterFound measure_cluster(const std::vector<LinkSpec>& links, int workers, c10::Device device, bool gains,
                             double seconds, Peers& peers, const ControlGroup& planners);

}  // namespace gradweave::runtime
