#include "runtime/codec/two_stages.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <utility>

#include "runtime/codec/group_tensors.h"
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
    const auto part = [&](int r) { return message_.arrived.narrow(0, r * room, room); };
    const at::Tensor& rest = message_.rest;
    for (int r = 0; r < layout.world; ++r) add_decoded_groups(layout.format, part(r), rest);
    encode_groups(layout.format, rest, message_.key, rank * layout.shard_groups(), part(rank));
    if (!rest.is_cpu()) {
      const at::Tensor sent = at::empty_like(rest);
      decode_groups(layout.format, part(rank), sent);
      rest.sub_(sent);
      return;
    }
    // By groups, which stay in the cache.
    const auto* const own = part(rank).const_data_ptr<std::uint8_t>();
    auto* const floats = rest.mutable_data_ptr<float>();
    std::array<float, codec::kGroup> sent;
    for (std::int64_t begin = 0; begin < count; begin += codec::kGroup) {
      const std::int64_t end = std::min(begin + codec::kGroup, count);
      codec::kernels().decode(layout.format, own, count, begin, end, sent.data());
      for (std::int64_t i = begin; i < end; ++i) floats[i] -= sent[static_cast<std::size_t>(i - begin)];
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

GroupMessage::GroupMessage(const GroupLayout& form, int rank, at::Tensor kept, c10::Device device)
    : layout(form),
      sent(at::zeros({form.sent_bytes()}, at::TensorOptions(c10::kByte).device(device))),
      arrived(at::zeros({form.arrived_bytes()}, sent.options())),
      rest(std::move(kept)) {
  if (!device.is_cpu()) return;
  own = sent.const_data_ptr<std::uint8_t>();
  const auto* const bytes = arrived.const_data_ptr<std::uint8_t>();
  if (layout.world == 1) sources = {own};
  if (layout.world == 2) {
    sources = {bytes, bytes + layout.sent_bytes()};
    own = sources[static_cast<std::size_t>(rank)];
  }
  if (layout.two_stages()) sources = {bytes};
}

at::Tensor GroupMessage::sum() const {
  const int messages = layout.world == 2 ? 2 : 1;
  const at::Tensor& all = layout.world == 1 ? sent : arrived;
  at::Tensor total = at::empty({layout.count}, all.options().dtype(c10::kFloat));
  for (int m = 0; m < messages; ++m) {
    const at::Tensor message = all.slice(0, m * layout.sent_bytes());
    m == 0 ? decode_groups(layout.format, message, total) : add_decoded_groups(layout.format, message, total);
  }
  return total;
}

std::unique_ptr<Pending> exchange(const Call& call, const GroupMessage& message) {
  if (message.layout.world == 1) return std::make_unique<Ended>();  // sum() reads what was to be sent
  return std::make_unique<Staged>(call, message);
}

}  // namespace gradweave::runtime
