#include "runtime/collectives.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <functional>

#include "gradweave/error.h"

namespace gradweave::runtime {
namespace {

class Backend : public Pending {
 public:
  explicit Backend(c10::intrusive_ptr<c10d::Work> work) : work_(std::move(work)) {}
  void wait() override { work_->wait(); }

 private:
  c10::intrusive_ptr<c10d::Work> work_;
};

// A ring of ranks; each step passes one part to the right neighbour while the left neighbour's arrives.
//
// P = world size, r = rank, part p = elements [floor(n*p/P), floor(n*(p+1)/P)). With `shift` 0, step
// s = 0 .. P-2:
//   reduce_scatter: send part r-s-1, receive part r-s-2 and add it in; in the end part r is complete here
//   all_gather:     send part r-s,   receive part r-s-1 in place
// Bytes on the wire per rank: (P-1)/P of the message each. Parts are cut into chunks so that a step's sums
// and the next step's sends overlap; receives are posted ahead; each chunk has a tag of its own, since sends
// reordered under one tag corrupt in silence.
class Ring : public Pending {
 public:
  static constexpr std::int64_t kChunkBytes = 512 * 1024;
  static constexpr std::size_t kWindow = 4;

  Ring(c10d::ProcessGroup& group, OpRun& run, std::size_t sequence, std::chrono::milliseconds timeout)
      : group_(group),
        flat_(run.flat),
        reduce_(run.op->collective == Collective::kReduceScatter),
        world_(group.getSize()),
        rank_(group.getRank()),
        elements_(run.op->elements),
        chunk_(std::max<std::int64_t>(1, kChunkBytes / flat_.element_size())),
        tag_(static_cast<int>(sequence % kSequences) * kTagsPerOp),
        timeout_(timeout) {
    list_chunks();
    if (reduce_) arriving_ = at::empty({chunk_ * static_cast<std::int64_t>(kWindow)}, flat_.options());
  }

  void wait() override {
    // What arrives in one step is what goes out in the next, so chunks are passed on as they come.
    send_step(0);
    std::size_t posted = 0;
    for (std::size_t i = 0; i < incoming_.size(); ++i) {
      while (posted < incoming_.size() && posted < i + kWindow) post(posted++);
      take(i);
    }
    for (auto& work : sends_) work->wait(timeout_);
  }

 private:
  static constexpr int kTagsPerOp = 1 << 16;
  static constexpr std::size_t kSequences = 1 << 14;

  struct Chunk {
    int step;
    std::int64_t begin, end;
    int tag;
  };

  std::int64_t edge(int part) const { return elements_ * part / world_; }
  int wrap(int part) const { return ((part % world_) + world_) % world_; }
  int sent_part(int step) const { return wrap(rank_ - step - (reduce_ ? 1 : 0)); }

  void list_part(std::vector<Chunk>& chunks, int step, int part) const {
    int number = 0;
    for (std::int64_t b = edge(part); b < edge(part + 1); b += chunk_, ++number) {
      chunks.push_back(
          {step, b, std::min(b + chunk_, edge(part + 1)), tag_ + step * (kTagsPerOp / world_) + number});
    }
  }

  void list_chunks() {
    for (int step = 0; step + 1 < world_; ++step) {
      list_part(outgoing_, step, sent_part(step));
      list_part(incoming_, step, wrap(sent_part(step) - 1));
    }
    receives_.resize(incoming_.size());
  }

  at::Tensor landing(std::size_t i) const {
    const Chunk& chunk = incoming_[i];
    if (!reduce_) return flat_.slice(0, chunk.begin, chunk.end);
    const auto at = static_cast<std::int64_t>(i % kWindow) * chunk_;
    return arriving_.slice(0, at, at + chunk.end - chunk.begin);
  }

  void post(std::size_t i) {
    std::vector<at::Tensor> tensors{landing(i)};
    receives_[i] = group_.recv(tensors, wrap(rank_ - 1), incoming_[i].tag);
  }

  void send(const Chunk& chunk) {
    std::vector<at::Tensor> tensors{flat_.slice(0, chunk.begin, chunk.end)};
    sends_.push_back(group_.send(tensors, wrap(rank_ + 1), chunk.tag));
  }

  void send_step(int step) {
    for (const Chunk& chunk : outgoing_) {
      if (chunk.step == step) send(chunk);
    }
  }

  void take(std::size_t i) {
    receives_[i]->wait(timeout_);
    receives_[i].reset();
    const Chunk& chunk = incoming_[i];
    if (reduce_) flat_.slice(0, chunk.begin, chunk.end).add_(landing(i));
    if (chunk.step + 2 < world_) {
      send({chunk.step + 1, chunk.begin, chunk.end, chunk.tag + kTagsPerOp / world_});
    }
  }

  c10d::ProcessGroup& group_;
  at::Tensor flat_;
  bool reduce_;
  int world_, rank_;
  std::int64_t elements_, chunk_;
  int tag_;
  std::chrono::milliseconds timeout_;  // of one chunk
  std::vector<Chunk> outgoing_, incoming_;
  at::Tensor arriving_;
  std::vector<c10::intrusive_ptr<c10d::Work>> receives_, sends_;
};

class Nothing : public Pending {
 public:
  void wait() override {}
};

}  // namespace

std::unique_ptr<Pending> start_collective(c10d::ProcessGroup& group, OpRun& run, std::size_t sequence,
                                          const LinkOptions& options) {
  if (run.op->collective != Collective::kAllReduce) {
    if (group.getSize() == 1) return std::make_unique<Nothing>();  // a group can't send to itself
    return std::make_unique<Ring>(group, run, sequence, options.timeout);
  }
  std::vector<at::Tensor> tensors{run.flat};
  c10d::AllreduceOptions how;
  how.timeout = options.timeout;
  return std::make_unique<Backend>(group.allreduce(tensors, how));
}

void check_before(c10d::ProcessGroup& group, const OpRun& run, std::size_t sequence, const std::string& hash,
                  const LinkOptions& options) {
  const auto plan = static_cast<std::int64_t>(std::hash<std::string>{}(hash));
  const std::array<std::int64_t, 3> mine{plan, static_cast<std::int64_t>(sequence), run.op->bytes};
  at::Tensor sent = at::empty({3}, at::kLong);
  std::copy(mine.begin(), mine.end(), sent.mutable_data_ptr<std::int64_t>());
  std::vector<std::vector<at::Tensor>> received(1);
  for (int r = 0; r < group.getSize(); ++r) received[0].push_back(at::empty({3}, at::kLong));
  std::vector<at::Tensor> inputs{sent};
  c10d::AllgatherOptions how;
  how.timeout = options.timeout;
  group.allgather(received, inputs, how)->wait();
  static constexpr std::array kNames{"plan", "sequence number", "size in bytes"};
  for (int r = 0; r < group.getSize(); ++r) {
    const auto* theirs = received[0][static_cast<std::size_t>(r)].const_data_ptr<std::int64_t>();
    for (std::size_t i = 0; i < mine.size(); ++i) {
      if (theirs[i] == mine[i]) continue;
      throw RuntimeFailure("rank " + std::to_string(r) + " is about to start another op: its " + kNames[i] +
                           " is " + std::to_string(theirs[i]) + ", here it is " + std::to_string(mine[i]));
    }
  }
}

}  // namespace gradweave::runtime
