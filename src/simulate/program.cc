#include "simulate/program.h"

#include <algorithm>

#include "gradweave/error.h"
#include "plan/compiled_plan.h"
#include "simulate/point_order.h"
#include "simulate/steps.h"

namespace gradweave {
namespace {

constexpr Nanoseconds kMaxPlanTime = std::int64_t{1} << 60;  // beyond this the clock could overflow
constexpr std::int64_t kMaxUnrolled = 20'000'000;            // items; some 32 bytes each

// iteration_start(n) is iteration_end(n - 1), hence one iteration further back.
std::int32_t reach_of(const ResolvedPlan& plan) {
  std::int64_t reach = std::max<std::int64_t>(plan.reach, 1);
  for (const ResolvedIteration& iteration : plan.slots) {
    for (const ResolvedOp& op : iteration.ops)
      reach = std::max(reach, 1 - std::int64_t{op.op->release.point.iteration});
  }
  return static_cast<std::int32_t>(reach);
}

// Writes the ops with their gates, and lets a StepWriter write the steps that the gates name.
class ProgramWriter {
 public:
  ProgramWriter(const CompiledPlan& plan, std::span<const Workload> classes, const CostModel& model,
                const SimulationOptions& options, bool fine)
      : plan_(plan),
        classes_(classes),
        program_(empty_program(plan, classes.size(), options)),
        order_(static_cast<std::int32_t>(model.index().layer_count)),
        model_(model),
        places_(plan, program_),
        steps_(plan, classes, model, options, fine, places_, program_) {}

  Program write() {
    set_costs();
    for (std::size_t code = 0; code < program_.code_count(); ++code) compile_ops(code);
    program_.op_begin.push_back(static_cast<std::uint32_t>(program_.ops.size()));
    cut_steps();
    for (std::size_t code = 0; code < program_.code_count(); ++code) steps_.write(code);
    steps_.finish();
    resolve_gates();
    check_times();
    find_slowest_class();
    return std::move(program_);
  }

 private:
  struct PendingGate {
    std::int32_t iteration = 0;  // relative
    PointRank rank = 0;
    Nanoseconds delay = 0;
    bool release = false;
  };

  static Program empty_program(const CompiledPlan& plan, std::size_t classes,
                               const SimulationOptions& options) {
    Program program;
    program.period = plan.period;
    program.reach = reach_of(plan);
    // From prologue + reach on every merge exists. An iteration further on refers to such alone, and so repeats, if it
    // looks back no further.
    program.settled = plan.prologue + 3 * std::int64_t{program.reach};
    const std::int64_t spare = 2 * std::int64_t{program.reach} - plan.reach;
    program.head = program.settled - spare / plan.period * plan.period;
    program.class_count = classes;
    program.launch = options.launch_ns;
    program.burst = options.burst_ns;
    program.handover = options.handover_ns;
    for (const PlanLink& link : plan.plan.links) program.concurrency.push_back(link.concurrency);
    return program;
  }

  void set_costs() {
    std::vector<Slice> message;
    for (const ResolvedIteration& iteration : plan_.slots) {
      std::vector<OpCost>& costs = costs_.emplace_back();
      for (const ResolvedOp& op : iteration.ops) {
        message.clear();
        for (const std::int32_t block : op.blocks) message.push_back(plan_.block(block).slice);
        costs.push_back(model_.cost(plan_.cluster_link[static_cast<std::size_t>(op.link)], op.op->collective,
                                    message, op.op->compression, op.op->payload));
      }
    }
  }

  void compile_ops(std::size_t code) {
    const auto n = static_cast<std::int64_t>(code);
    const std::vector<ResolvedOp>& ops = plan_.iteration(n).ops;
    for (std::size_t link = 0; link < program_.link_count(); ++link) {
      program_.op_begin.push_back(static_cast<std::uint32_t>(program_.ops.size()));
      for (std::size_t i = 0; i < ops.size(); ++i) {
        if (ops[i].link == static_cast<std::int32_t>(link) && exists(ops[i].merges, n))
          compile_op(n, ops[i], costs_[plan_.slot_of(n)][i], static_cast<std::int32_t>(i));
      }
    }
  }

  void compile_op(std::int64_t n, const ResolvedOp& op, const OpCost& cost, std::int32_t place) {
    OpCode code{.startup = cost.startup, .work = cost.work, .plan_op = place};
    code.gate_begin = static_cast<std::uint32_t>(pending_gates_.size());
    add_gate(code, {op.merges.back(), order_.backward_end(op.first_layer)});
    if (op.op->payload == Payload::kParameter) add_readings(code, n, place);
    add_release(code, op.op->release, n);
    code.gate_end = static_cast<std::uint32_t>(pending_gates_.size());
    code.after_begin = static_cast<std::uint32_t>(program_.refs.size());
    const std::vector<OpPlace>& refs = places_.before(n, static_cast<std::size_t>(place));
    program_.refs.insert(program_.refs.end(), refs.begin(), refs.end());
    code.after_end = static_cast<std::uint32_t>(program_.refs.size());
    program_.ops.push_back(code);
  }

  // Parameters are read after the local step of their iteration.
  void add_readings(const OpCode& code, std::int64_t n, std::int32_t place) {
    for (const Reading& reading : plan_.readings(n, static_cast<std::size_t>(place))) {
      const auto apply = static_cast<std::size_t>(reading.apply);
      const Point& at = plan_.iteration(n + reading.delta).applies[apply].apply->at;
      add_gate(code, {reading.delta, order_.of_apply(at, apply)});
    }
  }

