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
  // 0 is all parameters.
  const Subset& subset(std::int32_t number) const { return subsets_.at(static_cast<std::size_t>(number)); }

 private:
  std::int32_t number_of(const Stepped& stepped);

  const Parameters& parameters_;
  Stepper stepper_;
  std::vector<Subset> subsets_;
  std::map<Stepped, std::int32_t> numbers_;
};

}  // namespace gradweave::runtime
