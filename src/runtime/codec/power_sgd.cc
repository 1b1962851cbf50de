// power_sgd: a low rank approximation by one step of power iteration, which goes on from the last one (Vogels,
// Karimireddy and Jaggi, "PowerSGD", NeurIPS 2019, Algorithms 1 and 2).
//
//   paper     here
//   M_w       a block of this rank's message, (rows, columns); sums over ranks are means, as messages are shares
//   Q         (columns, r), Memory::further[0] for all blocks one after another; at first random, alike on all ranks
//   P         (rows, r): P = M_w Q, all-reduced, orthonormalized
//   Q         = M_w^T P, all-reduced
//   result    P Q^T; left behind: M_w - P Q^T / workers
//
// The first `warm_up` iterations send everything, as PyTorch's hook does.
//
// Blocks for which P and Q are not smaller than M go out as they are, with P: vectors, as in the paper.
//
// Wire: two all-reduces, of (rows + columns) r elements for each matrix, and of the vectors.
//
// Deviations from the paper: Q is drawn from uniform numbers; a column of Q that has become 0 is drawn again, or it
// would stay so; Q's columns are scaled before P is made of them, which changes nothing but P's length.
#include "compressors/power_sgd.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/frexp.h>
#include <ATen/ops/ldexp.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/norm.h>
#include <ATen/ops/where.h>

#include <algorithm>

#include "runtime/codec/loops.h"
#include "runtime/codec/rows.h"

namespace gradweave::runtime {
namespace {

// Where a block is in the message and in the two exchanges; elements.
struct Place {
  BlockShape block;
  std::int64_t rank = 0;      // 0: not factored
  std::int64_t at = 0;        // in the message
  std::int64_t p = 0, q = 0;  // `p` also of what goes out as it is
  std::int64_t factored() const { return rank > 0 ? block.rows * block.columns : 0; }
  std::int64_t rest() const { return block.length - factored(); }
};

struct Layout {
  std::vector<Place> places;
  std::int64_t p = 0, q = 0;  // elements in all

  Layout(std::span<const BlockShape> blocks, const codec::PowerSgd& set) {
    std::int64_t at = 0;
    for (const BlockShape& block : blocks) {
      Place place{.block = block, .rank = set.rank_of(block), .at = at, .p = p, .q = q};
      p += block.rows * place.rank + place.rest();
      q += block.columns * place.rank;
      at += block.length;
      places.push_back(place);
    }
  }
};

// Views of a block's parts.
at::Tensor matrix(const Place& place, const at::Tensor& message) {
  return message.narrow(0, place.at, place.factored()).view({place.block.rows, place.block.columns});
}
at::Tensor rest(const Place& place, const at::Tensor& message) {
  return message.narrow(0, place.at + place.factored(), place.rest());
}
at::Tensor p_of(const Place& place, const at::Tensor& all) {
  return all.narrow(0, place.p, place.block.rows * place.rank).view({place.block.rows, place.rank});
}
at::Tensor rest_of(const Place& place, const at::Tensor& all) {
  return all.narrow(0, place.p + place.block.rows * place.rank, place.rest());
}
at::Tensor q_of(const Place& place, const at::Tensor& all) {
  return all.narrow(0, place.q, place.block.columns * place.rank).view({place.block.columns, place.rank});
}

// 16-bit floats are too coarse to compute with.
at::Tensor wide(const at::Tensor& values) {
  return values.element_size() == 2 ? values.to(c10::kFloat) : values;
}

at::Tensor orthonormal(const at::Tensor& columns) {
  if (!looped(columns)) return std::get<0>(at::linalg_qr(wide(columns)));
  orthonormalize(columns.mutable_data_ptr<float>(), columns.size(0), columns.size(1));
  return columns;
}

// So that products with it are neither too small nor too large to be written. By powers of two, which round nothing.
at::Tensor scaled(const at::Tensor& columns) {
  if (looped(columns)) {
    at::Tensor to = at::empty_like(columns);
    scale_columns(columns.const_data_ptr<float>(), columns.size(0), columns.size(1),
                  to.mutable_data_ptr<float>());
    return to;
  }
  const at::Tensor exponents = std::get<1>(at::frexp(columns.abs().amax(0, true)));
  return at::ldexp(columns, exponents.neg().clamp(-kMostExponent, kMostExponent));
}

// Q for a message of `dtype`: its columns are at most 1 long for float16, so that no element of P is larger than its row of M.
// Lengths are summed up in double precision: powers of two of them are alike on all ranks.
at::Tensor scaled_for(c10::ScalarType dtype, const at::Tensor& columns) {
  at::Tensor even = scaled(columns);
  if (dtype != c10::kHalf) return even;
  return at::ldexp(even, std::get<1>(at::frexp(even.to(c10::kDouble).norm(2, 0, true))).neg());
}

void write_product(const at::Tensor& p, const at::Tensor& q, const at::Tensor& to) {
  if (looped(to)) {
    multiply_transposed(p.const_data_ptr<float>(), q.const_data_ptr<float>(), p.size(0), q.size(0), p.size(1),
                        to.mutable_data_ptr<float>());
  } else {
    to.copy_(at::mm(p, wide(q).t()));
  }
}

at::Tensor random_like(const at::Tensor& like, std::uint64_t seed) {
  const at::Tensor random = at::empty({like.numel()}, at::kFloat);
  auto* const to = random.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < random.numel(); ++i) {
    const auto bits = static_cast<std::int64_t>(mixed(seed, static_cast<std::uint64_t>(i)) >> 40);
    to[i] = static_cast<float>(bits - (1 << 23)) / (1 << 23);
  }
  return random.to(like.options()).view(like.sizes());
}

class PowerSgd : public Codec {
 public:
  explicit PowerSgd(const codec::PowerSgd& parameters) : set_(parameters) {}

