#include "simulate/program.h"

#include <algorithm>

#include "gradweave/error.h"
#include "simulate/carriers.h"
#include "simulate/moments.h"
#include "simulate/resolved.h"
#include "simulate/steps.h"

namespace gradweave {
namespace {

// Writes the ops with their gates, and lets a StepWriter write the steps that the gates name.
class Compiler {
 public:
  Compiler(const Plan& plan, std::span<const Workload> classes, const CostModel& model,
           const SimulationOptions& options, bool fine)
      : plan_(plan),
        classes_(classes),
        resolved_(resolve(plan, model)),
        program_(calendar_of(resolved_, classes.size())),
        moments_(static_cast<std::int32_t>(model.index().layer_count)),
        index_(model.index()),
        carriers_(plan, resolved_, program_),
        steps_(plan, resolved_, classes, model, options, fine, carriers_, program_) {}

  Program compile() {
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
    Moment moment = 0;
    Nanoseconds delay = 0;
    bool release = false;
  };

  static Program calendar_of(const ResolvedPlan& resolved, std::size_t classes) {
    Program program;
    program.head = resolved.head();
    program.period = resolved.period;
    program.reach = resolved.reach;
    program.class_count = classes;
    program.concurrency = resolved.concurrency;
    return program;
  }

  void compile_ops(std::size_t code) {
    const auto n = static_cast<std::int64_t>(code);
    const Iteration& iteration = iteration_at(plan_, n);
    const std::vector<ResolvedOp>& resolved = resolved_.ops_of(n);
    for (std::size_t link = 0; link < program_.link_count(); ++link) {
      program_.op_begin.push_back(static_cast<std::uint32_t>(program_.ops.size()));
      for (std::size_t i = 0; i < resolved.size(); ++i) {
        if (resolved[i].link == static_cast<std::int32_t>(link) && exists(iteration.ops[i].merges, n)) {
          compile_op(n, iteration.ops[i], resolved[i], static_cast<std::int32_t>(i));
        }
      }
    }
  }

  void compile_op(std::int64_t n, const Op& op, const ResolvedOp& resolved, std::int32_t place) {
    OpCode code{.startup = resolved.cost.startup, .work = resolved.cost.work, .plan_op = place};
    code.gate_begin = static_cast<std::uint32_t>(pending_gates_.size());
    if (op.payload == Payload::kGradient) {
      const std::int32_t last = *std::ranges::max_element(op.merges);
      add_gate(code, {last, moments_.backward_end(resolved.first_layer)});
    } else {
      add_reads(code, op, n);
    }
    add_release(code, op.release, n);
    code.gate_end = static_cast<std::uint32_t>(pending_gates_.size());
    code.after_begin = static_cast<std::uint32_t>(program_.refs.size());
    if (op.collective == Collective::kAllGather && op.payload == Payload::kGradient) {
      const std::vector<OpPlace>& refs = carriers_.ops_for(Cargo::kScattered, op.blocks, op.merges, n);
      program_.refs.insert(program_.refs.end(), refs.begin(), refs.end());
    }
    code.after_end = static_cast<std::uint32_t>(program_.refs.size());
    program_.ops.push_back(code);
  }

  // A parameter is read after the local apply of its iteration, else once backward is through with it.
  void add_reads(const OpCode& code, const Op& op, std::int64_t n) {
    for (const std::int32_t merge : op.merges) {
      if (n + merge < 0) continue;
      for (const std::int32_t block : op.blocks) {
        const std::size_t layer = index_.tensors[resolved_.slice(block).tensor].layer;
        add_gate(code, {merge, moments_.backward_end(static_cast<std::int32_t>(layer))});
        for (const Carrier& carrier : carriers_.find(Cargo::kLocalApply, block, n + merge)) {
          const auto apply = static_cast<std::size_t>(carrier.item);
          const Point& at = iteration_at(plan_, carrier.iteration).applies[apply].at;
          add_gate(code, {static_cast<std::int32_t>(carrier.iteration - n), moments_.of_apply(at, apply)});
        }
      }
    }
  }

  void add_release(OpCode& code, const Release& release, std::int64_t n) {
    PendingGate gate{release.point.iteration, moments_.of(release.point), release.delay_ns, true};
    if (n + gate.iteration < 0) return;
    if (release.point.kind == PointKind::kIterationStart) {
      if (n + gate.iteration == 0) {
        code.earliest = release.delay_ns;
        return;
      }
      --gate.iteration;
      gate.moment = moments_.iteration_end();
    }
    add_gate(code, gate);
  }

  // Adds a gate unless an equal or later one holds the op anyway; drops those that it makes superfluous.
  void add_gate(const OpCode& code, const PendingGate& gate) {
    const auto implied = [](const PendingGate& a, const PendingGate& b) {
      return std::pair(a.iteration, a.moment) <= std::pair(b.iteration, b.moment) && a.delay <= b.delay;
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
        steps_.cut(program_.code_of(n + gate.iteration), gate.moment);
      }
    });
  }

  void resolve_gates() {
    program_.gates.resize(pending_gates_.size());
    for_each_op(program_.head + program_.period, [&](std::int64_t n, const OpCode& op) {
      for (std::uint32_t g = op.gate_begin; g < op.gate_end; ++g) {
        const PendingGate& gate = pending_gates_[g];
        const std::int32_t step = steps_.step_at(program_.code_of(n + gate.iteration), gate.moment);
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
    for (const OpCode& op : program_.ops) add(op.startup), add(op.work), add(op.earliest);
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

  const Plan& plan_;
  std::span<const Workload> classes_;
  const ResolvedPlan resolved_;
  Program program_;
  const Moments moments_;
  const WorkloadIndex& index_;
  Carriers carriers_;
  StepWriter steps_;
  std::vector<PendingGate> pending_gates_;
};

}  // namespace

Program compile(const Plan& plan, std::span<const Workload> classes, const CostModel& model,
                const SimulationOptions& options, bool fine) {
  return Compiler(plan, classes, model, options, fine).compile();
}

}  // namespace gradweave
