// A loss scale, which the engine takes out of gradients where they are handed over.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <functional>

namespace gradweave::runtime {

// Returns the factor that takes the loss scale out of the gradients of the backward that begins, a float32 tensor of one
// element on the parameters' device; undefined if they have none.
using Unscaler = std::function<at::Tensor()>;

class LossScale {
 public:
  // What a loss scale means for the plan in force: nothing if every update is of what was reduced, since the
  // user's scaler looks at that itself.
  enum class Meaning : std::uint8_t { kNone, kAtHandOver, kRefused };
  void set_meaning(Meaning meaning) { meaning_ = meaning; }
  // Null: no scale.
  void set_unscaler(Unscaler unscaler) { unscaler_ = std::move(unscaler); }
  // Whether the loop has a scaler, which looks for what is not finite.
  bool known() const { return unscaler_ != nullptr; }

  // Returns whether gradients of the backward that begins have a scale. Errors: InvalidInput where the plan can't have one.
  bool begin_backward();
  // Whether gradients of this backward have one.
  bool is_on() const { return inverse_scale_.defined(); }
  // Takes it out of a dense gradient, in place. The caller owes that it is on.
  void unscale(const at::Tensor& gradient) const;
  // Whether one of this backward's was not finite. The caller owes that begin_backward() returned true.
  bool overflowed() const { return found_inf_.item<float>() != 0; }

 private:
  Unscaler unscaler_;
  Meaning meaning_ = Meaning::kNone;
  at::Tensor inverse_scale_, found_inf_;  // of this backward
};

}  // namespace gradweave::runtime
