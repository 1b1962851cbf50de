// Compression, for every scheme: the options, and how a plan says it.
#pragma once

#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "gradweave/compression.h"
#include "gradweave/options.h"
#include "gradweave/plan.h"

namespace gradweave {

// The value of `compressor` that leaves it to the planner.
inline constexpr std::string_view kPlannersChoice = "auto";

// The options of schemes that send gradients and have none of their own.
struct GradientOptions {
  Compression compression;
};

// What schemes that average parameters have beside their own options.
struct AverageOptions {
  bool planners_choice = false;
  Compression compression;  // no name: none, or the planner's choice
  std::optional<Outer> outer;
};

// Returns the options of schemes that send gradients: `compressor` and those of its parameters, read off the
// compressors' tables.
const std::vector<OptionSpec>& compressor_options();

// Returns those of schemes that average parameters: the same, `outer_momentum` and `outer_learning_rate`.
const std::vector<OptionSpec>& average_options();

// Returns the compressor that the options name, with the parameters that are set; no name: none is, or the planner
// chooses. Errors: InvalidInput for a parameter that the compressor does not have, or out of its range.
Compression compression_of(const SchemeOptions& options);

// Returns all that the options say of averages. Errors: as compression_of().
AverageOptions averages_of(const SchemeOptions& options);

// Sets `compressor` and the parameters that `compression` has. The caller owes options that have them.
void set_compression(SchemeOptions& options, const Compression& compression);

// Whether an option is `compressor` or one of a compressor's parameters.
bool is_compressor_option(std::string_view option);

// Makes the gradient ops of `plan` carry compressed messages: an all_reduce becomes the collective
// `compressed`; a reduce_scatter and its all_gather stay, with both halves cast. Errors: InvalidInput if
// there is such a pair and the compressor is not a cast: a shard of a compressed gradient is not the
// compressed shard, and its residual would belong to nobody.
void compress_gradients(Plan& plan, const Compression& compression);

// Returns the compressions of averages that `averages` leave to choose among, most bits first: the one that is
// set, or, for the planner's choice, none and all that keep the accuracy of exact averages at any setting: those
// without a density to choose (docs/schemes/compressors.md).
std::vector<Compression> average_codecs(const AverageOptions& averages);

// Makes the averages of `plan`, which are exact, go through `codec`, and through the outer optimizer if there is
// one. A codec that was chosen stands beside the options.
void set_averages(Plan& plan, const Compression& codec, const AverageOptions& averages);

// Returns the plan of that codec in average_codecs() which has the most bits among those at most 1 % slower
// than the fastest, simulated. `plan_under` returns the scheme's plan under a codec.
PlanResult fastest_over_codecs(const Workload& workload, const Cluster& cluster,
                               const AverageOptions& averages,
                               const std::function<PlanResult(const Compression&)>& plan_under);

}  // namespace gradweave
