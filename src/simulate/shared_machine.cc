// The event-driven simulator: links on which ops share the bandwidth, and compute slowed by busy links.
//
// Links are fluid (fluid_link.h). Compute at contention factor p/q: a step of d ns holds d * p units; a
// nanosecond takes p of them while no link is busy, q while one is. A step ends at the first whole nanosecond
// at which nothing is left. Where messages take of compute, an op that starts adds to each step that goes on as
// it does. Where links have token buckets, an op that starts is spared what its link has saved up since its last op ended.
//
// At each event, links and classes are looked at until nothing changes. Whether an op may start, or a step
// may begin, is decided anew only after a step or an op has ended: `progress_` counts those.
#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "simulate/fluid_link.h"
#include "simulate/machine.h"

namespace gradweave {
namespace {

__extension__ using Wide = __int128;
constexpr Nanoseconds kNever = std::numeric_limits<Nanoseconds>::max();

class SharedMachine final : public Machine {
 public:
  SharedMachine(const Program& program, Decimal contention)
      : program_(program),
        window_(std::bit_ceil(static_cast<std::uint64_t>(program.reach) * 8 + 16)),
        mask_(window_ - 1),
        slow_(contention.mantissa) {
    for (std::int32_t i = 0; i < contention.scale; ++i) fast_ *= 10;
    for (std::size_t code = 0; code < program.code_count(); ++code) {
      step_stride_ =
          std::max<std::size_t>(step_stride_, program.step_begin[code + 1] - program.step_begin[code]);
    }
    classes_.resize(program.class_count);
    for (ClassState& cls : classes_) cls.marks.resize(window_ * step_stride_);
    links_.resize(program.link_count());
    for (std::size_t k = 0; k < links_.size(); ++k) {
      for (std::size_t code = 0; code < program.code_count(); ++code) {
        const std::span<const OpCode> ops = program.ops_of(code, k);
        links_[k].stride = std::max(links_[k].stride, ops.size());
        for (const OpCode& op : ops) links_[k].bucket += op.work;
      }
      // Once full, one that holds a period's messages never runs out if they use no more than flows in; else it
      // empties in each period, and never holds as much. So the rest of a large one makes no difference but to
      // how long it fills.
      links_[k].bucket = std::min(links_[k].bucket, program.burst);
      links_[k].runs.resize(window_ * links_[k].stride);
      links_[k].position_bits = std::bit_width(links_[k].stride);
    }
    for (const Gate& gate : program.gates) has_delays_ |= gate.delay > 0;
  }

  void run_to(std::int64_t iterations, Recorder* recorder) override {
    target_ = iterations;
    while (!settle(recorder)) {
      charge_launches();
      const Nanoseconds next = next_event();
      if (next == kNever) throw_deadlock(main().iteration);
      pass_time_until(next);
    }
  }

  Nanoseconds time() const override { return main().last_end; }
  Nanoseconds busy(std::size_t link) const override { return links_[link].busy; }

  void snapshot(std::vector<std::int64_t>& state) const override {
    const std::int64_t now = main().iteration;
    for (const ClassState& cls : classes_) {
      state.push_back(cls.iteration - now);
      state.push_back(cls.step);
      state.push_back(cls.running ? 1 : 0);
      state.push_back(static_cast<std::int64_t>(cls.left >> 62));
      state.push_back(static_cast<std::int64_t>(cls.left & ((Wide{1} << 62) - 1)));
    }
    for (const LinkState& link : links_) {
      state.push_back(link.iteration - now);
      state.push_back(static_cast<std::int64_t>(link.position));
      link.fluid.snapshot(now_, now << link.position_bits, state);
      if (program_.burst > 0) state.push_back(saved(link));
    }
    if (program_.launch > 0) state.push_back(started_);
    if (has_delays_) snapshot_delays(now, state);
  }

