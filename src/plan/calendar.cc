#include "plan/calendar.h"

#include <algorithm>
#include <map>

#include "gradweave/compression.h"
#include "gradweave/error.h"
#include "plan/resolved.h"
#include "plan/uses.h"

namespace gradweave {
namespace {

class CalendarWriter {
 public:
  // The calendar has its index.
  CalendarWriter(const ResolvedPlan& plan, Calendar& calendar)
      : plan_(plan), uses_(plan), calendar_(calendar) {}

  void write() {
    set_blocks_and_links();
    unroll();
    for (std::int64_t n = 0; n < size(); ++n) pair_gathers(n);
    for (std::int64_t n = 0; n < size(); ++n) set_gradients(n);
    for (std::int64_t n = 0; n < size(); ++n) set_applies(n);
    for (std::int64_t n = 0; n < size(); ++n) find_slices(n);
    for (std::int64_t n = 0; n < size(); ++n) set_end_actions(n);
    finish_ops();
  }

 private:
  std::int64_t size() const { return std::ssize(calendar_.iterations); }
  CalendarIteration& iteration(std::int64_t n) { return calendar_.iterations[calendar_.at(n)]; }

  void set_blocks_and_links() {
    const Plan& plan = plan_.plan;
    calendar_.layers = calendar_.index.layer_count;
    calendar_.blocks = plan.blocks;
    calendar_.blocks_of_tensor.resize(calendar_.index.tensors.size());
    calendar_.stepped_locally.resize(calendar_.index.tensors.size());
    calendar_.sliced.resize(calendar_.index.tensors.size());
    for (std::size_t b = 0; b < plan.blocks.size(); ++b) {
      const Slice& slice = plan_.blocks[b].slice;
      calendar_.block_tensor.push_back(static_cast<std::int32_t>(slice.tensor));
      calendar_.block_whole.push_back(slice.begin == 0 &&
                                      slice.end == calendar_.index.tensors[slice.tensor].numel);
      calendar_.blocks_of_tensor[slice.tensor].push_back(static_cast<std::int32_t>(b));
    }
    for (auto& blocks : calendar_.blocks_of_tensor)
      std::ranges::sort(blocks, {}, [&](std::int32_t b) { return plan_.block(b).slice.begin; });
    for (const PlanLink& link : plan.links) {
      calendar_.links.push_back(link.name);
      calendar_.concurrency.push_back(link.concurrency);
    }
    calendar_.merge = plan.merge;
    calendar_.residual = plan.residual;
    calendar_.outer = plan.outer;
  }

  // The prologue, then enough periods that the cycle after them refers only to iterations whose own merges
  // all exist, then the cycle that repeats.
  void unroll() {
    const std::int64_t before = (2 * plan_.reach + plan_.period - 1) / plan_.period * plan_.period;
    const std::int64_t count = plan_.prologue + before + plan_.period;
    calendar_.cycle = plan_.period;
    calendar_.iterations.resize(static_cast<std::size_t>(count));
    places_.resize(static_cast<std::size_t>(count));
    for (std::int64_t n = 0; n < count; ++n) set_ops(n);
  }

  static std::vector<std::int32_t> existing(Indices merges, std::int64_t n) {
    std::vector<std::int32_t> kept;
    std::ranges::copy_if(merges, std::back_inserter(kept), [&](std::int32_t m) { return n + m >= 0; });
    return kept;
  }

  void set_ops(std::int64_t n) {
    std::vector<CalendarOp>& ops = calendar_.iterations[static_cast<std::size_t>(n)].ops;
    for (const ResolvedOp& listed : plan_.iteration(n).ops) {
      places_[static_cast<std::size_t>(n)].push_back(static_cast<std::int32_t>(ops.size()));
      if (!exists(listed.merges, n)) continue;
      CalendarOp op{.link = listed.link,
                    .collective = listed.op->collective,
                    .payload = listed.op->payload,
                    .blocks = listed.op->blocks,
                    .merges = existing(listed.merges, n),
                    .release = listed.op->release};
      for (const std::int32_t b : op.blocks) {
        const Slice& slice = plan_.block(b).slice;
        op.offsets.push_back(op.elements);
        op.elements += slice.end - slice.begin;
        op.dtype = plan_.index.tensors[slice.tensor].dtype;
      }
      op.bytes = op.elements * size_of(op.dtype);
      if (listed.compressed()) op.compression = with_defaults(listed.op->compression);
      op.anchored = op.payload == Payload::kParameter && (listed.compressed() || plan_.plan.outer);
      op.label = label_of(plan_.plan, *listed.op, plan_.index);
      ops.push_back(std::move(op));
    }
  }

  // The op that uses data of iteration `data` so, seen from iteration n.
  OpRef reference(const Use& use, std::int64_t data, std::int64_t n) const {
    const std::int64_t listed = data + use.later;
    return {static_cast<std::int32_t>(listed - n),
            places_[calendar_.at(listed)][static_cast<std::size_t>(use.item)]};
  }

