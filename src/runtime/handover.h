// The gradient that is handed over, from the caller's `.grad` to messages.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <unordered_set>
#include <utility>
#include <vector>

#include "run/host.h"
#include "runtime/error_feedback.h"
#include "runtime/loss_scale.h"
#include "runtime/parameters.h"
#include "runtime/versions.h"

namespace gradweave::runtime {

class Handover {
 public:
  // `parameters` and `versions` must outlive it. `check`: looks for gradients that are not finite.
  Handover(const Parameters& parameters, Versions& versions, bool check)
      : parameters_(parameters), versions_(versions), check_(check) {}

  LossScale& loss_scale() { return loss_scale_; }
  // Returns whether gradients have a loss scale, which take() takes out. Errors: InvalidInput.
  bool begin_backward();
  // A tensor of this backward whose gradient was not finite, or -1. With a scaler that is the scaler's affair.
  std::int32_t not_finite() const { return not_finite_; }

  // The gradient of `tensor` is the one that is handed over now. Errors: InvalidInput.
  void take(std::int32_t tensor, run::Gradient kind);
  // All were taken, and nothing flows backward any more: what the caller reads is what was handed over.
  void end_backward();
  // Adds the block's residual to its part.
  void compensate(std::int32_t block, ErrorFeedback& feedback, double coefficient, bool sent);
  // Returns a block of it, flat; undefined: zeros.
  at::Tensor part(std::int32_t block) const;
  // The same without a residual: what a local step is made by.
  at::Tensor own_part(std::int32_t block) const;
  // Returns the whole gradient if it may be a message itself; else undefined.
  at::Tensor lendable(std::int32_t block) const;
  // Forgets it.
  void let_go();

  // On: copies of this rank's own gradients are kept, for take_local().
  void keep_local(bool on) { local_.kept = on; }
  // Returns, by parameter, what the last backward computed here, flat; undefined where it computed nothing.
  std::vector<at::Tensor> take_local() { return std::exchange(local_.copies, {}); }

 private:
  // This rank's own gradients.
  struct Local {
    bool kept = false;
    std::vector<at::Tensor> copies;  // by parameter
  };

  // Gives the gradient that is handed over memory of its own, if it has that of one that was.
  void separate();
  // Takes the loss scale out of the gradient that is handed over, and of the caller's, now or at the backward's end.
  void unscale(run::Gradient kind);

  // Without its loss scale.
  struct Unscaled {
    std::int32_t tensor;
    run::Gradient kind;
    at::Tensor flat;
  };

  const Parameters& parameters_;
  Versions& versions_;
  bool check_;
  LossScale loss_scale_;
  std::int32_t tensor_ = -1, compensated_ = -1, not_finite_ = -1;
  at::Tensor gradient_;                     // flat; undefined: zeros
  at::Tensor sum_;                          // of block `compensated_` and its residual
  std::unordered_set<const void*> places_;  // in this backward, of gradients whose memory others have too
  std::vector<Unscaled> unscaled_;          // of this backward, whose memory others have too
  Local local_;
};

}  // namespace gradweave::runtime
