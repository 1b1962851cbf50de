#include "run/op_log.h"

namespace gradweave::run {

void OpLog::ended(const Execution& execution, std::int64_t begin, std::int64_t end) {
  const RunOp& op = *execution.op;
  ++counters_.ops;
  counters_.bytes += op.bytes;
  Note& note = notes_[execution.slot];
  note.ns = end - begin;
  flight_.ended(note.event, end);
  if (!timeline_) return;
  spans_.push_back({.kind = SpanKind::kOp,
                    .track = op.link + 1,
                    .iteration = execution.run_iteration,
                    .op = execution.place,
                    .begin_ns = begin,
                    .end_ns = end,
                    .bytes = op.bytes,
                    .label = op.label});
}

void OpLog::times(std::span<const Execution> row, std::vector<std::int64_t>& ns) const {
  ns.clear();
  for (const Execution& execution : row) {
    if (execution.op != nullptr) ns.push_back(notes_[execution.slot].ns);
  }
}

}  // namespace gradweave::run
