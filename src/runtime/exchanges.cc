#include "runtime/exchanges.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>

#include <algorithm>
#include <utility>

#include "runtime/transport/transport.h"

namespace gradweave::runtime {

void Exchanges::install(c10::intrusive_ptr<c10d::ProcessGroup> group) {
  group_ = std::move(group);
  flags_.clear();
}

void Exchanges::begin(std::size_t slot, std::span<std::uint8_t> flags) {
  if (flags_.size() <= slot) flags_.resize(slot + 1);
  Flags& exchange = flags_[slot];
  if (!exchange.sent.defined())
    exchange.sent = at::empty({static_cast<std::int64_t>(flags.size())}, at::kByte);
  std::ranges::copy(flags, exchange.sent.mutable_data_ptr<std::uint8_t>());
  exchange.answer = flags;
  std::vector<at::Tensor> tensors{exchange.sent};
  c10d::AllreduceOptions how;
  how.reduceOp = c10d::ReduceOp::MAX;
  how.timeout = timeout_;
  exchange.work = control_->allreduce(tensors, how);
}

void Exchanges::finish(std::size_t slot) {
  Flags& exchange = flags_[slot];
  const auto work = std::exchange(exchange.work, {});
  work->isCompleted() ? void(work->wait()) : peers_->await([work] { work->wait(); });
  std::copy_n(exchange.sent.const_data_ptr<std::uint8_t>(), exchange.answer.size(), exchange.answer.data());
}

void Exchanges::average(const at::Tensor& value, const at::Tensor& share, std::size_t number) const {
  at::Tensor sum = at::empty_like(value);
  at::mul_out(sum, value, share);
  const auto average = [group = group_, sum, number, timeout = timeout_] {
    start({.group = *group, .flat = sum, .sequence = number, .timeout = timeout})->wait();
  };
  value.is_cpu() ? peers_->await(average) : average();  // an accelerator's stream waits
  value.copy_(sum);
}

}  // namespace gradweave::runtime
