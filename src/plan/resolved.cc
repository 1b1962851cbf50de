#include "plan/resolved.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <string_view>
#include <unordered_map>

#include "base/quoted.h"
#include "gradweave/compression.h"
#include "gradweave/cost.h"
#include "plan/position.h"

namespace gradweave {
namespace {

constexpr std::int32_t kMaxReach = 1'000'000;  // iterations that merges and releases may look back
constexpr Nanoseconds kMaxDelay = Nanoseconds{1} << 53;

std::string slice_text(const Block& block) {
  return " (" + shortened(block.tensor) + "[" + std::to_string(block.begin) + ":" +
         std::to_string(block.end) + "])";
}

}  // namespace

// Resolves part after part, and reports each fault at its place.
class ResolvedPlan::Reader {
 public:
  Reader(ResolvedPlan& resolved, Report& report) : to_(resolved), plan_(resolved.plan), report_(report) {}

  void read_links(const Cluster* cluster) {
    for (std::size_t k = 0; k < plan_.links.size(); ++k) {
      const PlanLink& link = plan_.links[k];
      const auto fault = [&](const char* what, const char* remedy) {
        report_.add(7, -1, what, "links[" + std::to_string(k) + "] (" + in_quotes(link.name) + ")", remedy);
      };
      if (!links_.emplace(link.name, static_cast<std::int32_t>(k)).second)
        fault("repeats the name of another link", "name each link once");
      if (link.concurrency < 0) fault("has a negative concurrency", "0 means unlimited");
      if ((link.level == Level::kAll) == has_levels(plan_))
        fault("has a level where another link has none", "give levels to all links, or to none");
      if (cluster == nullptr) continue;
      const bool inside = link.level == Level::kInside;
      const std::optional<std::size_t> found =
          inside ? find_inside_link(*cluster, link.name) : find_link(*cluster, link.name);
      if (!found || (link.level != Level::kAll && !has_levels(*cluster))) {
        fault(found                          ? "has a level, but the cluster has only one"
              : link.level == Level::kAll    ? "is not a link of the cluster"
              : link.level == Level::kInside ? "is not a link inside the cluster's nodes"
                                             : "is not a link between the cluster's nodes",
              "make the plan for this cluster, or name one of its links");
      }
      to_.cluster_link.push_back(found.value_or(0));
    }
    if (plan_.workers < 1) report_.add(7, -1, "must be at least 1", "workers", "give the number of workers");
    read_nodes();
  }

  void read_nodes() {
    const auto fault = [&](const char* what, const char* remedy) {
      report_.add(7, -1, what, "workers_per_node", remedy);
    };
    const std::int64_t per_node = plan_.workers_per_node;
    if (has_levels(plan_)) {
      if (per_node < 2) fault("must be at least 2 where links have levels", "give the workers of one node");
      if (per_node > 0 && plan_.workers % per_node != 0) fault("does not divide workers", "give whole nodes");
    } else if (per_node != 1) {
      fault("is given, and no link has a level", "leave it out, or give links their levels");
    }
  }

  void read_outer() {
    if (!plan_.outer) return;
    const auto fault = [&](const char* what, const char* where, const char* remedy) {
      report_.add(7, -1, what, where, remedy);
    };
    if (!(plan_.outer->momentum >= 0 && plan_.outer->momentum < 1))
      fault("is out of range", "outer.momentum", "give 0 or more, below 1");
    if (!(plan_.outer->learning_rate > 0 && std::isfinite(plan_.outer->learning_rate)))
      fault("is out of range", "outer.learning_rate", "give more than 0");
    const auto averages = [](const Iteration& iteration) {
      return std::ranges::any_of(
          iteration.applies, [](const Apply& apply) { return apply.source == Source::kAveragedParameter; });
    };
    if (std::ranges::none_of(plan_.period, averages))
      fault("averages no parameters", "outer", "leave it out");
  }

  void read_blocks() {
    to_.blocks.reserve(plan_.blocks.size());
    for (const Block& block : plan_.blocks) to_.blocks.push_back(read(block));
  }

