// Gradients and parameters on their way into messages.
#pragma once

#include <cstdint>
#include <vector>

#include "run/archive.h"
#include "run/context.h"
#include "run/window.h"

namespace gradweave::run {

class Outbox {
 public:
  Outbox(const Context& context, const Window& window);

  // The host has taken the gradient of `tensor`, or none: its blocks go where the plan sends them.
  void hand_over(std::int32_t tensor, Gradient gradient) REQUIRES(compute_thread);
  // By tensor: whether its last hand-over sent something of earlier gradients: which were not sent whole, or which the caller
  // has kept and the plan applies elsewhere than at an iteration's end.
  const std::vector<std::uint8_t>& owed() const REQUIRES(compute_thread) { return owed_; }
  // Copies the parameters that are sent as they are after a local step, which has just been made.
  void read_parameters(const RunApply& apply) REQUIRES(compute_thread);

  // This iteration is left out: what its gradient has left in residuals would stay for ever.
  void leave_out() REQUIRES(compute_thread);
  // Of an iteration that was opened: leaves out the steps of messages whose earlier steps were, before these were there.
  void leave_out_later_steps(std::int64_t iteration) REQUIRES(compute_thread);

  // Which tensors had a gradient here.
  void archive_given(Archive& archive) REQUIRES(compute_thread) { archive(given_); }

 private:
  void hand_over_block(std::int32_t block, Gradient gradient) REQUIRES(compute_thread);
  double residual_coefficient() const REQUIRES(compute_thread);

  const Context& context_;
  const Window& window_;
  std::vector<const Execution*> completed_ GUARDED_BY(compute_thread);  // scratch of one hand-over
  // By tensor; `given_`: some iteration here gave a gradient, of which a codec may keep something.
  std::vector<std::uint8_t> owed_ GUARDED_BY(compute_thread), given_ GUARDED_BY(compute_thread);
};

}  // namespace gradweave::run
