// Sums of 16-bit floats that are rounded once. A sum in the message's own dtype, as backends do it, rounds after
// every rank: with bfloat16's 8 bits the mean of many ranks loses what each adds. A sum of two is rounded once anyway.
//
//   1. an exchange: each rank gets every rank's values of its own part, in 16 bits
//   2. it adds them in float32, in the order of ranks, and rounds once
//   3. all_reduce: all_gather of the parts, so that all ranks have the same bits
//
// Bytes on the wire per rank: (P-1)/P of the message for 1 and for 3, as in a ring.
#include <ATen/ops/empty.h>

#include "runtime/transport/exchange.h"
#include "runtime/transport/rows.h"

namespace gradweave::runtime {
namespace {

class Float32Sum : public Pending {
 public:
  Float32Sum(const Call& call, const Backend& backend) : call_(call) {
    const std::int64_t length = call.edge(call.rank() + 1) - call.edge(call.rank());
    arrived_ = at::empty({call.world(), length}, call.flat.options());
    exchange_ = exchange(call, arrived_);
    if (backend.ordered_launches) sum();  // nothing may be launched later
  }

  void wait() override {
    if (exchange_) sum();
    if (gathering_) gathering_->wait();
  }

 private:
  void sum() {
    exchange_->wait();
    exchange_.reset();
    at::Tensor total = arrived_[0].to(c10::kFloat);
    for (int r = 1; r < call_.world(); ++r) total.add_(arrived_[r]);
    call_.part(call_.rank()).copy_(total);
    if (call_.collective == Collective::kReduceScatter) return;
    Call gather = call_;
    gather.collective = Collective::kAllGather;
    gather.sequence += 1;
    gathering_ = runtime::start(gather);
  }

  Call call_;
  at::Tensor arrived_;  // by rank
  std::unique_ptr<Pending> exchange_, gathering_;
};

}  // namespace

Transport float32_sum() {
  return {"float32_sum", "16-bit floats: added in float32 by the rank whose part it is",
          [](const Backend&, Collective collective, c10::ScalarType dtype, int world) {
            return world > 2 && (dtype == c10::kHalf || dtype == c10::kBFloat16) &&
                   (collective == Collective::kAllReduce || collective == Collective::kReduceScatter);
          },
          [](const Call& call, const Backend& backend) -> std::unique_ptr<Pending> {
            return std::make_unique<Float32Sum>(call, backend);
          }};
}

}  // namespace gradweave::runtime