  void read_slot(std::size_t slot, const Iteration& iteration) {
    ResolvedIteration& to = to_.slots[slot];
    slot_ = slot;
    to.ops.reserve(iteration.ops.size());
    for (item_ = 0; item_ < iteration.ops.size() && !report_.full(); ++item_) {
      list_ = ".ops";
      to.ops.push_back(read(iteration.ops[item_]));
    }
    to.applies.reserve(iteration.applies.size());
    for (item_ = 0; item_ < iteration.applies.size() && !report_.full(); ++item_) {
      list_ = ".applies";
      to.applies.push_back(read(iteration.applies[item_]));
    }
    list_ = {};
    to.dropped = known(iteration.dropped, "dropped");
    to.apply_by_rank.resize(to.applies.size());
    std::iota(to.apply_by_rank.begin(), to.apply_by_rank.end(), 0);
    const auto apply = [&](std::int32_t k) -> ResolvedApply& {
      return to.applies[static_cast<std::size_t>(k)];
    };
    std::ranges::stable_sort(to.apply_by_rank, {}, [&](std::int32_t k) { return apply(k).at; });
    for (std::size_t r = 0; r < to.apply_by_rank.size(); ++r)
      apply(to.apply_by_rank[r]).rank = static_cast<std::int64_t>(r);
  }

 private:
  void fault(const std::string& what, const std::string& remedy) {
    std::string where = to_.slot_name(slot_);
    if (!list_.empty()) where.append(list_).append("[" + std::to_string(item_) + "]");
    report_.add(7, static_cast<std::int64_t>(slot_), what, std::move(where), remedy);
  }

  ResolvedBlock read(const Block& block) {
    const auto fault = [&](const std::string& what, const std::string& remedy) {
      report_.add(1, -1, what, "blocks[" + std::to_string(to_.blocks.size()) + "]" + slice_text(block),
                  remedy);
      return ResolvedBlock{};
    };
    const std::optional<std::size_t> tensor = to_.index.find_tensor(block.tensor);
    if (!tensor) {
      return fault("the workload has no such tensor",
                   "make the plan from this workload, or name one of its tensors");
    }
    const TensorPlace& place = to_.index.tensors[*tensor];
    if (block.begin < 0 || block.end > place.numel || block.begin >= block.end) {
      return fault("is not a slice of the tensor's " + std::to_string(place.numel) + " elements",
                   "give 0 <= begin < end <= " + std::to_string(place.numel));
    }
    return {.known = true,
            .slice = {*tensor, block.begin, block.end},
            .layer = static_cast<std::int32_t>(place.layer),
            .bytes = (block.end - block.begin) * size_of(place.dtype)};
  }

  ResolvedOp read(const Op& op) {
    ResolvedOp to{.op = &op, .blocks = known(op.blocks, "blocks"), .merges = read_merges(op.merges)};
    const auto link = links_.find(op.link);
    if (link == links_.end()) {
      fault("names the unknown link " + in_quotes(op.link), "use one of the plan's links");
    } else {
      to.link = link->second;
      to.level = plan_.links[static_cast<std::size_t>(to.link)].level;
    }
    if (op.blocks.empty()) fault("carries no block", "remove it");
    const auto dtype = [&](std::int32_t b) { return to_.index.tensors[to_.block(b).slice.tensor].dtype; };
    if (std::ranges::adjacent_find(to.blocks, std::ranges::not_equal_to{}, dtype) != to.blocks.end())
      fault("fuses blocks of different dtypes", "give each dtype its own op");
    to.first_layer = static_cast<std::int32_t>(to_.layers_ - 1);
    for (const std::int32_t b : to.blocks) {
      const ResolvedBlock& block = to_.block(b);
      to.first_layer = std::min(to.first_layer, block.layer);
      to.elements += block.slice.end - block.slice.begin;
    }
    if (op.payload != Payload::kGradient && to.merges.size() > 1) {
      fault("reads parameters of several iterations", "name the one iteration whose value is read");
      to.merges = to.merges.first(1);
    }
    const bool inside = to.level == Level::kInside;
    if (inside && !is_half(op.collective))
      fault("reduces within a node what other nodes hold too", "use a reduce_scatter and an all_gather");
    if (inside && !op.compression.name.empty())
      fault("is compressed within a node", "compress the op between nodes");
    if (op.payload == Payload::kParameter && is_half(op.collective) && !inside)
      fault("averages parameters in two halves", "use collective all_reduce, or compressed");
    if (check_compression(op) && to.elements > 0) {
      const std::int64_t element_bytes = op.payload == Payload::kParameter
                                             ? size_of_gain(dtype(to.blocks.front()))
                                             : size_of(dtype(to.blocks.front()));
      to.encoded_bytes = wire_cost(op.compression, op.payload, message_of(to, element_bytes)).encoded_bytes;
    }
    to.release = position(op.release.point);
    if (op.release.point.iteration > 0) fault("is released in an iteration after its own", "list it there");
    if (op.release.point.iteration < -kMaxReach)
      fault("is released at a point more than 1000000 iterations back", "release it later");
    if (op.release.delay_ns < 0 || op.release.delay_ns > kMaxDelay)
      fault("has a delay out of range", "give 0 or more");
    return to;
  }

