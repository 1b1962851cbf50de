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

}  // namespace

Transport all_reduce() {
  return {"all_reduce", "the backend's all-reduce",
          [](const Backend&, Collective collective, c10::ScalarType, int) {
            return collective == Collective::kAllReduce;
          },
          [](const Call& call, const Backend&) -> std::unique_ptr<Pending> {
            return std::make_unique<AllReduce>(call);
          },
          true};
}

}  // namespace gradweave::runtime
