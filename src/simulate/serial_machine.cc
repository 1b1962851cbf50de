#include <algorithm>
#include <bit>
#include <string>

#include "gradweave/error.h"
#include "simulate/machine.h"

namespace gradweave {

void throw_deadlock(std::int64_t iteration) {
  throw InvalidInput(
      "ops and waits of iteration " + std::to_string(iteration) + " or near it wait for each other", "plan",
      "validate the plan");
}

namespace {

class SerialMachine final : public Machine {
 public:
  explicit SerialMachine(const Program& program)
      : program_(program),
        window_(std::bit_ceil(static_cast<std::uint64_t>(program.reach) * 4 + 8)),
        mask_(window_ - 1) {
    for (std::size_t code = 0; code < program.code_count(); ++code) {
      step_stride_ =
          std::max<std::size_t>(step_stride_, program.step_begin[code + 1] - program.step_begin[code]);
    }
    for (std::size_t c = 0; c < program.class_count; ++c) {
      classes_.push_back({.durations = &program.durations[c * program.steps.size()]});
      classes_.back().marks.resize(window_ * step_stride_);
    }
    for (std::size_t k = 0; k < program.link_count(); ++k) {
      LinkState& link = links_.emplace_back();
      for (std::size_t code = 0; code < program.code_count(); ++code) {
        link.stride = std::max(link.stride, program.ops_of(code, k).size());
      }
      link.ends.resize(window_ * link.stride);
    }
  }

  void run_to(std::int64_t iterations, Recorder* recorder) override {
    while (classes_[program_.main_class].iteration < iterations) {
      const std::int64_t target = classes_[program_.main_class].iteration + 1;
      for (;;) {
        bool progress = false;
        for (std::size_t c = 0; c < classes_.size(); ++c) {
          progress |= advance_class(c, target, c == program_.main_class ? recorder : nullptr);
        }
        for (std::size_t k = 0; k < links_.size(); ++k)
          progress |= advance_link(k, target + program_.reach, recorder);
        if (std::ranges::all_of(classes_, [&](const ClassState& cls) { return cls.iteration == target; }))
          break;
        if (!progress) throw_deadlock(target - 1);
      }
      for (const LinkState& link : links_) {
        if (link.iteration + program_.reach * 2 + 2 < target) throw_deadlock(link.iteration);
      }
    }
  }

  Nanoseconds time() const override { return classes_[program_.main_class].time; }
  Nanoseconds busy(std::size_t link) const override { return links_[link].busy; }

  // Times before the earliest class's clock bind nobody any more, so they count as that clock.
  void snapshot(std::vector<std::int64_t>& state) const override {
    const std::int64_t now = classes_[program_.main_class].iteration;
    const Nanoseconds origin = time();
    Nanoseconds floor = origin;
    for (const ClassState& cls : classes_) {
      state.push_back(cls.time - origin);
      floor = std::min(floor, cls.time);
    }
    const auto put = [&](Nanoseconds time) { state.push_back(std::max(time, floor) - origin); };
    for (const LinkState& link : links_) {
      state.push_back(link.iteration - now);
      state.push_back(static_cast<std::int64_t>(link.position));
      put(link.free);
    }
    for (std::int64_t n = now; n <= now + program_.reach; ++n) {
      const std::size_t code = program_.code_of(n);
      for (std::uint32_t s = program_.step_begin[code]; s < program_.step_begin[code + 1]; ++s) {
        for (std::uint32_t r = program_.steps[s].wait_begin; r < program_.steps[s].wait_end; ++r) {
          if (ended(n, program_.refs[r])) put(end_of(n, program_.refs[r]));
        }
      }
    }
    for (std::size_t k = 0; k < links_.size(); ++k) snapshot_waiting_ops(k, now, put);
  }

