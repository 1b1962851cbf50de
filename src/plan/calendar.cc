#include "plan/calendar.h"

#include <algorithm>
#include <map>

#include "gradweave/error.h"

namespace gradweave {
namespace {

class CalendarWriter {
 public:
  CalendarWriter(const Plan& plan, const Workload& workload)
      : plan_(plan), calendar_{.index = WorkloadIndex(workload)} {}

  Calendar run() {
    set_blocks_and_links();
    unroll();
    for (std::int64_t n = 0; n < size(); ++n) pair_gathers(n);
    for (std::int64_t n = 0; n < size(); ++n) set_gradients(n);
    for (std::int64_t n = 0; n < size(); ++n) set_applies(n);
    for (std::int64_t n = 0; n < size(); ++n) set_end_actions(n);
    for (std::int64_t n = 0; n < size(); ++n) set_reads(n);
    finish_ops();
    return std::move(calendar_);
  }

 private:
  std::int64_t size() const { return static_cast<std::int64_t>(calendar_.iterations.size()); }

  template <typename Visit>
  void for_each_listed(Visit visit) const {
    const auto count = static_cast<std::int64_t>(plan_.prologue.size() + plan_.period.size());
    for (std::int64_t n = 0; n < count; ++n) visit(n, iteration_at(plan_, n));
  }

  void set_blocks_and_links() {
    calendar_.layers = calendar_.index.layer_count;
    calendar_.blocks = plan_.blocks;
    calendar_.blocks_of_tensor.resize(calendar_.index.tensors.size());
    calendar_.stepped_locally.resize(calendar_.index.tensors.size());
    for (std::size_t b = 0; b < plan_.blocks.size(); ++b) {
      const Block& block = plan_.blocks[b];
      const std::size_t tensor = *calendar_.index.find_tensor(block.tensor);
      calendar_.block_tensor.push_back(static_cast<std::int32_t>(tensor));
      calendar_.block_whole.push_back(block.begin == 0 && block.end == calendar_.index.tensors[tensor].numel);
      calendar_.blocks_of_tensor[tensor].push_back(static_cast<std::int32_t>(b));
    }
    for (auto& blocks : calendar_.blocks_of_tensor) {
      std::ranges::sort(blocks, {},
                        [&](std::int32_t b) { return plan_.blocks[static_cast<std::size_t>(b)].begin; });
    }
    for (const PlanLink& link : plan_.links) {
      calendar_.links.push_back(link.name);
      calendar_.concurrency.push_back(link.concurrency);
    }
    calendar_.merge = plan_.merge;
    calendar_.residual = plan_.residual;
    calendar_.hash = hash_of(plan_);
  }

  // The prologue, then enough periods that the cycle after them refers only to iterations whose own merges
  // all exist, then the cycle that repeats.
  void unroll() {
    std::int32_t back = 0;
    for_each_listed([&](std::int64_t, const Iteration& iteration) {
      for (const Op& op : iteration.ops) {
        for (std::int32_t m : op.merges) back = std::max(back, -m);
      }
      for (const Apply& apply : iteration.applies) {
        for (std::int32_t m : apply.merges) back = std::max(back, -m);
      }
    });
    const auto period = static_cast<std::int64_t>(plan_.period.size());
    const std::int64_t before = (2 * back + period - 1) / period * period;
    const std::int64_t count = static_cast<std::int64_t>(plan_.prologue.size()) + before + period;
    calendar_.cycle = period;
    back_ = back;
    calendar_.iterations.resize(static_cast<std::size_t>(count));
    for (std::int64_t n = 0; n < count; ++n) set_ops(n);
  }

  void set_ops(std::int64_t n) {
    CalendarIteration& iteration = calendar_.iterations[static_cast<std::size_t>(n)];
    const Iteration& listed = iteration_at(plan_, n);
    for (const Op& op : listed.ops) {
      CalendarOp result{
          .collective = op.collective, .payload = op.payload, .blocks = op.blocks, .release = op.release};
      for (std::int32_t m : op.merges) {
        if (n + m >= 0) result.merges.push_back(m);
      }
      if (result.merges.empty()) continue;
      result.link =
          static_cast<std::int32_t>(std::ranges::find(calendar_.links, op.link) - calendar_.links.begin());
      for (std::int32_t b : op.blocks) {
        const Block& block = plan_.blocks[static_cast<std::size_t>(b)];
        const TensorPlace& tensor = tensor_of(b);
        result.offsets.push_back(result.elements);
        result.elements += block.end - block.begin;
        result.dtype = tensor.dtype;
      }
      result.bytes = result.elements * size_of(result.dtype);
      result.label = label_of(plan_, op, calendar_.index);
      iteration.ops.push_back(std::move(result));
    }
  }

  const TensorPlace& tensor_of(std::int32_t block) const {
    return calendar_.index
        .tensors[static_cast<std::size_t>(calendar_.block_tensor[static_cast<std::size_t>(block)])];
  }

  CalendarIteration* iteration(std::int64_t n) {
    return n < 0 ? nullptr : &calendar_.iterations[calendar_.at(n)];
  }

