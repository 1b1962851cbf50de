// Compression, for every scheme: the options, and how a plan says it.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "gradweave/plan.h"
#include "gradweave/schemes.h"

namespace gradweave {

// The value of `compressor` that leaves it to the planner.
inline constexpr std::string_view kPlannersChoice = "auto";

// Returns the options of schemes that send gradients: `compressor` and those of its parameters.
std::vector<OptionSpec> compressor_options();

// Returns those of schemes that average parameters: `compressor`, `compressor_density`, `outer_momentum`,
// `outer_learning_rate`.
std::vector<OptionSpec> average_options();

// Makes the gradient ops of `plan` carry compressed messages: an all_reduce becomes the collective
// `compressed`; a reduce_scatter and its all_gather stay, with both halves cast. Errors: InvalidInput if
// there is such a pair and the compressor is not a cast: a shard of a compressed gradient is not the
// compressed shard, and its residual would belong to nobody.
void compress_gradients(Plan& plan, const Compression& compression);

// Returns the compressions of averages that `values` leave to choose among, most bits first: the one that is set,
// or, for kPlannersChoice, none and all that keep the accuracy of exact averages at any setting: those without a
// density to choose (docs/schemes/compressors.md).
std::vector<Compression> average_codecs(const OptionValues& values);

// Makes the averages of `plan`, which are exact, go through `codec`, and through the outer optimizer if `values`
// have one. A codec that was chosen stands beside the options.
void set_averages(Plan& plan, const Compression& codec, const OptionValues& values);

// Returns the plan of that codec in average_codecs(values) which has the most bits among those at most 1 % slower
// than the fastest, simulated. `plan_under` returns the scheme's plan under a codec.
PlanResult fastest_over_codecs(const Workload& workload, const Cluster& cluster, const OptionValues& values,
                               const std::function<PlanResult(const Compression&)>& plan_under);

}  // namespace gradweave
