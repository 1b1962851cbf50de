#include "simulate/resolved.h"

#include <algorithm>
#include <optional>
#include <string>
#include <unordered_map>

#include "gradweave/error.h"

namespace gradweave {
namespace {

// Absurd plans are refused rather than unrolled.
constexpr std::int32_t kMaxReach = 1'000'000;
constexpr std::int64_t kMaxUnrolled = 20'000'000;  // items; some 32 bytes each

class Resolver {
 public:
  Resolver(const Plan& plan, const CostModel& model)
      : plan_(plan),
        index_(model.index()),
        model_(model),
        layers_(static_cast<std::int32_t>(model.index().layer_count)) {}

  ResolvedPlan resolve() {
    if (plan_.period.empty())
      throw InvalidInput("must have at least one iteration", "period", "make the plan again");
    resolved_.prologue = std::ssize(plan_.prologue);
    resolved_.period = std::ssize(plan_.period);
    for (const PlanLink& link : plan_.links) add_link(link);
    for (const Block& block : plan_.blocks) add_block(block);
    for (std::int64_t i = 0; i < listed(); ++i) add_iteration(i);
    check_size();
    return std::move(resolved_);
  }

 private:
  std::int64_t listed() const { return resolved_.prologue + resolved_.period; }

  void add_link(const PlanLink& link) {
    const std::string where = "links[" + std::to_string(links_.size()) + "]";
    const std::optional<std::size_t> found = find_link(model_.cluster(), link.name);
    if (!found)
      throw InvalidInput("the cluster has no link '" + link.name + "'", where, "use the cluster's names");
    if (!links_.emplace(link.name, static_cast<std::int32_t>(links_.size())).second) {
      throw InvalidInput("repeats the link '" + link.name + "'", where, "list each link once");
    }
    if (link.concurrency < 0)
      throw InvalidInput("must not be negative", where + ".concurrency", "0 means unlimited");
    resolved_.concurrency.push_back(link.concurrency);
    cluster_link_.push_back(*found);
  }

  void add_block(const Block& block) {
    const std::string where = "blocks[" + std::to_string(resolved_.slices.size()) + "]";
    const std::optional<std::size_t> tensor = index_.find_tensor(block.tensor);
    if (!tensor)
      throw InvalidInput("the workload has no tensor '" + block.tensor + "'", where, "make the plan again");
    if (block.begin < 0 || block.end < block.begin || block.end > index_.tensors[*tensor].numel) {
      throw InvalidInput("is not an interval of tensor '" + block.tensor + "'", where,
                         "use 0 <= begin < end <= " + std::to_string(index_.tensors[*tensor].numel));
    }
    resolved_.slices.push_back({*tensor, block.begin, block.end});
  }

  void add_iteration(std::int64_t i) {
    const std::string name = i < resolved_.prologue ? "prologue[" + std::to_string(i)
                                                    : "period[" + std::to_string(i - resolved_.prologue);
    const Iteration& iteration = iteration_at(plan_, i);
    std::vector<ResolvedOp>& ops = resolved_.ops.emplace_back();
    for (const Op& op : iteration.ops) {
      ops.push_back(resolve(op, name + "].ops[" + std::to_string(ops.size()) + "]"));
    }
    for (std::size_t a = 0; a < iteration.applies.size(); ++a) {
      check(iteration.applies[a], name + "].applies[" + std::to_string(a) + "]");
    }
  }

  ResolvedOp resolve(const Op& op, const std::string& where) {
    const auto link = links_.find(op.link);
    if (link == links_.end()) {
      throw InvalidInput("the plan has no link '" + op.link + "'", where + ".link",
                         "use one of the plan's links");
    }
    check_blocks(op.blocks, where);
    check_merges(op.merges, where);
    check_point(op.release.point, where + ".release");
    if (op.release.delay_ns < 0 || op.release.delay_ns > kMaxPlanTime) {
      throw InvalidInput("must be between 0 and 2^60 ns", where + ".release.delay",
                         "give a time of 0 or more");
    }
    note_reach(op.merges, op.release.point);
    message_.clear();
    for (const std::int32_t block : op.blocks) message_.push_back(resolved_.slice(block));
    ResolvedOp resolved{.link = link->second, .first_layer = layers_ - 1};
    for (const Slice& slice : message_) {
      resolved.first_layer =
          std::min(resolved.first_layer, static_cast<std::int32_t>(index_.tensors[slice.tensor].layer));
    }
    resolved.cost = model_.cost(cluster_link_[static_cast<std::size_t>(resolved.link)], op.collective,
                                message_, op.compression);
    return resolved;
  }

