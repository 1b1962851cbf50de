// What one rank's trace says of its iterations' layers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "gradweave/decimal.h"
#include "gradweave/workload.h"
#include "io/import/trace_events.h"

namespace gradweave {

// The events of one rank that count, in few bytes each.
class RankTrace {
 public:
  // Keeps what counts of `event`. Errors: InvalidInput beyond 2^24 events that count.
  void add(const TraceEvent& event);

  struct Result {
    std::vector<std::vector<Layer>> iterations;  // each the layers of one, in forward order
    std::int64_t incomplete = 0;  // iterations with gradients whose forward is not in the trace
    bool modules = false;         // layers are modules
  };
  // Returns the iterations of what was added. Errors: InvalidInput saying what to switch on while recording.
  Result layers();

 private:
  enum class Kind : std::uint8_t { kModule, kOperator, kNode, kGradient, kStep, kOptimizer };

  struct Record {
    Nanoseconds begin = 0, end = 0;
    std::int64_t key = -1;    // sequence number; of a gradient its elements
    std::int32_t thread = 0;  // where it ran
    std::int32_t forward =
        0;  // node: number of the thread of its forward; gradient: number of its dtype's name
    std::uint32_t name = 0;
    Kind kind = Kind::kModule;
  };

  struct Done {
    std::int64_t correlation = 0;
    Nanoseconds at = 0;
  };

  friend class PassFinder;

  void keep(const TraceEvent& event, Kind kind, std::int64_t key, std::string_view name);
  std::uint32_t number_of(std::string_view text);

  std::vector<Record> records_;
  std::vector<Done> launches_, kernels_;  // host's begin, device's end
  std::vector<std::string> texts_;
  std::unordered_map<std::string, std::uint32_t> numbers_;
  std::unordered_map<std::int64_t, std::int32_t> threads_;
};

}  // namespace gradweave
