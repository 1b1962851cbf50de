#include "runtime/anchors.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <set>
#include <utility>

namespace gradweave::runtime {
namespace {

std::uint8_t* group_at(const GroupMessage& message, std::int64_t group) {
  return message.sent.mutable_data_ptr<std::uint8_t>() +
         codec::encoded_bytes(message.layout.format, group * codec::kGroup);
}

}  // namespace

at::Tensor Anchors::made(std::int64_t count, c10::ScalarType dtype) {
  bytes_ += count * static_cast<std::int64_t>(c10::elementSize(dtype));
  return at::zeros({count}, dtype);
}

std::int64_t Anchors::staged_bytes(const RunPlan& plan) {
  std::set<std::int32_t> blocks;
  std::int64_t elements = 0, largest = 0;
  for (const RunIteration& iteration : plan.iterations) {
    for (const RunOp& op : iteration.ops) {
      if (!op.staged) continue;
      largest = std::max(largest, op.elements);
      for (const std::int32_t b : op.blocks) {
        const Block& block = plan.blocks[static_cast<std::size_t>(b)];
        if (blocks.insert(b).second) elements += block.end - block.begin;
      }
    }
  }
  return (elements * (plan.outer ? 2 : 1) + largest) * static_cast<std::int64_t>(sizeof(float));
}

void Anchors::install(const RunPlan& plan, std::size_t slots, const std::vector<std::int32_t>& parameter_of,
                      int world_size, int rank, c10::Device device) {
  settle();
  plan_ = &plan;
  parameter_of_ = parameter_of;
  world_size_ = world_size;
  rank_ = rank;
  down_ = false;
  bytes_ = 0;
  kinds_.clear();
  shared_.assign(slots, {});
  free_gains_.clear();
  anchors_.clear();
  anchors_.resize(plan.index.tensors.size());
  if (plan.outer) {
    outer_ = {.momentum = static_cast<float>(plan.outer->momentum),
              .learning_rate = static_cast<float>(plan.outer->learning_rate)};
  }
  for (const RunIteration& iteration : plan.iterations) {
    for (const RunOp& op : iteration.ops) {
      if (!op.anchored) continue;
      if (op.staged && !device.is_cpu() && !stream_) stream_ = OwnStream::new_stream(device);
      for (const std::int32_t b : op.blocks) {
        const auto tensor = static_cast<std::size_t>(plan.block_tensor[static_cast<std::size_t>(b)]);
        Anchor& anchor = anchors_[tensor];
        if (anchor.value.defined()) continue;
        const std::int64_t count = plan.index.tensors[tensor].numel;
        anchor.value = made(count, c10::kFloat);
        if (!plan.outer) continue;
        bytes_ += count * static_cast<std::int64_t>(sizeof(float));
        anchor.momentum = momentum_of(tensor);
      }
      if (!in_groups(op)) continue;
      Kind& kind = kinds_[{*codec::format_of(op.compression.name), op.blocks}];
      if (kind.op != nullptr) continue;
      kind.op = &op;
      kind.layout = {
          .format = *codec::format_of(op.compression.name), .count = op.elements, .world = world_size};
      if (kind.layout.two_stages())
        kind.rest = made(kind.layout.shard_end(rank) - kind.layout.shard_begin(rank), c10::kFloat);
    }
  }
}

at::Tensor Anchors::momentum_of(std::size_t tensor) {
  at::Tensor& momentum = momenta_[parameter_of_[tensor]];
  if (!momentum.defined()) momentum = at::zeros({plan_->index.tensors[tensor].numel}, c10::kFloat);
  return momentum;
}

void Anchors::drop() {
  if (std::exchange(down_, true)) return;
  for (std::size_t t = 0; t < anchors_.size(); ++t) {
    if (anchors_[t].value.defined()) anchors_[t].value.copy_(value_of_(static_cast<std::int32_t>(t)));
  }
}

Anchors::Slices Anchors::slices_of(std::int32_t block) const {
  const auto b = static_cast<std::size_t>(block);
  const Block& place = plan_->blocks[b];
  const Anchor& anchor = anchors_[static_cast<std::size_t>(plan_->block_tensor[b])];
  const auto part = [&](const at::Tensor& whole) {
    return whole.defined() ? whole.narrow(0, place.begin, place.end - place.begin) : whole;
  };
  return {part(anchor.value), part(anchor.momentum)};
}

Anchors::Kind& Anchors::kind_of(const RunOp& op) {
  return kinds_.at({*codec::format_of(op.compression.name), op.blocks});
}

std::uint64_t Anchors::key_of(const run::Execution& execution, std::uint64_t stage) const {
  return codec::random_key(0, static_cast<std::uint64_t>(rank_),
                           static_cast<std::uint64_t>(execution.run_iteration),
                           static_cast<std::uint64_t>(execution.op->blocks.front()), stage);
}

void Anchors::acquire(const run::Execution& execution, Message& message) {
  if (message.groups) return;
  Kind& kind = kind_of(*execution.op);
  if (kind.free.empty()) {
    kind.free.emplace_back(kind.layout, rank_, kind.rest);
    bytes_ += kind.layout.sent_bytes() + kind.layout.arrived_bytes();
  }
  message.groups = std::move(kind.free.back());
  message.groups->key = key_of(execution, 1);
  kind.free.pop_back();
}

void Anchors::acquire_staged(const run::Execution& execution, Message& message) {
  const RunOp& op = *execution.op;
  if (in_groups(op)) acquire(execution, message);
  if (message.gain) return;
  std::vector<std::unique_ptr<StagedGain>>& free = free_gains_[op.blocks];
  if (free.empty()) {
    free.push_back(std::make_unique<StagedGain>(op.elements, stream_ ? stream_->device() : c10::kCPU));
    bytes_ += free.back()->bytes();
  }
  message.gain = std::move(free.back());
  free.pop_back();
  message.gain->begin(key_of(execution, 0), outer_, share());
}

void Anchors::settle() {
  for (std::size_t t = 0; t < anchors_.size(); ++t) settle(static_cast<std::int32_t>(t));
}

void Anchors::settle(const Stepped& stepped) {
  for (const std::int32_t t : stepped.tensors) settle(t);
  for (const std::int32_t b : stepped.blocks) settle(plan_->block_tensor[static_cast<std::size_t>(b)]);
}

void Anchors::settle(std::int32_t tensor) {
  if (!stream_) return;
  std::exchange(anchors_[static_cast<std::size_t>(tensor)].copied, {}).wait(stream_->device());
}

void Anchors::retire(const RunOp& op, Message& message) {
  if (message.gain) free_gains_[op.blocks].push_back(std::move(message.gain));
  retire_groups(op, message);
}

void Anchors::retire_groups(const RunOp& op, Message& message) {
  if (!message.groups) return;
  kind_of(op).free.push_back(std::move(*message.groups));
  message.groups.reset();
}

void Anchors::read(const run::Execution& execution, std::size_t at, Message& message) {
  const RunOp& op = *execution.op;
  const auto b = static_cast<std::size_t>(op.blocks[at]);
  const Block& block = plan_->blocks[b];
  const std::int32_t tensor = plan_->block_tensor[b];
  const std::int64_t length = block.end - block.begin, offset = op.offsets[at];
  const at::Tensor value = value_of_(tensor).narrow(0, block.begin, length);
  const auto [anchor, momentum] = slices_of(op.blocks[at]);
  if (op.staged) {
    acquire_staged(execution, message);
    message.gain->read(value, offset, anchor, momentum, stream_);
    if (!stream_) return;
    const c10::StreamGuard copying(*stream_);
    anchors_[static_cast<std::size_t>(tensor)].copied.record(stream_->device());
    return;
  }
  if (!in_groups(op)) {
    at::Tensor own = message.own.narrow(0, offset, length);
    at::sub_out(own, value, anchor);
    message.flat.narrow(0, offset, length).copy_(own);
    return;
  }
  acquire(execution, message);
  encode(execution, *message.groups, offset, length, value.const_data_ptr<float>(),
         anchor.const_data_ptr<float>());
}

// Elements [offset, offset + length) of the message. Groups that lie within are encoded at once.
void Anchors::encode(const run::Execution& execution, const GroupMessage& message, std::int64_t offset,
                     std::int64_t length, const float* value, const float* anchor) {
  const std::int64_t end = offset + length, whole = message.layout.count;
  const std::int64_t first = std::min((offset + codec::kGroup - 1) / codec::kGroup * codec::kGroup, end);
  const std::int64_t last = end == whole ? end : std::max(first, end / codec::kGroup * codec::kGroup);
  const auto from = [&](const float* floats, std::int64_t begin) { return floats + (begin - offset); };
  if (offset < first) share(execution, message, offset, first, value, anchor);
  if (first < last) {
    codec::kernels().encode(message.layout.format, from(value, first), from(anchor, first), last - first,
                            key_of(execution, 0), first / codec::kGroup,
                            group_at(message, first / codec::kGroup));
  }
  if (last < end) share(execution, message, last, end, from(value, last), from(anchor, last));
}

// Elements [begin, end) of the message, part of one group.
void Anchors::share(const run::Execution& execution, const GroupMessage& message, std::int64_t begin,
                    std::int64_t end, const float* value, const float* anchor) {
  const std::int64_t group = begin / codec::kGroup, start = group * codec::kGroup;
  std::vector<Shared>& groups = shared_[execution.slot];
  auto shared = std::ranges::find(groups, group, &Shared::group);
  if (shared == groups.end()) shared = groups.insert(groups.end(), {.group = group});
  for (std::int64_t i = begin; i < end; ++i)
    shared->gain[static_cast<std::size_t>(i - start)] = value[i - begin] - anchor[i - begin];
  shared->filled += end - begin;
  const std::int64_t count = std::min(codec::kGroup, message.layout.count - start);
  if (shared->filled < count) return;
  codec::kernels().encode(message.layout.format, shared->gain.data(), nullptr, count, key_of(execution, 0),
                          group, group_at(message, group));
  groups.erase(shared);
}

void Anchors::land(const run::Part& part, Message& message) {
  const auto b = static_cast<std::size_t>(part.block);
  const Block& block = plan_->blocks[b];
  const std::int32_t tensor = plan_->block_tensor[b];
  const std::int64_t length = block.end - block.begin;
  if (message.gain) {
    message.gain->land(message.groups, message.flat, message.own);
    message.gain->add_to(value_of_(tensor).narrow(0, block.begin, length), part.offset);
    return;
  }
  const Anchor& anchor = anchors_[static_cast<std::size_t>(tensor)];
  const auto floats = [&](const at::Tensor& whole) {
    return whole.defined() ? whole.mutable_data_ptr<float>() + block.begin : nullptr;
  };
  float* const value = floats(value_of_(tensor));
  if (!message.groups) {
    codec::kernels().land_floats(message.flat.const_data_ptr<float>() + part.offset,
                                 message.own.const_data_ptr<float>() + part.offset, length, share(), outer_,
                                 value, floats(anchor.value), floats(anchor.momentum));
    return;
  }
  const GroupMessage& groups = *message.groups;
  codec::kernels().land(groups.layout.format,
                        {.sources = groups.sources,
                         .own = groups.own,
                         .count = groups.layout.count,
                         .begin = part.offset,
                         .end = part.offset + length,
                         .share = share(),
                         .outer = outer_},
                        value, floats(anchor.value), floats(anchor.momentum));
}

void Anchors::return_rests() {
  for (auto& [key, kind] : kinds_) {
    if (!kind.rest.defined()) continue;
    const std::int64_t first = kind.layout.shard_begin(rank_), last = kind.layout.shard_end(rank_);
    for (std::size_t i = 0; i < kind.op->blocks.size(); ++i) {
      const auto b = static_cast<std::size_t>(kind.op->blocks[i]);
      const Block& block = plan_->blocks[b];
      const std::int64_t offset = kind.op->offsets[i];
      const std::int64_t from = std::max(first, offset);
      const std::int64_t to = std::min(last, offset + block.end - block.begin);
      if (from >= to) continue;
      const at::Tensor value =
          value_of_(plan_->block_tensor[b]).narrow(0, block.begin + from - offset, to - from);
      value.add_(kind.rest.narrow(0, from - first, to - from).to(value.device()));
    }
    kind.rest.zero_();
  }
}

}  // namespace gradweave::runtime
