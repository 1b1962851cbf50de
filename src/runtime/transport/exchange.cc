#include "runtime/transport/exchange.h"

#include <utility>

namespace gradweave::runtime {
namespace {

class Exchange : public Pending {
 public:
  Exchange(const Call& call, const at::Tensor& arrived) {
    std::vector<std::int64_t> to, from;  // none: parts of one length
    at::Tensor received = arrived, sent = call.flat;
    c10d::AllToAllOptions how;
    how.timeout = call.timeout;
    work_ = call.group.all_to_all_single(received, sent, to, from, how);
  }
  void wait() override { work_->wait(); }

 private:
  c10::intrusive_ptr<c10d::Work> work_;
};

}  // namespace

std::unique_ptr<Pending> exchange(const Call& call, const at::Tensor& arrived) {
  if (call.world() > 1) return std::make_unique<Exchange>(call, arrived);
  arrived.copy_(call.flat);
  return std::make_unique<Ended>();
}

}  // namespace gradweave::runtime