  std::unique_ptr<Pending> start(const Parcel& parcel, const Memory& before, Memory& after) const override {
    if (parcel.iteration < set_.warm_up) return start_whole(parcel.call, before, after);
    auto message = std::make_shared<Message>(parcel, set_, before, after);
    Call first = parcel.call;
    first.flat = message->p;
    return then(first, runtime::start(first), [message] { message->second_half(); });
  }

 private:
  static std::unique_ptr<Pending> start_whole(const Call& call, const Memory& before, Memory& after) {
    at::Tensor& left = compensated(call.flat, before, after);
    call.flat.copy_(left);
    left.zero_();
    return runtime::start(call);
  }

  struct Message {
    Message(const Parcel& parcel, const codec::PowerSgd& set, const Memory& before, Memory& kept)
        : call(parcel.call), after(kept), layout(parcel.blocks, set) {
      seed = mixed(parcel.number, static_cast<std::uint64_t>(parcel.iteration));
      const at::Tensor& left = compensated(call.flat, before, after);
      p = at::empty({layout.p}, left.options());
      after.further.resize(1);
      at::Tensor& q = after.further[0];
      if (!q.defined()) q = at::empty({layout.q}, left.options());
      const at::Tensor start = before.further.empty() ? random_like(q, seed) : before.further[0];
      for (const Place& place : layout.places) {
        rest_of(place, p).copy_(rest(place, left));
        if (place.rank > 0)
          p_of(place, p).copy_(
              at::mm(wide(matrix(place, left)), scaled_for(left.scalar_type(), wide(q_of(place, start)))));
      }
    }

    void second_half() {
      const at::Tensor& q = after.further[0];
      std::vector<at::Tensor> bases;
      for (const Place& place : layout.places) {
        if (place.rank == 0) continue;
        bases.push_back(orthonormal(p_of(place, p)));
        const at::Tensor own = wide(matrix(place, after.residual));
        q_of(place, q).copy_(at::mm(own.t(), bases.back()));
      }
      Call second = call;
      second.flat = q;
      second.sequence += 2;  // a sum of 16-bit floats takes two
      if (q.numel() > 0) start_in_any_order(second)->wait();
      auto base = bases.begin();
      for (const Place& place : layout.places) {
        rest(place, call.flat).copy_(rest_of(place, p));
        rest(place, after.residual).zero_();
        if (place.rank == 0) continue;
        const at::Tensor result = matrix(place, call.flat), columns = q_of(place, q);
        write_product(*base++, columns, result);
        matrix(place, after.residual).sub_(result, 1.0 / call.world());
        const at::Tensor empty = columns.ne(0).any(0, true).logical_not();
        if (columns.is_cpu() && !empty.any().item<bool>()) continue;
        columns.copy_(at::where(empty, random_like(columns, seed + 1), columns));
      }
    }

    Call call;
    Memory& after;
    Layout layout;
    std::uint64_t seed;
    at::Tensor p;
  };

  codec::PowerSgd set_;
};

}  // namespace

CodecRow power_sgd() { return row_of<PowerSgd, codec::PowerSgd>("power_sgd"); }

}  // namespace gradweave::runtime
