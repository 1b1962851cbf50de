// The data of a run on libtorch: gradients, parameters, messages, and the user's optimizer.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <memory>
#include <span>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <unordered_set>
#include <utility>
#include <vector>

#include "run/compute_thread.h"
#include "run/host.h"
#include "runtime/anchors.h"
#include "runtime/error_feedback.h"
#include "runtime/exchanges.h"
#include "runtime/group_channel.h"
#include "runtime/handover.h"
#include "runtime/message_buffers.h"
#include "runtime/optimizer_steps.h"
#include "runtime/parameters.h"
#include "runtime/versions.h"

namespace gradweave::runtime {

// What a rank gives to a mean: rounded as DistributedDataParallel rounds it.
struct Share {
  int ranks;
  at::Tensor number;  // 1 / ranks, a wrapped number
  explicit Share(int ranks);
};

// Tensors are numbered as in the plan, parameters as they were given; install() maps one to the other. Between plans
// only what its owners say holds.
class TorchHost : public run::Host {
 public:
  // `control`: a group for small CPU messages, null with one rank. `peers`: whose verdict ends waits for them.
  TorchHost(std::vector<NamedParameter> parameters, c10::intrusive_ptr<c10d::ProcessGroup> control,
            std::shared_ptr<Peers> peers, int world_size, const LinkOptions& options, Stepper stepper);

  // The plan in force goes; its residuals stay for the next, which has other blocks.
  void leave_plan() REQUIRES(run::compute_thread) { feedback_.leave_plan(); }
  // Takes a plan into force, with one message for each of the run's `slots`. `group`: for averages over ranks; null:
  // none are made. `rank`: this one's.
  void install(const RunPlan& plan, std::size_t slots, std::vector<std::int32_t> parameter_of,
               c10::intrusive_ptr<c10d::ProcessGroup> group, int rank) REQUIRES(run::compute_thread);
  // Writes or reads what is kept from one iteration to the next; and an execution's message.
  void archive(run::Archive& numbers, StateTensors& tensors) REQUIRES(run::compute_thread);
  void archive(const run::Execution& execution, run::Archive& numbers, StateTensors& tensors)
      REQUIRES(run::compute_thread);
  void archive_begun(run::Archive& numbers) REQUIRES(run::compute_thread) {
    feedback_.archive_begun(numbers);
  }
  // The message of an execution, which restored one of `states`, becomes what its op makes of all ranks' messages.
  // `ended`: whether the op has been run.
  void gather(const run::Execution& execution, bool ended, const std::vector<StateTensors::Map>& states)
      REQUIRES(run::compute_thread);
  // Writes what outlives a plan; reads the mean of what ranks have written.
  void write_remains(StateTensors& tensors) const REQUIRES(run::compute_thread);
  void take_over(const std::vector<StateTensors::Map>& remains) REQUIRES(run::compute_thread);

  const Parameters& parameters() const { return parameters_; }
  Handover& handover() REQUIRES(run::compute_thread) { return handover_; }
  const ErrorFeedback& feedback() const REQUIRES(run::compute_thread) { return feedback_; }
  const MessageBuffers& messages() const REQUIRES(run::compute_thread) { return messages_; }
  const OptimizerSteps& steps() const REQUIRES(run::compute_thread) { return steps_; }
  // A block of the gradient that the optimizer will find, flat; undefined if there is none.
  at::Tensor gradient_part(std::int32_t block) const;
  // What the plan in force holds on a device.
  std::int64_t buffer_bytes(c10::Device on) const REQUIRES(run::compute_thread) {
    return messages_.bytes(on) + (on.is_cpu() ? anchors_.bytes() : 0);
  }

