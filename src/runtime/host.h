// The data of a run on libtorch: gradients, parameters, messages, and the user's optimizer.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>
#include <vector>

#include "run/host.h"
#include "runtime/anchors.h"
#include "runtime/buffers.h"
#include "runtime/group_channel.h"
#include "runtime/message.h"
#include "runtime/peers.h"

namespace gradweave::runtime {

struct NamedParameter {
  std::string name;
  at::Tensor tensor;
};

// Tensors are numbered as in the calendar, parameters as they were given; install() maps one to the other.
class TorchHost : public run::Host {
 public:
  // Runs the optimizer on a subset(); everything in it has its gradient in place.
  using Stepper = std::function<void(std::int32_t)>;
  // Returns the factor that takes the loss scale out of the gradients of the backward that begins, a float32
  // tensor of one element on the parameters' device; undefined if they have none.
  using Unscaler = std::function<at::Tensor()>;

  // `control`: a group for small CPU messages, null with one rank. `peers`: whose verdict ends waits for them.
  TorchHost(std::vector<NamedParameter> parameters, c10::intrusive_ptr<c10d::ProcessGroup> control,
            std::shared_ptr<Peers> peers, int world_size, LinkOptions options, Stepper stepper);

  // Returns, for each tensor of the calendar, its parameter. Errors: InvalidInput naming what does not match.
  std::vector<std::int32_t> parameters_of(const Calendar& calendar) const;
  // The plan in force goes; residuals stay for the next, which has other blocks.
  void leave_plan() { left_ = residuals_by_parameter(); }
  // Takes a plan into force, with one message for each of the run's `slots`. `group`: for averages over ranks; null:
  // none are made. `rank`: this one's.
  void install(const Calendar& calendar, std::size_t slots, std::vector<std::int32_t> parameter_of,
               c10::intrusive_ptr<c10d::ProcessGroup> group, int rank);
  const std::shared_ptr<Messages>& messages() const { return messages_; }
  // Of the link's compressed messages.
  const std::shared_ptr<Coder>& coder(std::size_t link) const { return coders_[link]; }
  // Writes or reads what is kept from one iteration to the next; and an execution's message.
  void archive(run::Archive& numbers, StateTensors& tensors);
  void archive(const run::Execution& execution, run::Archive& numbers, StateTensors& tensors);
  // The message of an execution, which restored one of `states`, becomes what its op makes of all ranks' messages.
  // `ended`: whether the op has been run.
  void gather(const run::Execution& execution, bool ended, const std::vector<StateTensors::Map>& states);
  // Writes what outlives a plan; reads the mean of what ranks have written.
  void write_remains(StateTensors& tensors) const;
  void take_over(const std::vector<StateTensors::Map>& remains);
  // Lets go of the caller's objects.
  void close();

  // What a loss scale means for the plan in force: nothing if every update is of what was reduced, since the
  // user's scaler looks at that itself.
  enum class Scaling : std::uint8_t { kNone, kAtHandOver, kRefused };
  void set_scaling(Scaling scaling) { scaling_ = scaling; }
  void set_unscaler(Unscaler unscaler) { unscaler_ = std::move(unscaler); }

  // Elements [begin, end) of a parameter, in memory order.
  struct Slice {
    std::int32_t parameter = 0;
    std::int64_t begin = 0, end = 0;
  };
  // What one step is of: whole parameters, and slices that are stepped as parameters of their own.
  struct Subset {
    std::vector<std::int32_t> parameters;
    std::vector<Slice> slices;
  };
  // 0 is all parameters.
  const Subset& subset(std::int32_t id) const { return subsets_[static_cast<std::size_t>(id)]; }
  Slice slice(std::int32_t block) const;
  const std::vector<NamedParameter>& parameters() const { return parameters_; }
  std::int32_t parameter_of(std::int32_t tensor) const {
    return parameter_of_[static_cast<std::size_t>(tensor)];
  }
  std::int32_t tensor_of(std::int32_t parameter) const {
    return tensor_of_[static_cast<std::size_t>(parameter)];
  }
  const at::Tensor& parameter(std::int32_t tensor) const {
    return parameters_[static_cast<std::size_t>(parameter_of(tensor))].tensor;
  }
  // A block of a message, flat.
  at::Tensor view(const run::Part& part) const;
  // A block of the gradient that the optimizer will find, flat; undefined if there is none.
  bool keeps_local_ = false;
  std::vector<at::Tensor> local_;  // by parameter
  at::Tensor gradient_part(std::int32_t block) const;
  // On: copies of this rank's own gradients are kept, for take_local_gradients().
  void keep_local_gradients(bool on) { keeps_local_ = on; }
  // Returns, by parameter, what the last backward computed here, flat; undefined where it computed nothing.
  std::vector<at::Tensor> take_local_gradients() { return std::exchange(local_, {}); }
  std::int64_t buffer_bytes() const { return (pool_ ? pool_->bytes() : 0) + anchors_.bytes(); }
  // Forgets the gradient that was handed over last.
  void let_go() {
    gradient_.reset();
    part_.reset();
  }