  const CalendarOp& op_at(std::int64_t n, OpRef ref) {
    return iteration(n + ref.delta).ops[static_cast<std::size_t>(ref.op)];
  }

  void pair_gathers(std::int64_t n) {
    for (CalendarOp& op : iteration(n).ops) {
      if (op.collective != Collective::kAllGather) continue;
      const std::int64_t data = n + op.merges.front();
      for (const Use& use : uses_.find(Role::kScatter, op.blocks.front(), data))
        op.partner = reference(use, data, n);
    }
  }

  // Who carries the gradients that are computed in iteration n.
  void set_gradients(std::int64_t n) {
    CalendarIteration& here = iteration(n);
    here.gradient.resize(plan_.blocks.size());
    here.offset.resize(plan_.blocks.size());
    here.dropped.resize(plan_.blocks.size());
    here.gradient_outside_end.resize(plan_.blocks.size());
    for (const std::int32_t b : plan_.iteration(n).dropped) here.dropped[static_cast<std::size_t>(b)] = 1;
    for (std::size_t b = 0; b < plan_.blocks.size(); ++b) {
      for (const Role role : {Role::kGradient, Role::kScatter}) {
        for (const Use& use : uses_.find(role, static_cast<std::int32_t>(b), n)) {
          const OpRef ref = reference(use, n, n);
          const CalendarOp& op = op_at(n, ref);
          if (op.collective == Collective::kAllGather) continue;
          calendar_.look_ahead = std::max(calendar_.look_ahead, ref.delta);
          here.gradient[b] = ref;
          here.offset[b] = op.offsets[static_cast<std::size_t>(use.part)];
        }
      }
    }
  }

  // Finds the op that delivers block `b` for `apply` of iteration n.
  Piece find_piece(std::int64_t n, const CalendarApply& apply, std::int32_t b) {
    const Role role = apply.source == Source::kAveragedParameter ? Role::kParameter : Role::kGradient;
    const std::int64_t data = n + apply.merges.front();
    const std::span<const Use> uses = uses_.find(role, b, data);
    if (uses.empty() || uses.front().later > -apply.merges.front()) {
      throw InvalidInput("block " + std::to_string(b) + " is applied but no op delivers it",
                         "iteration " + std::to_string(n), "run `gradweave validate` on the plan");
    }
    const OpRef ref = reference(uses.front(), data, n);
    return {b, ref, op_at(n, ref).offsets[static_cast<std::size_t>(uses.front().part)]};
  }

