// What the ranks of a job tell each other in collectives of the control, besides gradients.
#pragma once

#include <ATen/core/TensorBody.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "runtime/peers.h"

namespace gradweave::runtime {

// Every call is collective, and every wait ends with the verdict: RuntimeFailure as soon as there is one, or once the timeout of
// `peers` has passed, of each message. `what` is what an error says has failed: "the exchange of profiles". With one rank there is nobody to
// wait for.
class ControlGroup {
 public:
  using Numbers = std::vector<double>;
  using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

  // `messages`: for numbers, in the processor's memory; `data`: for tensors, on `device`. Both null with one rank. The
  // groups' own timeouts hold.
  ControlGroup(std::shared_ptr<Peers> peers, Group messages, Group data, c10::Device device)
      : peers_(std::move(peers)), messages_(std::move(messages)), data_(std::move(data)), device_(device) {}

  // Element by element the largest, or the mean, of all ranks' numbers.
  Numbers largest(const Numbers& values, const std::string& what) const;
  Numbers means(const Numbers& values, const std::string& what) const;
  // Begins to find the smallest, or the means, and returns what waits for them. Other calls may come between, alike on all
  // ranks.
  std::function<Numbers()> begin_smallest(const Numbers& values, const std::string& what) const;
  std::function<Numbers()> begin_means(const Numbers& values, const std::string& what) const;
  // By rank, its integers; all lists are of one length.
  std::vector<std::vector<std::int64_t>> of_all(const std::vector<std::int64_t>& values,
                                                const std::string& what) const;
  // Rank 0's, in place, in as few messages as DistributedDataParallel.
  void broadcast(const std::vector<at::Tensor>& tensors, const std::string& what) const;
  // The means over the ranks, in place, the same bits on all. Takes a copy of all.
  void average(const std::vector<at::Tensor>& tensors, const std::string& what) const;

 private:
  Numbers reduce(const Numbers& values, c10d::ReduceOp::RedOpType op, const std::string& what) const;
  std::function<Numbers()> begin(const Numbers& values, c10d::ReduceOp::RedOpType op,
                                 const std::string& what) const;
  Numbers over_ranks(Numbers sums) const;
  // Waits for `work` on tensors, of so many messages; on an accelerator its stream does.
  void together(const std::string& what, std::function<void()> work, std::int64_t messages = 1) const;

  std::shared_ptr<Peers> peers_;
  Group messages_, data_;
  c10::Device device_;
};

}  // namespace gradweave::runtime