 private:
  struct ClassState {
    std::int64_t iteration = 0;
    std::size_t code = 0;
    std::uint32_t step = 0;
    bool running = false;      // computing the step, its waits being over
    std::uint32_t over = 0;    // how many of the step's waits, from the first on, are known to have ended
    std::uint64_t looked = 0;  // progress_ when it was last found computing, waiting or held
    Wide left = 0;             // units of compute
    Nanoseconds begin = 0;     // of the running step's compute
    Nanoseconds last_end = 0;  // of the last step
    std::vector<Nanoseconds> marks;
  };
  struct LinkState {
    std::int64_t iteration = 0;  // of the next op to start
    std::size_t code = 0;
    std::size_t position = 0;
    FluidLink fluid;           // an op's id: iteration << position_bits | position
    std::uint64_t looked = 0;  // progress_ when the next op was last found closed
    Nanoseconds opening = 0;   // when a delay of that op is over, kNever if it waits for more
    Nanoseconds busy = 0;
    Nanoseconds bucket = 0;      // how much its token bucket holds
    Nanoseconds saved = 0;       // in the token bucket when the last op started
    Nanoseconds idle_since = 0;  // when the last op ended
    std::size_t stride = 0;
    int position_bits = 0;
    std::vector<OpRecord> runs;  // of the last iterations; end is kNever while under way
  };

  const ClassState& main() const { return classes_[program_.main_class]; }
  std::size_t row(std::int64_t iteration) const { return static_cast<std::uint64_t>(iteration) & mask_; }
  OpRecord& run_of(LinkState& link, std::int64_t iteration, std::size_t position) const {
    return link.runs[row(iteration) * link.stride + position];
  }
  const OpRecord& run_of(std::int64_t n, const OpPlace& ref) const {
    const LinkState& link = links_[static_cast<std::size_t>(ref.link)];
    return link.runs[row(n + ref.iteration) * link.stride + static_cast<std::size_t>(ref.position)];
  }
  bool ended(std::int64_t n, const OpPlace& ref) const {
    const LinkState& link = links_[static_cast<std::size_t>(ref.link)];
    const std::int64_t iteration = n + ref.iteration;
    const bool started =
        iteration < link.iteration ||
        (iteration == link.iteration && static_cast<std::size_t>(ref.position) < link.position);
    return started && run_of(n, ref).end != kNever;
  }

  // When an op of iteration n on link k may start, as far as `before` holds it, which has ended.
  Nanoseconds handed_over(std::int64_t n, const OpPlace& before, std::size_t k) const {
    return run_of(n, before).end + program_.handover_after(before, k);
  }

  // Does all that happens at now_. Returns true if the main class has reached its target: then some of it may
  // be left to the next call.
  bool settle(Recorder* recorder) {
    do {
      for (std::size_t k = 0; k < links_.size(); ++k) {
        update_link(k, recorder);
        start_ops(k);
      }
      for (std::size_t c = 0; c < classes_.size(); ++c) {
        advance_class(c, c == program_.main_class ? recorder : nullptr);
        if (main().iteration >= target_) return true;
      }
    } while (!settled());
    return false;
  }

  // Whether nothing more happens at now_.
  bool settled() const {
    for (const LinkState& link : links_) {
      if (link.looked != progress_ || link.fluid.next_event() <= now_) return false;
    }
    for (const ClassState& cls : classes_) {
      if (cls.looked != progress_) return false;
    }
    return true;
  }

  // --- links ---
  void update_link(std::size_t k, Recorder* recorder) {
    LinkState& link = links_[k];
    link.fluid.update(now_, [&](std::int64_t id) {
      OpRecord& run = run_of(link, id >> link.position_bits,
                             static_cast<std::size_t>(id & ((std::int64_t{1} << link.position_bits) - 1)));
      run.end = link.idle_since = now_;
      ++progress_;
      if (recorder != nullptr && recorder->detailed()) recorder->op(run);
    });
  }

  void start_ops(std::size_t k) {
    LinkState& link = links_[k];
    if (link.looked == progress_ && now_ < link.opening) return;
    link.looked = progress_;
    link.opening = kNever;
    const auto limit = static_cast<std::size_t>(program_.concurrency[k]);
    while (link.iteration <= main().iteration + program_.reach) {
      const std::span<const OpCode> ops = program_.ops_of(link.code, k);
      for (; link.position < ops.size(); ++link.position) {
        const OpCode& op = ops[link.position];
        if (limit != 0 && link.fluid.outstanding() >= limit) return;
        OpRecord run{.iteration = link.iteration,
                     .link = static_cast<std::int32_t>(k),
                     .plan_op = op.plan_op,
                     .released = op.earliest,
                     .free = 0,
                     .start = now_,
                     .end = kNever,
                     .alone = op.total()};
        const Nanoseconds opening = opens(link.iteration, k, op, run);
        if (opening > now_) {
          link.opening = opening;
          return;
        }
        if (std::max(run.data, run.released) < now_) run.free = now_;
        // On a link that serves one op at a time, start-up holds the link like work.
        const bool alone = limit == 1;
        const Nanoseconds available =
            std::min(link.bucket, saved(link) + (alone ? op.startup : Nanoseconds{0}));
        const Nanoseconds spared = std::min(op.work, available);
        link.saved = available - spared;
        run.alone -= spared;
        run_of(link, link.iteration, link.position) = run;
        ++started_;
        link.fluid.start(link.iteration << link.position_bits | static_cast<std::int64_t>(link.position),
                         now_, alone ? 0 : op.startup, (alone ? op.total() : op.work) - spared);
      }
      ++link.iteration;
      link.code = program_.next_code(link.code);
      link.position = 0;
    }
  }