  bool begin_backward() override REQUIRES(run::compute_thread);
  void take_gradient(std::int32_t tensor, run::Gradient gradient) override REQUIRES(run::compute_thread);
  void end_backward() override REQUIRES(run::compute_thread) { handover_.end_backward(); }
  void compensate(std::int32_t block, double coefficient, bool sent) override REQUIRES(run::compute_thread) {
    handover_.compensate(block, feedback_, coefficient, sent);
  }
  bool has_residual(std::int32_t block) const override REQUIRES(run::compute_thread) {
    return feedback_.has(block);
  }
  bool codec_began_with_residual(std::int32_t block) const override REQUIRES(run::compute_thread) {
    return feedback_.codec_began_with(block);
  }
  void restore_residuals() override REQUIRES(run::compute_thread) { feedback_.restore(); }
  void leave_out(const run::Execution& execution) override REQUIRES(run::compute_thread) {
    feedback_.leave_out(execution);
  }
  void restart() override REQUIRES(run::compute_thread) { feedback_.restart(); }
  bool overflowed() override REQUIRES(run::compute_thread) { return handover_.loss_scale().overflowed(); }
  std::int32_t not_finite() override REQUIRES(run::compute_thread) { return handover_.not_finite(); }

  bool lend_gradient(const run::Execution& execution) override REQUIRES(run::compute_thread);
  void write_gradient(const run::Execution& execution, std::size_t at, bool first,
                      std::int32_t iterations) override REQUIRES(run::compute_thread);
  void read_parameter(const run::Execution& execution, std::size_t at) override REQUIRES(run::compute_thread);
  void filled(const run::Execution& execution) override REQUIRES(run::compute_thread);
  void landed(const run::Execution& execution) override REQUIRES(run::compute_thread);
  void rescale(const run::Execution& execution, double factor) override REQUIRES(run::compute_thread);
  void retire(const run::Execution& execution) override REQUIRES(run::compute_thread);

  void put_gradient(std::int32_t tensor, std::span<const run::Part> parts, bool add) override
      REQUIRES(run::compute_thread);
  void drop_gradient(std::int32_t tensor) override REQUIRES(run::compute_thread);
  void average_parameter(const run::Part& part) override REQUIRES(run::compute_thread);
  void set_gradients_aside(std::span<const std::int32_t> tensors) override REQUIRES(run::compute_thread);
  void put_gradients_back(std::span<const std::int32_t> tensors) override REQUIRES(run::compute_thread);
  void step(const Stepped& stepped) override REQUIRES(run::compute_thread) {
    anchors_.settle(stepped);
    steps_.step(stepped);
  }
  // The caller may change parameters, on the current stream.
  void settle() REQUIRES(run::compute_thread) { anchors_.settle(); }
  run::Kept kept(std::int32_t tensor) const override REQUIRES(run::compute_thread) {
    return versions_.kept(tensor);
  }
  void note_parameter(std::int32_t tensor) override REQUIRES(run::compute_thread) {
    versions_.note_parameter(tensor);
  }
  bool parameter_changed(std::int32_t tensor) const override REQUIRES(run::compute_thread) {
    return versions_.parameter_changed(tensor);
  }

  void begin_exchange(std::size_t slot, std::span<std::uint8_t> flags) override
      REQUIRES(run::compute_thread) {
    exchanges_.begin(slot, flags);
  }
  void finish_exchange(std::size_t slot) override REQUIRES(run::compute_thread) { exchanges_.finish(slot); }
  void average_over_ranks(std::span<const std::int32_t> tensors) override REQUIRES(run::compute_thread);

 private:
  // Whether the gradient is the caller's own: a view of his buffer, whose memory other tensors of his have too, or one that he
  // held already when the backward began. What is put in place goes there.
  bool is_callers(const NamedParameter& named, const at::Tensor& gradient) const
      REQUIRES(run::compute_thread);

  Parameters parameters_;  // alike for all threads while a plan is in force
  const Share share_;
  Versions versions_ GUARDED_BY(run::compute_thread);
  Handover handover_ GUARDED_BY(run::compute_thread);
  ErrorFeedback feedback_ GUARDED_BY(run::compute_thread);
  MessageBuffers messages_ GUARDED_BY(run::compute_thread);
  Anchors anchors_ GUARDED_BY(run::compute_thread);
  OptimizerSteps steps_ GUARDED_BY(run::compute_thread);
  Exchanges exchanges_ GUARDED_BY(run::compute_thread);
  std::vector<at::Tensor> aside_ GUARDED_BY(run::compute_thread);  // a stack of gradients
  // Gradients that the caller held when this backward began.
  std::unordered_set<const at::TensorImpl*> held_ GUARDED_BY(run::compute_thread);
};

}  // namespace gradweave::runtime