  void check(const Apply& apply, const std::string& where) {
    check_blocks(apply.blocks, where);
    check_merges(apply.merges, where);
    check_point(apply.at, where + ".at");
    if (apply.at.kind != PointKind::kIterationEnd && apply.at.kind != PointKind::kForwardStart &&
        apply.at.kind != PointKind::kBackwardEnd) {
      throw InvalidInput("is not a point at which results are applied", where + ".at",
                         "use iteration_end, forward_start or backward_end");
    }
    if (apply.at.iteration != 0)
      throw InvalidInput("must be 0", where + ".at.iteration", "list it where it happens");
    note_reach(apply.merges, {});
  }

  void check_point(const Point& point, const std::string& where) const {
    const bool has_layer = point.kind == PointKind::kForwardStart || point.kind == PointKind::kForwardEnd ||
                           point.kind == PointKind::kBackwardEnd;
    if (has_layer && (point.layer < 0 || point.layer >= layers_)) {
      throw InvalidInput("the workload has no layer " + std::to_string(point.layer), where + ".layer",
                         "use 0 to " + std::to_string(layers_ - 1));
    }
    if (point.iteration > 0 || point.iteration < -kMaxReach) {
      throw InvalidInput("must be between -1000000 and 0", where + ".iteration",
                         "name an earlier iteration or this one");
    }
  }

  void check_merges(const std::vector<std::int32_t>& merges, const std::string& where) const {
    for (const std::int32_t merge : merges) {
      if (merge > 0 || merge < -kMaxReach) {
        throw InvalidInput("must be between -1000000 and 0", where + ".merges",
                           "name earlier iterations or this one");
      }
    }
  }

  void check_blocks(const std::vector<std::int32_t>& blocks, const std::string& where) const {
    for (const std::int32_t block : blocks) {
      if (block < 0 || static_cast<std::size_t>(block) >= plan_.blocks.size()) {
        throw InvalidInput("the plan has no block " + std::to_string(block), where + ".blocks",
                           "use indices into the plan's blocks");
      }
    }
  }

  // iteration_start(n) is iteration_end(n - 1), hence one iteration further back.
  void note_reach(const std::vector<std::int32_t>& merges, const Point& release) {
    for (const std::int32_t merge : merges) resolved_.reach = std::max(resolved_.reach, -merge);
    resolved_.reach = std::max(resolved_.reach, 1 - release.iteration);
  }

  void check_size() const {
    std::int64_t prologue_items = 0, period_items = 0;
    for (std::int64_t i = 0; i < listed(); ++i) {
      const Iteration& iteration = iteration_at(plan_, i);
      std::int64_t& items = i < resolved_.prologue ? prologue_items : period_items;
      items += 1;
      for (const Op& op : iteration.ops)
        items += 1 + static_cast<std::int64_t>(op.blocks.size() * op.merges.size());
      for (const Apply& apply : iteration.applies) {
        items += 1 + static_cast<std::int64_t>(apply.blocks.size() * apply.merges.size());
      }
    }
    const std::int64_t iterations = resolved_.head() + resolved_.period + resolved_.reach;
    if (iterations / resolved_.period + 1 > kMaxUnrolled / period_items || prologue_items > kMaxUnrolled) {
      throw InvalidInput(
          "the plan is too long, or its merges and releases reach too far back, to be simulated", "period",
          "use a shorter period");
    }
  }

  const Plan& plan_;
  const WorkloadIndex& index_;
  const CostModel& model_;
  const std::int32_t layers_;
  ResolvedPlan resolved_;
  std::unordered_map<std::string, std::int32_t> links_;
  std::vector<std::size_t> cluster_link_;  // per plan link
  std::vector<Slice> message_;
};

}  // namespace

ResolvedPlan resolve(const Plan& plan, const CostModel& model) { return Resolver(plan, model).resolve(); }

bool exists(const std::vector<std::int32_t>& merges, std::int64_t n) {
  return !merges.empty() && n + *std::ranges::max_element(merges) >= 0;
}

}  // namespace gradweave
