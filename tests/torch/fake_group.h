// Process groups whose ranks are threads of this process.
#pragma once

#include <ATen/core/Tensor.h>

#include <barrier>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

namespace gradweave::runtime {

// What the ranks' backends share.
struct Meeting {
  explicit Meeting(int ranks) : sent(static_cast<std::size_t>(ranks)), arrival(ranks) {}
  std::vector<at::Tensor> sent;
  std::barrier<> arrival;
  std::int64_t elements = 0;  // that rank 0 has given
};

class FakeWork : public c10d::Work {
 public:
  bool wait(std::chrono::milliseconds) override { return true; }
};

// A backend like those of accelerators: no send and receive, parts of one length.
class FakeBackend : public c10d::Backend {
 public:
  FakeBackend(std::shared_ptr<Meeting> meeting, int rank, int size)
      : c10d::Backend(rank, size), meeting_(std::move(meeting)) {}

  const std::string getBackendName() const override { return "fake"; }

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions&) override {
    return together(tensors[0], [&](const std::vector<at::Tensor>& all) { tensors[0].copy_(sum(all)); });
  }
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::ReduceScatterOptions&) override {
    return together(input, [&](const std::vector<at::Tensor>& all) {
      output.copy_(sum(all).narrow(0, getRank() * output.numel(), output.numel()));
    });
  }
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions&) override {
    return together(input, [&](const std::vector<at::Tensor>& all) {
      for (int r = 0; r < getSize(); ++r)
        output.narrow(0, r * input.numel(), input.numel()).copy_(all[static_cast<std::size_t>(r)]);
    });
  }
  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<std::int64_t>& from, std::vector<std::int64_t>&,
                                               const c10d::AllToAllOptions&) override {
    return together(input, [&](const std::vector<at::Tensor>& all) {
      // Without lengths, parts are equal; with them the test's elements have 16 bits.
      const std::int64_t unit = from.empty() ? 1 : 2;
      const std::int64_t length = from.empty() ? output.numel() / getSize() : from.front();
      for (int r = 0; r < getSize(); ++r) {
        const at::Tensor& theirs = all[static_cast<std::size_t>(r)];
        const std::int64_t begin = theirs.numel() / unit * getRank() / getSize() * unit;
        output.narrow(0, r * length, length).copy_(theirs.narrow(0, begin, length));
      }
    });
  }

 private:
  static at::Tensor sum(const std::vector<at::Tensor>& all) {
    at::Tensor total = all.front().clone();
    for (std::size_t r = 1; r < all.size(); ++r) total.add_(all[r]);
    return total;
  }

  c10::intrusive_ptr<c10d::Work> together(const at::Tensor& mine,
                                          const std::function<void(const std::vector<at::Tensor>&)>& use) {
    meeting_->sent[static_cast<std::size_t>(getRank())] = mine.clone();
    if (getRank() == 0) meeting_->elements += mine.numel();
    meeting_->arrival.arrive_and_wait();
    use(meeting_->sent);
    meeting_->arrival.arrive_and_wait();
    return c10::make_intrusive<FakeWork>();
  }

  std::shared_ptr<Meeting> meeting_;
};

// Calls `rank_main` on as many threads as there are ranks, each with its group. Returns how many elements rank 0 gave to
// collectives.
inline std::int64_t on_ranks(int ranks, const std::function<void(c10d::ProcessGroup&)>& rank_main) {
  const auto meeting = std::make_shared<Meeting>(ranks);
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([=] {
      const auto group = c10::make_intrusive<c10d::ProcessGroup>(r, ranks);
      group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::CUSTOM,
                        c10::make_intrusive<FakeBackend>(meeting, r, ranks));
      rank_main(*group);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return meeting->elements;
}

}  // namespace gradweave::runtime