 private:
  struct ClassState {
    const Nanoseconds* durations = nullptr;
    std::int64_t iteration = 0;
    std::size_t code = 0;
    std::uint32_t step = 0;  // within the iteration
    Nanoseconds time = 0;
    std::vector<Nanoseconds> marks;  // end of each step, a window of iterations
  };
  struct LinkState {
    std::int64_t iteration = 0;
    std::size_t code = 0;
    std::size_t position = 0;
    Nanoseconds free = 0;
    Nanoseconds busy = 0;
    std::size_t stride = 0;
    std::vector<Nanoseconds> ends;
  };

  std::size_t row(std::int64_t iteration) const { return static_cast<std::uint64_t>(iteration) & mask_; }

  bool ended(std::int64_t n, const OpPlace& ref) const {
    const LinkState& link = links_[static_cast<std::size_t>(ref.link)];
    const std::int64_t iteration = n + ref.iteration;
    return iteration < link.iteration ||
           (iteration == link.iteration && static_cast<std::size_t>(ref.position) < link.position);
  }
  Nanoseconds end_of(std::int64_t n, const OpPlace& ref) const {
    const LinkState& link = links_[static_cast<std::size_t>(ref.link)];
    return link.ends[row(n + ref.iteration) * link.stride + static_cast<std::size_t>(ref.position)];
  }
  // When an op of iteration n on link k may start, as far as `before` holds it, which has ended.
  Nanoseconds handed_over(std::int64_t n, const OpPlace& before, std::size_t k) const {
    return end_of(n, before) + program_.handover_after(before, k);
  }
  bool passed(const ClassState& cls, std::int64_t iteration, std::int32_t step) const {
    return iteration < cls.iteration ||
           (iteration == cls.iteration && static_cast<std::uint32_t>(step) < cls.step);
  }

  // Raises `time` to when `gate` of an op of iteration n opens. Returns false if that is not known yet.
  bool raise_to(const Gate& gate, std::int64_t n, Nanoseconds& time) const {
    const std::int64_t iteration = n + gate.iteration;
    const std::size_t at = row(iteration) * step_stride_ + static_cast<std::size_t>(gate.step);
    for (const ClassState& cls : classes_) {
      if (!passed(cls, iteration, gate.step)) return false;
      time = std::max(time, cls.marks[at] + gate.delay);
    }
    return true;
  }

  bool advance_class(std::size_t c, std::int64_t target, Recorder* recorder) {
    ClassState& cls = classes_[c];
    bool progress = false;
    while (cls.iteration < target) {
      const std::uint32_t first = program_.step_begin[cls.code];
      const std::uint32_t count = program_.step_begin[cls.code + 1] - first;
      Nanoseconds* marks = &cls.marks[row(cls.iteration) * step_stride_];
      for (; cls.step < count; ++cls.step) {
        const Step& step = program_.steps[first + cls.step];
        Nanoseconds time = cls.time;
        const OpPlace* blamed = nullptr;
        for (std::uint32_t r = step.wait_begin; r < step.wait_end; ++r) {
          const OpPlace& ref = program_.refs[r];
          if (!ended(cls.iteration, ref)) return progress;
          const Nanoseconds end = end_of(cls.iteration, ref);
          if (end > time) {
            time = end;
            blamed = &ref;
          }
        }
        if (recorder != nullptr)
          record(*recorder, cls, step, time, blamed, time + cls.durations[first + cls.step]);
        cls.time = time + cls.durations[first + cls.step];
        marks[cls.step] = cls.time;
        progress = true;
      }
      ++cls.iteration;
      cls.code = program_.next_code(cls.code);
      cls.step = 0;
      progress = true;
    }
    return progress;
  }

  void record(Recorder& recorder, const ClassState& cls, const Step& step, Nanoseconds begin,
              const OpPlace* blamed, Nanoseconds end) const {
    if (blamed != nullptr) {
      const OpRecord run = describe(cls.iteration + blamed->iteration, *blamed);
      recorder.wait({cls.iteration, step.wait_layer, cls.time, begin, run});
    }
    if (recorder.detailed()) recorder.compute(cls.iteration, step, begin, end);
  }

