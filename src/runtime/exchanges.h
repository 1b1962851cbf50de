// What ranks exchange besides the plan's ops: flags, and exact averages.
#pragma once

#include <ATen/core/TensorBody.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "runtime/peers.h"

namespace gradweave::runtime {

class Exchanges {
 public:
  // `control`: a group for small CPU messages, null with one rank. `peers`: whose verdict ends waits for them.
  Exchanges(c10::intrusive_ptr<c10d::ProcessGroup> control, std::shared_ptr<Peers> peers,
            std::chrono::milliseconds timeout)
      : control_(std::move(control)), peers_(std::move(peers)), timeout_(timeout) {}
  // A plan comes into force; `group`: for averages; null: none are made.
  void install(c10::intrusive_ptr<c10d::ProcessGroup> group);
  bool averages() const { return group_.defined(); }

  // As run::FlagExchange.
  void begin(std::size_t slot, std::span<std::uint8_t> flags);
  void finish(std::size_t slot);

  // Makes `value`, flat, its mean over all ranks, equal bit for bit; `share`: 1 / world size. `number`: of the call,
  // among those that follow each other. The caller owes averages(). Errors: any std::exception.
  void average(const at::Tensor& value, const at::Tensor& share, std::size_t number) const;

 private:
  struct Flags {
    at::Tensor sent;
    std::span<std::uint8_t> answer;
    c10::intrusive_ptr<c10d::Work> work;
  };

  c10::intrusive_ptr<c10d::ProcessGroup> control_, group_;
  std::shared_ptr<Peers> peers_;
  std::chrono::milliseconds timeout_;
  std::vector<Flags> flags_;  // by slot
};

}  // namespace gradweave::runtime