  void add_release(OpCode& code, const Release& release, std::int64_t n) {
    PendingGate gate{release.point.iteration, order_.of(release.point), release.delay_ns, true};
    if (n + gate.iteration < 0) return;
    if (release.point.kind == PointKind::kIterationStart) {
      if (n + gate.iteration == 0) {
        code.earliest = release.delay_ns + program_.handover;
        return;
      }
      --gate.iteration;
      gate.rank = order_.iteration_end();
    }
    add_gate(code, gate);
  }

  // Adds a gate unless an equal or later one holds the op anyway; drops those that it makes superfluous.
  void add_gate(const OpCode& code, PendingGate gate) {
    gate.delay += program_.handover;
    const auto implied = [](const PendingGate& a, const PendingGate& b) {
      return std::pair(a.iteration, a.rank) <= std::pair(b.iteration, b.rank) && a.delay <= b.delay;
    };
    const auto first = pending_gates_.begin() + code.gate_begin;
    if (std::any_of(first, pending_gates_.end(),
                    [&](const PendingGate& other) { return implied(gate, other); }))
      return;
    pending_gates_.erase(std::remove_if(first, pending_gates_.end(),
                                        [&](const PendingGate& other) { return implied(other, gate); }),
                         pending_gates_.end());
    pending_gates_.push_back(gate);
  }

  // Calls visit(n, op) for every op of iterations [0, count).
  template <typename Visit>
  void for_each_op(std::int64_t count, Visit visit) const {
    for (std::int64_t n = 0; n < count; ++n) {
      for (std::size_t link = 0; link < program_.link_count(); ++link) {
        for (const OpCode& op : program_.ops_of(program_.code_of(n), link)) visit(n, op);
      }
    }
  }

  // A step must end where some op waits for compute.
  void cut_steps() {
    for_each_op(program_.head + program_.period + program_.reach, [&](std::int64_t n, const OpCode& op) {
      for (std::uint32_t g = op.gate_begin; g < op.gate_end; ++g) {
        const PendingGate& gate = pending_gates_[g];
        steps_.cut(program_.code_of(n + gate.iteration), gate.rank);
      }
    });
  }

  void resolve_gates() {
    program_.gates.resize(pending_gates_.size());
    for_each_op(program_.head + program_.period, [&](std::int64_t n, const OpCode& op) {
      for (std::uint32_t g = op.gate_begin; g < op.gate_end; ++g) {
        const PendingGate& gate = pending_gates_[g];
        const std::int32_t step = steps_.step_at(program_.code_of(n + gate.iteration), gate.rank);
        program_.gates[g] = {gate.iteration, step, gate.delay, gate.release};
      }
    });
  }

  // One pass through all codes must stay far from the end of the clock.
  void check_times() const {
    Nanoseconds total = 0;
    const auto add = [&total](Nanoseconds time) {
      if (time > kMaxPlanTime - total) {
        throw InvalidInput("the times of one period exceed 2^60 ns", "plan",
                           "give shorter times or a shorter period");
      }
      total += time;
    };
    for (const OpCode& op : program_.ops) {
      add(op.startup), add(op.work), add(op.earliest), add(program_.launch);
      if (op.after_begin < op.after_end) add(program_.handover);
    }
    for (const Gate& gate : program_.gates) add(gate.delay);
    for (const Nanoseconds duration : program_.durations) add(duration);
  }

  void find_slowest_class() {
    Nanoseconds slowest = -1;
    for (std::size_t c = 0; c < classes_.size(); ++c) {
      Nanoseconds compute = 0;
      for (const Layer& layer : classes_[c].layers) compute += layer.forward_ns + layer.backward_ns;
      if (compute > slowest) {
        slowest = compute;
        program_.main_class = c;
      }
    }
  }

  const CompiledPlan& plan_;
  std::span<const Workload> classes_;
  Program program_;
  const PointOrder order_;
  const CostModel& model_;
  OpPlaces places_;
  std::vector<std::vector<OpCost>> costs_;  // per op as it is listed
  StepWriter steps_;
  std::vector<PendingGate> pending_gates_;
};

}  // namespace

void require_small(const ResolvedPlan& plan) {
  std::int64_t prologue_items = 0, period_items = 0;
  for (std::size_t s = 0; s < plan.slots.size(); ++s) {
    std::int64_t& items = static_cast<std::int64_t>(s) < plan.prologue ? prologue_items : period_items;
    items += 1;
    const auto add = [&](const auto& item) {
      items += 1 + static_cast<std::int64_t>(item.blocks.size() * item.merges.size());
    };
    std::ranges::for_each(plan.slots[s].ops, add);
    std::ranges::for_each(plan.slots[s].applies, add);
  }
  const std::int64_t iterations = plan.prologue + plan.period + 4 * std::int64_t{reach_of(plan)};
  if (iterations / plan.period + 1 > kMaxUnrolled / period_items || prologue_items > kMaxUnrolled) {
    throw InvalidInput("the plan is too long, or its merges and releases reach too far back, to be simulated",
                       "period", "use a shorter period");
  }
}

Program program_of(const CompiledPlan& plan, std::span<const Workload> classes, const CostModel& model,
                   const SimulationOptions& options, bool fine) {
  return ProgramWriter(plan, classes, model, options, fine).write();
}

}  // namespace gradweave
