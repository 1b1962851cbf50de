// What collectives take between these ranks, as training has them.
#pragma once

#include <c10/core/Device.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <span>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "base/thread.h"
#include "gradweave/collective.h"
#include "gradweave/fit.h"
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
};

// Keeps as many processors busy as a training step of this process would, while it lives.
class Computing {
 public:
  Computing();
  ~Computing();
  Computing(const Computing&) = delete;
  Computing& operator=(const Computing&) = delete;

 private:
  std::atomic<bool> done_ = false;
  Thread thread_;
};

// Returns the time of a collective for each size, the slowest rank's. Collective; the group's own timeout holds for each op.
//
// Ops go in trains, since they follow each other in training: an idle token bucket (a shaped interface, a cloud's burst credit) lets
// a first part pass at the speed of the wire, and an idle connection starts slowly. Where training computes on the processors, they
// compute meanwhile: the backend's threads then wait for their turn. A train gives its mean, and trains the mean of their middle half,
// because a short op takes one of several very different times then and a plan has many of them; for the same reason the trains of all
// sizes take turns, and the first size, which decides the start-up, has half of the time. Other sizes repeat less often the
// larger they are, but at least twice, and the largest are left out where one op takes longer than its share.
std::vector<Measurement> measure(const c10::intrusive_ptr<c10d::ProcessGroup>& group, c10::Device device,
                                 const Probe& probe);

// The same, ended by a verdict of `peers`. Errors: RuntimeFailure with it.
std::vector<Measurement> measure(Peers& peers, const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                 c10::Device device, const Probe& probe);

// Returns what to fit a link's costs to: half of the time is the all-reduce's, the rest that of its halves. Collective.
// Errors: as measure().
LinkMeasurements measure_link(Peers& peers, const std::string& name,
                              const c10::intrusive_ptr<c10d::ProcessGroup>& group, c10::Device device,
                              double seconds);

}  // namespace gradweave::runtime
