// What was not sent of gradients: the residuals of plans that drop blocks and of the links' codecs, and what becomes of
// them when a plan makes way for another, which has other blocks.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "run/archive.h"
#include "run/execution.h"
#include "runtime/coder.h"
#include "runtime/parameters.h"
#include "runtime/state.h"

namespace gradweave::runtime {

// Blocks are those of the plan in force. Residuals are in units of this rank's gradient.
class ErrorFeedback {
 public:
  // `parameters` must outlive it.
  ErrorFeedback(const Parameters& parameters, int world_size);

  // The plan in force goes: its residuals stay for the next.
  void leave_plan() { carried_ = by_parameter(); }
  // A plan comes into force. `sends`: its messages are sent, so that codecs may take residuals along; else they go into the
  // block's next gradient.
  void install(bool sends);
  // Of the link's compressed messages.
  const std::shared_ptr<Coder>& coder(std::size_t link) const { return coders_[link]; }

  void begin_backward() { before_ = residuals_; }
  bool has(std::int32_t block) const { return residuals_[static_cast<std::size_t>(block)].defined(); }
  // Whether a codec began with a residual of the block's.
  bool codec_began_with(std::int32_t block) const {
    return began_with_[static_cast<std::size_t>(block)] != 0;
  }
  // Returns `part`, a block's gradient, flat, or undefined for zeros, plus coefficient * its residual. Unless it is
  // `sent`, that is the residual from now on.
  at::Tensor compensate(std::int32_t block, const at::Tensor& part, double coefficient, bool sent);
  // Residuals of gradients are again what they were before this backward.
  void restore() { residuals_ = before_; }
  // Nothing of this message will be applied, whether its op has been run or not: codecs keep no residual of it either.
  void leave_out(const run::Execution& execution);
  // No message is under way, and those to come may have the names of some before.
  void restart() const;

  // Returns all residuals, by parameter, flat; undefined where there is none.
  std::vector<at::Tensor> by_parameter() const;
  // Before the first plan: adds `share` * `values` to what a parameter brings along.
  void carry(std::size_t parameter, const at::Tensor& values, double share);

  void archive(run::Archive& numbers, StateTensors& tensors);
  // What codec_began_with() says: without it a checkpoint's residuals count as what codecs began with.
  void archive_begun(run::Archive& numbers) { numbers(began_with_); }

 private:
  BlockShape matrix_of(std::size_t block) const;
  void hand_on(bool sends);
  // Calls `visit` with each block that a codec keeps a residual of, and that.
  void visit_codecs(const std::function<void(std::int32_t, const at::Tensor&)>& visit) const;
  void note_codecs();

  const Parameters& parameters_;
  int world_size_;
  std::vector<std::shared_ptr<Coder>> coders_;  // by link
  std::vector<std::uint8_t> began_with_;        // by block
  std::vector<at::Tensor> residuals_, before_;  // by block; `before_`: before this backward
  std::vector<at::Tensor> carried_;             // by parameter, between two plans
};

}  // namespace gradweave::runtime
