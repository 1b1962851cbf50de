// How a message goes over the wire. A codec is one file and one row of the table in codec.cc; it knows nothing of
// plans. docs/schemes/compressors.md says what each does.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/splitmix.h"
#include "compressors/compressor.h"
#include "gradweave/compression.h"
#include "runtime/transport/transport.h"

namespace gradweave::runtime {

// What a codec keeps of the messages of some blocks, from one to the next.
struct Memory {
  // What was not sent: as long as the message, in its unit and dtype; undefined: nothing. It outlives the plan.
  at::Tensor residual;
  std::vector<at::Tensor> further;  // what else; ends with the plan
};

// One message on its way.
struct Parcel {
  Call call;                           // its flat is the message
  std::uint64_t number = 0;            // tells the messages of one iteration apart, alike on all ranks
  std::int64_t iteration = 0;          // of the run, alike on all ranks
  std::span<const BlockShape> blocks;  // of the message, one after another
};

class Codec {
 public:
  virtual ~Codec() = default;

  // Starts the sum of the messages of all ranks, each with what was left `before`. Once what is returned has been
  // waited for, call.flat is the sum, the same bits on all ranks, and `after` what is left now. `after` comes with
  // tensors of an earlier message, or none, to be overwritten. The caller keeps `before` and `after` until then.
  // Called for one message at a time, in the link's order. Compressors that have halves take those of an all-reduce
  // too, each half with a memory of its own: a gather's is of this rank's part.
  virtual std::unique_ptr<Pending> start(const Parcel& parcel, const Memory& before, Memory& after) const = 0;
};

struct CodecRow {
  std::string_view name;  // a compressor's (gradweave/compression.h)
  // What `parameters` leave out has its default.
  std::unique_ptr<Codec> (*make)(const std::map<std::string, double>& parameters);
};

std::span<const CodecRow> codecs();

// Returns the row of a compression. Errors: InvalidInput naming those that there are.
const CodecRow& codec_row(const Compression& compression);

// Returns the codec of a compression. Errors: as codec_row().
std::unique_ptr<Codec> make_codec(const Compression& compression);

// ---- for codecs

// Returns the row of a codec that is made of its compressor's parameters, a struct of src/compressors.
template <typename Made, typename Parameters>
CodecRow row_of(std::string_view name) {
  return {name, [](const auto& values) -> std::unique_ptr<Codec> {
            return std::make_unique<Made>(codec::parameters_of<Parameters>(values));
          }};
}

// Makes after.residual the message with what was left before, and returns it: the codec takes out of it what it
// sends.
at::Tensor& compensated(const at::Tensor& message, const Memory& before, Memory& after);

// Returns `pending`, after which `finish` is called. Where a backend wants one order of launches that is at once,
// since `finish` may launch something; the wait holds the stream, not the host.
std::unique_ptr<Pending> then(const Call& call, std::unique_ptr<Pending> pending,
                              std::function<void()> finish);

// Whether a tensor is what the loops of loops.h take.
inline bool looped(const at::Tensor& values) {
  return values.is_cpu() && values.scalar_type() == c10::kFloat;
}

// Returns number `b` of the random numbers that `a` begins.
constexpr std::uint64_t mixed(std::uint64_t a, std::uint64_t b) { return splitmix64(a + kSplitmixStep * b); }

}  // namespace gradweave::runtime