  bool advance_link(std::size_t k, std::int64_t horizon, Recorder* recorder) {
    LinkState& link = links_[k];
    bool progress = false;
    while (link.iteration <= horizon) {
      const std::span<const OpCode> ops = program_.ops_of(link.code, k);
      Nanoseconds* ends = link.ends.data() + row(link.iteration) * link.stride;
      for (; link.position < ops.size(); ++link.position) {
        const OpCode& op = ops[link.position];
        Nanoseconds start = std::max(link.free, op.earliest);
        for (std::uint32_t g = op.gate_begin; g < op.gate_end; ++g) {
          if (!raise_to(program_.gates[g], link.iteration, start)) return progress;
        }
        for (std::uint32_t r = op.after_begin; r < op.after_end; ++r) {
          if (!ended(link.iteration, program_.refs[r])) return progress;
          start = std::max(start, handed_over(link.iteration, program_.refs[r], k));
        }
        link.free = start + op.startup + op.work;
        link.busy += op.startup + op.work;
        ends[link.position] = link.free;
        progress = true;
        if (recorder != nullptr && recorder->detailed()) {
          const OpPlace self{0, static_cast<std::int32_t>(k), static_cast<std::int32_t>(link.position)};
          recorder->op(describe(link.iteration, self));
        }
      }
      ++link.iteration;
      link.code = program_.next_code(link.code);
      link.position = 0;
    }
    return progress;
  }

  // Works out again what held an op of iteration n back: it is asked for rarely.
  OpRecord describe(std::int64_t n, const OpPlace& ref) const {
    const std::span<const OpCode> ops =
        program_.ops_of(program_.code_of(n), static_cast<std::size_t>(ref.link));
    const OpCode& op = ops[static_cast<std::size_t>(ref.position)];
    OpRecord run{.iteration = n,
                 .link = ref.link,
                 .plan_op = op.plan_op,
                 .released = op.earliest,
                 .alone = op.total()};
    const OpPlace self{0, ref.link, ref.position};
    run.end = end_of(n, self);
    run.start = run.end - op.total();
    for (std::uint32_t g = op.gate_begin; g < op.gate_end; ++g) {
      raise_to(program_.gates[g], n, program_.gates[g].release ? run.released : run.data);
    }
    for (std::uint32_t r = op.after_begin; r < op.after_end; ++r)
      run.data = std::max(run.data, handed_over(n, program_.refs[r], static_cast<std::size_t>(ref.link)));
    // Nothing else can have held it back.
    run.free = std::max(run.data, run.released) < run.start ? run.start : 0;
    return run;
  }

  // Gates of ops that have not started although some of what they wait for has passed.
  template <typename Put>
  void snapshot_waiting_ops(std::size_t k, std::int64_t now, const Put& put) const {
    const LinkState& link = links_[k];
    std::size_t position = link.position;
    for (std::int64_t n = link.iteration; n <= now + program_.reach; ++n, position = 0) {
      const std::span<const OpCode> ops = program_.ops_of(program_.code_of(n), k);
      for (; position < ops.size(); ++position) {
        for (std::uint32_t g = ops[position].gate_begin; g < ops[position].gate_end; ++g) {
          Nanoseconds opens = 0;
          if (n + program_.gates[g].iteration < now && raise_to(program_.gates[g], n, opens)) put(opens);
        }
        for (std::uint32_t r = ops[position].after_begin; r < ops[position].after_end; ++r) {
          if (ended(n, program_.refs[r])) put(handed_over(n, program_.refs[r], k));
        }
      }
    }
  }

  const Program& program_;
  const std::size_t window_;  // iterations that are remembered
  const std::uint64_t mask_;
  std::size_t step_stride_ = 1;
  std::vector<ClassState> classes_;
  std::vector<LinkState> links_;
};

}  // namespace

std::unique_ptr<Machine> serial_machine(const Program& program) {
  return std::make_unique<SerialMachine>(program);
}

}  // namespace gradweave
