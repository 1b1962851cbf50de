// Small plans written by hand, one for each family of schemes, on one workload.
#pragma once

#include <string>
#include <vector>

#include "gradweave/plan.h"
#include "gradweave/workload.h"

namespace gradweave::testing {

// Three layers with one tensor each, a (8 elements), b (6), c (4), float32. Blocks of the plans: 0 is a[0:4],
// 1 is a[4:8], 2 is b, 3 is c.
Workload three_layers();

Release at_backward_end(std::int32_t layer, std::int32_t iteration = 0);
Point iteration_end();
Point forward_start(std::int32_t layer);
Point backward_end(std::int32_t layer);

Plan synchronous();         // one all_reduce per layer, applied at iteration_end
Plan forward_overlap();     // ops listed in the next iteration by priority, applied at forward_start(l)
Plan decoupled();           // reduce_scatter in backward, all_gather in the next forward, on two links
Plan delayed();             // two iterations merged, reduced over the next two, applied at their end
Plan corrected();           // the same with correction local
Plan filtered();            // half of the blocks sent, the others dropped into the residual
Plan local_steps();         // every second iteration parameters are averaged, at its end
Plan partial();             // layer by layer: stepped at backward_end, averaged at forward_start
Plan delayed_average();     // parameters averaged in the background, mode correct
Plan compressed_average();  // the same in 4 bits, under an outer optimizer

// All of them, with their names.
std::vector<std::pair<std::string, Plan>> all_families();

}  // namespace gradweave::testing
