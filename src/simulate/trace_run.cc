#include "simulate/trace_run.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include "gradweave/error.h"
#include "simulate/machine.h"
#include "simulate/reasons.h"

namespace gradweave {
namespace {

class SpanRecorder final : public Recorder {
 public:
  SpanRecorder(const ResolvedPlan& plan, const Workload& workload) : plan_(plan), workload_(workload) {}

  // Only spans of iterations [first, last) are kept.
  void listen(std::int64_t first, std::int64_t last) { first_ = first, last_ = last; }

  void wait(const WaitRecord& wait) override {
    if (!heard(wait.iteration)) return;
    Span span{.kind = SpanKind::kWait,
              .track = 0,
              .iteration = wait.iteration,
              .layer = wait.layer,
              .op = wait.op.plan_op,
              .op_link = wait.op.link,
              .begin_ns = wait.begin,
              .end_ns = wait.end};
    span.label = "wait for " + label_of(plan_.plan, *op_of(wait.op).op, plan_.index);
    span.reason = text_of(reason_of(wait), plan_.plan.links[static_cast<std::size_t>(wait.op.link)]);
    spans_.push_back(std::move(span));
  }

  void compute(std::int64_t iteration, const Step& step, Nanoseconds begin, Nanoseconds end) override {
    if (!heard(iteration) || begin == end) return;
    Span span{.kind = step.kind,
              .track = 0,
              .iteration = iteration,
              .layer = step.layer,
              .begin_ns = begin,
              .end_ns = end};
    span.label = step.kind == SpanKind::kOptimizer
                     ? "optimizer"
                     : workload_.layers[static_cast<std::size_t>(step.layer)].name;
    spans_.push_back(std::move(span));
  }

  void op(const OpRecord& run) override {
    if (!heard(run.iteration)) return;
    Span span{.kind = SpanKind::kOp,
              .track = 1 + run.link,
              .iteration = run.iteration,
              .op = run.plan_op,
              .begin_ns = run.start,
              .end_ns = run.end};
    const ResolvedOp& op = op_of(run);
    for (const std::int32_t b : op.blocks) span.bytes += plan_.block(b).bytes;
    span.label = label_of(plan_.plan, *op.op, plan_.index);
    spans_.push_back(std::move(span));
  }

  bool detailed() const override { return true; }

  std::vector<Span> take() { return std::move(spans_); }

 private:
  bool heard(std::int64_t iteration) const { return iteration >= first_ && iteration < last_; }
  const ResolvedOp& op_of(const OpRecord& run) const {
    return plan_.iteration(run.iteration).ops[static_cast<std::size_t>(run.plan_op)];
  }

  const ResolvedPlan& plan_;
  const Workload& workload_;
  std::int64_t first_ = 0, last_ = 0;
  std::vector<Span> spans_;
};

// Throws unless `iterations` of the plan give a timeline that memory holds.
void require_few_spans(const ResolvedPlan& plan, std::int64_t layers, std::int64_t iterations) {
  constexpr std::int64_t kMaxSpans = 5'000'000;  // some 200 bytes each
  std::int64_t spans = 0;
  for (std::size_t s = static_cast<std::size_t>(plan.prologue); s < plan.slots.size(); ++s)
    spans +=
        2 * layers + 1 + static_cast<std::int64_t>(plan.slots[s].ops.size() + plan.slots[s].applies.size());
  const auto period = static_cast<std::int64_t>(plan.slots.size()) - plan.prologue;
  if (iterations / period + 1 > kMaxSpans / std::max<std::int64_t>(spans, 1)) {
    throw InvalidInput("it would have more than " + std::to_string(kMaxSpans) + " spans", "timeline",
                       "show fewer iterations (--trace-iterations), or use a shorter period");
  }
}

}  // namespace

Timeline record_timeline(const CompiledPlan& plan, std::span<const Workload> classes, const CostModel& model,
                         const SimulationOptions& options, bool shared, std::int64_t begin,
                         std::int64_t count) {
  const Program program = program_of(plan, classes, model, options, true);
  const std::unique_ptr<Machine> machine =
      shared ? shared_machine(program, options.contention) : serial_machine(program);
  SpanRecorder recorder(plan, classes[program.main_class]);
  // Ops listed this far outside may still be under way inside.
  const std::int64_t margin = program.reach + 1;
  const std::int64_t end = begin + count;
  require_few_spans(plan, static_cast<std::int64_t>(classes[0].layers.size()), count + 2 * margin);
  const std::int64_t quiet = std::max<std::int64_t>(begin - margin, 0);

  machine->run_to(quiet, nullptr);
  recorder.listen(quiet, end + margin);
  machine->run_to(begin, &recorder);
  const Nanoseconds window_begin = machine->time();
  machine->run_to(end, &recorder);
  const Nanoseconds window_end = machine->time();
  machine->run_to(end + margin, &recorder);

  Timeline timeline{.name = plan.plan.scheme, .origin = "simulated", .links = {}, .spans = recorder.take()};
  for (const PlanLink& link : plan.plan.links) timeline.links.push_back(link.name);
  std::erase_if(timeline.spans, [&](const Span& span) {
    if (span.kind != SpanKind::kOp) return span.iteration < begin || span.iteration >= end;
    return span.begin_ns >= window_end || (span.end_ns <= window_begin && span.begin_ns < window_begin);
  });
  Nanoseconds origin = std::numeric_limits<Nanoseconds>::max();
  for (const Span& span : timeline.spans) origin = std::min(origin, span.begin_ns);
  for (Span& span : timeline.spans) {
    span.begin_ns -= origin;
    span.end_ns -= origin;
  }
  std::ranges::sort(timeline.spans, {}, [](const Span& span) {
    return std::tuple(span.begin_ns, span.track, span.kind, span.iteration, span.op, span.layer);
  });
  return timeline;
}

}  // namespace gradweave
