// ef_signsgd: the signs, and the mean magnitude of the message as their scale (Karimireddy, Rebjock, Stich and Jaggi,
// "Error Feedback Fixes SignSGD", ICML 2019). The difference is left behind.
//
// Wire: the scale (float32), then one bit an element, set where it is negative.
#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>

#include "runtime/codec/loops.h"
#include "runtime/codec/rows.h"

namespace gradweave::runtime {
namespace {

constexpr std::int64_t kScaleBytes = 4;

at::Tensor weights(const at::Tensor& like) {
  return at::scalar_tensor(1, like.options().dtype(c10::kByte))
      .bitwise_left_shift(at::arange(8, like.options().dtype(c10::kByte)));
}

void write(const at::Tensor& values, const at::Tensor& bits) {
  if (looped(values)) {
    write_signs(values.const_data_ptr<float>(), values.numel(), bits.mutable_data_ptr<std::uint8_t>());
    return;
  }
  const at::Tensor signs =
      at::constant_pad_nd(values.signbit().to(c10::kByte), {0, 8 * bits.numel() - values.numel()});
  bits.copy_(signs.view({-1, 8}).mul(weights(values)).sum(1));
}

// 1 or -1 for each of `count` bits, float32.
at::Tensor factors(const at::Tensor& bits, std::int64_t count) {
  const at::Tensor set = bits.unsqueeze(1).bitwise_and(weights(bits)).ne(0).view(-1).narrow(0, 0, count);
  return set.to(c10::kFloat).mul_(-2).add_(1);
}

void leave_behind(const at::Tensor& left, const at::Tensor& scale, const at::Tensor& bits) {
  if (looped(left)) {
    subtract_signs(bits.const_data_ptr<std::uint8_t>(), left.numel(), scale.item<float>(),
                   left.mutable_data_ptr<float>());
  } else {
    left.sub_(factors(bits, left.numel()).mul_(scale));
  }
}

void sum_up(const Call& gather, const at::Tensor& to) {
  if (looped(to)) {
    std::vector<const std::uint8_t*> bits;
    std::vector<float> scales;
    for (int r = 0; r < gather.world(); ++r) {
      const at::Tensor part = gather.part(r);
      scales.push_back(part.narrow(0, 0, kScaleBytes).clone().view(c10::kFloat).item<float>());
      bits.push_back(part.const_data_ptr<std::uint8_t>() + kScaleBytes);
    }
    sum_signs(bits.data(), scales.data(), gather.world(), to.numel(), to.mutable_data_ptr<float>());
    return;
  }
  const at::Tensor sum = at::zeros({to.numel()}, to.options().dtype(c10::kFloat));
  for (int r = 0; r < gather.world(); ++r) {
    const at::Tensor part = gather.part(r).clone();
    sum.add_(factors(part.slice(0, kScaleBytes), to.numel())
                 .mul_(part.narrow(0, 0, kScaleBytes).view(c10::kFloat)));
  }
  to.copy_(sum);
}

class EfSignSgd : public Codec {
 public:
  std::unique_ptr<Pending> start(const Parcel& parcel, const Memory& before, Memory& after) const override {
    const Call& call = parcel.call;
    at::Tensor& left = compensated(call.flat, before, after);
    Call gather = call;
    gather.collective = Collective::kAllGather;
    const std::int64_t bytes = kScaleBytes + (left.numel() + 7) / 8;
    gather.flat = at::empty({bytes * call.world()}, left.options().dtype(c10::kByte));
    const at::Tensor own = gather.part(call.rank());
    const at::Tensor scale = left.abs().mean(c10::kFloat).view({1});
    own.narrow(0, 0, kScaleBytes).copy_(scale.view(c10::kByte));
    write(left, own.slice(0, kScaleBytes));
    leave_behind(left, scale, own.slice(0, kScaleBytes));
    return then(call, runtime::start(gather), [=] { sum_up(gather, call.flat); });
  }
};

}  // namespace

CodecRow ef_signsgd() {
  return {"ef_signsgd", [](const auto&) -> std::unique_ptr<Codec> { return std::make_unique<EfSignSgd>(); }};
}

}  // namespace gradweave::runtime
