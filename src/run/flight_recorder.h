// What a rank did last, kept in a ring of fixed size for the file that it leaves when training can't go on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "gradweave/timeline.h"
#include "run/execution.h"

namespace gradweave::run {

// Times are those of timelines. Recording makes no memory and takes no lock: the owner's holds.
class FlightRecorder {
 public:
  // Of no event if 0: every call then does nothing.
  explicit FlightRecorder(std::size_t capacity) : events_(capacity) {}

  // For a plan that comes into force; of the one before, the names are kept.
  void install(const RunPlan& plan);
  void name_layers(std::vector<std::string> names) { layers_ = std::move(names); }
  // The plan begins anew, after so many iterations of the run.
  void restart(std::int64_t iterations) { base_ = iterations; }

  // `iteration`: of the plan.
  void pass(PointKind kind, std::int32_t layer, std::int64_t iteration, std::int64_t now);
  // Each returns what ended() takes.
  std::int64_t op_begins(const Execution& execution, std::int64_t now);
  std::int64_t wait_begins(const Execution& execution, std::int32_t layer, std::int64_t now);
  void ended(std::int64_t event, std::int64_t now);

  // Returns what is recorded, of iterations that are recorded whole and the last: ops, waits, and between points the
  // backward, the optimizer, and the forward where its points pass. What has not ended yet ends `now`. O(capacity log).
  Timeline timeline(std::int64_t now) const;

 private:
  enum class Kind : std::uint8_t { kPoint, kWait, kOp };
  struct Event {
    std::int64_t begin = 0, end = 0;  // 0: not ended
    std::int64_t iteration = 0;       // of the run
    const RunOp* op = nullptr;        // a key of its plan's names
    std::int32_t layer = -1, place = -1;
    std::uint32_t plan = 0;
    Kind kind = Kind::kPoint;
    PointKind point = PointKind::kIterationStart;
  };
  struct OpName {
    std::string label, link;
    std::int64_t bytes = 0;
  };
  using Names = std::map<const RunOp*, OpName>;

  std::int64_t add(const Event& event);
  const OpName* name_of(const Event& event) const;

  std::vector<Event> events_;
  std::int64_t added_ = 0;          // events
  std::int64_t lost_through_ = -1;  // the last iteration of which an event was overwritten
  std::int64_t base_ = 0;           // iterations before the plan began
  std::int64_t iteration_ = 0;      // of the run, that compute is in
  std::uint32_t plan_ = 0;
  Names names_, names_before_;  // of the plan in force, and the one before
  std::vector<std::string> links_, layers_;
};

}  // namespace gradweave::run
