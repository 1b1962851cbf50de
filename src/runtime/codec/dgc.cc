// dgc: the largest elements of a sum of velocities (Lin, Han, Mao, Wang and Dally, "Deep Gradient Compression", ICLR
// 2018).
//
//   paper                    here
//   g_t, u_t, v_t            this rank's message; Memory::further[0]; Memory::residual
//   m                        `momentum`
//   momentum correction      u <- m u + g,  v <- v + u                       (Section 3.2)
//   local gradient clipping  g is scaled to a norm of at most `clip` / sqrt(P), in units of a rank's gradient
//   factor masking           u and v are 0 where v was sent                  (Section 3.2)
//   warm-up                  density 1/4, 1/16, 1/64, ... for equal parts of the first `warm_up` iterations, down
//                            to `density`                                    (Section 3.3)
//
// The optimizer must have no momentum of its own, except with momentum = 0.
//
// Deviations from the paper: the norm that is clipped is a message's, not the whole model's; the warm-up is counted
// in iterations; its threshold is exact.
#include "compressors/dgc.h"

#include <ATen/ops/add.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cmath>

#include "runtime/codec/rows.h"
#include "runtime/codec/sparse.h"

namespace gradweave::runtime {
namespace {

class Dgc : public Codec {
 public:
  explicit Dgc(const codec::Dgc& parameters) : set_(parameters) {}

  std::unique_ptr<Pending> start(const Parcel& parcel, const Memory& before, Memory& after) const override {
    const at::Tensor& message = parcel.call.flat;
    if (set_.clip > 0) clip(message, parcel.call.world());
    const bool corrects = set_.momentum > 0;
    at::Tensor& left = corrects ? with_velocity(message, before, after) : compensated(message, before, after);
    const at::Tensor places = largest(left, kept_elements(left.numel(), density_at(parcel.iteration)));
    if (corrects) after.further[0].index_fill_(0, places, 0);
    return start_sum(parcel.call, taken_out(left, places), places);
  }

 private:
  at::Tensor& with_velocity(const at::Tensor& message, const Memory& before, Memory& after) const {
    after.further.resize(1);
    at::Tensor& velocity = after.further[0];
    if (!velocity.defined()) velocity = at::empty_like(message);
    if (before.further.empty()) {
      velocity.copy_(message);
    } else {
      at::add_out(velocity, message, before.further[0], set_.momentum);
    }
    return compensated(velocity, before, after);
  }

  // A message is a share of the mean: 1 / P of the gradient.
  void clip(const at::Tensor& message, int world) const {
    const double most = set_.clip / std::sqrt(world) / world;
    const at::Tensor norm = message.element_size() == 2 ? message.norm(2, c10::kFloat) : message.norm();
    message.mul_(norm.reciprocal().mul(most).clamp_max(1));
  }

  double density_at(std::int64_t iteration) const {
    if (iteration >= set_.warm_up) return set_.density;
    const auto steps = static_cast<std::int64_t>(std::ceil(std::log(set_.density) / std::log(0.25))) - 1;
    const std::int64_t step = iteration * std::max<std::int64_t>(steps, 0) / set_.warm_up;
    return std::max(set_.density, std::pow(0.25, static_cast<double>(step + 1)));
  }

  codec::Dgc set_;
};

}  // namespace

CodecRow dgc() { return row_of<Dgc, codec::Dgc>("dgc"); }

}  // namespace gradweave::runtime
