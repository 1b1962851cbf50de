#include "runtime/error_feedback.h"

#include <ATen/ops/any.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "gradweave/compression.h"

namespace gradweave::runtime {
namespace {

// A residual of zeros is no gradient: a parameter that no rank has used has one too, beside others in a message.
bool owes(const at::Tensor& residual) { return residual.any().item<bool>(); }

}  // namespace

ErrorFeedback::ErrorFeedback(const Parameters& parameters, int world_size)
    : parameters_(parameters), world_size_(world_size), carried_(parameters.all().size()) {}

void ErrorFeedback::install(bool sends) {
  const RunPlan& plan = parameters_.plan();
  residuals_.assign(plan.blocks.size(), {});
  std::vector<BlockShape> matrices;
  for (std::size_t b = 0; b < plan.blocks.size(); ++b) matrices.push_back(matrix_of(b));
  coders_.clear();
  for (std::size_t link = 0; link < plan.links.size(); ++link)
    coders_.push_back(std::make_shared<Coder>(matrices));
  hand_on(sends);
  note_codecs();
}

void ErrorFeedback::note_codecs() {
  began_with_.assign(residuals_.size(), 0);
  visit_codecs([&](std::int32_t b, const at::Tensor& values) {
    if (owes(values)) began_with_[static_cast<std::size_t>(b)] = 1;
  });
}

void ErrorFeedback::visit_codecs(const std::function<void(std::int32_t, const at::Tensor&)>& visit) const {
  for (const auto& coder : coders_) {
    coder->visit_residuals([&](const Coder::Blocks& blocks, const at::Tensor& values) {
      std::int64_t at = 0;
      for (const std::int32_t b : blocks) {
        const Block& block = parameters_.block(b);
        visit(b, values.narrow(0, at, block.end - block.begin));
        at += block.end - block.begin;
      }
    });
  }
}

// In memory order a tensor is a matrix whose rows lie along its outermost dimension. A slice of one is as near to
// a square as can be; of a vector it is a vector.
BlockShape ErrorFeedback::matrix_of(std::size_t block) const {
  const auto b = static_cast<std::int32_t>(block);
  const Block& place = parameters_.block(b);
  const at::Tensor& whole = parameters_[parameters_.tensor_of_block(b)];
  const std::int64_t length = place.end - place.begin;
  std::int64_t rows = 1, outermost = 0, wide = 0;
  for (std::int64_t d = 0; d < whole.dim(); ++d) {
    if (whole.size(d) == 1) continue;
    ++wide;
    if (whole.stride(d) > outermost) rows = whole.size(d), outermost = whole.stride(d);
  }
  return block_shape(length, wide < 2 ? 1 : rows, parameters_.plan().block_whole[block] != 0);
}

// They go where the first message of a block leaves a residual too, or else into the block's next gradient: without other
// ranks no message is sent.
void ErrorFeedback::hand_on(bool sends) {
  const RunPlan& plan = parameters_.plan();
  for (std::size_t b = 0; b < residuals_.size(); ++b) {
    const auto block = static_cast<std::int32_t>(b);
    const at::Tensor& whole =
        carried_[static_cast<std::size_t>(parameters_.number_of(parameters_.tensor_of_block(block)))];
    if (!whole.defined()) continue;
    if (const at::Tensor part = parameters_.part(whole, block); owes(part)) residuals_[b] = part;
  }
  carried_.assign(parameters_.all().size(), {});
  if (!sends) return;
  for (const RunIteration& iteration : plan.iterations) {
    for (const RunOp& op : iteration.ops) {
      if (op.payload != Payload::kGradient || op.compression.name.empty()) continue;
      if (op.collective == Collective::kAllGather) continue;
      if (!find_compressor(op.compression.name).error_feedback) continue;
      for (std::size_t i = 0; i < op.blocks.size(); ++i) {
        at::Tensor& values = residuals_[static_cast<std::size_t>(op.blocks[i])];
        if (!values.defined()) continue;
        coders_[static_cast<std::size_t>(op.link)]->add_residual(op.blocks, i, values.div(world_size_));
        values.reset();
      }
    }
  }
}

std::vector<at::Tensor> ErrorFeedback::by_parameter() const {
  std::vector<at::Tensor> all = carried_;
  const auto add = [&](std::int32_t b, const at::Tensor& values, double factor) {
    const std::int32_t tensor = parameters_.tensor_of_block(b);
    at::Tensor& whole = all[static_cast<std::size_t>(parameters_.number_of(tensor))];
    if (!whole.defined()) whole = at::zeros({parameters_[tensor].numel()}, values.options());
    parameters_.part(whole, b).add_(values, factor);
  };
  for (std::size_t b = 0; b < residuals_.size(); ++b) {
    if (residuals_[b].defined()) add(static_cast<std::int32_t>(b), residuals_[b], 1);
  }
  visit_codecs([&](std::int32_t b, const at::Tensor& values) {
    add(b, values, world_size_);  // messages are shares of the mean
  });
  return all;
}

at::Tensor ErrorFeedback::compensate(std::int32_t block, const at::Tensor& part, double coefficient,
                                     bool sent) {
  at::Tensor& residual = residuals_[static_cast<std::size_t>(block)];
  at::Tensor sum = part;
  if (residual.defined()) sum = part.defined() ? part.add(residual, coefficient) : residual.mul(coefficient);
  if (sent) {
    residual.reset();
  } else if (sum.defined()) {
    residual = sum.is_same(part) ? part.clone() : sum;
  }
  return sum;
}

void ErrorFeedback::leave_out(const run::Execution& execution) {
  const RunOp& op = *execution.op;
  if (op.compression.name.empty()) return;
  coders_[static_cast<std::size_t>(op.link)]->leave_out(op.blocks, op.collective,
                                                        {execution.run_iteration, execution.place});
}

void ErrorFeedback::restart() const {
  for (const auto& coder : coders_) coder->restart();
}

void ErrorFeedback::carry(std::size_t parameter, const at::Tensor& values, double share) {
  at::Tensor& carried = carried_[parameter];
  if (!carried.defined()) carried = at::zeros_like(values);
  carried.add_(values, share);
}

void ErrorFeedback::archive(run::Archive& numbers, StateTensors& tensors) {
  for (std::size_t b = 0; b < residuals_.size(); ++b) tensors("residual." + std::to_string(b), residuals_[b]);
  for (std::size_t link = 0; link < coders_.size(); ++link)
    coders_[link]->archive(numbers, tensors, "link." + std::to_string(link));
  if (numbers.reads()) note_codecs();
}

}  // namespace gradweave::runtime
