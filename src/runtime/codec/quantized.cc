// int8 and int4: small integers with a scale for each group of 256 elements, rounded at random (Alistarh et al., "QSGD",
// NIPS 2017; the scales by groups). What the encodings drop is left behind: of its own message on each rank, of the sum
// on the rank whose shard it is.
//
// Wire: see codec/groups.h and two_stages.h.
#include <ATen/ops/empty.h>

#include "runtime/codec/rows.h"
#include "runtime/codec/two_stages.h"

namespace gradweave::runtime {
namespace {

// What the message's sources decode to, added in their order.
at::Tensor sum_of(const GroupMessage& message) {
  const GroupLayout& layout = message.layout;
  at::Tensor sum = at::empty({layout.count}, c10::kFloat);
  const codec::Kernels& with = codec::kernels();
  for (std::size_t i = 0; i < message.sources.size(); ++i) {
    (i == 0 ? with.decode : with.decode_add)(layout.format, message.sources[i], layout.count, 0, layout.count,
                                             sum.mutable_data_ptr<float>());
  }
  return sum;
}

class Quantized : public Codec {
 public:
  explicit Quantized(codec::Format format) : format_(format) {}

  std::unique_ptr<Pending> start(const Parcel& parcel, const Memory& before, Memory& after) const override {
    const Call& call = parcel.call;
    const at::Tensor left = compensated(call.flat, before, after);
    const GroupLayout layout{.format = format_, .count = left.numel(), .world = call.world()};
    const std::int64_t shard = layout.shard_begin(call.rank());
    const std::int64_t length = layout.shard_end(call.rank()) - shard;
    const auto message = std::make_shared<GroupMessage>(
        layout, call.rank(), layout.two_stages() ? at::zeros({length}, c10::kFloat) : at::Tensor());
    message->key = key_of(parcel, 1);

    const at::Tensor floats = left.to(c10::kFloat);
    auto* const sent = message->sent.mutable_data_ptr<std::uint8_t>();
    codec::kernels().encode(format_, floats.const_data_ptr<float>(), nullptr, layout.count, key_of(parcel, 0),
                            0, sent);
    at::Tensor own = at::empty({layout.count}, c10::kFloat);
    codec::kernels().decode(format_, sent, layout.count, 0, layout.count, own.mutable_data_ptr<float>());
    left.sub_(own);
    return then(call, exchange(call, *message), [=, flat = call.flat] {
      flat.copy_(sum_of(*message));
      if (layout.two_stages()) left.narrow(0, shard, length).add_(message->rest);
    });
  }

 private:
  static std::uint64_t key_of(const Parcel& parcel, std::uint64_t stage) {
    return codec::random_key(0, static_cast<std::uint64_t>(parcel.call.rank()),
                             static_cast<std::uint64_t>(parcel.iteration), parcel.number, stage);
  }

  codec::Format format_;
};

template <codec::Format format>
CodecRow row(std::string_view name) {
  return {.name = name,
          .make = [](const auto&) -> std::unique_ptr<Codec> { return std::make_unique<Quantized>(format); },
          .accelerators = false};
}

}  // namespace

CodecRow int4() { return row<codec::Format::kInt4>("int4"); }
CodecRow int8() { return row<codec::Format::kInt8>("int8"); }

}  // namespace gradweave::runtime
