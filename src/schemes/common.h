// What several schemes need to build a plan.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gradweave/cost.h"
#include "gradweave/plan.h"
#include "gradweave/schemes.h"
#include "solve/message.h"

namespace gradweave {

// Returns a plan with the cluster's links and an empty period of `period` iterations; no blocks. Errors:
// InvalidInput if a plan that names every tensor in each of them would be too large to be read again.
Plan new_plan(const CostModel& model, std::size_t period);

// Appends one block for each slice and returns their indices.
std::vector<std::int32_t> add_blocks(Plan& plan, const CostModel& model, std::span<const Slice> slices);

// Returns the layer whose backward completes last among the slices: the first in forward order.
std::size_t last_ready_layer(const CostModel& model, std::span<const Slice> slices);

// Returns every tensor as a slice, in parameter order.
std::vector<Slice> whole_tensors(const CostModel& model);

// Returns them in reverse: the order in which gradients become ready.
std::vector<Slice> tensors_in_backward_order(const CostModel& model);

// Returns PyTorch DistributedDataParallel's buckets of its default sizes, in the order in which they close
// (ddp.cc has the rule).
std::vector<Message> ddp_buckets(const CostModel& model);

// Returns the cluster with at most `ops` ops at once on each link; a plan may use less concurrency than a
// link has.
Cluster with_concurrency_at_most(const Cluster& cluster, std::int64_t ops);

// Returns whether ops share some link's bandwidth.
bool has_shared_link(const Cluster& cluster);

// Returns the release at the end of the backward of the last-ready layer of `slices`.
Release release_when_ready(const CostModel& model, std::span<const Slice> slices, Nanoseconds delay = 0);

// Returns `slices` as one message for each dtype, in the order of first slices: one op carries one dtype.
std::vector<Message> split_by_dtype(const CostModel& model, std::span<const Slice> slices);

// Returns the row of the option `seed` of schemes that are tuned: what the random candidates of minimise()
// (solve/bayesian.h) start from.
OptionSpec seed_option();

// Returns the plan of every scheme without forward overlap: period 1; message i is one all-reduce of this
// iteration's gradients, released at `releases[i]`, an end of backward, in the order given, on the link that
// assign_links() chooses; everything applied at iteration_end.
Plan synchronous_plan(const CostModel& model, std::span<const Message> messages,
                      std::span<const Release> releases);

}  // namespace gradweave
