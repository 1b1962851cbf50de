#include "run/op_log.h"

namespace gradweave::run {

Span span_of(const Execution& execution) {
  const RunOp& op = *execution.op;
  return {.kind = SpanKind::kOp,
          .track = op.link + 1,
          .iteration = execution.run_iteration,
          .op = execution.place,
          .bytes = op.bytes,
          .label = op.label};
}

void OpLog::ended(const Execution& execution, std::int64_t begin, std::int64_t end, bool spans) {
  const RunOp& op = *execution.op;
  ++counters_.ops;
  counters_.bytes += op.bytes;
  Note& note = notes_[execution.slot];
  note.ns = end - begin;
  flight_.ended(note.event, end);
  if (!timeline_ || !spans) return;
  Span& span = spans_.emplace_back(span_of(execution));
  span.begin_ns = begin;
  span.end_ns = end;
}

void OpLog::times(std::span<const Execution> row, std::vector<std::int64_t>& ns) const {
  ns.clear();
  for (const Execution& execution : row) {
    if (execution.op != nullptr) ns.push_back(notes_[execution.slot].ns);
  }
}

}  // namespace gradweave::run
