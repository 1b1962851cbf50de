#include "runtime/codec/codec.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>

#include "gradweave/error.h"
#include "runtime/codec/rows.h"

namespace gradweave::runtime {
namespace {

class Coded : public Pending {
 public:
  Coded(const Call& call, const Codec& codec, const at::Tensor& wire) : codec_(codec), message_(call.flat) {
    Call coded = call;
    coded.flat = arrived_ = wire;
    if (!codec.summable()) {
      const std::int64_t length = wire.numel();
      coded.collective = Collective::kAllGather;
      coded.flat = arrived_ = at::empty({length * call.world()}, wire.options());
      coded.part(call.rank()).copy_(wire);
    }
    pending_ = runtime::start(coded);
  }

  void wait() override {
    pending_->wait();
    codec_.decode(arrived_, message_);
  }

 private:
  const Codec& codec_;
  at::Tensor message_, arrived_;
  std::unique_ptr<Pending> pending_;
};

}  // namespace

std::span<const CodecRow> codecs() {
  static const std::array table{none()};
  return table;
}

std::unique_ptr<Codec> make_codec(const Compression& compression) {
  const std::string_view name = compression.name.empty() ? "none" : std::string_view(compression.name);
  const auto found = std::ranges::find(codecs(), name, &CodecRow::name);
  if (found != codecs().end()) return found->make(compression);
  std::string names;
  for (const CodecRow& row : codecs()) names.append(names.empty() ? "" : ", ").append(row.name);
  throw InvalidInput("the engine has no codec '" + std::string(name) + "'", "compression", "it has " + names);
}

std::unique_ptr<Pending> Coder::start(const Call& call, const std::vector<std::int32_t>& kind) {
  at::Tensor lost;
  const bool sums = call.collective != Collective::kAllGather;
  if (sums && !left_behind_.empty()) {
    const auto before = left_behind_.find(kind);
    if (before != left_behind_.end()) call.flat.add_(before->second);
  }
  const at::Tensor wire = codec_->encode(call.flat, lost);
  if (sums && lost.defined()) {
    left_behind_.insert_or_assign(kind, std::move(lost));
  } else if (sums && !left_behind_.empty()) {
    left_behind_.erase(kind);
  }
  return std::make_unique<Coded>(call, *codec_, wire);
}

}  // namespace gradweave::runtime
