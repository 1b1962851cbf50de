// The backend's own all-reduce.
#include "runtime/transport/rows.h"

namespace gradweave::runtime {
namespace {

class AllReduce : public Pending {
 public:
  explicit AllReduce(const Call& call) {
    std::vector<at::Tensor> tensors{call.flat};
    c10d::AllreduceOptions how;
    how.timeout = call.timeout;
    work_ = call.group.allreduce(tensors, how);
  }
  void wait() override { work_->wait(); }

 private:
  c10::intrusive_ptr<c10d::Work> work_;
};

bool serves(const Backend&, Collective collective, c10::ScalarType) {
  return collective == Collective::kAllReduce;
}

std::unique_ptr<Pending> start(const Call& call, const Backend&) { return std::make_unique<AllReduce>(call); }

}  // namespace

Transport all_reduce() { return {"all_reduce", "the backend's all-reduce", serves, start}; }

}  // namespace gradweave::runtime
