// Messages go out as they are.
#include "runtime/codec/rows.h"

namespace gradweave::runtime {
namespace {

class None : public Codec {
 public:
  None() : Codec(true) {}

  std::int64_t wire_bytes(std::int64_t numel, c10::ScalarType dtype) const override {
    return numel * static_cast<std::int64_t>(c10::elementSize(dtype));
  }
  at::Tensor encode(const at::Tensor& message, at::Tensor&) override { return message; }
  void decode(const at::Tensor&, const at::Tensor&) const override {}  // the message is what arrived
};

}  // namespace

CodecRow none() {
  return {"none", [](const Compression&) -> std::unique_ptr<Codec> { return std::make_unique<None>(); }};
}

}  // namespace gradweave::runtime
