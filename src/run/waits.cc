#include "run/waits.h"

#include <algorithm>
#include <string>
#include <vector>

#include "gradweave/error.h"

namespace gradweave::run {
namespace {

// Goes through the points of a run, where every op ends as soon as it may start.
class Rehearsal {
 public:
  Rehearsal(const Calendar& calendar, bool ordered) : calendar_(calendar) {
    const auto iterations = static_cast<std::int64_t>(calendar.iterations.size()) + calendar.cycle;
    length_ = iterations + calendar.look_ahead + calendar.look_back;
    queues_.resize(ordered ? 1 : calendar.links.size());
    rows_.resize(static_cast<std::size_t>(length_ + calendar.look_ahead));
    for (std::size_t n = 0; n < rows_.size(); ++n) open(static_cast<std::int64_t>(n));
  }

  void run() {
    for (now_ = 0; now_ < length_; ++now_) {
      begin_iteration();
      for (std::size_t l = 0; l < calendar_.layers; ++l) wait_for_all(here().at_forward[l]);
      for (std::size_t l = calendar_.layers; l-- > 0;) end_layer(l);
      wait_for_all(here().gradients_at_end);
      finish_iteration();
    }
  }

 private:
  struct State {
    const CalendarOp* op = nullptr;
    std::int64_t iteration = 0;
    std::int32_t missing = 0;        // parts of its data
    std::vector<std::uint8_t> read;  // parameters: per block
    bool done = false;
  };
  struct Queue {
    std::vector<State*> ops;
    std::size_t ended = 0;
  };

  const CalendarIteration& here() const { return calendar_[now_]; }
  State& at(std::int64_t iteration, OpRef ref) {
    return rows_[static_cast<std::size_t>(iteration + ref.delta)][static_cast<std::size_t>(ref.op)];
  }

  std::size_t queue_of(const State& state) const {
    return queues_.size() == 1 ? 0 : static_cast<std::size_t>(state.op->link);
  }

  void open(std::int64_t iteration) {
    for (const CalendarOp& op : calendar_[iteration].ops) {
      State state{.op = &op, .iteration = iteration};
      if (op.partner.op < 0) state.missing = static_cast<std::int32_t>(op.blocks.size() * op.merges.size());
      if (op.payload == Payload::kParameter) state.read.resize(op.blocks.size());
      rows_[static_cast<std::size_t>(iteration)].push_back(std::move(state));
    }
  }

  void begin_iteration() {
    for (State& state : rows_[static_cast<std::size_t>(now_)]) {
      queues_[queue_of(state)].ops.push_back(&state);
    }
  }

  void end_layer(std::size_t layer) {
    const WorkloadIndex& index = calendar_.index;
    for (std::size_t t = index.first_tensor[layer]; t < index.first_tensor[layer + 1]; ++t) {
      for (std::int32_t b : calendar_.blocks_of_tensor[t]) {
        const OpRef carrier = here().gradient[static_cast<std::size_t>(b)];
        if (carrier.op >= 0) --at(now_, carrier).missing;
      }
    }
    for (std::int32_t a : here().at_backward[layer]) {
      const CalendarApply& apply = here().applies[static_cast<std::size_t>(a)];
      if (apply.source != Source::kLocalGradient) {
        wait_for(apply);
        continue;
      }
      for (OpRef ref : here().reads) read(at(now_, ref), &apply.blocks);
    }
  }

  void finish_iteration() {
    for (const EndAction& action : here().end_actions) {
      if (action.optimizer) continue;
      const CalendarApply& apply = here().applies[static_cast<std::size_t>(action.apply)];
      if (apply.merges.front() == 0) {
        for (const Piece& piece : apply.pieces) read(at(now_, piece.source), nullptr);
      }
      wait_for(apply);
    }
    for (OpRef ref : here().reads) read(at(now_, ref), nullptr);
  }

  // Of the blocks in `only`, if it is given.
  static void read(State& state, const std::vector<std::int32_t>* only) {
    for (std::size_t i = 0; i < state.read.size(); ++i) {
      if (state.read[i]) continue;
      if (only != nullptr && std::ranges::find(*only, state.op->blocks[i]) == only->end()) continue;
      state.read[i] = 1;
      --state.missing;
    }
  }

  void wait_for_all(const std::vector<std::int32_t>& applies) {
    for (std::int32_t a : applies) wait_for(here().applies[static_cast<std::size_t>(a)]);
  }

  void wait_for(const CalendarApply& apply) {
    for (const Piece& piece : apply.pieces) {
      State& state = at(now_, piece.source);
      if (!state.done) end_all_that_may_start();
      if (state.done) continue;
      throw InvalidInput("a run would wait for ever for op '" + state.op->label +
                             "': its data, or that of an op before it on its link, comes only after the wait",
                         "iteration " + std::to_string(state.iteration), reason(state));
    }
  }

  bool may_start(State& state) {
    return state.missing == 0 && (state.op->partner.op < 0 || at(state.iteration, state.op->partner).done);
  }

  void end_all_that_may_start() {
    for (bool any = true; any;) {
      any = false;
      for (Queue& queue : queues_) {
        for (; queue.ended < queue.ops.size() && may_start(*queue.ops[queue.ended]); ++queue.ended)
          queue.ops[queue.ended]->done = any = true;
      }
    }
  }

  // The remedy: which op holds it up.
  std::string reason(const State& state) const {
    const Queue& queue = queues_[queue_of(state)];
    const State& first = *queue.ops[queue.ended];
    if (&first == &state) return "apply it later";
    return "list it before op '" + first.op->label + "' of iteration " + std::to_string(first.iteration);
  }

  const Calendar& calendar_;
  std::int64_t now_ = 0, length_ = 0;
  std::vector<std::vector<State>> rows_;
  std::vector<Queue> queues_;
};

}  // namespace

void check_waits(const Calendar& calendar, bool ordered) { Rehearsal(calendar, ordered).run(); }

}  // namespace gradweave::run
