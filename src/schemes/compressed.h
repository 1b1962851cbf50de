// Compression of gradients, for every scheme that sends them: the options, and how a plan says it.
#pragma once

#include <vector>

#include "gradweave/plan.h"
#include "gradweave/schemes.h"

namespace gradweave {

// Returns the options `compressor`, `compressor_density` and `compressor_rank`.
std::vector<OptionSpec> compressor_options();

// Makes the gradient ops of `plan` carry compressed messages: an all_reduce becomes the collective
// `compressed`; a reduce_scatter and its all_gather stay, with both halves cast. Errors: InvalidInput if
// there is such a pair and the compressor is not a cast: a shard of a compressed gradient is not the
// compressed shard, and its residual would belong to nobody.
void compress_gradients(Plan& plan, const Compression& compression);

}  // namespace gradweave
