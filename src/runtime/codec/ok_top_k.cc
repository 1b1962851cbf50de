// ok_top_k: a sparse all-reduce whose traffic does not grow with the ranks (Li and Hoefler, "Near-Optimal Sparse
// Allreduce for Distributed Deep Learning", PPoPP 2022).
//
//   paper                  here
//   local, global th       thresholds of the k largest of a rank's message, and of the sum; found exactly in every
//                          32nd message and used again in between
//   split and reduce       each rank sends the elements above its threshold to the ranks in whose region they are,
//                          which add them up
//   balance, all-gather    each rank sends the elements of its region's sum that are above the global threshold
//   residual               what was sent and came back in the result is 0, all else stays
//
// Wire: one all-to-all and one all-gather of at most 1.5 k / P values and indices for each pair of ranks.
//
// Deviations from the paper: regions are interleaved (element i belongs to rank i mod P), which balances them
// without an exchange; messages have a fixed length, so that no counts are exchanged: the smallest elements beyond
// it stay behind, and what is short of it is filled up.
#include "compressors/ok_top_k.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/nan_to_num.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>

#include "runtime/codec/rows.h"
#include "runtime/codec/sparse.h"
#include "runtime/transport/exchange.h"

namespace gradweave::runtime {
namespace {

constexpr std::int64_t kReuse = 32;  // messages

// Memory::further[0], in the processor's memory.
enum Kept : std::int64_t { kMessages, kLocal, kGlobal, kNumbers };

struct SplitMessage {
  SplitMessage(const Parcel& parcel, double density, const Memory& before, Memory& kept)
      : call(parcel.call),
        after(kept),
        count(kept_elements(call.flat.numel(), density)),
        room((3 * count + 2 * call.world() - 1) / (2 * call.world())),
        elements(room, call.flat.scalar_type()) {
    after.further.resize(1);
    after.further[0] = before.further.empty() ? at::zeros({kNumbers}, at::kDouble)
                                              : before.further[0].to(at::kCPU, at::kDouble,
                                                                     /*non_blocking=*/false, /*copy=*/true);
    double* const numbers = after.further[0].mutable_data_ptr<double>();
    fresh = static_cast<std::int64_t>(numbers[kMessages]) % kReuse == 0;
    numbers[kMessages] += 1;
    const at::Tensor& left = compensated(call.flat, before, after);
    split(left, above_local(left, numbers[kLocal]));
  }

  // This rank's own threshold is found anew wherever it has become wrong: lengths don't depend on it.
  at::Tensor above_local(const at::Tensor& left, double& threshold) const {
    if (!fresh) {
      at::Tensor places = at_least(left, threshold);
      if (places.numel() >= count / 2 && places.numel() <= 2 * count) return places;
    }
    at::Tensor places = largest(left, count);
    threshold = at::nan_to_num(left.index_select(0, places).abs(), kNone).min().item<double>();
    return places;
  }

  // Writes what goes to each rank.
  void split(const at::Tensor& left, const at::Tensor& places) {
    const int world = call.world();
    outgoing = at::empty({world * elements.bytes()}, left.options().dtype(c10::kByte));
    const at::Tensor owner = places.remainder(world);
    std::vector<at::Tensor> all;
    for (int r = 0; r < world; ++r) {
      all.push_back(most(left, places.masked_select(owner.eq(r))));
      write(left, all.back(), all.back(), outgoing.narrow(0, r * elements.bytes(), elements.bytes()));
    }
    sent = std::move(all);
    incoming = at::empty_like(outgoing);
  }

  // Those of `places` for which there is room, the largest.
  at::Tensor most(const at::Tensor& values, const at::Tensor& places) const {
    if (places.numel() <= room) return places;
    return places.index_select(0, largest(values.index_select(0, places), room));
  }

  // Fills up with zeros at the place of no element.
  void write(const at::Tensor& values, const at::Tensor& at, const at::Tensor& names,
             const at::Tensor& to) const {
    const at::Tensor padded = at::zeros({room}, values.options());
    const at::Tensor named = at::full({room}, -1, names.options());
    padded.narrow(0, 0, at.numel()).copy_(values.index_select(0, at));
    named.narrow(0, 0, at.numel()).copy_(names);
    elements.write(padded, named, to);
  }