  // Whether two sets of relative iterations, listed `delta` apart, are the same iterations.
  static bool same(const std::vector<std::int32_t>& here, const std::vector<std::int32_t>& there,
                   std::int32_t delta) {
    if (here.size() != there.size()) return false;
    for (std::size_t i = 0; i < here.size(); ++i) {
      if (here[i] != there[i] + delta) return false;
    }
    return true;
  }

  void pair_gathers(std::int64_t n) {
    for (CalendarOp& op : iteration(n)->ops) {
      if (op.collective != Collective::kAllGather) continue;
      for (std::int32_t delta = 0; op.partner.op < 0 && n + delta >= 0 && -delta <= back_; --delta) {
        const auto& candidates = iteration(n + delta)->ops;
        for (std::size_t i = 0; i < candidates.size(); ++i) {
          const CalendarOp& other = candidates[i];
          if (other.collective == Collective::kReduceScatter && other.blocks == op.blocks &&
              same(op.merges, other.merges, delta)) {
            op.partner = {delta, static_cast<std::int32_t>(i)};
          }
        }
      }
    }
  }

  void set_gradients(std::int64_t n) {
    CalendarIteration& here = *iteration(n);
    here.gradient.resize(plan_.blocks.size());
    here.offset.resize(plan_.blocks.size());
    here.dropped.resize(plan_.blocks.size());
    here.gradient_outside_end.resize(plan_.blocks.size());
    for (std::int32_t b : iteration_at(plan_, n).dropped) here.dropped[static_cast<std::size_t>(b)] = 1;
    for (std::int32_t delta = 0; delta <= back_; ++delta) {
      const auto& ops = iteration(n + delta)->ops;
      for (std::size_t i = 0; i < ops.size(); ++i) {
        const CalendarOp& op = ops[i];
        if (op.payload != Payload::kGradient || op.collective == Collective::kAllGather) continue;
        if (std::ranges::find(op.merges, -delta) == op.merges.end()) continue;
        for (std::size_t k = 0; k < op.blocks.size(); ++k) {
          const auto b = static_cast<std::size_t>(op.blocks[k]);
          here.gradient[b] = {delta, static_cast<std::int32_t>(i)};
          here.offset[b] = op.offsets[k];
          calendar_.look_ahead = std::max(calendar_.look_ahead, delta);
        }
      }
    }
  }

  // Finds the op that delivers block `b` for `apply` of iteration n.
  Piece find_piece(std::int64_t n, const CalendarApply& apply, std::int32_t b) {
    const bool parameter = apply.source == Source::kAveragedParameter;
    for (std::int32_t delta = 0; n + delta >= 0 && -delta <= back_; --delta) {
      const auto& ops = iteration(n + delta)->ops;
      for (std::size_t i = 0; i < ops.size(); ++i) {
        const CalendarOp& op = ops[i];
        if ((op.payload == Payload::kParameter) != parameter || op.collective == Collective::kReduceScatter)
          continue;
        if (!same(apply.merges, op.merges, delta)) continue;
        const auto found = std::ranges::find(op.blocks, b);
        if (found == op.blocks.end()) continue;
        return {b,
                {delta, static_cast<std::int32_t>(i)},
                op.offsets[static_cast<std::size_t>(found - op.blocks.begin())]};
      }
    }
    throw InvalidInput("block " + std::to_string(b) + " is applied but no op delivers it",
                       "iteration " + std::to_string(n), "run `gradweave validate` on the plan");
  }

  void set_applies(std::int64_t n) {
    CalendarIteration& here = *iteration(n);
    here.at_forward.resize(calendar_.layers);
    here.at_backward.resize(calendar_.layers);
    for (const Apply& listed : iteration_at(plan_, n).applies) {
      CalendarApply apply{
          .at = listed.at, .source = listed.source, .mode = listed.mode, .correction = listed.correction};
      for (std::int32_t m : listed.merges) {
        if (n + m >= 0) apply.merges.push_back(m);
      }
      if (apply.merges.empty() || listed.blocks.empty()) continue;
      set_pieces(n, listed, apply);
      const auto index = static_cast<std::int32_t>(here.applies.size());
      const auto layer = static_cast<std::size_t>(apply.at.layer);
      const bool reduced = apply.source == Source::kReducedGradient;
      const bool at_end = apply.at.kind == PointKind::kIterationEnd;
      if (apply.at.kind == PointKind::kForwardStart) here.at_forward[layer].push_back(index);
      if (apply.at.kind == PointKind::kBackwardEnd) here.at_backward[layer].push_back(index);
      if (reduced && at_end) here.gradients_at_end.push_back(index);
      if (!reduced || !at_end || apply.merges != std::vector{0} || apply.correction != Correction::kNone) {
        here.synchronous = false;
      }
      here.applies.push_back(std::move(apply));
    }
  }

