#include "runtime/codec/codec.h"

#include <ATen/ops/add.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <array>
#include <utility>

#include "gradweave/error.h"
#include "runtime/codec/rows.h"

namespace gradweave::runtime {
namespace {

class Then : public Pending {
 public:
  Then(std::unique_ptr<Pending> pending, std::function<void()> finish)
      : pending_(std::move(pending)), finish_(std::move(finish)) {}

  void wait() override {
    if (!pending_) return;
    std::exchange(pending_, nullptr)->wait();
    finish_();
  }

 private:
  std::unique_ptr<Pending> pending_;
  std::function<void()> finish_;
};

}  // namespace

std::span<const CodecRow> codecs() {
  static const std::array table{bf16(), dgc(),      ef_signsgd(), fp16(),     int2(), int4(),
                                int8(), ok_top_k(), power_sgd(),  random_k(), top_k()};
  return table;
}

const CodecRow& codec_row(const Compression& compression) {
  const auto found = std::ranges::find(codecs(), compression.name, &CodecRow::name);
  if (found != codecs().end()) return *found;
  std::string names;
  for (const CodecRow& row : codecs()) names.append(names.empty() ? "" : ", ").append(row.name);
  throw InvalidInput("the engine has no codec '" + compression.name + "'", "compression", "it has " + names);
}

std::unique_ptr<Codec> make_codec(const Compression& compression) {
  return codec_row(compression).make(compression.parameters);
}

at::Tensor& compensated(const at::Tensor& message, const Memory& before, Memory& after) {
  if (!after.residual.defined()) after.residual = at::empty_like(message);
  if (before.residual.defined()) {
    at::add_out(after.residual, message, before.residual);
  } else {
    after.residual.copy_(message);
  }
  return after.residual;
}

std::unique_ptr<Pending> then(const Call& call, std::unique_ptr<Pending> pending,
                              std::function<void()> finish) {
  auto both = std::make_unique<Then>(std::move(pending), std::move(finish));
  if (backend_of(call.group, call.flat.device()).ordered_launches) both->wait();
  return both;
}

}  // namespace gradweave::runtime
