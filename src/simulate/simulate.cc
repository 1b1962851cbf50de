#include "gradweave/simulate.h"

#include <algorithm>
#include <string>
#include <utility>

#include "gradweave/error.h"
#include "gradweave/validate.h"
#include "simulate/bounds.h"
#include "simulate/cycle_ratio.h"
#include "simulate/machine.h"
#include "simulate/program.h"
#include "simulate/reasons.h"
#include "simulate/trace_run.h"

namespace gradweave {
namespace {

// How many periods are averaged where the state never repeats.
constexpr std::int64_t kLastPeriods = 1000;
constexpr Nanoseconds kClockEnd = std::int64_t{1} << 62;

// Sums waits by layer and reason.
class Exposure final : public Recorder {
 public:
  Exposure(std::size_t layers, std::size_t links)
      : links_(links), waits_((layers + 1) * links * kWaitReasons, 0) {}

  void wait(const WaitRecord& wait) override {
    const auto row = static_cast<std::size_t>(wait.layer) + 1;
    const auto reason = static_cast<std::size_t>(reason_of(wait));
    waits_[(row * links_ + static_cast<std::size_t>(wait.op.link)) * kWaitReasons + reason] +=
        wait.end - wait.begin;
  }
  void compute(std::int64_t, const Step&, Nanoseconds, Nanoseconds) override {}
  void op(const OpRecord&) override {}
  bool detailed() const override { return false; }

  // The layers that waited, in forward order, iteration_end last.
  std::vector<ExposedLayer> layers(const Plan& plan, std::int64_t iterations) const {
    std::vector<ExposedLayer> exposed;
    const std::size_t width = links_ * kWaitReasons;
    const std::size_t rows = width == 0 ? 0 : waits_.size() / width;
    for (std::size_t i = 0; i < rows; ++i) {
      const std::size_t row = (i + 1) % rows;
      const auto first = waits_.begin() + static_cast<std::ptrdiff_t>(row * width);
      const auto most = std::max_element(first, first + static_cast<std::ptrdiff_t>(width));
      if (*most == 0) continue;
      Nanoseconds total = 0;
      for (std::size_t k = 0; k < width; ++k) total += first[static_cast<std::ptrdiff_t>(k)];
      const auto kind = static_cast<std::size_t>(most - first);
      exposed.push_back(
          {static_cast<std::int32_t>(row) - 1, static_cast<double>(total) / static_cast<double>(iterations),
           text_of(static_cast<WaitReason>(kind % kWaitReasons), plan.links[kind / kWaitReasons])});
    }
    return exposed;
  }

