// Plans of other schemes, simulated: what `optimal` starts from and `auto` chooses among.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gradweave/error.h"
#include "gradweave/schemes.h"
#include "gradweave/simulate.h"

namespace gradweave {

struct Candidate {
  std::string_view scheme;
  SchemeOptions options;
  Plan plan;
  SimulationResult result;
  std::vector<Effect> effects;
};

// "us_byte", or "ddp compressor=fp16, bucket_cap_bytes=1000000".
std::string to_string(const Candidate& candidate);

// Returns the candidate in one line; its options are those of its plan, what tuning found included.
PlanSummary summary_of(const Candidate& candidate);

// Returns nanoseconds in microseconds, to 6 places: the nearest, or, of a bound, which must stay one, the next
// below.
double nearest_us(double ns);
double bound_us(double ns);

// Returns the least iteration time first; of equal ones, what stands first in `candidates`.
bool faster(const SimulationResult& x, const SimulationResult& y);

// Plans schemes under chosen options and simulates what comes out. Pure.
class CandidateMaker {
 public:
  CandidateMaker(const Workload& workload, const Cluster& cluster, const SimulationOptions& overheads = {})
      : workload_(workload), cluster_(cluster), overheads_(overheads) {}

  // Appends the scheme's plan under `options`, simulated, unless it is infeasible or can't serve the
  // options, or its times leave the range of the clock.
  void add(const SchemeOptions& options, std::vector<Candidate>& candidates) const;

  // Why add() first could not serve, if it ever could not.
  const std::optional<InvalidInput>& refusal() const { return refusal_; }

  // Tunes a scheme one option after another from `options` on, each over a small grid read off its
  // specification: sizes in bytes are total_bytes / 2^k, choices are tried all, other options stay. Where a scheme averages
  // every H-th iteration, the fastest of those with the same demands then come with each smaller H: slower, but frequent
  // averages change training less. Appends everything tried. O(options * 8 + H) plans.
  void tune(const SchemeOptions& options, std::vector<Candidate>& candidates) const;

 private:
  std::vector<OptionValue> grid(const OptionSpec& spec) const;
  void add_shorter_periods(const SchemeOptions& options, std::size_t first,
                           std::vector<Candidate>& candidates) const;

  const Workload& workload_;
  const Cluster& cluster_;
  SimulationOptions overheads_;
  mutable std::optional<InvalidInput> refusal_;
};

}  // namespace gradweave
