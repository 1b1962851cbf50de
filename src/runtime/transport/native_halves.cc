// The backend's own reduce-scatter and all-gather. They need parts of one length: where the message has no such
// parts, it goes through a copy in which each part has room for the longest.
#include <ATen/ops/empty.h>

#include "runtime/transport/rows.h"
#include "runtime/transport/single.h"

namespace gradweave::runtime {
namespace {

class NativeHalf : public Pending {
 public:
  explicit NativeHalf(const Call& call)
      : call_(call), width_((call.flat.numel() + call.world() - 1) / call.world()) {
    const bool even = call.flat.numel() % call.world() == 0;
    whole_ = even ? call.flat : at::empty({width_ * call.world()}, call.flat.options());
    mine_ = even ? call.part(call.rank()) : at::empty({width_}, call.flat.options());
    if (call.collective == Collective::kReduceScatter) {
      if (!even) copy_parts(whole_, true);
      c10d::ReduceScatterOptions how;
      how.timeout = call.timeout;
      work_ = reduce_scatter_single(call.group, mine_, whole_, how);
    } else {
      if (!even) room_for(mine_, call.rank()).copy_(call_.part(call.rank()));
      c10d::AllgatherOptions how;
      how.timeout = call.timeout;
      work_ = all_gather_single(call.group, whole_, mine_, how);
    }
  }

  void wait() override {
    work_->wait();
    if (whole_.is_same(call_.flat)) return;
    if (call_.collective == Collective::kReduceScatter) {
      call_.part(call_.rank()).copy_(room_for(mine_, call_.rank()));
    } else {
      copy_parts(whole_, false);
    }
  }

 private:
  // The first of `room`'s elements, as many as part `p` has.
  at::Tensor room_for(const at::Tensor& room, int p) const {
    return room.narrow(0, 0, call_.edge(p + 1) - call_.edge(p));
  }

  void copy_parts(const at::Tensor& padded, bool out) const {
    for (int p = 0; p < call_.world(); ++p) {
      const at::Tensor room = room_for(padded.narrow(0, p * width_, width_), p);
      out ? room.copy_(call_.part(p)) : call_.part(p).copy_(room);
    }
  }

  Call call_;
  std::int64_t width_;
  at::Tensor whole_, mine_;
  c10::intrusive_ptr<c10d::Work> work_;
};

}  // namespace

Transport native_halves() {
  return {"native_halves", "the backend's reduce-scatter and all-gather",
          [](const Backend& backend, Collective collective, c10::ScalarType, int) {
            return backend.native_halves && is_half(collective);
          },
          [](const Call& call, const Backend&) -> std::unique_ptr<Pending> {
            return std::make_unique<NativeHalf>(call);
          }};
}

}  // namespace gradweave::runtime
