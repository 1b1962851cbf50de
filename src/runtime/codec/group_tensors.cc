#include "runtime/codec/group_tensors.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <limits>
#include <vector>

#include "base/splitmix.h"

namespace gradweave::runtime {
namespace {

constexpr std::int64_t kBytesOfScale = 4;

struct CodeForm {
  std::int64_t bits, limit, middle, step;  // as the kernels' traits
};

CodeForm form_of_codes(codec::Format format) {
  if (format == codec::Format::kInt8) return {.bits = 8, .limit = 127, .middle = 128, .step = 1};
  if (format == codec::Format::kInt4) return {.bits = 4, .limit = 7, .middle = 8, .step = 1};
  return {.bits = 2, .limit = 0, .middle = 3, .step = 2};
}

// Of 64 bits, filled up with zeros.
at::Tensor shifted_right(const at::Tensor& words, std::int64_t by) {
  return words.bitwise_right_shift(by).bitwise_and((std::int64_t{1} << (64 - by)) - 1);
}

// splitmix64() of each.
at::Tensor hashed(at::Tensor words) {
  words = words.add(static_cast<std::int64_t>(kSplitmixStep));
  words = words.bitwise_xor(shifted_right(words, 30)).mul(static_cast<std::int64_t>(0xbf58476d1ce4e5b9));
  words = words.bitwise_xor(shifted_right(words, 27)).mul(static_cast<std::int64_t>(0x94d049bb133111eb));
  return words.bitwise_xor(shifted_right(words, 31));
}

// Of (groups, 256) elements, 16 random bits each.
at::Tensor random_bits(std::uint64_t key, std::int64_t first_group, std::int64_t groups,
                       const at::TensorOptions& integers) {
  constexpr std::int64_t kWord = 0xFFFFFFFF;
  const at::Tensor numbers =
      at::arange(groups, integers)
          .add_(static_cast<std::int64_t>(key + static_cast<std::uint64_t>(first_group)));
  const at::Tensor random = hashed(numbers).unsqueeze(1);
  at::Tensor x = random.bitwise_and(kWord).add(at::arange(codec::kGroup / 2, integers)).bitwise_and_(kWord);
  x = x.bitwise_xor(x.bitwise_right_shift(16));
  x = x.bitwise_xor(shifted_right(random, 32)).mul_(0x7FEB352D).bitwise_and_(kWord);
  x = x.bitwise_xor(x.bitwise_right_shift(15)).mul_(0x846CA68B).bitwise_and_(kWord);
  x = x.bitwise_xor(x.bitwise_right_shift(16));
  return at::cat({x.bitwise_and(0xFFFF), x.bitwise_right_shift(16)}, 1);
}

// The groups of a message that have all their elements, and those of the short one behind them.
struct Split {
  std::int64_t whole, rest;
  explicit Split(std::int64_t count) : whole(count / codec::kGroup), rest(count % codec::kGroup) {}
};

std::int64_t code_bytes(const CodeForm& form, std::int64_t elements) {
  return (elements * form.bits + 7) / 8;
}

at::Tensor rows_of(const at::Tensor& message, std::int64_t groups, std::int64_t bytes) {
  return message.narrow(0, 0, groups * bytes).view({groups, bytes});
}

// `scale` of each group, and `codes`, (groups, 256), of which `bytes` bytes a group go out.
void write_groups(const CodeForm& form, const at::Tensor& scale, const at::Tensor& codes, std::int64_t bytes,
                  const at::Tensor& to) {
  const at::Tensor rows = rows_of(to, codes.size(0), kBytesOfScale + bytes);
  rows.narrow(1, 0, kBytesOfScale).copy_(scale.contiguous().view(c10::kByte));
  at::Tensor packed = codes.narrow(1, 0, bytes);
  for (std::int64_t k = 1; k < 8 / form.bits; ++k)
    packed = packed.bitwise_or(codes.narrow(1, k * bytes, bytes).bitwise_left_shift(k * form.bits));
  rows.narrow(1, kBytesOfScale, bytes).copy_(packed);
}

// What groups of `elements` elements decode to, (groups, elements).
at::Tensor read_groups(const CodeForm& form, const at::Tensor& from, std::int64_t groups,
                       std::int64_t elements) {
  const std::int64_t bytes = code_bytes(form, elements);
  const at::Tensor rows = rows_of(from, groups, kBytesOfScale + bytes);
  const at::Tensor scale =
      rows.narrow(1, 0, kBytesOfScale).clone(at::MemoryFormat::Contiguous).view(c10::kFloat);
  const at::Tensor packed = rows.narrow(1, kBytesOfScale, bytes);
  std::vector<at::Tensor> codes;
  for (std::int64_t shift = 0; shift < 8; shift += form.bits)
    codes.push_back(packed.bitwise_right_shift(shift).bitwise_and((1 << form.bits) - 1));
  return at::cat(codes, 1)
      .narrow(1, 0, elements)
      .to(c10::kFloat)
      .mul_(form.step)
      .sub_(form.middle)
      .mul_(scale);
}

// (groups, 1): the sums of (groups, 256) magnitudes in the order of the kernels.
at::Tensor sum_of_magnitudes(const at::Tensor& sizes) {
  constexpr std::int64_t kLanes = 16;
  const at::Tensor lanes = sizes.narrow(1, 0, kLanes).clone();
  for (std::int64_t i = kLanes; i < codec::kGroup; i += kLanes) lanes.add_(sizes.narrow(1, i, kLanes));
  at::Tensor sum = lanes.narrow(1, 0, 1).clone();
  for (std::int64_t l = 1; l < kLanes; ++l) sum.add_(lanes.narrow(1, l, 1));
  return sum;
}

// The scales of int2's groups of `sizes` magnitudes; the last has `rest` elements unless that is 0.
at::Tensor scale_by_magnitudes(const at::Tensor& sizes, std::int64_t rest) {
  const at::Tensor lengths = at::full({sizes.size(0), 1}, codec::kGroup, sizes.options());
  if (rest > 0) lengths.narrow(0, sizes.size(0) - 1, 1).fill_(rest);
  const at::Tensor large = sizes.ge(sum_of_magnitudes(sizes).div_(lengths).mul_(1.25));
  return sum_of_magnitudes(at::where(large, sizes.mul(3), sizes))
      .div_(lengths.add_(large.sum({1}, true).mul_(8)));
}

// The codes of int2, (groups, 256).
at::Tensor nearest_of_four(const at::Tensor& gain, const at::Tensor& sizes, const at::Tensor& scale) {
  const at::Tensor negative = gain.signbit(), outer = sizes.ge(scale.mul(2));
  return negative.logical_not().to(c10::kByte).mul_(2).add_(negative.logical_xor(outer));
}

// The codes of int8 and int4, (groups, 256).
at::Tensor rounded_at_random(const CodeForm& form, const at::Tensor& gain, const at::Tensor& limit_over_top,
                             const at::Tensor& scale, std::uint64_t key, std::int64_t first_group) {
  const at::Tensor finite = scale.isfinite();
  const at::Tensor inverse =
      at::where(finite.logical_and(scale.gt(0)), limit_over_top, at::zeros_like(scale));
  const at::Tensor random =
      random_bits(key, first_group, gain.size(0), gain.options().dtype(c10::kLong)).bitwise_or_(0x43000001);
  const at::Tensor sum = gain.mul(inverse).add_(random.to(c10::kInt).view(c10::kFloat));
  const at::Tensor rounded = sum.clamp_(128 - form.limit, 128 + form.limit).nan_to_num_(128).floor_();
  return at::where(finite, rounded.sub(128 - form.middle), at::full_like(scale, form.middle)).to(c10::kByte);
}

void encode_by_operators(codec::Format format, const at::Tensor& values, std::uint64_t key,
                         std::int64_t first_group, const at::Tensor& to) {
  const CodeForm form = form_of_codes(format);
  const Split split(values.numel());
  const std::int64_t padding = split.rest > 0 ? codec::kGroup - split.rest : 0;
  const at::Tensor gain = at::constant_pad_nd(values, {0, padding}).view({-1, codec::kGroup});
  const at::Tensor sizes = gain.abs(), top = sizes.amax({1}, true);
  const bool random = format != codec::Format::kInt2;
  const at::Tensor limit = at::full_like(top, form.limit);  // a number would be multiplied by its inverse
  at::Tensor scale = random ? top.div(limit) : scale_by_magnitudes(sizes, split.rest);
  scale = at::where(top.lt(0x1p-100), at::zeros_like(top), scale);
  const at::Tensor finite = scale.isfinite();
  scale = at::where(finite, scale, at::full_like(scale, std::numeric_limits<float>::quiet_NaN()));
  const at::Tensor codes = random ? rounded_at_random(form, gain, limit.div(top), scale, key, first_group)
                                  : nearest_of_four(gain, sizes, scale);
  const std::int64_t bytes = code_bytes(form, codec::kGroup);
  if (split.whole > 0)
    write_groups(form, scale.narrow(0, 0, split.whole), codes.narrow(0, 0, split.whole), bytes, to);
  if (split.rest > 0) {
    write_groups(form, scale.narrow(0, split.whole, 1), codes.narrow(0, split.whole, 1),
                 code_bytes(form, split.rest), to.slice(0, split.whole * (kBytesOfScale + bytes)));
  }
}

// Makes `to` what the message decodes to, or adds it.
void decode_by_operators(codec::Format format, const at::Tensor& message, const at::Tensor& to, bool adds) {
  const auto put = [adds](const at::Tensor& part, const at::Tensor& values) {
    adds ? part.add_(values) : part.copy_(values);
  };
  const CodeForm form = form_of_codes(format);
  const Split split(to.numel());
  const std::int64_t elements = split.whole * codec::kGroup;
  if (split.whole > 0)
    put(to.narrow(0, 0, elements).view({-1, codec::kGroup}),
        read_groups(form, message, split.whole, codec::kGroup));
  if (split.rest > 0) {
    const std::int64_t begin = split.whole * (kBytesOfScale + code_bytes(form, codec::kGroup));
    put(to.narrow(0, elements, split.rest),
        read_groups(form, message.slice(0, begin), 1, split.rest).view({-1}));
  }
}

void decode_or_add(codec::Format format, const at::Tensor& message, const at::Tensor& to, bool adds) {
  if (!to.is_cpu()) return decode_by_operators(format, message, to, adds);
  const codec::Kernels& with = codec::kernels();
  (adds ? with.decode_add : with.decode)(format, message.const_data_ptr<std::uint8_t>(), to.numel(), 0,
                                         to.numel(), to.mutable_data_ptr<float>());
}

}  // namespace

void encode_groups(codec::Format format, const at::Tensor& values, std::uint64_t key,
                   std::int64_t first_group, const at::Tensor& to) {
  if (values.numel() == 0) return;
  if (!values.is_cpu()) return encode_by_operators(format, values, key, first_group, to);
  codec::kernels().encode(format, values.const_data_ptr<float>(), nullptr, values.numel(), key, first_group,
                          to.mutable_data_ptr<std::uint8_t>());
}

void decode_groups(codec::Format format, const at::Tensor& message, const at::Tensor& to) {
  decode_or_add(format, message, to, false);
}

void add_decoded_groups(codec::Format format, const at::Tensor& message, const at::Tensor& to) {
  decode_or_add(format, message, to, true);
}

}  // namespace gradweave::runtime
