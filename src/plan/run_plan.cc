#include "plan/run_plan.h"

#include <algorithm>
#include <map>

#include "gradweave/compression.h"
#include "gradweave/error.h"

namespace gradweave {
namespace {

class RunPlanWriter {
 public:
  // `to` has its index.
  RunPlanWriter(const CompiledPlan& plan, RunPlan& to) : plan_(plan), to_(to) {}

  void write() {
    set_blocks_and_links();
    to_.cycle = plan_.period;
    to_.iterations.resize(static_cast<std::size_t>(plan_.horizon));
    for (std::int64_t n = 0; n < size(); ++n) set_ops(n);
    for (std::int64_t n = 0; n < size(); ++n) set_applies(n);
    // Past the last iteration, so that those of the cycle see what the next one makes of them.
    for (std::int64_t n = 0; n < size() + plan_.reach; ++n) set_carriers(n);
    for (std::int64_t n = 0; n < size() + plan_.reach; ++n) set_uses(n);
    for (std::int64_t n = size() + plan_.reach; n-- > 0;) set_steps(n);
    for (std::int64_t n = 0; n < size(); ++n) find_slices(n);
    for (std::int64_t n = 0; n < size(); ++n) set_end_actions(n);
    for (std::int64_t n = 0; n < size(); ++n) finish(n);
  }

 private:
  std::int64_t size() const { return std::ssize(to_.iterations); }
  RunIteration& iteration(std::int64_t n) { return to_.iterations[to_.at(n)]; }

  void set_blocks_and_links() {
    const Plan& plan = plan_.plan;
    to_.layers = to_.index.layer_count;
    to_.blocks = plan.blocks;
    to_.blocks_of_tensor.resize(to_.index.tensors.size());
    to_.stepped_locally.resize(to_.index.tensors.size());
    to_.sliced.resize(to_.index.tensors.size());
    for (std::size_t b = 0; b < plan.blocks.size(); ++b) {
      const Slice& slice = plan_.blocks[b].slice;
      to_.block_tensor.push_back(static_cast<std::int32_t>(slice.tensor));
      to_.block_whole.push_back(slice.begin == 0 && slice.end == to_.index.tensors[slice.tensor].numel);
      to_.blocks_of_tensor[slice.tensor].push_back(static_cast<std::int32_t>(b));
    }
    for (auto& blocks : to_.blocks_of_tensor)
      std::ranges::sort(blocks, {}, [&](std::int32_t b) { return plan_.block(b).slice.begin; });
    for (const PlanLink& link : plan.links) {
      to_.links.push_back(link.name);
      to_.concurrency.push_back(link.concurrency);
      to_.levels.push_back(link.level);
    }
    to_.workers_per_node = plan.workers_per_node;
    to_.merge = plan.merge;
    to_.residual = plan.residual;
    to_.outer = plan.outer;
  }

  static std::vector<std::int32_t> existing(Indices merges, std::int64_t n) {
    const auto first = std::ranges::find_if(merges, [&](std::int32_t m) { return n + m >= 0; });
    return {first, merges.end()};
  }

  static void keep_distinct(std::vector<std::int32_t>& layers) {
    std::ranges::sort(layers);
    const auto [first, last] = std::ranges::unique(layers);
    layers.erase(first, last);
  }

