// What a plan does to training and what it asks of a training loop: read off the plan, whoever made it.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace gradweave {

struct Plan;
struct Workload;

// What a plan does to training, for `auto`'s limits and for people.
enum class Effect : std::uint8_t {
  kExact,       // bit-for-bit what plain data parallelism computes
  kDelayed,     // gradients applied late
  kLocal,       // local steps between averages
  kCorrected,   // local progress at once, corrected when the average arrives
  kCompressed,  // gradients changed or filtered, with error feedback
};

// Returns "exact", "delayed", "local", "corrected" or "compressed".
constexpr std::string_view name_of(Effect effect) {
  switch (effect) {
    case Effect::kExact:
      return "exact";
    case Effect::kDelayed:
      return "delayed";
    case Effect::kLocal:
      return "local";
    case Effect::kCorrected:
      return "corrected";
    case Effect::kCompressed:
      break;
  }
  return "compressed";
}

// Returns all that a plan does to training, gravest first: of delayed, compressed, local, corrected those that
// hold; kExact alone if none does. So DeFT's plan without delay is exact, and with fp16 it is compressed.
// O(size of the plan).
std::vector<Effect> effects_of(const Plan& plan);

// Returns whether the plan itself leaves gradients for later iterations, as COVAP's filter does, beside what a
// compressor leaves. O(size of the plan).
bool filters_gradients(const Plan& plan);

// Returns whether some op of the plan averages what parameters have gained since their anchor: compressed averages do, and
// those that an outer optimizer uses. O(size of the plan).
bool averages_gains(const Plan& plan);

// What a training loop must support. All false: the optimizer steps everything in the user's step(),
// by gradients that are reduced before.
struct Demands {
  bool steps_in_forward = false;   // parameters are stepped in the next forward
  bool steps_in_backward = false;  // ... or in the backward, before every gradient is known
  bool partial_steps = false;      // some optimizer step is of a part of the parameters
  bool slices = false;             // ... of a part of a tensor: for optimizers that work element by element
  bool delays_gradients = false;   // a reduced gradient is applied after a later forward of its layer
  bool local_steps = false;        // parameters of ranks differ between averages
  bool keeps_residual = false;     // what is not sent now is added to a later gradient
  bool makes_momentum = false;     // a compressor sends momentum: the optimizer must have none of its own
  friend bool operator==(const Demands&, const Demands&) = default;

  // Whether every iteration applies exactly its own reduced gradients at its end.
  bool synchronous() const {
    return !steps_in_forward && !steps_in_backward && !delays_gradients && !local_steps && !keeps_residual;
  }
};

// Returns what the plan asks for. The caller owes a valid plan. O(size of the plan, unrolled as far as merges
// reach).
Demands demands_of(const Plan& plan);

// Returns the layers, without layer 0, at whose backward_end some op of the plan may start: where gradients come
// in groups, the groups must end there. Sorted. Errors: InvalidInput if the plan does not fit the workload. O(size
// of the plan).
std::vector<std::int32_t> cut_layers(const Plan& plan, const Workload& workload);

}  // namespace gradweave
