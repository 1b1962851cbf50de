// The maximum cycle ratio of a program's event graph: its exact rate where states never repeat.
#pragma once

#include <cstdint>

#include "simulate/program.h"

namespace gradweave {

// Time per iterations: `time` ns pass in every `iterations` iterations, in the long run.
struct CycleRatio {
  Nanoseconds time = 0;
  std::int64_t iterations = 1;
};

// Returns max over cycles of (sum of durations) / (iterations that the cycle spans), over the cycles that
// some class of workers waits for, directly or not. Exact. Requires links of concurrency 1 and compute of one
// speed. Method: a ratio is raised to that of any cycle that exceeds it, found by Bellman-Ford, until none
// does (Lawler 1976; Dasdan 2004 compares). O(ratios * nodes * edges) at worst; in practice few passes.
CycleRatio maximum_cycle_ratio(const Program& program);

}  // namespace gradweave