  void set_ops(std::int64_t n) {
    RunIteration& here = iteration(n);
    here.at_forward.resize(to_.layers);
    here.at_backward.resize(to_.layers);
    here.updated_before.resize(to_.layers);
    here.applied_before.resize(to_.layers);
    here.gradient.resize(plan_.blocks.size());
    here.offset.resize(plan_.blocks.size());
    here.dropped.resize(plan_.blocks.size());
    here.gradient_outside_end.resize(plan_.blocks.size());
    for (const std::int32_t b : plan_.iteration(n).dropped) here.dropped[static_cast<std::size_t>(b)] = 1;
    std::vector<std::int32_t>& places = op_places_.emplace_back();
    for (const ResolvedOp& listed : plan_.iteration(n).ops) {
      places.push_back(static_cast<std::int32_t>(here.ops.size()));
      if (!exists(listed.merges, n)) continue;
      RunOp op{.link = listed.link,
               .level = listed.level,
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
      here.ops.push_back(std::move(op));
    }
  }

  // The same op, numbered among those that exist.
  OpRef renumbered(std::int64_t n, OpRef listed) const {
    return {listed.delta, op_places_[to_.at(n + listed.delta)][static_cast<std::size_t>(listed.op)]};
  }
  RunOp& op_at(std::int64_t n, OpRef ref) {
    return iteration(n + ref.delta).ops[static_cast<std::size_t>(ref.op)];
  }

  void set_applies(std::int64_t n) {
    RunIteration& here = iteration(n);
    const std::vector<ResolvedApply>& applies = plan_.iteration(n).applies;
    std::vector<std::int32_t>& places = apply_places_.emplace_back();
    std::map<std::int32_t, std::vector<std::int32_t>> in_backward;  // by tensor: the layers that apply it
    for (std::size_t k = 0; k < applies.size(); ++k) {
      const ResolvedApply& listed = applies[k];
      const auto index = static_cast<std::int32_t>(here.applies.size());
      places.push_back(index);
      if (!exists(listed.merges, n)) continue;
      RunApply apply{.at = listed.apply->at,
                     .source = listed.apply->source,
                     .mode = listed.apply->mode,
                     .correction = listed.apply->correction,
                     .blocks = listed.apply->blocks,
                     .merges = existing(listed.merges, n)};
      set_pieces(n, k, apply);
      const auto layer = static_cast<std::size_t>(apply.at.layer);
      const bool reduced = apply.source == Source::kReducedGradient;
      const bool at_end = apply.at.kind == PointKind::kIterationEnd;
      if (apply.at.kind == PointKind::kForwardStart) {
        here.at_forward[layer].push_back(index);
        for (const std::int32_t b : apply.blocks) {
          const std::int32_t updated = plan_.block(b).layer;
          if (updated != apply.at.layer)
            here.updated_before[static_cast<std::size_t>(updated)].push_back(apply.at.layer);
        }
      }
      if (apply.at.kind == PointKind::kBackwardEnd) {
        here.at_backward[layer].push_back(index);
        for (const std::int32_t tensor : apply.tensors) in_backward[tensor].push_back(apply.at.layer);
      }
      if (reduced && at_end) here.gradients_at_end.push_back(index);
      if (!reduced || !at_end || apply.merges != std::vector{0} || apply.correction != Correction::kNone) {
        here.synchronous = false;
      }
      here.applies.push_back(std::move(apply));
    }
    for (const auto& [tensor, layers] : in_backward) {
      for (const std::int32_t after : layers) {
        std::ranges::copy_if(layers, std::back_inserter(here.applied_before[static_cast<std::size_t>(after)]),
                             [&](std::int32_t layer) { return layer > after; });
      }
    }
    std::ranges::for_each(here.updated_before, keep_distinct);
    std::ranges::for_each(here.applied_before, keep_distinct);
  }

  void set_pieces(std::int64_t n, std::size_t k, RunApply& apply) {
    const bool local = apply.source == Source::kLocalGradient;
    std::map<std::int32_t, std::vector<Piece>> pieces;
    for (const std::int32_t b : apply.blocks) {
      const std::int32_t tensor = to_.block_tensor[static_cast<std::size_t>(b)];
      const bool known = std::ranges::find(apply.tensors, tensor) != apply.tensors.end();
      if (!known) apply.tensors.push_back(tensor);
      if (local || apply.correction == Correction::kLocal) {
        to_.local_steps = true;
        to_.stepped_locally[static_cast<std::size_t>(tensor)] = 1;
      }
    }
    for (const Delivery& delivery : plan_.deliveries(n, k)) {
      const OpRef op = renumbered(n, delivery.op);
      pieces[to_.block_tensor[static_cast<std::size_t>(delivery.block)]].push_back(
          {delivery.block, op, op_at(n, op).offsets[static_cast<std::size_t>(delivery.part)]});
      to_.look_back = std::max(to_.look_back, -op.delta);
    }
    apply.first_piece.push_back(0);
    for (const std::int32_t tensor : apply.tensors) {
      auto& own = pieces[tensor];
      std::ranges::sort(own, {}, [&](const Piece& p) { return plan_.block(p.block).slice.begin; });
      apply.pieces.insert(apply.pieces.end(), own.begin(), own.end());
      apply.first_piece.push_back(static_cast<std::int32_t>(apply.pieces.size()));
    }
  }

  // Tells iterations of data which of iteration n's ops carry their gradients, and send their values.
  void set_carriers(std::int64_t n) {
    const std::vector<ResolvedOp>& ops = plan_.iteration(n).ops;
    for (std::size_t k = 0; k < ops.size(); ++k) {
      if (!exists(ops[k].merges, n) || !plan_.steps_before(n, k).empty()) continue;
      const std::int32_t place = op_places_[to_.at(n)][k];
      const RunOp& op = iteration(n).ops[static_cast<std::size_t>(place)];
      if (op.payload == Payload::kParameter) {
        for (const Reading& reading : plan_.readings(n, k)) set_reading(n, place, reading);
        continue;
      }
      for (const std::int32_t m : op.merges) {
        if (n + m >= size()) continue;
        RunIteration& data = iteration(n + m);
        for (std::size_t i = 0; i < op.blocks.size(); ++i) {
          const auto b = static_cast<std::size_t>(op.blocks[i]);
          data.gradient[b] = {-m, place};
          data.offset[b] = op.offsets[i];
        }
        to_.look_ahead = std::max(to_.look_ahead, -m);
      }
    }
  }

  void set_reading(std::int64_t n, std::int32_t place, const Reading& reading) {
    const std::int64_t local = n + reading.delta;
    if (local >= size()) return;
    const std::int32_t apply = apply_places_[to_.at(local)][static_cast<std::size_t>(reading.apply)];
    iteration(local).applies[static_cast<std::size_t>(apply)].reads.push_back(
        {{-reading.delta, place}, reading.part});
    to_.look_ahead = std::max(to_.look_ahead, -reading.delta);
  }

  // Tells ops, and iterations of data, what iteration n's applies do with them.
  void set_uses(std::int64_t n) {
    for (const RunApply& apply : iteration(n).applies) {
      const bool outside =
          apply.source == Source::kReducedGradient && apply.at.kind != PointKind::kIterationEnd;
      for (const Piece& piece : apply.pieces) {
        RunOp& op = op_at(n, piece.source);
        op.last_apply = std::max(op.last_apply, -piece.source.delta);
        op.keep_own |= apply.source == Source::kAveragedParameter ? apply.mode == Mode::kCorrect
                                                                  : apply.correction == Correction::kLocal;
        for (const std::int32_t m : apply.merges) {
          if (outside) iteration(n + m).gradient_outside_end[static_cast<std::size_t>(piece.block)] = 1;
        }
      }
    }
  }

  // The last step first: what is known of it holds for those before it.
  void set_steps(std::int64_t n) {
    const std::vector<ResolvedOp>& ops = plan_.iteration(n).ops;
    for (std::size_t k = ops.size(); k-- > 0;) {
      if (!exists(ops[k].merges, n)) continue;
      RunOp& step = iteration(n).ops[static_cast<std::size_t>(op_places_[to_.at(n)][k])];
      for (const OpRef listed : plan_.steps_before(n, k)) {
        step.before = renumbered(n, listed);
        RunOp& before = op_at(n, step.before);
        before.goes_on = true;
        before.keep_own |= step.keep_own;
        before.last_apply = std::max(before.last_apply, step.last_apply - step.before.delta);
      }
    }
  }

  void find_slices(std::int64_t n) {
    for (const RunApply& apply : iteration(n).applies) {
      if (apply.source == Source::kAveragedParameter) continue;
      std::vector<std::size_t> counts(to_.sliced.size());
      for (const std::int32_t b : apply.blocks)
        ++counts[static_cast<std::size_t>(to_.block_tensor[static_cast<std::size_t>(b)])];
      for (const std::int32_t tensor : apply.tensors) {
        const auto t = static_cast<std::size_t>(tensor);
        to_.sliced[t] |= counts[t] < to_.blocks_of_tensor[t].size();
      }
    }
  }

  void set_stepped(RunApply& apply) const {
    for (const std::int32_t b : apply.blocks) {
      const std::int32_t tensor = to_.block_tensor[static_cast<std::size_t>(b)];
      const bool sliced = to_.sliced[static_cast<std::size_t>(tensor)];
      sliced ? apply.stepped.blocks.push_back(b) : apply.stepped.tensors.push_back(tensor);
    }
    for (std::vector<std::int32_t>* list : {&apply.stepped.tensors, &apply.stepped.blocks}) {
      std::ranges::sort(*list);
      list->erase(std::ranges::unique(*list).begin(), list->end());
    }
  }

  void set_end_actions(std::int64_t n) {
    RunIteration& here = iteration(n);
    for (RunApply& apply : here.applies) {
      set_stepped(apply);
      std::ranges::sort(apply.reads);
    }
    for (std::size_t i = 0; i < here.applies.size(); ++i) {
      const RunApply& apply = here.applies[i];
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

  void finish(std::int64_t n) {
    RunIteration& here = iteration(n);
    const auto later = [](const RunOp& op) { return op.last_apply > 0; };
    const auto leaves_behind = [](const RunOp& op) {
      return op.payload == Payload::kGradient && !op.compression.name.empty() &&
             find_compressor(op.compression.name).error_feedback;
    };
    const auto carried_later = [](OpRef ref) { return ref.delta > 0; };
    // A residual is left for a later iteration.
    if (plan_.plan.residual.enabled || std::ranges::any_of(here.ops, later) ||
        std::ranges::any_of(here.ops, leaves_behind) || std::ranges::any_of(here.gradient, carried_later)) {
      here.synchronous = false;
    }
    for (RunOp& op : here.ops) {
      const auto block = static_cast<std::size_t>(op.blocks.front());
      op.in_place = op.collective == Collective::kAllReduce && op.payload == Payload::kGradient &&
                    op.before.op < 0 && op.blocks.size() == 1 && to_.block_whole[block] &&
                    op.merges == std::vector{0} && here.synchronous;
      to_.look_back = std::max({to_.look_back, -op.before.delta, op.last_apply});
    }
  }

  const CompiledPlan& plan_;
  RunPlan& to_;
  // Per iteration and listed op, or apply: where it is among those that exist.
  std::vector<std::vector<std::int32_t>> op_places_, apply_places_;
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

bool has_delays(const RunPlan& plan) {
  return std::ranges::any_of(plan.iterations, [](const RunIteration& iteration) {
    return std::ranges::any_of(iteration.ops, [](const RunOp& op) { return op.release.delay_ns > 0; });
  });
}

RunPlan run_plan_of(const Plan& plan, const Workload& workload) {
  RunPlan run_plan{.index = WorkloadIndex(workload)};
  const CompiledPlan compiled(resolve(plan, run_plan.index, nullptr));
  RunPlanWriter(compiled, run_plan).write();
  return run_plan;
}

}  // namespace gradweave
