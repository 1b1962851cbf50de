#include "runtime/codec/two_stages.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <utility>

#include "runtime/transport/exchange.h"

namespace gradweave::runtime {
namespace {

class Staged : public Pending {
 public:
  Staged(const Call& call, const GroupMessage& message) : call_(call), message_(message) {
    call_.flat = message_.arrived;
    call_.collective = Collective::kAllGather;
    if (!message_.layout.two_stages()) {
      call_.part(call_.rank()).copy_(message_.sent);
      gathering_ = start(call_);
      return;
    }
    Call scatter = call;
    scatter.flat = message_.sent;
    scatter_ = exchange(scatter, message_.arrived);
  }

  void wait() override {
    if (scatter_) {
      scatter_->wait();
      scatter_.reset();
      sum();
      call_.sequence += 1;
      gathering_ = start(call_);
    }
    gathering_->wait();
  }

 private:
  // Every rank's groups of this shard have arrived, one rank's after another's; their sum takes the shard's place.
  void sum() {
    const GroupLayout& layout = message_.layout;
    const int rank = call_.rank();
    const std::int64_t count = layout.shard_end(rank) - layout.shard_begin(rank);
    if (count == 0) return;
    const std::int64_t room = message_.arrived.numel() / layout.world;
    auto* const bytes = message_.arrived.mutable_data_ptr<std::uint8_t>();
    auto* const rest = message_.rest.mutable_data_ptr<float>();
    const codec::Kernels& with = codec::kernels();
    for (int r = 0; r < layout.world; ++r)
      with.decode_add(layout.format, bytes + r * room, count, 0, count, rest);
    std::uint8_t* const own = bytes + rank * room;
    with.encode(layout.format, rest, nullptr, count, message_.key, rank * layout.shard_groups(), own);
    std::array<float, codec::kGroup> sent;
    for (std::int64_t begin = 0; begin < count; begin += codec::kGroup) {
      const std::int64_t end = std::min(begin + codec::kGroup, count);
      with.decode(layout.format, own, count, begin, end, sent.data());
      for (std::int64_t i = begin; i < end; ++i) rest[i] -= sent[static_cast<std::size_t>(i - begin)];
    }
  }

  Call call_;
  const GroupMessage& message_;
  std::unique_ptr<Pending> scatter_, gathering_;
};

}  // namespace

std::int64_t GroupLayout::shard_groups() const {
  const std::int64_t groups = (count + codec::kGroup - 1) / codec::kGroup;
  return (groups + world - 1) / world;
}

std::int64_t GroupLayout::sent_bytes() const {
  return two_stages() ? world * codec::encoded_bytes(format, shard_groups() * codec::kGroup)
                      : codec::encoded_bytes(format, count);
}

std::int64_t GroupLayout::arrived_bytes() const {
  if (world == 1) return 0;
  return two_stages() ? sent_bytes() : world * sent_bytes();
}

std::int64_t GroupLayout::shard_begin(int rank) const {
  return std::min(rank * shard_groups() * codec::kGroup, count);
}

GroupMessage::GroupMessage(const GroupLayout& form, int rank, at::Tensor kept)
    : layout(form),
      sent(at::zeros({form.sent_bytes()}, c10::kByte)),
      arrived(at::zeros({form.arrived_bytes()}, c10::kByte)),
      own(sent.const_data_ptr<std::uint8_t>()),
      rest(std::move(kept)) {
  const auto* const bytes = arrived.const_data_ptr<std::uint8_t>();
  if (layout.world == 1) sources = {own};
  if (layout.world == 2) {
    sources = {bytes, bytes + layout.sent_bytes()};
    own = sources[static_cast<std::size_t>(rank)];
  }
  if (layout.two_stages()) sources = {bytes};
}

std::unique_ptr<Pending> exchange(const Call& call, const GroupMessage& message) {
  return std::make_unique<Staged>(call, message);
}

}  // namespace gradweave::runtime
