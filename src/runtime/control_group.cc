#include "runtime/control_group.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <utility>

namespace gradweave::runtime {
namespace {

constexpr std::size_t kBroadcastBytes = 250U << 20;  // of a message, as DistributedDataParallel

template <typename Number>
at::Tensor tensor_of(const std::vector<Number>& values) {
  at::Tensor tensor =
      at::empty({static_cast<std::int64_t>(values.size())}, c10::CppTypeToScalarType<Number>::value);
  std::ranges::copy(values, tensor.mutable_data_ptr<Number>());
  return tensor;
}

template <typename Number>
std::vector<Number> values_of(const at::Tensor& tensor) {
  const auto* first = tensor.const_data_ptr<Number>();
  return {first, first + tensor.numel()};
}

// Python lets go of its own tensors under its lock, which a backend's thread must not wait for.
std::vector<at::Tensor> detached(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> aliases;
  aliases.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) aliases.push_back(tensor.detach());
  return aliases;
}

c10::intrusive_ptr<c10d::Work> all_reduce(c10d::ProcessGroup& group, const at::Tensor& tensor,
                                          c10d::ReduceOp::RedOpType op) {
  std::vector<at::Tensor> tensors{tensor};
  c10d::AllreduceOptions how;
  how.reduceOp = op;
  return group.allreduce(tensors, how);
}

}  // namespace

void ControlGroup::together(const std::string& what, std::function<void()> work,
                            std::int64_t messages) const {
  if (!device_.is_cpu()) return work();
  peers_->together(what, std::move(work), {.limit = messages * peers_->timeout()});
}

std::function<ControlGroup::Numbers()> ControlGroup::begin(const Numbers& values,
                                                           c10d::ReduceOp::RedOpType op,
                                                           const std::string& what) const {
  if (!messages_) return [values] { return values; };
  const at::Tensor box = tensor_of(values);
  const auto work = all_reduce(*messages_, box, op);
  return [peers = peers_, work, box, what] {
    peers->together(what, [work] { work->wait(); });
    return values_of<double>(box);
  };
}

ControlGroup::Numbers ControlGroup::reduce(const Numbers& values, c10d::ReduceOp::RedOpType op,
                                           const std::string& what) const {
  if (!messages_) return values;
  const at::Tensor box = tensor_of(values);
  peers_->together(what, [group = messages_, box, op] { all_reduce(*group, box, op)->wait(); });
  return values_of<double>(box);
}

ControlGroup::Numbers ControlGroup::over_ranks(Numbers sums) const {
  const double ranks = messages_ ? messages_->getSize() : 1;
  for (double& sum : sums) sum /= ranks;
  return sums;
}

ControlGroup::Numbers ControlGroup::largest(const Numbers& values, const std::string& what) const {
  return reduce(values, c10d::ReduceOp::MAX, what);
}

ControlGroup::Numbers ControlGroup::means(const Numbers& values, const std::string& what) const {
  return over_ranks(reduce(values, c10d::ReduceOp::SUM, what));
}

std::function<ControlGroup::Numbers()> ControlGroup::begin_smallest(const Numbers& values,
                                                                    const std::string& what) const {
  return begin(values, c10d::ReduceOp::MIN, what);
}

std::function<ControlGroup::Numbers()> ControlGroup::begin_means(const Numbers& values,
                                                                 const std::string& what) const {
  return [this, sums = begin(values, c10d::ReduceOp::SUM, what)] { return over_ranks(sums()); };
}

std::vector<std::vector<std::int64_t>> ControlGroup::of_all(const std::vector<std::int64_t>& values,
                                                            const std::string& what) const {
  if (!messages_) return {values};
  const at::Tensor mine = tensor_of(values);
  std::vector<at::Tensor> everybodys;
  for (int r = 0; r < messages_->getSize(); ++r) everybodys.push_back(at::empty_like(mine));
  peers_->together(what, [group = messages_, mine, everybodys] {
    std::vector<std::vector<at::Tensor>> outputs{everybodys};
    std::vector<at::Tensor> inputs{mine};
    group->allgather(outputs, inputs)->wait();
  });
  std::vector<std::vector<std::int64_t>> found;
  for (const at::Tensor& each : everybodys) found.push_back(values_of<std::int64_t>(each));
  return found;
}

void ControlGroup::broadcast(const std::vector<at::Tensor>& tensors, const std::string& what) const {
  if (!data_ || tensors.empty()) return;
  std::size_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += tensor.nbytes();
  together(
      what,
      [group = data_, aliases = detached(tensors)] {
        c10d::broadcast_coalesced(group, aliases, kBroadcastBytes, 0);
      },
      1 + static_cast<std::int64_t>(bytes / kBroadcastBytes));
}

void ControlGroup::average(const std::vector<at::Tensor>& tensors, const std::string& what) const {
  if (!data_ || tensors.empty()) return;
  std::map<c10::ScalarType, std::vector<at::Tensor>> alike;
  for (at::Tensor& tensor : detached(tensors)) alike[tensor.scalar_type()].push_back(std::move(tensor));
  for (const auto& [dtype, aliases] : alike) {
    std::vector<at::Tensor> flat;
    flat.reserve(aliases.size());
    for (const at::Tensor& each : aliases) flat.push_back(each.flatten().to(device_));
    const at::Tensor box = at::cat(flat);
    together(what, [group = data_, box] { all_reduce(*group, box, c10d::ReduceOp::SUM)->wait(); });
    box.div_(data_->getSize());
    std::int64_t begin = 0;
    for (const at::Tensor& each : aliases) {
      each.copy_(box.slice(0, begin, begin + each.numel()).view(each.sizes()));
      begin += each.numel();
    }
  }
}

}  // namespace gradweave::runtime
