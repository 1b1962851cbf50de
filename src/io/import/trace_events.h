// The events of a Chrome trace as the PyTorch profiler writes it, one after another: nothing else is kept.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "gradweave/decimal.h"

namespace gradweave {

// A complete event (phase X). Strings are cut after 1 KiB. What the event does not say is nothing, or empty.
struct TraceEvent {
  std::string category, name;
  std::int64_t process = 0, thread = 0;  // numbers of their own where the trace gives words
  Nanoseconds begin = 0, end = 0;
  std::optional<std::int64_t> sequence_number, forward_thread, correlation;
  std::optional<std::int64_t> numel;  // of the first input, by its dimensions
  std::string dtype;                  // of the first input, as C++ names it
};

struct TraceSummary {
  std::optional<std::int64_t> rank;  // of distributedInfo
  std::int64_t damaged = 0;          // places that are not JSON, at each of which an event or more are lost
  bool truncated = false;            // the file ends in the middle
  bool packed_short = false;         // its gzipped data do
};

// Calls `on_event` for each event of the file ("-": standard input), plain or gzipped, in the file's order, and `on_bytes` now and then with
// how many bytes (uncompressed) have been read. What profilers write that is not JSON is taken: raw control characters
// and wrong UTF-8 in strings, unknown escapes, NaN and Infinity, missing values, extra commas, an end in the middle;
// after anything else reading goes on at the next event.
// Errors: InvalidInput naming the file if it can't be read or unpacked, or holds no event.
// Memory: 1 MiB. O(size).
TraceSummary read_trace_events(const std::filesystem::path& path,
                               const std::function<void(const TraceEvent&)>& on_event,
                               const std::function<void(std::int64_t)>& on_bytes = {});

}  // namespace gradweave