 private:
  std::size_t links_;
  std::vector<Nanoseconds> waits_;  // [layer + 1][link][reason]
};

Nanoseconds time_of_all(const Program& program) {
  Nanoseconds total = 1;
  for (const OpCode& op : program.ops) total += op.total() + op.earliest + program.launch;
  for (const Gate& gate : program.gates) total += gate.delay;
  for (const Nanoseconds duration : program.durations) total += duration;
  return total;
}

// What one repetition of the steady state, or the last stretch of a run that never repeats, took.
struct Stretch {
  bool repeats = false;
  std::int64_t begin = 0;  // its first iteration
  std::int64_t iterations = 1;
  Nanoseconds time = 0;
  std::vector<Nanoseconds> busy;  // per link
};

// Runs `machine` until its state repeats (Brent 1980: the state is compared with that at the last power of
// two) or `periods` have passed, then on for one cycle, or kLastPeriods, which `recorder` sees.
Stretch find_steady_state(Machine& machine, const Program& program, std::int64_t periods,
                          Recorder& recorder) {
  Stretch stretch;
  std::vector<std::int64_t> reference, state;
  machine.run_to(program.settled, nullptr);
  machine.snapshot(reference);
  std::int64_t done = program.settled;
  std::int64_t cycle = 0;
  for (std::int64_t power = 1, p = 0; p < periods && !stretch.repeats; ++p) {
    done += program.period;
    machine.run_to(done, nullptr);
    state.clear();
    machine.snapshot(state);
    ++cycle;
    stretch.repeats = state == reference;
    if (!stretch.repeats && cycle == power) {
      reference.swap(state);
      power *= 2;
      cycle = 0;
    }
  }
  stretch.begin = done;
  stretch.iterations = (stretch.repeats ? cycle : std::min(kLastPeriods, periods)) * program.period;
  const Nanoseconds start = machine.time();
  for (std::size_t k = 0; k < program.link_count(); ++k) stretch.busy.push_back(-machine.busy(k));
  machine.run_to(done + stretch.iterations, &recorder);
  stretch.time = machine.time() - start;
  for (std::size_t k = 0; k < program.link_count(); ++k) stretch.busy[k] += machine.busy(k);
  return stretch;
}

// Staleness of a gradient of `layer`: forwards of that layer begun between its iteration and its use at `at`.
std::int64_t staleness(const Point& at, std::int32_t merge, std::int32_t layer) {
  const bool before_own_forward = at.kind == PointKind::kForwardStart && at.layer <= layer;
  return std::max<std::int64_t>(0, -std::int64_t{merge} - (before_own_forward ? 1 : 0));
}

// What can be read off the plan without running it.
void count_plan(const ResolvedPlan& plan, SimulationResult& result) {
  double ops = 0, bytes = 0, updates = 0, stale = 0, weight = 0;
  for (std::size_t s = static_cast<std::size_t>(plan.prologue); s < plan.slots.size(); ++s) {
    ops += static_cast<double>(plan.slots[s].ops.size());
    for (const ResolvedOp& op : plan.slots[s].ops) {
      if (op.gathers() || op.level == Level::kInside) continue;
      for (const std::int32_t block : op.blocks) bytes += static_cast<double>(plan.block(block).bytes);
    }
    bool steps = false;
    for (const ResolvedApply& apply : plan.slots[s].applies) {
      if (apply.apply->source == Source::kAveragedParameter) continue;
      steps = true;
      for (const std::int32_t b : apply.blocks) {
        const ResolvedBlock& block = plan.block(b);
        for (const std::int32_t merge : apply.merges) {
          const std::int64_t late = staleness(apply.apply->at, merge, block.layer);
          result.staleness_max = std::max(result.staleness_max, late);
          stale += static_cast<double>(late) * static_cast<double>(block.bytes);
          weight += static_cast<double>(block.bytes);
        }
      }
    }
    updates += steps ? 1 : 0;
  }
  const auto period = static_cast<double>(plan.period);
  result.ops_per_iteration = ops / period;
  result.bytes_per_iteration = bytes / period;
  result.updates_per_iteration = updates / period;
  result.staleness_mean = weight > 0 ? stale / weight : 0;
  result.period = plan.period;
}

Nanoseconds compute_per_iteration(const Program& program) {
  Nanoseconds total = 0;
  const std::size_t first = program.step_begin[static_cast<std::size_t>(program.head)];
  for (std::size_t s = first; s < program.steps.size(); ++s) total += program.duration(program.main_class, s);
  return total / program.period;
}

bool shares(const Program& program, const SimulationOptions& options) {
  for (std::size_t k = 0; k < program.link_count(); ++k) {
    if (program.concurrency[k] == 1) continue;
    for (std::size_t code = 0; code < program.code_count(); ++code) {
      if (!program.ops_of(code, k).empty()) return true;
    }
  }
  return options.contention != Decimal{1, 0} || options.launch_ns > 0 || options.burst_ns > 0;
}

void check_options(const SimulationOptions& options) {
  constexpr Nanoseconds kLongest = std::int64_t{1} << 53;
  struct Time {
    Nanoseconds ns;
    const char* name;
    const char* remedy;
  };
  for (const auto& [ns, name, remedy] : {
           Time{options.optimizer_ns, "optimizer_us", "give the time of one optimizer step"},
           Time{options.apply_ns, "apply_us",
                "give by how much a step of a part of the model takes longer than its share"},
           Time{options.handover_ns, "handover_us", "give the time in which an idle link starts an op"},
           Time{options.launch_ns, "launch_us", "give the compute that each message takes"},
           Time{options.burst_ns, "burst_us", "give the time of sending for which a link saves up"},
       }) {
    if (ns < 0 || ns > kLongest) throw InvalidInput("must be between 0 and 9e12 us", name, remedy);
  }
  const double contention = to_double(options.contention);
  if (contention < 1 || contention > 1000) {
    throw InvalidInput("must be between 1 and 1000", "contention", "1 means that links don't slow compute");
  }
  if (options.max_periods < 1)
    throw InvalidInput("must be at least 1", "max_periods", "10000 is the default");
  if (options.timeline_iterations < 0) {
    throw InvalidInput("must not be negative", "timeline iterations", "0 means no timeline");
  }
}

}  // namespace

void add_bound(SimulationResult& result, const Bound& bound) {
  result.bounds.push_back(bound);
  if (result.bounds.size() == 1 || bound.iteration_ns > result.lower_bound.iteration_ns)
    result.lower_bound = bound;
}

SimulationResult simulate(const Plan& plan, std::span<const Workload> classes, const Cluster& given_cluster,
                          const SimulationOptions& options) {
  check_options(options);
  check(given_cluster);
  const bool flat = has_levels(given_cluster) && !has_levels(plan);
  const Cluster cluster = flat ? flattened(given_cluster) : given_cluster;
  if (classes.empty())
    throw InvalidInput("must have at least one class", "workers' classes", "give a workload");
  if (classes.size() > 1) slowest_of({classes.begin(), classes.end()});
  const CostModel model(classes.front(), cluster, {}, Payload::kGradient, plan.outer.has_value());
  for (const Workload& workload : classes.subspan(1)) check(workload);
  const bool uneven_speed = options.contention != Decimal{1, 0};
  ResolvedPlan resolved = resolve(plan, model.index(), &cluster);
  require_small(resolved);
  const CompiledPlan compiled(std::move(resolved));
  const Program program = program_of(compiled, classes, model, options, uneven_speed);
  const bool shared = shares(program, options);
  const std::unique_ptr<Machine> machine =
      shared ? shared_machine(program, options.contention) : serial_machine(program);

  SimulationResult result;
  result.name = plan.scheme;
  count_plan(compiled, result);
  const Nanoseconds slowed = static_cast<Nanoseconds>(to_double(options.contention)) + 1;
  const std::int64_t periods = std::min(options.max_periods, kClockEnd / slowed / time_of_all(program) / 2);
  Exposure exposure(model.index().layer_count, program.link_count());
  const Stretch stretch = find_steady_state(*machine, program, std::max<std::int64_t>(periods, 1), exposure);
  result.cycle_ns = stretch.time;
  result.cycle_iterations = stretch.iterations;
  if (stretch.repeats) {
    result.method = "repetition";
  } else if (!shared) {
    const CycleRatio ratio = maximum_cycle_ratio(program);
    result.cycle_ns = ratio.time;
    result.cycle_iterations = ratio.iterations;
    result.method = "maximum cycle ratio";
  } else {
    result.steady = false;
    result.method = "mean of the last " + std::to_string(stretch.iterations / program.period) + " periods";
  }
  if (options.plan_facts) result.extra_bytes = validate(plan, classes.front()).facts.extra_bytes;
  result.compute_ns = compute_per_iteration(program);
  result.exposed_ns =
      (static_cast<double>(result.cycle_ns) -
       static_cast<double>(result.compute_ns) * static_cast<double>(result.cycle_iterations)) /
      static_cast<double>(result.cycle_iterations);
  result.exposed_layers = exposure.layers(plan, stretch.iterations);
  for (std::size_t k = 0; k < program.link_count(); ++k) {
    const auto busy = static_cast<double>(stretch.busy[k]);
    result.links.push_back({plan.links[k].name, busy / static_cast<double>(stretch.iterations),
                            stretch.time > 0 ? busy / static_cast<double>(stretch.time) : 0});
  }
  for (const Bound& bound :
       lower_bounds(compiled, program, model, classes[program.main_class], result.compute_ns)) {
    add_bound(result, bound);
  }
  if (options.timeline_iterations > 0) {
    result.timeline =
        record_timeline(compiled, classes, model, options, shared, compiled.prologue > 0 ? 0 : stretch.begin,
                        compiled.prologue + options.timeline_iterations);
  }
  return result;
}

SimulationResult simulate(const Plan& plan, const Workload& workload, const Cluster& cluster,
                          const SimulationOptions& options) {
  return simulate(plan, std::span(&workload, 1), cluster, options);
}

}  // namespace gradweave
