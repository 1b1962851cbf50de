// The steps of the user's optimizer: of all parameters, or of those and the slices that a plan names.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "runtime/parameters.h"

namespace gradweave::runtime {

// Runs the optimizer on a subset(); everything in it has its gradient in place.
using Stepper = std::function<void(std::int32_t)>;

class OptimizerSteps {
 public:
  // `parameters` must outlive it.
  OptimizerSteps(const Parameters& parameters, Stepper stepper)
      : parameters_(parameters), stepper_(std::move(stepper)) {}
  // A plan comes into force: its subsets are numbered anew.
  void install();

  void step(const Stepped& stepped);

  // What one step is of: whole parameters, and slices that are stepped as parameters of their own.
  struct Subset {
    std::vector<std::int32_t> parameters;
    std::vector<Slice> slices;
  };
  // 0 is all parameters. No number has two meanings while a plan is in force. Of a step that is being made, or that was made
  // not long ago: where layers are used now and then there may be as many as iterations.
  const Subset& subset(std::int32_t number) const { return subsets_.at(number); }

 private:
  std::int32_t number_of(const Stepped& stepped);
  void drop_old();

  const Parameters& parameters_;
  Stepper stepper_;
  std::map<std::int32_t, Subset> subsets_;  // by number
  struct Known {
    std::int32_t number = 0;
    bool recent = false;  // stepped since others were dropped
  };
  std::map<Stepped, Known> known_;
  std::int32_t last_ = 0;  // number
};

}  // namespace gradweave::runtime