  // What one worker encodes of an op's message: all of it, or its shard.
  CompressedMessage message_of(const ResolvedOp& op, std::int64_t element_bytes) const {
    const std::int64_t shards =
        op.level == Level::kBetween ? std::max<std::int64_t>(plan_.workers_per_node, 1) : 1;
    std::vector<Slice> slices;
    for (const std::int32_t b : op.blocks) slices.push_back(to_.block(b).slice);
    const std::int64_t sent = shards == 1 ? sent_elements(op.op->compression, to_.index, slices) : 0;
    return {(op.elements + shards - 1) / shards, element_bytes, plan_.workers / shards, sent};
  }

  ResolvedApply read(const Apply& apply) {
    ResolvedApply to{
        .apply = &apply, .blocks = known(apply.blocks, "blocks"), .merges = read_merges(apply.merges)};
    to.at = position(apply.at);
    if (apply.blocks.empty()) fault("applies no block", "remove it");
    if (apply.at.iteration != 0) fault("is at a point of another iteration", "list it there");
    const PointKind kind = apply.at.kind;
    if (kind != PointKind::kIterationEnd && kind != PointKind::kForwardStart &&
        kind != PointKind::kBackwardEnd) {
      fault("is at " + to_.point_name(apply.at), "apply at iteration_end, forward_start or backward_end");
    }
    return to;
  }

  // Returns the known ones among `blocks`.
  Indices known(const std::vector<std::int32_t>& blocks, std::string_view list) {
    const auto in_range = [&](std::int32_t b) {
      return b >= 0 && static_cast<std::size_t>(b) < to_.blocks.size();
    };
    if (std::ranges::all_of(blocks, [&](std::int32_t b) { return in_range(b) && to_.block(b).known; }))
      return blocks;
    if (!std::ranges::all_of(blocks, in_range)) {
      fault(std::string(list) + " names a block that does not exist",
            to_.blocks.empty() ? "list the plan's blocks"
                               : "use indices from 0 to " + std::to_string(to_.blocks.size() - 1));
    }
    std::vector<std::int32_t>& kept = to_.repaired_.emplace_back(blocks);
    std::erase_if(kept, [&](std::int32_t b) { return !in_range(b) || !to_.block(b).known; });
    return kept;
  }

  Indices read_merges(const std::vector<std::int32_t>& merges) {
    const auto not_rising = std::ranges::adjacent_find(merges, std::ranges::greater_equal{});
    const bool in_form = !merges.empty() && not_rising == merges.end() && merges.back() <= 0;
    if (!in_form) {
      fault("merges must be relative iterations of 0 or less, sorted, each once",
            merges.empty() ? "name the iterations, [0] for this one"
                           : "an op can only carry what this iteration or an earlier one computed");
    }
    const auto out_of_reach = [](std::int32_t m) { return m < -kMaxReach; };
    const bool too_far = std::ranges::any_of(merges, out_of_reach);
    if (too_far) {
      fault("merges looks back more than " + std::to_string(kMaxReach) + " iterations",
            "apply the gradients earlier");
    }
    Indices sound = merges;
    if (!in_form || too_far) {
      std::vector<std::int32_t>& kept =
          to_.repaired_.emplace_back(too_far ? std::vector<std::int32_t>{} : merges);
      std::ranges::sort(kept);
      const auto repeated = std::ranges::unique(kept);
      kept.erase(repeated.begin(), repeated.end());
      std::erase_if(kept, [](std::int32_t m) { return m > 0; });
      sound = kept;
    }
    if (!sound.empty()) to_.reach = std::max<std::int64_t>(to_.reach, -sound.front());
    return sound;
  }

