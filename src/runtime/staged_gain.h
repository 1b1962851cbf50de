// What parameters have gained, where they are not float32 in the processor's memory: they lie on an accelerator, or have 16
// bits. The message's link does all work on it, in the processor's memory:
//
//   1. compute thread  parameters are copied to `values`, from an accelerator on a stream for that
//   2. link            once they have arrived: values -= anchors; encoded
//   3. link            once the result has arrived: anchors and momenta move, and `values` become corrections
//   4. compute thread  where the plan says: parameters += corrections
//
// The device has no copy besides one slice of the corrections. docs/engine.md counts the bytes.
#pragma once

#include <ATen/core/TensorBody.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "codec/groups.h"
#include "runtime/codec/two_stages.h"
#include "runtime/fence.h"

namespace gradweave::runtime {

class StagedGain {
 public:
  // Of `count` elements, of parameters on `device`.
  StagedGain(std::int64_t count, c10::Device device);
  std::int64_t bytes() const { return values_.numel() * static_cast<std::int64_t>(sizeof(float)); }

  // ---- the compute thread

  // A message begins.
  void begin(std::uint64_t key, codec::Outer outer, float share);
  // Its elements from `offset` on are those of `value`, flat, less `anchor`, which moves with `momentum` (undefined: no outer
  // optimizer) when the result arrives. `stream`: for copies from an accelerator; the caller owes that the current stream waits
  // for it before `value` is changed.
  void read(const at::Tensor& value, std::int64_t offset, const at::Tensor& anchor,
            const at::Tensor& momentum, std::optional<c10::Stream> stream);
  // The caller owes land(): value += the corrections from `offset` on.
  void add_to(const at::Tensor& value, std::int64_t offset) const;

  // ---- the link; and the compute thread while it does nothing. Again: nothing.

  // Waits for the parameters.
  void await() const;
  // After await(): writes the message: to `groups`, or else to `flat` and `own`.
  void send(const std::optional<GroupMessage>& groups, const at::Tensor& flat, const at::Tensor& own);
  // Makes corrections of the result, which lies where the message did.
  void land(const std::optional<GroupMessage>& groups, const at::Tensor& flat, const at::Tensor& own);

  // ---- checkpoints

  bool landed() const { return stage_ == Stage::kLanded; }
  // The corrections, once it has landed.
  const at::Tensor& values() const { return values_; }
  // What follows was done where a checkpoint was written. `anchor`, `momentum`: as for read().
  void restore(bool landed) { stage_ = landed ? Stage::kLanded : Stage::kSent; }
  void place(std::int64_t offset, const at::Tensor& anchor, const at::Tensor& momentum);

 private:
  enum class Stage : std::uint8_t { kRead, kSent, kLanded };
  struct Part {
    std::int64_t begin, length;   // elements of the message
    at::Tensor anchor, momentum;  // flat
  };

  at::Tensor values_;
  Fence arrived_;
  std::vector<Part> parts_;
  std::uint64_t key_ = 0;
  codec::Outer outer_;
  float share_ = 1;
  Stage stage_ = Stage::kRead;
};

}  // namespace gradweave::runtime