  // What is in the token bucket: it fills while nothing is sent. While an op starts up, start_ops() adds.
  Nanoseconds saved(const LinkState& link) const {
    if (link.fluid.outstanding() > 0) return link.saved;
    return std::min(link.bucket, link.saved + now_ - link.idle_since);
  }

  // Returns when an op of iteration n on link k may start, kNever if that depends on what has not happened yet.
  Nanoseconds opens(std::int64_t n, std::size_t k, const OpCode& op, OpRecord& run) const {
    for (std::uint32_t g = op.gate_begin; g < op.gate_end; ++g) {
      const Nanoseconds time = gate_time(n, program_.gates[g]);
      if (time == kNever) return kNever;
      Nanoseconds& known = program_.gates[g].release ? run.released : run.data;
      known = std::max(known, time);
    }
    for (std::uint32_t r = op.after_begin; r < op.after_end; ++r) {
      if (!ended(n, program_.refs[r])) return kNever;
      run.data = std::max(run.data, handed_over(n, program_.refs[r], k));
    }
    return std::max(run.data, run.released);
  }

  Nanoseconds gate_time(std::int64_t n, const Gate& gate) const {
    const std::int64_t iteration = n + gate.iteration;
    Nanoseconds time = 0;
    for (const ClassState& cls : classes_) {
      const bool passed = iteration < cls.iteration ||
                          (iteration == cls.iteration && static_cast<std::uint32_t>(gate.step) < cls.step);
      if (!passed) return kNever;
      time = std::max(time, cls.marks[row(iteration) * step_stride_ + static_cast<std::size_t>(gate.step)]);
    }
    return time + gate.delay;
  }

  // --- compute ---
  // A class far ahead of the slowest can't influence it, and is held so that what is remembered stays
  // bounded.
  bool held(const ClassState& cls) const {
    return std::ranges::any_of(classes_, [&](const ClassState& other) {
      return cls.iteration > other.iteration + program_.reach + 1;
    });
  }

  // Goes on to the end of the iteration at most: links may have to follow before the next.
  void advance_class(std::size_t c, Recorder* recorder) {
    ClassState& cls = classes_[c];
    if (cls.looked == progress_ && !(cls.running && cls.left <= 0)) return;
    cls.looked = progress_;
    if (held(cls)) return;
    const std::uint32_t first = program_.step_begin[cls.code];
    const std::uint32_t count = program_.step_begin[cls.code + 1] - first;
    for (; cls.step < count; ++cls.step) {
      const Step& step = program_.steps[first + cls.step];
      if (!cls.running && !begin_step(c, step, first + cls.step, recorder)) return;
      if (cls.left > 0) return;
      cls.looked = ++progress_;
      cls.running = false;
      cls.left = 0;
      cls.last_end = now_;
      cls.marks[row(cls.iteration) * step_stride_ + cls.step] = now_;
      if (recorder != nullptr && recorder->detailed())
        recorder->compute(cls.iteration, step, cls.begin, now_);
    }
    check_lag(cls.iteration);
    ++progress_;
    ++cls.iteration;
    cls.code = program_.next_code(cls.code);
    cls.step = 0;
  }

