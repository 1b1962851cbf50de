#include "runtime/rates.h"

#include <ATen/ops/randn.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>

#include "runtime/buffers.h"
#include "runtime/codec/codec.h"
#include "runtime/device_stopwatch.h"

namespace gradweave::runtime {
namespace {

class Done : public c10d::Work {
 public:
  bool wait(std::chrono::milliseconds) override { return true; }
};

// One rank of several of which all send the same: what arrives is a copy of what this one sends.
class Mirror : public c10d::Backend {
 public:
  using c10d::Backend::Backend;
  using Work = c10::intrusive_ptr<c10d::Work>;

  const std::string getBackendName() const override { return "mirror"; }
  Work allreduce(std::vector<at::Tensor>&, const c10d::AllreduceOptions&) override { return done(); }
  Work _allgather_base(at::Tensor& to, at::Tensor& from, const c10d::AllgatherOptions&) override {
    to.view({getSize(), -1}).copy_(from.clone());  // it may be a part of `to`
    return done();
  }
  Work alltoall_base(at::Tensor& to, at::Tensor& from, std::vector<std::int64_t>& to_each,
                     std::vector<std::int64_t>&, const c10d::AllToAllOptions&) override {
    to_each.empty() ? to.copy_(from) : to.view({getSize(), -1}).copy_(from.narrow(0, 0, to_each.front()));
    return done();
  }

 private:
  static Work done() { return c10::make_intrusive<Done>(); }
};

}  // namespace

MeasuredRate measure_rate(const Compression& compression, int world_size, std::int64_t numel,
                          c10::ScalarType dtype, c10::Device device) {
  const auto group = c10::make_intrusive<c10d::ProcessGroup>(0, world_size);
  group->setBackend(device.type(), c10d::ProcessGroup::BackendType::CUSTOM,
                    c10::make_intrusive<Mirror>(0, world_size));
  Compression settled = compression;
  for (const CompressorParameter& parameter : find_compressor(compression.name).parameters) {
    if (parameter.at_start) settled.parameters.erase(std::string(parameter.name));
  }
  const std::unique_ptr<Codec> codec = make_codec(with_defaults(std::move(settled)));
  const at::Tensor values = at::randn({numel}, at::TensorOptions().dtype(dtype).device(device));
  const at::Tensor message = values.clone();
  const BlockShape square = block_shape(numel, 2, /*whole=*/false);
  const std::unique_ptr<run::Stopwatch> stopwatch = stopwatch_of(device);
  Memory before, after, spare;
  double encode = std::numeric_limits<double>::infinity(), decode = encode;
  constexpr int kTimes = 4;
  for (int i = 0; i < kTimes; ++i) {
    message.copy_(values);
    const std::int64_t begin = stopwatch->now();
    const auto pending = codec->start(
        {.call = {.group = *group, .flat = message}, .iteration = i, .blocks = std::span(&square, 1)}, before,
        after);
    const std::int64_t middle = stopwatch->now();
    pending->wait();
    const std::int64_t end = stopwatch->now();
    stopwatch->await(end);
    encode = std::min(encode, static_cast<double>(stopwatch->between(begin, middle)) / 1e3);
    decode = std::min(decode, static_cast<double>(stopwatch->between(middle, end)) / 1e3);
    for (const std::int64_t moment : {begin, middle, end}) stopwatch->forget(moment);
    spare = std::exchange(before, std::exchange(after, std::move(spare)));
  }
  const auto bytes = static_cast<double>(message.nbytes());
  return {.encode_us_per_byte = encode / bytes, .decode_us_per_byte = decode / bytes};
}

std::map<std::string, MeasuredRate> compressor_rates(const std::string& scheme,
                                                     const std::map<std::string, std::string>& options,
                                                     const Workload& workload, int world_size,
                                                     c10::Device device) {
  const auto option = [&](const std::string& name) {
    const auto found = options.find(name);
    return found == options.end() ? std::string() : found->second;
  };
  const std::string asked = option("compressor");
  const bool any =
      asked == "auto" || (scheme == "auto" && option("allow").find("compressed") != std::string::npos);
  std::int64_t elements = 0;
  std::optional<DType> dtype;  // the first that codecs take
  for (const Layer& layer : workload.layers) {
    for (const Tensor& tensor : layer.tensors) {
      elements += tensor.numel;
      if (!dtype && std::ranges::find(kFloats, tensor.dtype) != kFloats.end()) dtype = tensor.dtype;
    }
  }
  if (!dtype) return {};
  // Small messages are not worth a compressor.
  const std::int64_t numel = std::clamp<std::int64_t>(elements / 4, 1 << 14, 1 << 20);
  std::map<std::string, MeasuredRate> rates;
  for (const CodecRow& row : codecs()) {
    const std::string name(row.name);
    if (!any && name != asked) continue;
    Compression compression{.name = name};
    for (const auto& [key, value] : options) {
      constexpr std::string_view kPrefix = "compressor_";
      if (name == asked && key.starts_with(kPrefix))
        compression.parameters[key.substr(kPrefix.size())] = std::stod(value);
    }
    rates[name] = measure_rate(compression, world_size, numel, scalar_type_of(*dtype), device);
  }
  return rates;
}

}  // namespace gradweave::runtime
