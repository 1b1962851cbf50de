// How a message is written for the wire. A codec is one file and one row of the table in codec.cc; it knows
// nothing of transports.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "gradweave/plan.h"
#include "runtime/transport/transport.h"

namespace gradweave::runtime {

// Messages are flat and contiguous. encode() is called for one message at a time, in the link's order; decode()
// by several threads at once.
class Codec {
 public:
  // `summable`: the sum of encoded messages is the encoded sum. Otherwise every rank gets all of them.
  explicit Codec(bool summable) : summable_(summable) {}
  virtual ~Codec() = default;
  bool summable() const { return summable_; }

  // Returns the bytes on the wire of `numel` elements of `dtype`.
  virtual std::int64_t wire_bytes(std::int64_t numel, c10::ScalarType dtype) const = 0;
  // Returns the message for the wire: of one length and dtype for all messages of one length and dtype. It may
  // be `message` itself. What gets lost is put into `left_behind`, as long as the message; undefined: nothing.
  virtual at::Tensor encode(const at::Tensor& message, at::Tensor& left_behind) = 0;
  // Writes the sum over all ranks to `message`. `arrived`: if summable, what encode() gives for that sum;
  // otherwise what it gave on each rank, one after another.
  virtual void decode(const at::Tensor& arrived, const at::Tensor& message) const = 0;

 private:
  bool summable_;
};

struct CodecRow {
  std::string_view name;  // "none", or a compressor's (gradweave/compression.h)
  std::unique_ptr<Codec> (*make)(const Compression& compression);
};

std::span<const CodecRow> codecs();

// Returns the codec of an op; without a name it is "none". Errors: InvalidInput naming those that there are.
std::unique_ptr<Codec> make_codec(const Compression& compression);

// A codec on a link: encodes each message, hands it to the best transport, and decodes what arrives.
class Coder {
 public:
  explicit Coder(std::unique_ptr<Codec> codec) : codec_(std::move(codec)) {}

  // Starts the collective on `call.flat`. What the message leaves behind is added to the next one of the same
  // `kind` (the blocks that it carries). The coder outlives the op. Only an all_reduce can be encoded by a
  // codec that is not summable: the caller owes that.
  std::unique_ptr<Pending> start(const Call& call, const std::vector<std::int32_t>& kind);

  const Codec& codec() const { return *codec_; }

 private:
  std::unique_ptr<Codec> codec_;
  std::map<std::vector<std::int32_t>, at::Tensor> left_behind_;
};

}  // namespace gradweave::runtime
