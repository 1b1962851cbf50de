// fp16, bf16: messages go out as 16-bit floats, which are summed in float32 and rounded once (transport
// float32_sum). Narrower elements stay as they are. Nothing is left behind.
#include <ATen/ops/empty_like.h>

#include "runtime/codec/rows.h"

namespace gradweave::runtime {
namespace {

class Cast : public Codec {
 public:
  explicit Cast(c10::ScalarType dtype) : dtype_(dtype) {}

  std::unique_ptr<Pending> start(const Parcel& parcel, const Memory&, Memory&) const override {
    const Call& call = parcel.call;
    if (call.flat.element_size() <= 2) return runtime::start(call);
    Call cast = call;
    cast.flat = at::empty_like(call.flat, call.flat.options().dtype(dtype_));
    // Only this rank's part goes into a gather, and only this rank's part comes out of a scatter.
    const auto moved = [rank = call.rank()](const Call& whole, Collective half) {
      return whole.collective == half ? whole.part(rank) : whole.flat;
    };
    moved(cast, Collective::kAllGather).copy_(moved(call, Collective::kAllGather));
    return then(call, runtime::start(cast), [=] {
      moved(call, Collective::kReduceScatter).copy_(moved(cast, Collective::kReduceScatter));
    });
  }

 private:
  c10::ScalarType dtype_;
};

}  // namespace

CodecRow bf16() {
  return {"bf16",
          [](const auto&) -> std::unique_ptr<Codec> { return std::make_unique<Cast>(c10::kBFloat16); }};
}

CodecRow fp16() {
  return {"fp16", [](const auto&) -> std::unique_ptr<Codec> { return std::make_unique<Cast>(c10::kHalf); }};
}

}  // namespace gradweave::runtime