  bool begin_step(std::size_t c, const Step& step, std::size_t index, Recorder* recorder) {
    ClassState& cls = classes_[c];
    const auto waits = std::span(program_.refs).subspan(step.wait_begin, step.wait_end - step.wait_begin);
    for (; cls.over < waits.size(); ++cls.over) {
      if (!ended(cls.iteration, waits[cls.over])) return false;
    }
    cls.over = 0;
    if (recorder != nullptr) {
      const OpRecord* blamed = nullptr;
      for (const OpPlace& wait : waits) {
        const OpRecord& run = run_of(cls.iteration, wait);
        if (run.end > cls.last_end && (blamed == nullptr || run.end > blamed->end)) blamed = &run;
      }
      if (blamed != nullptr) recorder->wait({cls.iteration, step.wait_layer, cls.last_end, now_, *blamed});
    }
    cls.running = true;
    cls.begin = now_;
    cls.left = static_cast<Wide>(program_.duration(c, index)) * slow_;
    return true;
  }

  // The runs of an iteration must have ended before their place is used again.
  void check_lag(std::int64_t iteration) const {
    const std::int64_t oldest = iteration - static_cast<std::int64_t>(window_ / 2);
    for (const LinkState& link : links_) {
      if (link.iteration < oldest || link.fluid.first_id() < oldest << link.position_bits)
        throw_deadlock(link.iteration);
    }
  }

  // --- time ---
  bool link_busy() const {
    return std::ranges::any_of(links_, [](const LinkState& link) { return link.fluid.busy(); });
  }
  std::int64_t units_per_ns() const { return fast_ == slow_ || link_busy() ? fast_ : slow_; }

  // Once all that happens at now_ has happened: whatever its order was, the same steps go on.
  void charge_launches() {
    const Wide taken = static_cast<Wide>(std::exchange(started_, 0)) * program_.launch * slow_;
    for (ClassState& cls : classes_) {
      if (cls.running) cls.left += taken;
    }
  }

  Nanoseconds next_event() const {
    Nanoseconds next = kNever;
    const Wide rate = units_per_ns();
    for (const ClassState& cls : classes_) {
      if (!cls.running || held(cls)) continue;
      const Wide left = rate == 1 ? cls.left : (cls.left + rate - 1) / rate;
      next = std::min(next, now_ + static_cast<Nanoseconds>(left));
    }
    for (const LinkState& link : links_) next = std::min({next, link.fluid.next_event(), link.opening});
    return next;
  }

  void pass_time_until(Nanoseconds next) {
    const Nanoseconds elapsed = next - now_;
    const Wide done = static_cast<Wide>(elapsed) * units_per_ns();
    for (ClassState& cls : classes_) {
      if (cls.running) cls.left -= done;
    }
    for (LinkState& link : links_) {
      if (link.fluid.busy()) link.busy += elapsed;
    }
    now_ = next;
  }

  // How long the delays that run now still hold ops that have not started.
  void snapshot_delays(std::int64_t now, std::vector<std::int64_t>& state) const {
    for (std::size_t k = 0; k < links_.size(); ++k) {
      std::size_t position = links_[k].position;
      for (std::int64_t n = links_[k].iteration; n <= now + program_.reach; ++n, position = 0) {
        const std::span<const OpCode> ops = program_.ops_of(program_.code_of(n), k);
        for (; position < ops.size(); ++position) {
          for (std::uint32_t g = ops[position].gate_begin; g < ops[position].gate_end; ++g) {
            const Nanoseconds time = program_.gates[g].delay > 0 ? gate_time(n, program_.gates[g]) : kNever;
            if (time != kNever) state.push_back(std::max<Nanoseconds>(time - now_, 0));
          }
          for (std::uint32_t r = ops[position].after_begin; r < ops[position].after_end; ++r) {
            const OpPlace& before = program_.refs[r];
            if (ended(n, before)) state.push_back(std::max<Nanoseconds>(handed_over(n, before, k) - now_, 0));
          }
        }
      }
    }
  }

  const Program& program_;
  const std::size_t window_;
  const std::uint64_t mask_;
  const std::int64_t slow_;  // p: units of compute that pass in a nanosecond while no link is busy
  std::int64_t fast_ = 1;    // q: while one is
  std::size_t step_stride_ = 1;
  bool has_delays_ = false;
  std::int64_t started_ = 0;  // ops at now_
  std::uint64_t progress_ = 1;
  std::int64_t target_ = 0;
  Nanoseconds now_ = 0;
  std::vector<ClassState> classes_;
  std::vector<LinkState> links_;
};

}  // namespace

std::unique_ptr<Machine> shared_machine(const Program& program, Decimal contention) {
  return std::make_unique<SharedMachine>(program, contention);
}

}  // namespace gradweave
