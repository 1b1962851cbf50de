// Which gradients of an iteration have come on this rank, tensor by tensor and layer by layer.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "gradweave/workload.h"
#include "run/compute_thread.h"

namespace gradweave::run {

class Arrivals {
 public:
  // `index` must outlive it.
  explicit Arrivals(const WorkloadIndex& index);

  // A backward that is not communicated has given a gradient to `tensor`; `next`: for the next iteration, since this one's
  // gradients are reduced.
  void accumulated(std::int32_t tensor, bool next = false) REQUIRES(compute_thread) {
    (next ? touched_next_ : touched_)[place(tensor)] = 1;
  }
  // What was accumulated of `tensor` is there no longer.
  void taken_away(std::int32_t tensor) REQUIRES(compute_thread) { touched_[place(tensor)] = 0; }
  // A backward that is communicated begins.
  void begin() REQUIRES(compute_thread);
  // Its gradient of `tensor` has come. Returns false if it had come before.
  bool come(std::int32_t tensor) REQUIRES(compute_thread);

  // Layers `first` to `last` have ended.
  struct Ended {
    std::int32_t first = 0, last = 0;
  };
  // The gradient of `tensor` was dealt with. Returns what ended with it, if anything did: its layer, and those without
  // tensors that follow it in the forward.
  std::optional<Ended> dealt_with(std::int32_t tensor) REQUIRES(compute_thread);

  // The backward has ended, and the gradient of a tensor that had come is there, or no longer.
  void keep(std::int32_t tensor, bool there) REQUIRES(compute_thread) {
    present_[place(tensor)] = ready_[place(tensor)] && there;
  }
  // An iteration has ended: what it has accumulated is forgotten, and what came for the next one is that one's.
  void forget_accumulated() REQUIRES(compute_thread);
  // An iteration has ended without a step: what is `there` is part of the next one's gradient.
  void accumulates_on(std::int32_t tensor, bool there) REQUIRES(compute_thread) {
    touched_[place(tensor)] = (used(tensor) || touched_next_[place(tensor)]) && there;
    touched_next_[place(tensor)] = 0;
  }

  bool has_come(std::int32_t tensor) const REQUIRES(compute_thread) { return ready_[place(tensor)] != 0; }
  bool has_accumulated(std::int32_t tensor) const REQUIRES(compute_thread) {
    return touched_[place(tensor)] != 0;
  }
  // Whether a gradient of `layer`, or of one behind it in the forward, is still to come.
  bool missing_from(std::int32_t layer) const REQUIRES(compute_thread);
  // Whether the tensor was used on this rank, in whichever backward of the iteration.
  bool used(std::int32_t tensor) const REQUIRES(compute_thread) {
    return has_come(tensor) || has_accumulated(tensor);
  }
  // Whether it had come, and was there when the backward had ended.
  bool present(std::int32_t tensor) const REQUIRES(compute_thread) { return present_[place(tensor)] != 0; }

 private:
  static std::size_t place(std::int32_t tensor) { return static_cast<std::size_t>(tensor); }

  const WorkloadIndex& index_;
  // By tensor.
  std::vector<std::uint8_t> ready_ GUARDED_BY(compute_thread);
  std::vector<std::uint8_t> present_ GUARDED_BY(compute_thread);
  std::vector<std::uint8_t> touched_ GUARDED_BY(compute_thread);
  std::vector<std::uint8_t> touched_next_ GUARDED_BY(compute_thread);
  std::vector<std::int32_t> missing_ GUARDED_BY(compute_thread);  // by layer: tensors still to come
};

}  // namespace gradweave::run
