// int8, int4 and int2: small integers with a scale for each group of 256 elements, rounded at random (Alistarh et al., "QSGD",
// NIPS 2017; the scales by groups) or, int2, to the nearest. What the encodings drop is left behind: of its own message on
// each rank, of the sum on the rank whose shard it is.
//
// Wire: see codec/groups.h and two_stages.h. As the halves of an all-reduce each part of the message (transport.h) is
// encoded by itself, with room for the longest:
//   reduce_scatter  an exchange of the parts; each rank adds those of its own, decoded, in the order of ranks
//   all_gather      it adds what the all-gather before has dropped, encodes, keeps what that drops; all_gather
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "runtime/codec/group_tensors.h"
#include "runtime/codec/rows.h"
#include "runtime/codec/two_stages.h"
#include "runtime/transport/exchange.h"

namespace gradweave::runtime {
namespace {

// The encoded parts of a message, in one buffer.
struct Parts {
  Call call;
  codec::Format format;
  std::int64_t groups, room;  // of the longest part
  at::Tensor bytes;

  Parts(const Call& whole, codec::Format form)
      : call(whole),
        format(form),
        groups(((whole.flat.numel() + whole.world() - 1) / whole.world() + codec::kGroup - 1) /
               codec::kGroup),
        room(codec::encoded_bytes(form, groups * codec::kGroup)),
        bytes(at::zeros({whole.world() * room}, whole.flat.options().dtype(c10::kByte))) {}

  std::int64_t length(int part) const { return call.edge(part + 1) - call.edge(part); }
  at::Tensor at(int part) const { return bytes.narrow(0, part * room, room); }
  // Part number `part` of a message; `values`: its floats.
  void encode(int part, const at::Tensor& values, std::uint64_t key) const {
    encode_groups(format, values, key, part * groups, at(part));
  }
  void decode(int part, const at::Tensor& to) const {
    if (to.numel() > 0) decode_groups(format, at(part), to);
  }
};

class Quantized : public Codec {
 public:
  explicit Quantized(codec::Format format) : format_(format) {}

  std::unique_ptr<Pending> start(const Parcel& parcel, const Memory& before, Memory& after) const override {
    if (parcel.call.collective == Collective::kReduceScatter) return scatter(parcel, before, after);
    if (parcel.call.collective == Collective::kAllGather) return gather(parcel, before, after);
    const Call& call = parcel.call;
    const at::Tensor left = compensated(call.flat, before, after);
    const GroupLayout layout{.format = format_, .count = left.numel(), .world = call.world()};
    const std::int64_t shard = layout.shard_begin(call.rank());
    const std::int64_t length = layout.shard_end(call.rank()) - shard;
    const at::TensorOptions floating = call.flat.options().dtype(c10::kFloat);
    const auto message = std::make_shared<GroupMessage>(
        layout, call.rank(), layout.two_stages() ? at::zeros({length}, floating) : at::Tensor(),
        call.flat.device());
    message->key = key_of(parcel, 1);

    encode_groups(format_, left.to(c10::kFloat), key_of(parcel, 0), 0, message->sent);
    const at::Tensor own = at::empty({layout.count}, floating);
    decode_groups(format_, message->sent, own);
    left.sub_(own);
    return then(call, exchange(call, *message), [=, flat = call.flat] {
      flat.copy_(message->sum());
      if (layout.two_stages()) left.narrow(0, shard, length).add_(message->rest);
    });
  }

 private:
  std::unique_ptr<Pending> scatter(const Parcel& parcel, const Memory& before, Memory& after) const {
    const Call& call = parcel.call;
    const at::Tensor left = compensated(call.flat, before, after);
    const at::Tensor floats = left.to(c10::kFloat), own = at::empty_like(floats);
    const Parts sent(call, format_), arrived(call, format_);
    for (int p = 0; p < call.world(); ++p) {
      const std::int64_t begin = call.edge(p), end = call.edge(p + 1);
      sent.encode(p, floats.slice(0, begin, end), key_of(parcel, 0));
      sent.decode(p, own.slice(0, begin, end));
    }
    left.sub_(own);
    Call bytes = call;
    bytes.flat = sent.bytes;
    return then(call, exchange(bytes, arrived.bytes), [=, this] {
      const std::int64_t length = arrived.length(call.rank());
      const at::Tensor sum = at::zeros({length}, call.flat.options().dtype(c10::kFloat));
      for (int r = 0; r < call.world(); ++r) add_decoded_groups(format_, arrived.at(r), sum);
      call.part(call.rank()).copy_(sum);
    });
  }

  std::unique_ptr<Pending> gather(const Parcel& parcel, const Memory& before, Memory& after) const {
    const Call& call = parcel.call;
    const std::int64_t begin = call.edge(call.rank()), end = call.edge(call.rank() + 1);
    if (!after.residual.defined()) after.residual = at::zeros_like(call.flat);
    const at::Tensor left = after.residual.slice(0, begin, end);
    left.copy_(call.part(call.rank()));
    if (before.residual.defined()) left.add_(before.residual.slice(0, begin, end));
    const at::Tensor floats = left.to(c10::kFloat), own = at::empty_like(floats);
    const Parts parts(call, format_);
    parts.encode(call.rank(), floats, key_of(parcel, 1));
    parts.decode(call.rank(), own);
    left.sub_(own);
    Call bytes = call;
    bytes.flat = parts.bytes;
    return then(call, runtime::start(bytes), [=] {
      const at::Tensor sum = at::empty({call.flat.numel()}, call.flat.options().dtype(c10::kFloat));
      for (int p = 0; p < call.world(); ++p) parts.decode(p, sum.slice(0, call.edge(p), call.edge(p + 1)));
      call.flat.copy_(sum);
    });
  }

  static std::uint64_t key_of(const Parcel& parcel, std::uint64_t stage) {
    return codec::random_key(0, static_cast<std::uint64_t>(parcel.call.rank()),
                             static_cast<std::uint64_t>(parcel.iteration), parcel.number, stage);
  }

  codec::Format format_;
};

template <codec::Format format>
CodecRow row(std::string_view name) {
  return {name, [](const auto&) -> std::unique_ptr<Codec> { return std::make_unique<Quantized>(format); }};
}

}  // namespace

CodecRow int2() { return row<codec::Format::kInt2>("int2"); }
CodecRow int4() { return row<codec::Format::kInt4>("int4"); }
CodecRow int8() { return row<codec::Format::kInt8>("int8"); }

}  // namespace gradweave::runtime