  bool begin_backward() override;
  void take_gradient(std::int32_t tensor, run::Gradient gradient) override;
  void compensate(std::int32_t block, double coefficient, bool sent) override;
  bool has_residual(std::int32_t block) const override {
    return residuals_[static_cast<std::size_t>(block)].defined();
  }
  void restore_residuals() override { residuals_ = residuals_before_; }
  void leave_out(const run::Execution& execution) override;
  bool overflowed() override;
  std::int32_t not_finite() override { return not_finite_; }

  bool lend_gradient(const run::Execution& execution) override;
  void write_gradient(const run::Execution& execution, std::size_t at, bool first,
                      std::int32_t iterations) override;
  void read_parameter(const run::Execution& execution, std::size_t at) override;
  void filled(const run::Execution& execution) override;
  void landed(const run::Execution& execution) override;
  void rescale(const run::Execution& execution, double factor) override;
  void retire(const run::Execution& execution) override;

  void put_gradient(std::int32_t tensor, std::span<const run::Part> parts, bool add) override;
  void drop_gradient(std::int32_t tensor) override;
  void average_parameter(const run::Part& part) override;
  void set_gradients_aside(std::span<const std::int32_t> tensors) override;
  void put_gradients_back(std::span<const std::int32_t> tensors) override;
  void step(const Stepped& stepped) override;
  run::Kept kept(std::int32_t tensor) const override;
  void note_parameter(std::int32_t tensor) override;
  bool parameter_changed(std::int32_t tensor) const override;

  void begin_exchange(std::size_t slot, std::span<std::uint8_t> flags) override;
  void finish_exchange(std::size_t slot) override;
  void average_over_ranks(std::span<const std::int32_t> tensors) override;

 private:
  // .grad as it was handed over.
  struct Handed {
    const void* data = nullptr;
    std::int64_t version = 0;
  };
  struct Retired {
    const CalendarOp* op;
    at::Tensor flat;
  };
  struct Exchange {
    at::Tensor flags;
    std::span<std::uint8_t> answer;
    c10::intrusive_ptr<c10d::Work> work;
  };

  Message& message(const run::Execution& execution) { return (*messages_)[execution.slot]; }
  const Block& block_at(const run::Execution& execution, std::size_t at) const {
    return calendar_->blocks[static_cast<std::size_t>(execution.op->blocks[at])];
  }
  at::Tensor& gradient(std::int32_t tensor) const { return parameter(tensor).mutable_grad(); }
  at::Tensor flat_gradient(std::int32_t tensor) const;
  at::Tensor flat_parameter(std::int32_t tensor) const;
  std::string where(std::int32_t tensor) const;
  Matrix matrix_of(std::size_t block) const;
  std::vector<at::Tensor> residuals_by_parameter() const;
  void hand_on_residuals();
  bool begin_unscaling();
  void unscale(const at::Tensor& gradient);
  void acquire(const run::Execution& execution);
  void release_retired();
  bool looked_at(const Retired& retired) const;
  std::int32_t subset_id(const Stepped& stepped);

  std::vector<NamedParameter> parameters_;
  c10::intrusive_ptr<c10d::ProcessGroup> control_, group_;
  std::shared_ptr<Peers> peers_;
  int world_size_;
  LinkOptions options_;
  Stepper stepper_;
  Unscaler unscaler_;
  at::Tensor scale_;  // 1 / world size, a wrapped number: rounds as DistributedDataParallel's does

  // Of the plan in force.
  const Calendar* calendar_ = nullptr;
  Scaling scaling_ = Scaling::kNone;
  std::vector<std::int32_t> parameter_of_, tensor_of_;
  std::unique_ptr<BufferPool> pool_;
  std::shared_ptr<Messages> messages_;
  Anchors anchors_{[this](std::int32_t tensor) { return flat_parameter(tensor); }};
  std::vector<std::shared_ptr<Coder>> coders_;  // by link
  std::vector<Subset> subsets_;
  std::map<Stepped, std::int32_t> subset_ids_;
  std::vector<Exchange> exchanges_;

  std::vector<Handed> handed_;                // by tensor
  std::vector<std::int64_t> noted_;           // by tensor: its parameter's version, -1: not noted
  std::vector<at::Tensor> left_;              // by parameter, between two plans: residuals
  std::vector<at::Tensor> residuals_;         // by block
  std::vector<at::Tensor> residuals_before_;  // before this backward
  std::vector<at::Tensor> aside_;             // a stack
  std::vector<Retired> retired_;
  at::Tensor inverse_scale_, found_inf_;  // of this backward
  at::Tensor gradient_;                   // that is handed over, flat; undefined: zeros
  at::Tensor part_;                       // of its block `part_block_`, compensated
  std::int32_t tensor_ = -1, part_block_ = -1;
  std::int32_t not_finite_ = -1;  // with a check: a tensor of this backward
};

}  // namespace gradweave::runtime
