// random_k: elements chosen at random, the same on all ranks, whose values are all-reduced (Stich, Cordonnier and
// Jaggi, "Sparsified SGD with Memory", NeurIPS 2018). What is not sent is left behind.
//
// Deviation from the paper: the elements are one from each of k equal stretches, so that the k are distinct without
// looking; each element is chosen as often.
#include "compressors/random_k.h"

#include <ATen/ops/empty.h>

#include "runtime/codec/rows.h"
#include "runtime/codec/sparse.h"

namespace gradweave::runtime {
namespace {

class RandomK : public Codec {
 public:
  explicit RandomK(const codec::RandomK& parameters) : density_(parameters.density) {}

  std::unique_ptr<Pending> start(const Parcel& parcel, const Memory& before, Memory& after) const override {
    const Call& call = parcel.call;
    at::Tensor& left = compensated(call.flat, before, after);
    const at::Tensor places = places_of(parcel).to(left.device());
    Call values = call;
    values.flat = taken_out(left, places);
    return then(call, runtime::start(values), [=] { call.flat.zero_().index_copy_(0, places, values.flat); });
  }

 private:
  at::Tensor places_of(const Parcel& parcel) const {
    const std::int64_t numel = parcel.call.flat.numel(), count = kept_elements(numel, density_);
    const std::uint64_t seed = mixed(parcel.number, static_cast<std::uint64_t>(parcel.iteration));
    at::Tensor places = at::empty({count}, at::kLong);
    auto* const to = places.mutable_data_ptr<std::int64_t>();
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t begin = numel * i / count, end = numel * (i + 1) / count;
      const std::uint64_t random = mixed(seed, static_cast<std::uint64_t>(i));
      to[i] = begin + static_cast<std::int64_t>(random % static_cast<std::uint64_t>(end - begin));
    }
    return places;
  }

  double density_;
};

}  // namespace

CodecRow random_k() { return row_of<RandomK, codec::RandomK>("random_k"); }

}  // namespace gradweave::runtime
