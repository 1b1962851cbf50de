// Horovod: a fusion buffer that is emptied at every tick of a cycle.
//
// A. Sergeev, M. Del Balso, "Horovod: fast and easy distributed deep learning in TensorFlow", 2018;
// FuseResponses() of its controller. Every cycle_us it takes all tensors that have become ready since, in the
// order in which they did, and fuses them: a response starts with the first tensor left and takes every later
// one of its dtype that still fits into fusion_bytes; a larger tensor goes alone.
//   tick(t) = cycle * ceil(ready(t) / cycle), ready(t) from the start of the iteration          (1)
//   release of a response = tick of its tensors
// Complexity: O(tensors * responses of one tick).
// Deviations: Horovod's ticks run on from one iteration to the next, so that their phase drifts; here they
// count from the start of each iteration on the profile, which makes the order static and the same on every
// rank. Ranges and scale of what is tuned are those of its autotuner, 0 to 64 MB and 1 to 100 ms. The coordinator's negotiation is not charged. Several links (links.cc).
#include <algorithm>
#include <cmath>

#include "schemes/common.h"
#include "schemes/option_table.h"
#include "schemes/registry.h"

namespace gradweave {
namespace {

struct HorovodOptions {
  std::int64_t fusion_bytes = 67'108'864;
  double cycle_us = 1000;
  Compression compression;

  Nanoseconds cycle_ns() const { return std::llround(cycle_us * 1000); }
};

// Eq. 1.
Nanoseconds tick_after(Nanoseconds ready, Nanoseconds cycle) {
  return cycle == 0 ? ready : (ready + cycle - 1) / cycle * cycle;
}

// Fuses the tensors of one tick.
std::vector<Message> fuse(const CostModel& model, std::vector<Slice> waiting, std::int64_t fusion_bytes) {
  std::vector<Message> responses;
  while (!waiting.empty()) {
    const DType dtype = model.index().tensors[waiting.front().tensor].dtype;
    Message response;
    std::int64_t bytes = 0;
    std::vector<Slice> left;
    for (const Slice& slice : waiting) {
      const std::int64_t more = model.index().tensor_bytes(slice.tensor);
      const bool fits = response.slices.empty() || bytes + more <= fusion_bytes;
      if (fits && model.index().tensors[slice.tensor].dtype == dtype) {
        response.slices.push_back(slice);
        bytes += more;
      } else {
        left.push_back(slice);
      }
    }
    responses.push_back(std::move(response));
    waiting = std::move(left);
  }
  return responses;
}

PlanResult plan_horovod(const Workload& workload, const Cluster& cluster, const HorovodOptions& options) {
  const CostModel model(workload, cluster, options.compression);
  const std::vector<Slice> tensors = tensors_in_backward_order(model);
  const auto tick = [&](const Slice& slice) {
    return tick_after(model.index().backward_end[model.index().tensors[slice.tensor].layer],
                      options.cycle_ns());
  };
  std::vector<Message> messages;
  std::vector<Release> releases;
  for (auto first = tensors.begin(); first != tensors.end();) {
    const auto past =
        std::find_if(first, tensors.end(), [&](const Slice& slice) { return tick(slice) != tick(*first); });
    for (Message& response : fuse(model, {first, past}, options.fusion_bytes)) {
      const std::size_t layer = last_ready_layer(model, response.slices);
      releases.push_back(
          release_when_ready(model, response.slices, tick(*first) - model.index().backward_end[layer]));
      messages.push_back(std::move(response));
    }
    first = past;
  }
  return synchronous_plan(model, messages, releases);
}

}  // namespace

SchemeInfo horovod_scheme() {
  return scheme_row<HorovodOptions>(
      {.name = "horovod",
       .summary = "fusion buffer emptied once a cycle",
       .paper = "Horovod, 2018",
       .effect = Effect::kExact},
      {option(&HorovodOptions::fusion_bytes, {.name = "fusion_bytes",
                                              .unit = Unit::kBytes,
                                              .default_source = "Horovod, HOROVOD_FUSION_THRESHOLD",
                                              .minimum = 0,
                                              .maximum = 0x1p53,
                                              .meaning = "size of the fusion buffer; 0: no fusion",
                                              .tuned = TunedRange{0, 67'108'864, Scale::kLinear}}),
       option(&HorovodOptions::cycle_us, {.name = "cycle_us",
                                          .unit = Unit::kMicroseconds,
                                          .default_source = "Horovod, HOROVOD_CYCLE_TIME",
                                          .minimum = 0,
                                          .maximum = 1e9,
                                          .meaning = "time between two ticks; 0: no waiting",
                                          .tuned = TunedRange{1000, 100'000, Scale::kLinear}})},
      plan_horovod);
}

}  // namespace gradweave