  void set_applies(std::int64_t n) {
    CalendarIteration& here = iteration(n);
    here.at_forward.resize(calendar_.layers);
    here.at_backward.resize(calendar_.layers);
    for (const ResolvedApply& listed : plan_.iteration(n).applies) {
      if (!exists(listed.merges, n)) continue;
      CalendarApply apply{.at = listed.apply->at,
                          .source = listed.apply->source,
                          .mode = listed.apply->mode,
                          .correction = listed.apply->correction,
                          .blocks = listed.apply->blocks,
                          .merges = existing(listed.merges, n)};
      set_pieces(n, listed.blocks, apply);
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

  void add_reading(std::int64_t n, std::int32_t b, CalendarApply& apply) {
    for (const Use& use : uses_.find(Role::kParameter, b, n)) {
      apply.reads.push_back({reference(use, n, n), use.part});
      calendar_.look_ahead = std::max(calendar_.look_ahead, apply.reads.back().op.delta);
    }
  }

  void set_pieces(std::int64_t n, Indices blocks, CalendarApply& apply) {
    const bool local = apply.source == Source::kLocalGradient;
    std::map<std::int32_t, std::vector<Piece>> pieces;
    for (const std::int32_t b : blocks) {
      const std::int32_t tensor = calendar_.block_tensor[static_cast<std::size_t>(b)];
      const bool known = std::ranges::find(apply.tensors, tensor) != apply.tensors.end();
      if (!known) apply.tensors.push_back(tensor);
      if (local || apply.correction == Correction::kLocal) {
        calendar_.local_steps = true;
        calendar_.stepped_locally[static_cast<std::size_t>(tensor)] = 1;
      }
      if (!local) pieces[tensor].push_back(find_piece(n, apply, b));
      if (local) add_reading(n, b, apply);
    }
    std::ranges::sort(apply.reads);
    apply.first_piece.push_back(0);
    for (std::int32_t tensor : apply.tensors) {
      auto& own = pieces[tensor];
      std::ranges::sort(own, {}, [&](const Piece& p) { return plan_.block(p.block).slice.begin; });
      for (const Piece& piece : own) {
        apply.pieces.push_back(piece);
        calendar_.look_back = std::max(calendar_.look_back, -piece.source.delta);
      }
      apply.first_piece.push_back(static_cast<std::int32_t>(apply.pieces.size()));
    }
  }

  void find_slices(std::int64_t n) {
    for (const CalendarApply& apply : iteration(n).applies) {
      if (apply.source == Source::kAveragedParameter) continue;
      std::vector<std::size_t> counts(calendar_.sliced.size());
      for (const std::int32_t b : apply.blocks)
        ++counts[static_cast<std::size_t>(calendar_.block_tensor[static_cast<std::size_t>(b)])];
      for (const std::int32_t tensor : apply.tensors) {
        const auto t = static_cast<std::size_t>(tensor);
        calendar_.sliced[t] |= counts[t] < calendar_.blocks_of_tensor[t].size();
      }
    }
  }

  void set_stepped(CalendarApply& apply) const {
    for (const std::int32_t b : apply.blocks) {
      const std::int32_t tensor = calendar_.block_tensor[static_cast<std::size_t>(b)];
      const bool sliced = calendar_.sliced[static_cast<std::size_t>(tensor)];
      sliced ? apply.stepped.blocks.push_back(b) : apply.stepped.tensors.push_back(tensor);
    }
    for (std::vector<std::int32_t>* list : {&apply.stepped.tensors, &apply.stepped.blocks}) {
      std::ranges::sort(*list);
      list->erase(std::ranges::unique(*list).begin(), list->end());
    }
  }

  void set_end_actions(std::int64_t n) {
    CalendarIteration& here = iteration(n);
    for (CalendarApply& apply : here.applies) set_stepped(apply);
    for (std::size_t i = 0; i < here.applies.size(); ++i) {
      const CalendarApply& apply = here.applies[i];
      if (apply.at.kind != PointKind::kIterationEnd) continue;
      if (apply.source == Source::kAveragedParameter) {
        here.end_actions.push_back({.applies = {static_cast<std::int32_t>(i)}});
        continue;
      }
      if (here.end_actions.empty() || !here.end_actions.back().optimizer)
        here.end_actions.push_back({.optimizer = true});
      here.end_actions.back().applies.push_back(static_cast<std::int32_t>(i));
      add(apply.stepped, here.end_actions.back().stepped);
    }
  }

  void finish_ops() {
    // Past the last iteration, so that the ops of the cycle see the applies of the next one.
    for (std::int64_t n = 0; n < size() + plan_.reach; ++n) {
      for (const CalendarApply& apply : iteration(n).applies) {
        for (std::int32_t m : apply.merges) {
          const bool outside =
              apply.source == Source::kReducedGradient && apply.at.kind != PointKind::kIterationEnd;
          for (const Piece& piece : apply.pieces) {
            if (outside) iteration(n + m).gradient_outside_end[static_cast<std::size_t>(piece.block)] = 1;
          }
        }
        for (const Piece& piece : apply.pieces) {
          CalendarOp& op = iteration(n + piece.source.delta).ops[static_cast<std::size_t>(piece.source.op)];
          op.last_apply = std::max(op.last_apply, -piece.source.delta);
          op.keep_own |= apply.source == Source::kAveragedParameter ? apply.mode == Mode::kCorrect
                                                                    : apply.correction == Correction::kLocal;
        }
      }
    }
    for (std::int64_t n = 0; n < size() + plan_.reach; ++n) {
      for (const CalendarOp& op : iteration(n).ops) {
        if (op.partner.op < 0) continue;
        CalendarOp& scatter = iteration(n + op.partner.delta).ops[static_cast<std::size_t>(op.partner.op)];
        scatter.last_apply = std::max(scatter.last_apply, op.last_apply - op.partner.delta);
      }
    }
    for (std::int64_t n = 0; n < size(); ++n) {
      CalendarIteration& here = iteration(n);
      const auto later = [](const CalendarOp& op) { return op.last_apply > 0; };
      const auto leaves_behind = [](const CalendarOp& op) {
        return op.payload == Payload::kGradient && !op.compression.name.empty() &&
               find_compressor(op.compression.name).error_feedback;
      };
      const auto carried_later = [](OpRef ref) { return ref.delta > 0; };
      // A residual is left for a later iteration.
      if (plan_.plan.residual.enabled || std::ranges::any_of(here.ops, later) ||
          std::ranges::any_of(here.ops, leaves_behind) || std::ranges::any_of(here.gradient, carried_later)) {
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

  const ResolvedPlan& plan_;
  const Uses uses_;
  Calendar& calendar_;
  std::vector<std::vector<std::int32_t>> places_;  // per iteration: where its listed ops are in its `ops`
};

}  // namespace

void add(const Stepped& more, Stepped& stepped) {
  const auto merge = [](const std::vector<std::int32_t>& from, std::vector<std::int32_t>& to) {
    std::vector<std::int32_t> both;
    std::ranges::set_union(from, to, std::back_inserter(both));
    to = std::move(both);
  };
  merge(more.tensors, stepped.tensors);
  merge(more.blocks, stepped.blocks);
}

Calendar calendar_of(const Plan& plan, const Workload& workload) {
  Calendar calendar{.index = WorkloadIndex(workload)};
  const ResolvedPlan resolved = resolve(plan, calendar.index, nullptr);
  CalendarWriter(resolved, calendar).write();
  return calendar;
}

}  // namespace gradweave