  // Returns the position of the point; the iteration's end if it names no point.
  std::int64_t position(const Point& point) {
    if (has_layer(point.kind) && (point.layer < 0 || point.layer >= to_.layers_)) {
      fault("names layer " + std::to_string(point.layer) + " of a workload with " +
                std::to_string(to_.layers_) + " layers",
            "use layers from 0 to " + std::to_string(to_.layers_ - 1));
      return to_.iteration_end();
    }
    return position_of(point, to_.layers_);
  }

  // Returns whether the op has a compression, and it is sound.
  bool check_compression(const Op& op) {
    const bool half = is_half(op.collective);
    const auto refuse = [&](const std::string& what, const std::string& remedy) {
      fault(what, remedy);
      return false;
    };
    if (!half && (op.collective == Collective::kCompressed) != !op.compression.name.empty())
      return refuse("collective 'compressed' and a compression belong together", "give both or neither");
    if (op.compression.name.empty()) return false;
    const auto info = std::ranges::find(compressors(), op.compression.name, &CompressorInfo::name);
    if (info == compressors().end()) {
      return refuse("names the unknown compressor " + in_quotes(op.compression.name),
                    "use one that `gradweave schemes` lists");
    }
    if (info->cost_of(op.payload) == nullptr) {
      return refuse("compresses an average of parameters by " + in_quotes(op.compression.name) +
                        ", which works for gradients only",
                    "use a compressor that docs/schemes/compressors.md lists for averages");
    }
    if (half && !info->halves) {
      return refuse("halves an all-reduce that " + in_quotes(op.compression.name) + " compresses",
                    "only fp16, bf16, int8, int4 and int2 can be halved");
    }
    for (const auto& [name, value] : op.compression.parameters) {
      const CompressorParameter* parameter = info->parameter(name);
      if (parameter != nullptr && value >= parameter->minimum && value <= parameter->maximum) continue;
      return refuse("gives the compressor an unknown parameter, or one out of range: " + shortened(name),
                    "correct it");
    }
    return true;
  }

  ResolvedPlan& to_;
  const Plan& plan_;
  Report& report_;
  std::unordered_map<std::string_view, std::int32_t> links_;
  std::size_t slot_ = 0, item_ = 0;
  std::string_view list_;
};

ResolvedPlan::ResolvedPlan(const Plan& the_plan, const WorkloadIndex& the_index, const Cluster* cluster,
                           Report& report)
    : plan(the_plan),
      index(the_index),
      prologue(std::ssize(the_plan.prologue)),
      period(std::ssize(the_plan.period)),
      layers_(static_cast<std::int64_t>(the_index.layer_count)) {
  Reader reader(*this, report);
  reader.read_blocks();
  reader.read_links(cluster);
  reader.read_outer();
  if (period == 0)
    report.add(5, -1, "has no iteration", "period", "give at least one iteration: a plan repeats its period");
  slots.resize(static_cast<std::size_t>(prologue + period));
  for (std::size_t s = 0; s < slots.size() && !report.full(); ++s)
    reader.read_slot(s, iteration_at(plan, static_cast<std::int64_t>(s)));
}

std::string ResolvedPlan::slot_name(std::size_t slot) const {
  const auto n = static_cast<std::int64_t>(slot);
  if (n < prologue) return "prologue[" + std::to_string(n) + "]";
  return "period[" + std::to_string(n - prologue) + "]";
}

std::string ResolvedPlan::block_name(std::int32_t block) const {
  return "block " + std::to_string(block) + slice_text(plan.blocks[static_cast<std::size_t>(block)]);
}

std::string ResolvedPlan::point_name(const Point& point) const {
  std::string name(name_of(point.kind));
  if (has_layer(point.kind)) name += "(" + std::to_string(point.layer) + ")";
  if (point.iteration != 0)
    name += " of " + std::to_string(-std::int64_t{point.iteration}) + " iterations before";
  return name;
}

ResolvedPlan resolve(const Plan& plan, const WorkloadIndex& index, const Cluster* cluster) {
  Report report;
  ResolvedPlan resolved(plan, index, cluster, report);
  report.throw_first();
  return resolved;
}

}  // namespace gradweave
