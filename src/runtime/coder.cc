#include "runtime/coder.h"

#include <ATen/ops/zeros.h>

namespace gradweave::runtime {

void Coder::Store::take() {
  const at::Tensor& any = now.residual.defined() ? now.residual : spare.residual;
  if (any.defined()) used.wait(any.device());
  keep();
}

void Coder::Store::keep() const {
  for (const Memory* memory : {&now, &spare}) {
    keep_for_stream(memory->residual);
    for (const at::Tensor& each : memory->further) keep_for_stream(each);
  }
}

// A message under way.
class Coder::Coded : public Pending {
 public:
  Coded(Coder& coder, const Call& call, const Compression& compression, const Blocks& blocks, Name name)
      : coder_(coder), device_(call.flat.device()), name_(name), matrices_(coder.matrices_of(blocks)) {
    const Codec* codec = nullptr;
    {
      const MutexLock lock(coder.mutex_);
      codec = &coder.codec_of(compression);
      Store& store = coder.stores_[key_of(blocks, call.collective)];
      while (store.busy) coder.idle_.wait(coder.mutex_);
      store.busy = true;
      store.take();
      after_ = std::exchange(store.spare, {});
      store_ = &store;
    }
    try {
      pending_ = codec->start({.call = call,
                               .number = static_cast<std::uint64_t>(blocks.front()),
                               .iteration = name.first,
                               .blocks = matrices_},
                              store_->now, after_);
    } catch (...) {
      end(false);
      throw;
    }
  }
  ~Coded() override {
    if (pending_) end(false);
  }

  void wait() override {
    pending_->wait();
    pending_.reset();
    end(true);
  }

 private:
  void end(bool sent) {
    const MutexLock lock(coder_.mutex_);
    store_->used.record(device_);
    const bool counts = sent && store_->left_out.erase(name_) == 0;
    if (counts) {
      store_->spare = std::exchange(store_->now, std::move(after_));
      store_->last = name_;
    } else {
      store_->spare = std::move(after_);
    }
    store_->busy = false;
    coder_.idle_.notify_all();
  }

  Coder& coder_;
  c10::Device device_;
  Name name_;
  std::vector<BlockShape> matrices_;
  Store* store_ = nullptr;
  Memory after_;
  std::unique_ptr<Pending> pending_;
};

std::vector<BlockShape> Coder::matrices_of(const Blocks& blocks) const {
  std::vector<BlockShape> matrices;
  for (const std::int32_t b : blocks) matrices.push_back(matrices_[static_cast<std::size_t>(b)]);
  return matrices;
}

const Codec& Coder::codec_of(const Compression& compression) {
  std::unique_ptr<Codec>& codec = codecs_[{compression.name, compression.parameters}];
  if (!codec) codec = make_codec(compression);
  return *codec;
}

std::unique_ptr<Pending> Coder::start(const Call& call, const Compression& compression, const Blocks& blocks,
                                      Name name) {
  if (compression.name.empty()) return runtime::start(call);
  return std::make_unique<Coded>(*this, call, compression, blocks, name);
}

std::unique_ptr<Pending> Coder::start_alone(const Call& call, const Compression& compression,
                                            const Blocks& blocks, Name name, const at::Tensor& own) {
  const Codec* codec = nullptr;
  {
    const MutexLock lock(mutex_);
    codec = &codec_of(compression);
  }
  struct Alone {
    std::vector<BlockShape> matrices;
    Memory left;
  };
  const auto alone = std::make_shared<Alone>(Alone{matrices_of(blocks), {}});
  auto pending = codec->start({.call = call,
                               .number = static_cast<std::uint64_t>(blocks.front()),
                               .iteration = name.first,
                               .blocks = alone->matrices},
                              {}, alone->left);
  return then(call, std::move(pending), [=] { own.sub_(alone->left.residual); });
}

void Coder::leave_out(const Blocks& blocks, Collective collective, Name name) {
  const MutexLock lock(mutex_);
  Store& store = stores_[key_of(blocks, collective)];
  if (store.last != name) {
    store.left_out.insert(name);
    return;
  }
  std::swap(store.now, store.spare);
  store.last = kNone;
}

void Coder::restart() {
  const MutexLock lock(mutex_);
  for (auto& [key, store] : stores_) {
    store.last = kNone;
    store.left_out.clear();
  }
}

void Coder::visit_residuals(const std::function<void(const Blocks&, const at::Tensor&)>& visit) {
  const MutexLock lock(mutex_);
  for (auto& [key, store] : stores_) {
    if (!store.now.residual.defined()) continue;
    store.keep();
    visit(key.first, store.now.residual);
  }
}

void Coder::add_residual(const Blocks& blocks, std::size_t at, const at::Tensor& values) {
  const MutexLock lock(mutex_);
  std::int64_t begin = 0, numel = 0;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const std::int64_t length = matrices_[static_cast<std::size_t>(blocks[i])].length;
    if (i < at) begin += length;
    numel += length;
  }
  Store& store = stores_[{blocks, false}];
  at::Tensor& left = store.now.residual;
  if (!left.defined()) left = at::zeros({numel}, values.options());
  left.narrow(0, begin, values.numel()).add_(values);
  store.used.record(left.device());
}

}  // namespace gradweave::runtime
