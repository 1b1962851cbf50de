// How much of Adam's second moment the whole batch's gradient has, where each rank steps by the gradient of its own part.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/control_group.h"
#include "runtime/fence.h"

namespace gradweave::runtime {

// The mean over ranks averages away the noise of their gradients, and not what these agree on. One rank can't tell the two
// apart: a gradient that changes from step to step may do so on all ranks alike. So once in a few iterations the ranks
// average a sample of their gradients:
//
//   share = sum of (mean over ranks of g)^2 / sum of mean over ranks of (g^2),  between 1 / ranks and 1,
//
// over the samples of the last thousand iterations or so, which Adam's second moment remembers too. It is 1 until the first
// has come. The same bits on all ranks. Of one rank; every rank's is called alike, on the training thread.
class MomentShare {
 public:
  // `elements`: how many each parameter has.
  MomentShare(std::shared_ptr<ControlGroup> control, int ranks, const std::vector<std::int64_t>& elements);

  double share() const;
  // Whether this iteration's gradients are a sample; then the caller owes take() of each.
  bool samples() const { return iterations_ % kEvery == 0; }
  // A step is about to take place by `gradient`: of the elements from `begin` on of `parameter`, in memory order. O(sample).
  void take(std::size_t parameter, std::int64_t begin, const at::Tensor& gradient);
  // An iteration in which ranks stepped on their own has ended. Where it was a sample: takes in the one before, for which it
  // waits. A few iterations later: begins to average the sample, which an accelerator has copied meanwhile. Errors: RuntimeFailure.
  void iteration_ended();

  // All that the next iterations depend on, for restore(). Waits for the sample that is under way. Collective.
  std::vector<double> state();
  void restore(const std::vector<double>& state);

 private:
  static constexpr std::int64_t kEvery = 8;   // iterations
  static constexpr std::int64_t kCopied = 4;  // after a sample
  // Squares, summed over the sample.
  struct Sums {
    double of_mean = 0, of_each = 0;
  };
  void begin();
  void wait();

  std::shared_ptr<ControlGroup> control_;
  int ranks_;
  std::int64_t stride_;                // between the sample's elements of a parameter
  std::vector<std::int64_t> offsets_;  // of each parameter in the sample
  std::int64_t length_ = 0;
  at::Tensor sample_;  // where the gradients are
  at::Tensor copy_;    // of the last one, in the host's memory
  Fence copied_;
  bool taken_ = false;  // and not begun to be averaged
  std::int64_t iterations_ = 0;
  Sums sums_;
  std::function<ControlGroup::Numbers()> under_way_;
  Sums next_;  // of the last sample that has come: due when the next one begins
};

}  // namespace gradweave::runtime