  void set_pieces(std::int64_t n, const Apply& listed, CalendarApply& apply) {
    const bool local = apply.source == Source::kLocalGradient;
    std::map<std::int32_t, std::vector<Piece>> pieces;
    for (std::int32_t b : listed.blocks) {
      const std::int32_t tensor = calendar_.block_tensor[static_cast<std::size_t>(b)];
      const bool known = std::ranges::find(apply.tensors, tensor) != apply.tensors.end();
      if (!known) apply.tensors.push_back(tensor);
      if (local || apply.correction == Correction::kLocal) {
        calendar_.local_steps = true;
        calendar_.stepped_locally[static_cast<std::size_t>(tensor)] = 1;
      }
      if (!local) pieces[tensor].push_back(find_piece(n, apply, b));
    }
    apply.first_piece.push_back(0);
    for (std::int32_t tensor : apply.tensors) {
      auto& own = pieces[tensor];
      std::ranges::sort(
          own, {}, [&](const Piece& p) { return plan_.blocks[static_cast<std::size_t>(p.block)].begin; });
      for (const Piece& piece : own) {
        apply.pieces.push_back(piece);
        calendar_.look_back = std::max(calendar_.look_back, -piece.source.delta);
      }
      apply.first_piece.push_back(static_cast<std::int32_t>(apply.pieces.size()));
    }
  }

  // Applies that run the optimizer, one after another in the list, are one step of it.
  void set_end_actions(std::int64_t n) {
    CalendarIteration& here = *iteration(n);
    for (std::size_t i = 0; i < here.applies.size(); ++i) {
      const CalendarApply& apply = here.applies[i];
      if (apply.at.kind != PointKind::kIterationEnd) continue;
      if (apply.source == Source::kAveragedParameter) {
        here.end_actions.push_back({.apply = static_cast<std::int32_t>(i)});
        continue;
      }
      if (here.end_actions.empty() || !here.end_actions.back().optimizer)
        here.end_actions.push_back({.optimizer = true});
      auto& tensors = here.end_actions.back().tensors;
      tensors.insert(tensors.end(), apply.tensors.begin(), apply.tensors.end());
      std::ranges::sort(tensors);
      tensors.erase(std::ranges::unique(tensors).begin(), tensors.end());
    }
  }

  // A parameter op reads after the local apply of the iteration that it names.
  void set_reads(std::int64_t n) {
    CalendarIteration& here = *iteration(n);
    for (std::int32_t delta = 0; delta <= back_; ++delta) {
      const auto& ops = iteration(n + delta)->ops;
      for (std::size_t i = 0; i < ops.size(); ++i) {
        if (ops[i].payload == Payload::kParameter && ops[i].merges == std::vector{-delta}) {
          here.reads.push_back({delta, static_cast<std::int32_t>(i)});
          calendar_.look_ahead = std::max(calendar_.look_ahead, delta);
        }
      }
    }
  }

  void finish_ops() {
    // Past the last iteration, so that the ops of the cycle see the applies of the next one.
    for (std::int64_t n = 0; n < size() + back_; ++n) {
      for (const CalendarApply& apply : iteration(n)->applies) {
        for (std::int32_t m : apply.merges) {
          const bool outside =
              apply.source == Source::kReducedGradient && apply.at.kind != PointKind::kIterationEnd;
          for (const Piece& piece : apply.pieces) {
            if (outside) iteration(n + m)->gradient_outside_end[static_cast<std::size_t>(piece.block)] = 1;
          }
        }
        for (const Piece& piece : apply.pieces) {
          CalendarOp& op = iteration(n + piece.source.delta)->ops[static_cast<std::size_t>(piece.source.op)];
          op.last_apply = std::max(op.last_apply, -piece.source.delta);
          op.keep_own |= apply.mode == Mode::kCorrect || apply.correction == Correction::kLocal;
        }
      }
    }
    for (std::int64_t n = 0; n < size() + back_; ++n) {
      for (const CalendarOp& op : iteration(n)->ops) {
        if (op.partner.op < 0) continue;
        CalendarOp& scatter = iteration(n + op.partner.delta)->ops[static_cast<std::size_t>(op.partner.op)];
        scatter.last_apply = std::max(scatter.last_apply, op.last_apply - op.partner.delta);
      }
    }
    for (std::int64_t n = 0; n < size(); ++n) {
      CalendarIteration& here = *iteration(n);
      const auto later = [](const CalendarOp& op) { return op.last_apply > 0; };
      const auto carried_later = [](OpRef ref) { return ref.delta > 0; };
      // A residual is left for a later iteration.
      if (plan_.residual.enabled || std::ranges::any_of(here.ops, later) ||
          std::ranges::any_of(here.gradient, carried_later)) {
        here.synchronous = false;
      }
      for (CalendarOp& op : here.ops) {
        const auto block = static_cast<std::size_t>(op.blocks.front());
        op.in_place = op.collective == Collective::kAllReduce && op.payload == Payload::kGradient &&
                      op.blocks.size() == 1 && calendar_.block_whole[block] && op.merges == std::vector{0} &&
                      here.synchronous;
        calendar_.look_back = std::max({calendar_.look_back, -op.partner.delta, op.last_apply});
      }
    }
  }

  const Plan& plan_;
  Calendar calendar_;
  std::int32_t back_ = 0;
};

}  // namespace

Calendar calendar_of(const Plan& plan, const Workload& workload) {
  return CalendarWriter(plan, workload).run();
}

}  // namespace gradweave
