// Plans come into force; gradients are put in place, stepped and looked after.
#include "runtime/host.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "gradweave/compression.h"
#include "gradweave/error.h"
#include "runtime/passes.h"
#include "runtime/transport/transport.h"

namespace gradweave::runtime {
namespace {

// Returns `tensor` as one dimension in memory order. The caller owes non-overlapping, dense memory.
at::Tensor flattened(const at::Tensor& tensor) {
  return tensor.as_strided({tensor.numel()}, {1}, tensor.storage_offset());
}

}  // namespace

TorchHost::TorchHost(std::vector<NamedParameter> parameters, c10::intrusive_ptr<c10d::ProcessGroup> control,
                     std::shared_ptr<Peers> peers, int world_size, LinkOptions options, Stepper stepper)
    : parameters_(std::move(parameters)),
      control_(std::move(control)),
      peers_(std::move(peers)),
      world_size_(world_size),
      options_(options),
      stepper_(std::move(stepper)),
      left_(parameters_.size()) {
  scale_ = at::scalar_tensor(1.0 / world_size, at::kDouble);
  scale_.unsafeGetTensorImpl()->set_wrapped_number(true);
}

std::vector<std::int32_t> TorchHost::parameters_of(const Calendar& calendar) const {
  std::vector<std::int32_t> parameter_of;
  std::vector<std::uint8_t> known(parameters_.size());
  for (std::size_t t = 0; t < calendar.index.tensors.size(); ++t) {
    const std::string& name = calendar.index.tensor_names[t];
    const auto found = std::ranges::find(parameters_, name, &NamedParameter::name);
    if (found == parameters_.end() || found->tensor.numel() != calendar.index.tensors[t].numel ||
        found->tensor.scalar_type() != scalar_type_of(calendar.index.tensors[t].dtype)) {
      throw InvalidInput("the model has no such parameter of that size and dtype", "tensor '" + name + "'",
                         "make the plan from this model's workload");
    }
    parameter_of.push_back(static_cast<std::int32_t>(found - parameters_.begin()));
    known[static_cast<std::size_t>(parameter_of.back())] = 1;
  }
  const auto unknown = std::ranges::find(known, 0);
  if (unknown != known.end()) {
    throw InvalidInput(
        "the plan does not know it",
        "parameter '" + parameters_[static_cast<std::size_t>(unknown - known.begin())].name + "'",
        "make the plan from this model's workload");
  }
  return parameter_of;
}

void TorchHost::install(const Calendar& calendar, std::size_t slots, std::vector<std::int32_t> parameter_of,
                        c10::intrusive_ptr<c10d::ProcessGroup> group, int rank) {
  calendar_ = &calendar;
  group_ = std::move(group);
  parameter_of_ = std::move(parameter_of);
  tensor_of_.assign(parameters_.size(), -1);
  for (std::size_t t = 0; t < parameter_of_.size(); ++t)
    tensor_of_[static_cast<std::size_t>(parameter_of_[t])] = static_cast<std::int32_t>(t);
  retired_.clear();
  pool_ = std::make_unique<BufferPool>(calendar, options_.device);
  messages_ = std::make_shared<Messages>(slots);
  anchors_.install(calendar, slots, parameter_of_, world_size_, rank);
  exchanges_.clear();
  subsets_.assign(1, {});
  for (std::size_t p = 0; p < parameters_.size(); ++p)
    subsets_[0].parameters.push_back(static_cast<std::int32_t>(p));
  subset_ids_.clear();
  handed_.assign(parameter_of_.size(), {});
  noted_.assign(parameter_of_.size(), -1);
  residuals_.assign(calendar.blocks.size(), {});
  std::vector<Matrix> matrices;
  for (std::size_t b = 0; b < calendar.blocks.size(); ++b) matrices.push_back(matrix_of(b));
  coders_.clear();
  for (std::size_t link = 0; link < calendar.links.size(); ++link)
    coders_.push_back(std::make_shared<Coder>(matrices));
  hand_on_residuals();
}

// In memory order a tensor is a matrix whose rows lie along its outermost dimension. A slice of one is as near to
// a square as can be; of a vector it is a vector.
Matrix TorchHost::matrix_of(std::size_t block) const {
  const Block& place = calendar_->blocks[block];
  const at::Tensor& whole = parameter(calendar_->block_tensor[block]);
  const std::int64_t length = place.end - place.begin;
  std::int64_t rows = 1, outermost = 0, wide = 0;
  for (std::int64_t d = 0; d < whole.dim(); ++d) {
    if (whole.size(d) == 1) continue;
    ++wide;
    if (whole.stride(d) > outermost) rows = whole.size(d), outermost = whole.stride(d);
  }
  if (wide < 2) return {.length = length, .rows = 1, .columns = length};
  if (calendar_->block_whole[block] == 0)
    rows = static_cast<std::int64_t>(std::sqrt(static_cast<double>(length)));
  return {.length = length, .rows = rows, .columns = length / rows};
}

// By parameter, in units of this rank's gradient.
std::vector<at::Tensor> TorchHost::residuals_by_parameter() const {
  std::vector<at::Tensor> left = left_;
  const auto add = [&](std::int32_t b, const at::Tensor& values, double factor) {
    const Block& block = calendar_->blocks[static_cast<std::size_t>(b)];
    const std::int32_t tensor = calendar_->block_tensor[static_cast<std::size_t>(b)];
    at::Tensor& whole = left[static_cast<std::size_t>(parameter_of(tensor))];
    if (!whole.defined()) whole = at::zeros({parameter(tensor).numel()}, values.options());
    whole.narrow(0, block.begin, block.end - block.begin).add_(values, factor);
  };
  for (std::size_t b = 0; b < residuals_.size(); ++b) {
    if (residuals_[b].defined()) add(static_cast<std::int32_t>(b), residuals_[b], 1);
  }
  for (const auto& coder : coders_) {
    coder->visit_residuals([&](const Coder::Blocks& blocks, const at::Tensor& values) {
      std::int64_t at = 0;
      for (const std::int32_t b : blocks) {
        const Block& block = calendar_->blocks[static_cast<std::size_t>(b)];
        add(b, values.narrow(0, at, block.end - block.begin),
            world_size_);  // messages are shares of the mean
        at += block.end - block.begin;
      }
    });
  }
  return left;
}

// The residuals of the plan before go where the first message of a block leaves one too, or
// else into the block's next gradient: without other ranks no message is sent.
void TorchHost::hand_on_residuals() {
  std::vector<at::Tensor> left(residuals_.size());
  for (std::size_t b = 0; b < left.size(); ++b) {
    const at::Tensor& whole = left_[static_cast<std::size_t>(parameter_of(calendar_->block_tensor[b]))];
    const Block& block = calendar_->blocks[b];
    if (whole.defined()) left[b] = whole.narrow(0, block.begin, block.end - block.begin);
  }
  left_.assign(parameters_.size(), {});
  for (const CalendarIteration& iteration : calendar_->iterations) {
    for (const CalendarOp& op : iteration.ops) {
      if (op.payload != Payload::kGradient || op.compression.name.empty() || !group_) continue;
      if (op.collective == Collective::kAllGather) continue;
      if (!find_compressor(op.compression.name).error_feedback) continue;
      for (std::size_t i = 0; i < op.blocks.size(); ++i) {
        at::Tensor& values = left[static_cast<std::size_t>(op.blocks[i])];
        if (!values.defined()) continue;
        coders_[static_cast<std::size_t>(op.link)]->add_residual(op.blocks, i, values.div(world_size_));
        values.reset();
      }
    }
  }
  residuals_ = std::move(left);
}

void TorchHost::leave_out(const run::Execution& execution) {
  const CalendarOp& op = *execution.op;
  if (op.compression.name.empty()) return;
  coders_[static_cast<std::size_t>(op.link)]->leave_out(op.blocks, op.collective,
                                                        {execution.run_iteration, execution.place});
}

void TorchHost::close() {
  stepper_ = nullptr;
  unscaler_ = nullptr;
  control_.reset();
  group_.reset();
  peers_.reset();
}

std::string TorchHost::where(std::int32_t tensor) const {
  return "parameter '" + calendar_->index.tensor_names[static_cast<std::size_t>(tensor)] + "'";
}

// The gradient in the parameter's memory order, not owned by Python.
at::Tensor TorchHost::flat_gradient(std::int32_t tensor) const {
  const at::Tensor& parameter = this->parameter(tensor);
  const at::Tensor& gradient = parameter.grad();
  if (!gradient.defined())
    throw InvalidInput("its gradient was removed by another hook", where(tensor),
                       "leave .grad alone in hooks");
  if (gradient.layout() != c10::kStrided) {
    throw InvalidInput("its gradient is sparse", where(tensor),
                       "use sparse=False: schedules need dense gradients");
  }
  if (gradient.scalar_type() !=
      scalar_type_of(calendar_->index.tensors[static_cast<std::size_t>(tensor)].dtype)) {
    throw InvalidInput("its dtype has changed since gradweave.wrap()", where(tensor),
                       "convert the model first, then wrap it");
  }
  const at::Tensor detached = gradient.detach();
  if (detached.strides() == parameter.strides()) return flattened(detached);
  at::Tensor ordered = at::empty_strided(parameter.sizes(), parameter.strides(), detached.options());
  ordered.copy_(detached);
  return flattened(ordered);
}

at::Tensor TorchHost::flat_parameter(std::int32_t tensor) const {
  return flattened(parameter(tensor).detach());
}

at::Tensor TorchHost::view(const run::Part& part) const {
  const Block& block = calendar_->blocks[static_cast<std::size_t>(part.block)];
  return (*messages_)[part.from->slot].flat.narrow(0, part.offset, block.end - block.begin);
}

void TorchHost::put_gradient(std::int32_t tensor, std::span<const run::Part> parts, bool add) {
  const at::Tensor& parameter = this->parameter(tensor);
  at::Tensor& gradient = this->gradient(tensor);
  add &= gradient.defined();
  if (parts.size() == 1 && !add && calendar_->block_whole[static_cast<std::size_t>(parts[0].block)]) {
    const at::Tensor& flat = (*messages_)[parts[0].from->slot].flat;
    if (gradient.defined() && gradient.data_ptr() == flat.data_ptr() && flat.numel() == gradient.numel())
      return;
    gradient =
        flat.as_strided(parameter.sizes(), parameter.strides(), flat.storage_offset() + parts[0].offset);
    return;
  }
  if (!gradient.defined() || gradient.strides() != parameter.strides() ||
      (!add && gradient.use_count() > 1)) {
    const at::Tensor before = gradient;
    gradient =
        at::empty_strided(parameter.sizes(), parameter.strides(), parameter.options().requires_grad(false));
    const bool all = parts.size() == calendar_->blocks_of_tensor[static_cast<std::size_t>(tensor)].size();
    if (add || !all) before.defined() ? gradient.copy_(before) : gradient.zero_();
  }
  const at::Tensor target = flat_gradient(tensor);
  for (const run::Part& part : parts) {
    const Block& block = calendar_->blocks[static_cast<std::size_t>(part.block)];
    at::Tensor to = target.narrow(0, block.begin, block.end - block.begin);
    add ? to.add_(view(part)) : to.copy_(view(part));
  }
  // Another part may have been handed over: this is no change of the caller's.
  if (aside_.empty()) {
    handed_[static_cast<std::size_t>(tensor)] = {gradient.const_data_ptr(), gradient._version()};
  }
}

at::Tensor TorchHost::gradient_part(std::int32_t block) const {
  const Block& place = calendar_->blocks[static_cast<std::size_t>(block)];
  const std::int32_t tensor = calendar_->block_tensor[static_cast<std::size_t>(block)];
  if (!gradient(tensor).defined()) return {};
  return flat_gradient(tensor).narrow(0, place.begin, place.end - place.begin);
}

void TorchHost::drop_gradient(std::int32_t tensor) { gradient(tensor).reset(); }

void TorchHost::average_parameter(const run::Part& part) {
  const auto b = static_cast<std::size_t>(part.block);
  const Block& block = calendar_->blocks[b];
  const std::int64_t length = block.end - block.begin;
  at::Tensor to = flat_parameter(calendar_->block_tensor[b]).narrow(0, block.begin, length);
  if (part.from->op->anchored) {
    anchors_.land(part, (*messages_)[part.from->slot]);
  } else if (part.from->op->keep_own) {
    const at::Tensor own = (*messages_)[part.from->slot].own.narrow(0, part.offset, length);
    add_correction(to, view(part), own, world_size_);
  } else {
    at::mul_out(to, view(part), scale_);
  }
  note_parameter(calendar_->block_tensor[b]);
}

void TorchHost::note_parameter(std::int32_t tensor) {
  noted_[static_cast<std::size_t>(tensor)] = parameter(tensor)._version();
}

bool TorchHost::parameter_changed(std::int32_t tensor) const {
  const std::int64_t noted = noted_[static_cast<std::size_t>(tensor)];
  return noted >= 0 && noted != parameter(tensor)._version();
}

void TorchHost::set_gradients_aside(std::span<const std::int32_t> tensors) {
  for (std::int32_t t : tensors) aside_.push_back(std::exchange(gradient(t), at::Tensor()));
}

void TorchHost::put_gradients_back(std::span<const std::int32_t> tensors) {
  for (std::size_t i = tensors.size(); i-- > 0;) {
    gradient(tensors[i]) = std::move(aside_.back());
    aside_.pop_back();
  }
}

void TorchHost::step(const Stepped& stepped) { stepper_(subset_id(stepped)); }

TorchHost::Slice TorchHost::slice(std::int32_t block) const {
  const Block& place = calendar_->blocks[static_cast<std::size_t>(block)];
  return {parameter_of(calendar_->block_tensor[static_cast<std::size_t>(block)]), place.begin, place.end};
}

std::int32_t TorchHost::subset_id(const Stepped& stepped) {
  if (stepped.tensors.size() == parameters_.size()) return 0;
  const auto [found, added] = subset_ids_.try_emplace(stepped, static_cast<std::int32_t>(subsets_.size()));
  if (added) {
    Subset& subset = subsets_.emplace_back();
    for (std::int32_t t : stepped.tensors) subset.parameters.push_back(parameter_of(t));
    std::ranges::sort(subset.parameters);
    for (std::int32_t b : stepped.blocks) subset.slices.push_back(slice(b));
  }
  return found->second;
}

run::Kept TorchHost::kept(std::int32_t tensor) const {
  const at::Tensor& gradient = this->gradient(tensor);
  const Handed& then = handed_[static_cast<std::size_t>(tensor)];
  if (!gradient.defined()) return run::Kept::kGone;
  const bool same = gradient.const_data_ptr() == then.data && gradient._version() == then.version;
  return same ? run::Kept::kSame : run::Kept::kChanged;
}

// ---- other ranks

void TorchHost::begin_exchange(std::size_t slot, std::span<std::uint8_t> flags) {
  if (exchanges_.size() <= slot) exchanges_.resize(slot + 1);
  Exchange& exchange = exchanges_[slot];
  if (!exchange.flags.defined())
    exchange.flags = at::empty({static_cast<std::int64_t>(flags.size())}, at::kByte);
  std::ranges::copy(flags, exchange.flags.mutable_data_ptr<std::uint8_t>());
  exchange.answer = flags;
  std::vector<at::Tensor> tensors{exchange.flags};
  c10d::AllreduceOptions how;
  how.reduceOp = c10d::ReduceOp::MAX;
  how.timeout = options_.timeout;
  exchange.work = control_->allreduce(tensors, how);
}

void TorchHost::finish_exchange(std::size_t slot) {
  Exchange& exchange = exchanges_[slot];
  const auto work = std::exchange(exchange.work, {});
  work->isCompleted() ? void(work->wait()) : peers_->await([work] { work->wait(); });
  std::copy_n(exchange.flags.const_data_ptr<std::uint8_t>(), exchange.answer.size(), exchange.answer.data());
}

void TorchHost::average_over_ranks(std::span<const std::int32_t> tensors) {
  anchors_.return_rests();
  if (!group_) return;  // a rank that is played
  for (std::size_t n = 0; std::int32_t t : tensors) {
    at::Tensor value = flat_parameter(t);
    at::Tensor sum = at::empty_like(value);
    at::mul_out(sum, value, scale_);
    const auto average = [group = group_, sum, sequence = n++, timeout = options_.timeout] {
      start({.group = *group, .flat = sum, .sequence = sequence, .timeout = timeout})->wait();
    };
    options_.device.is_cpu() ? peers_->await(average) : average();  // an accelerator's stream waits
    value.copy_(sum);
  }
  anchors_.raise();
}

}  // namespace gradweave::runtime
