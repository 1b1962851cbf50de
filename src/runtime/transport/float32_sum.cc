// Sums of 16-bit floats that are rounded once. A sum in the message's own dtype, as backends do it, rounds after
// every rank: with bfloat16's 8 bits the mean of many ranks loses what each adds.
//
//   1. all_to_all: each rank gets every rank's values of its own part, in 16 bits
//   2. it adds them in float32, in the order of ranks, and rounds once
//   3. all_reduce: all_gather of the parts, so that all ranks have the same bits
//
// Bytes on the wire per rank: (P-1)/P of the message for 1 and for 3, as in a ring.
#include <ATen/ops/empty.h>

#include "runtime/transport/rows.h"

namespace gradweave::runtime {
namespace {

class Float32Sum : public Pending {
 public:
  Float32Sum(const Call& call, const Backend& backend) : call_(call) {
    const std::int64_t length = call.edge(call.rank() + 1) - call.edge(call.rank());
    arrived_ = at::empty({call.world(), length}, call.flat.options());
    std::vector<std::int64_t> to, from(static_cast<std::size_t>(call.world()), bytes(length));
    for (int p = 0; p < call.world(); ++p) to.push_back(bytes(call.edge(p + 1) - call.edge(p)));
    // As bytes: backends differ in what they take.
    at::Tensor received = arrived_.view({-1}).view(c10::kByte), sent = call.flat.view(c10::kByte);
    c10d::AllToAllOptions how;
    how.timeout = call.timeout;
    exchange_ = call.group.all_to_all_single(received, sent, from, to, how);
    if (backend.ordered_launches) sum();  // nothing may be launched later
  }

  void wait() override {
    if (exchange_) sum();
    if (gathering_) gathering_->wait();
  }

 private:
  std::int64_t bytes(std::int64_t elements) const {
    return elements * static_cast<std::int64_t>(call_.flat.element_size());
  }

  void sum() {
    exchange_->wait();
    exchange_.reset();
    at::Tensor total = arrived_[0].to(c10::kFloat);
    for (int r = 1; r < call_.world(); ++r) total.add_(arrived_[r]);
    call_.part(call_.rank()).copy_(total);
    if (call_.collective == Collective::kReduceScatter) return;
    Call gather = call_;
    gather.collective = Collective::kAllGather;
    gathering_ = runtime::start(gather);
  }

  Call call_;
  at::Tensor arrived_;  // by rank
  c10::intrusive_ptr<c10d::Work> exchange_;
  std::unique_ptr<Pending> gathering_;
};

}  // namespace

Transport float32_sum() {
  return {"float32_sum", "16-bit floats: added in float32 by the rank whose part it is",
          [](const Backend&, Collective collective, c10::ScalarType dtype) {
            return (dtype == c10::kHalf || dtype == c10::kBFloat16) &&
                   (collective == Collective::kAllReduce || collective == Collective::kReduceScatter);
          },
          [](const Call& call, const Backend& backend) -> std::unique_ptr<Pending> {
            return std::make_unique<Float32Sum>(call, backend);
          }};
}

}  // namespace gradweave::runtime