  // Adds elements [r] of all ranks, in the order of ranks, to `to`, at places divided by `by`.
  void add(const at::Tensor& all, std::int64_t by, const at::Tensor& to, double threshold) const {
    for (int r = 0; r < call.world(); ++r) {
      const Elements::Read read = elements.read(all.narrow(0, r * elements.bytes(), elements.bytes()));
      // A threshold may be 0 in 16 bits, and zeros lie behind the end of the message.
      const at::Tensor valid = read.places.ge(0)
                                   .logical_and_(read.values.abs().lt(threshold).logical_not_())  // NaN too
                                   .logical_and_(read.values.ne(0));
      const at::Tensor places = read.places.masked_select(valid).div(by, "floor");
      to.index_add_(0, places, read.values.masked_select(valid).to(to.scalar_type()));
    }
  }

  // With what has come of this rank's region: starts the all-gather of its sum.
  void gather() {
    const int world = call.world(), rank = call.rank();
    const at::Tensor region = at::zeros({(call.flat.numel() + world - 1) / world}, summed());
    add(incoming, world, region, 0);
    const double global = after.further[0].const_data_ptr<double>()[kGlobal];
    const at::Tensor places = fresh ? largest(region, std::min(room, region.numel()))
                                    : most(region, at_least(region, std::max(global, smallest())));
    const at::Tensor sum = region.to(call.flat.scalar_type());
    Call half = call;
    half.collective = Collective::kAllGather;
    half.sequence += 1;
    half.flat = incoming;  // of the same length
    write(sum, places, places.mul(world).add_(rank), half.part(rank));
    runtime::start(half)->wait();
    finish();
  }

  void finish() {
    double& global = after.further[0].mutable_data_ptr<double>()[kGlobal];
    if (fresh) global = threshold_of_all();
    const at::Tensor result = at::zeros({call.flat.numel()}, summed());
    add(incoming, 1, result, std::max(global, smallest()));
    call.flat.copy_(result);
    for (const at::Tensor& places : sent) {
      const at::Tensor back = call.flat.index_select(0, places).ne(0);
      after.residual.index_fill_(0, places.masked_select(back), 0);
    }
  }

  double threshold_of_all() const {
    std::vector<at::Tensor> all;
    for (int r = 0; r < call.world(); ++r)
      all.push_back(elements.read(incoming.narrow(0, r * elements.bytes(), elements.bytes())).values);
    const at::Tensor magnitudes = at::cat(all).abs();
    const std::int64_t kept = std::min(count, magnitudes.numel());
    return std::get<0>(magnitudes.to(c10::kDouble).kthvalue(magnitudes.numel() - kept + 1)).item<double>();
  }

  // In place of NaN, which is sent whatever the threshold.
  static constexpr double kNone = std::numeric_limits<double>::infinity();
  // Zeros are never worth sending.
  static double smallest() { return std::numeric_limits<float>::denorm_min(); }
  at::TensorOptions summed() const {
    return call.flat.element_size() == 2 ? call.flat.options().dtype(c10::kFloat) : call.flat.options();
  }

  Call call;
  Memory& after;
  std::int64_t count, room;
  Elements elements;
  bool fresh = false;
  at::Tensor outgoing, incoming;
  std::vector<at::Tensor> sent;  // places, by rank
};

class OkTopK : public Codec {
 public:
  explicit OkTopK(const codec::OkTopK& parameters) : density_(parameters.density) {}

  std::unique_ptr<Pending> start(const Parcel& parcel, const Memory& before, Memory& after) const override {
    auto message = std::make_shared<SplitMessage>(parcel, density_, before, after);
    Call split = parcel.call;
    split.flat = message->outgoing;
    return then(split, exchange(split, message->incoming), [message] { message->gather(); });
  }

 private:
  double density_;
};

}  // namespace

CodecRow ok_top_k() { return row_of<OkTopK, codec::OkTopK>("ok_top_k"); }

}  // namespace gradweave::runtime
