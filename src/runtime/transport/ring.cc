// Reduce-scatter and all-gather over send and receive.
#include <ATen/ops/empty.h>

#include <algorithm>

#include "runtime/transport/chunks.h"
#include "runtime/transport/rows.h"

namespace gradweave::runtime {
namespace {

// A ring of ranks; each step passes one part to the right neighbour while the left neighbour's arrives.
//
// P = world size, r = rank, part p = elements [floor(n*p/P), floor(n*(p+1)/P)). With `shift` 0, step
// s = 0 .. P-2:
//   reduce_scatter: send part r-s-1, receive part r-s-2 and add it in; in the end part r is complete here
//   all_gather:     send part r-s,   receive part r-s-1 in place
// Bytes on the wire per rank: (P-1)/P of the message each. Parts are cut into chunks so that a step's sums
// and the next step's sends overlap.
class Ring : public Pending {
 public:
  static constexpr std::size_t kMostArriving = 8;  // chunks that are posted ahead where they need memory

  explicit Ring(const Call& call)
      : call_(call),
        reduce_(call.collective == Collective::kReduceScatter),
        world_(call.world()),
        rank_(call.rank()),
        outgoing_(chunks_of(call, sent_part(0), 0)) {
    for (int step = 0; step + 1 < world_; ++step) {
      const std::vector<Chunk> part = chunks_of(call, wrap(sent_part(step) - 1), step);
      incoming_.insert(incoming_.end(), part.begin(), part.end());
    }
    receives_.resize(incoming_.size());
    if (reduce_) {
      window_ = std::min(incoming_.size(), kMostArriving);
      arriving_ = at::empty({static_cast<std::int64_t>(window_), longest()}, call.flat.options());
    } else {
      window_ = incoming_.size();  // each lands at its place
    }
  }

  void wait() override {
    std::size_t posted = 0;
    while (posted < window_) post(posted++);
    // What arrives in one step is what goes out in the next, so chunks are passed on as they come.
    for (const Chunk& chunk : outgoing_) send(chunk);
    for (std::size_t i = 0; i < incoming_.size(); ++i) {
      take(i);
      if (posted < incoming_.size()) post(posted++);
      pass_on(incoming_[i]);
    }
    for (auto& work : sends_) work->wait(call_.timeout);
  }

 private:
  int wrap(int part) const { return ((part % world_) + world_) % world_; }
  int sent_part(int step) const { return wrap(rank_ - step - (reduce_ ? 1 : 0)); }

  std::int64_t longest() const {
    std::int64_t most = 0;
    for (const Chunk& chunk : incoming_) most = std::max(most, chunk.end - chunk.begin);
    return most;
  }

  at::Tensor landing(std::size_t i) const {
    const Chunk& chunk = incoming_[i];
    if (!reduce_) return call_.flat.slice(0, chunk.begin, chunk.end);
    return arriving_.select(0, static_cast<std::int64_t>(i % window_)).slice(0, 0, chunk.end - chunk.begin);
  }

  void post(std::size_t i) {
    std::vector<at::Tensor> tensors{landing(i)};
    receives_[i] = call_.group.recv(tensors, wrap(rank_ - 1), incoming_[i].tag);
  }

  void send(const Chunk& chunk) {
    std::vector<at::Tensor> tensors{call_.flat.slice(0, chunk.begin, chunk.end)};
    sends_.push_back(call_.group.send(tensors, wrap(rank_ + 1), chunk.tag));
  }

  void take(std::size_t i) {
    receives_[i]->wait(call_.timeout);
    receives_[i].reset();
    const Chunk& chunk = incoming_[i];
    if (reduce_) call_.flat.slice(0, chunk.begin, chunk.end).add_(landing(i));
  }

  void pass_on(const Chunk& chunk) {
    if (chunk.step + 2 < world_) {
      send({chunk.step + 1, chunk.begin, chunk.end, chunk.tag + kTagsPerOp / world_});
    }
  }

  Call call_;  // its timeout is of one chunk
  bool reduce_;
  int world_, rank_;
  std::vector<Chunk> outgoing_, incoming_;  // of the first step, of all
  std::size_t window_;
  at::Tensor arriving_;
  std::vector<c10::intrusive_ptr<c10d::Work>> receives_, sends_;
};

class RingAllReduce : public Pending {
 public:
  explicit RingAllReduce(const Call& call)
      : scatter_(half(call, Collective::kReduceScatter, 0)), gather_(half(call, Collective::kAllGather, 1)) {}

  void wait() override {
    scatter_.wait();
    gather_.wait();
  }

 private:
  static Call half(Call call, Collective collective, std::size_t number) {
    call.collective = collective;
    call.sequence += number;
    return call;
  }

  Ring scatter_, gather_;
};

}  // namespace

std::unique_ptr<Pending> ring_all_reduce(const Call& call) { return std::make_unique<RingAllReduce>(call); }

Transport ring() {
  return {"ring", "a ring of ranks over send and receive",
          [](const Backend& backend, Collective collective, c10::ScalarType, int) {
            return backend.eager_sends && is_half(collective);
          },
          [](const Call& call, const Backend&) -> std::unique_ptr<Pending> {
            return std::make_unique<Ring>(call);
          }};
}

}  // namespace gradweave::runtime
