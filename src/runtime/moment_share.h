// How much of Adam's second moment the whole batch's gradient has, where each rank steps by the gradient of its own part.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/gradient_noise.h"
#include "runtime/control_group.h"
#include "runtime/gradient_sample.h"

namespace gradweave::runtime {

// Once in a few iterations the ranks average a sample of their gradients (gradient_noise.h). The share is 1 until the first has come,
// and the same bits on all ranks. Of one rank; every rank's is called alike, on the training thread.
class MomentShare {
 public:
  // `elements`: how many each parameter has.
  MomentShare(std::shared_ptr<ControlGroup> control, int ranks, const std::vector<std::int64_t>& elements);

  double share() const { return noise_.share(ranks_); }
  // Whether this iteration's gradients are a sample; then the caller owes take() of each.
  bool samples() const { return iterations_ % kEvery == 0; }
  // A step is about to take place by `gradient`, as GradientSample::take().
  void take(std::size_t parameter, std::int64_t begin, const at::Tensor& gradient) {
    sample_.take(parameter, begin, gradient);
  }
  // An iteration in which ranks stepped on their own has ended. Where it was a sample: takes in the one before, for which it
  // waits. A few iterations later: begins to average the sample, which an accelerator has copied meanwhile. Errors: RuntimeFailure.
  void iteration_ended();

  // All that the next iterations depend on, for restore(), also of another number of ranks. Waits for the sample that is under way.
  // Collective.
  std::vector<double> state();
  void restore(const std::vector<double>& state);

 private:
  static constexpr std::int64_t kEvery = 8;   // iterations
  static constexpr std::int64_t kCopied = 4;  // after a sample
  void begin();
  void wait();

  std::shared_ptr<ControlGroup> control_;
  int ranks_;
  GradientSample sample_;
  bool taken_ = false;  // and not begun to be averaged
  std::int64_t iterations_ = 0;
  GradientNoise noise_;
  std::function<ControlGroup::Numbers()> under_way_;
  GradientNoise next_;  // of the last sample that has come: due when the next one begins
};

}  // namespace gradweave::runtime
