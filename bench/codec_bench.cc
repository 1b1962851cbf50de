// Speed of the kernels of compressed averages on a message of 13.2 MB, the demo's model: encode (what was gained since
// the anchor) and land (two workers: decode both, correct, move the anchor). `range(0)`: the format; one benchmark for
// each instruction set that this processor has.
#include <benchmark/benchmark.h>

#include <array>
#include <random>
#include <string>
#include <vector>

#include "codec/groups.h"

namespace gradweave {
namespace {

constexpr std::int64_t kCount = 3'300'000;  // 13.2 MB

struct Message {
  explicit Message(codec::Format format)
      : values(kCount),
        anchor(kCount),
        own(static_cast<std::size_t>(codec::encoded_bytes(format, kCount))),
        other(own.size()) {
    std::mt19937 random(1);
    std::normal_distribution<float> gain(0, 1e-3F);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = (anchor[i] = gain(random)) + gain(random);
    encode(codec::kernels(), format, own);
    encode(codec::kernels(), format, other);
  }
  void encode(const codec::Kernels& kernels, codec::Format format, std::vector<std::uint8_t>& to) const {
    kernels.encode(format, values.data(), anchor.data(), kCount, 1, 0, to.data());
  }

  std::vector<float> values, anchor;
  std::vector<std::uint8_t> own, other;
};

void BM_Encode(benchmark::State& state, const codec::Kernels& kernels) {
  const auto format = static_cast<codec::Format>(state.range(0));
  Message message(format);
  for (auto _ : state) message.encode(kernels, format, message.own);
}

void BM_Land(benchmark::State& state, const codec::Kernels& kernels) {
  const auto format = static_cast<codec::Format>(state.range(0));
  Message message(format);
  const std::array<const std::uint8_t*, 2> sources{message.own.data(), message.other.data()};
  const codec::Landing landing{
      .sources = sources, .own = message.own.data(), .count = kCount, .end = kCount, .share = 0.5F};
  for (auto _ : state) kernels.land(format, landing, message.values.data(), message.anchor.data(), nullptr);
}

const bool kRegistered = [] {
  for (const codec::Kernels& kernels : codec::all_kernels()) {
    const std::string name(kernels.name);
    for (const auto& [what, run] : {std::pair{"encode/", &BM_Encode}, std::pair{"land/", &BM_Land}}) {
      benchmark::RegisterBenchmark(("codec/" + (what + name)).c_str(), run, kernels)
          ->ArgName("format")
          ->DenseRange(0, 2)
          ->Unit(benchmark::kMillisecond);
    }
  }
  return true;
}();

}  // namespace
}  // namespace gradweave
