#include "plan/unrolled.h"

#include <algorithm>
#include <numeric>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "gradweave/compression.h"
#include "model/text.h"
#include "plan/position.h"

namespace gradweave {
namespace {

constexpr std::int64_t kMaxReach = 1'000'000;  // iterations that merges may look back
constexpr double kMaxWork = 2e8;               // (block, gradient) pairs of the unrolled plan
constexpr Nanoseconds kMaxDelay = Nanoseconds{1} << 53;
constexpr std::string_view kPointNames[] = {"iteration_start", "forward_start", "forward_end",
                                            "backward_start",  "backward_end",  "iteration_end"};

bool has_layer(PointKind kind) {
  return kind == PointKind::kForwardStart || kind == PointKind::kForwardEnd ||
         kind == PointKind::kBackwardEnd;
}

}  // namespace

// Reports rule 7 on parts of a plan, each at its place.
class FormCheck {
 public:
  FormCheck(const Unrolled& unrolled, std::int64_t layers, Report& report)
      : unrolled_(unrolled), layers_(layers), report_(report) {}

  void at(std::size_t slot, std::string where) {
    place_ = static_cast<std::int64_t>(slot);
    where_ = std::move(where);
  }
  void fault(std::string what, std::string remedy) {
    report_.add(7, place_, std::move(what), where_, std::move(remedy));
  }

  // Returns the known ones among `blocks`.
  std::vector<std::int32_t> blocks(const std::vector<std::int32_t>& blocks, std::string_view list) {
    std::vector<std::int32_t> known;
    bool in_range = true;
    for (const std::int32_t b : blocks) {
      if (b < 0 || static_cast<std::size_t>(b) >= unrolled_.blocks.size()) {
        in_range = false;
      } else if (unrolled_.blocks[static_cast<std::size_t>(b)].known) {
        known.push_back(b);
      }
    }
    if (!in_range) {
      fault(
          std::string(list) + " names a block that does not exist",
          "use indices from 0 to " + std::to_string(static_cast<std::int64_t>(unrolled_.blocks.size()) - 1));
    }
    return known;
  }

  std::vector<std::int32_t> merges(const std::vector<std::int32_t>& merges) {
    std::vector<std::int32_t> known = merges;
    std::ranges::sort(known);
    known.erase(std::unique(known.begin(), known.end()), known.end());
    if (known != merges || merges.empty() || merges.back() > 0) {
      fault("merges must be relative iterations of 0 or less, sorted, each once",
            merges.empty() ? "name the iterations, [0] for this one"
                           : "an op can only carry what this iteration or an earlier one computed");
      std::erase_if(known, [](std::int32_t m) { return m > 0; });
    }
    if (!known.empty() && known.front() < -kMaxReach) {
      fault("merges looks back more than " + std::to_string(kMaxReach) + " iterations",
            "apply the gradients earlier");
      known.clear();
    }
    return known;
  }

  // Returns the position of the point, or `otherwise` if it has none.
  std::int64_t point(const Point& point, std::int64_t otherwise) {
    if (has_layer(point.kind) && (point.layer < 0 || point.layer >= layers_)) {
      fault("names layer " + std::to_string(point.layer) + " of a workload with " + std::to_string(layers_) +
                " layers",
            "use layers from 0 to " + std::to_string(layers_ - 1));
      return otherwise;
    }
    return position_of(point, layers_);
  }

 private:
  const Unrolled& unrolled_;
  std::int64_t layers_;
  Report& report_;
  std::int64_t place_ = -1;
  std::string where_;
};

namespace {

void check_compression(const Op& op, FormCheck& form) {
  const bool half = op.collective == Collective::kReduceScatter || op.collective == Collective::kAllGather;
  if (!half && (op.collective == Collective::kCompressed) != !op.compression.name.empty()) {
    form.fault("collective 'compressed' and a compression belong together", "give both or neither");
    return;
  }
  if (op.compression.name.empty()) return;
  const auto info = std::ranges::find(compressors(), op.compression.name, &CompressorInfo::name);
  if (info == compressors().end()) {
    form.fault("names the unknown compressor " + in_quotes(op.compression.name),
               "use one that `gradweave schemes` lists");
    return;
  }
  if (half && (info->error_feedback || !info->summable)) {
    form.fault("halves an all-reduce that " + in_quotes(op.compression.name) + " compresses",
               "only casts can be halved");
  }
  for (const auto& [name, value] : op.compression.parameters) {
    const auto parameter = std::ranges::find(info->parameters, name, &CompressorParameter::name);
    const bool fits =
        parameter != info->parameters.end() && value >= parameter->minimum && value <= parameter->maximum;
    if (!fits)
      form.fault("gives the compressor an unknown parameter, or one out of range: " + shortened(name),
                 "correct it");
  }
}

// Returns the index of each link of the plan by its name.
std::unordered_map<std::string_view, std::int32_t> check_links(const Plan& plan, const Cluster* cluster,
                                                               Report& report) {
  std::unordered_set<std::string_view> of_cluster;
  if (cluster != nullptr) {
    for (const Link& link : cluster->links) of_cluster.insert(link.name);
  }
  std::unordered_map<std::string_view, std::int32_t> by_name;
  for (std::size_t k = 0; k < plan.links.size() && !report.full(); ++k) {
    const PlanLink& link = plan.links[k];
    const std::string where = "links[" + std::to_string(k) + "] (" + in_quotes(link.name) + ")";
    if (!by_name.emplace(link.name, static_cast<std::int32_t>(k)).second) {
      report.add(7, -1, "repeats the name of another link", where, "name each link once");
    }
    if (link.concurrency < 0) report.add(7, -1, "has a negative concurrency", where, "0 means unlimited");
    if (cluster != nullptr && !of_cluster.contains(link.name)) {
      report.add(7, -1, "is not a link of the cluster", where,
                 "make the plan for this cluster, or name one of its links");
    }
  }
  return by_name;
}

}  // namespace

void Report::add(int rule, std::int64_t place, std::string what, std::string where, std::string remedy) {
  if (full()) return;
  entries_.push_back({place, {rule, std::move(what), std::move(where), std::move(remedy)}});
}

std::vector<Violation> Report::take() {
  std::ranges::stable_sort(entries_, {}, &Entry::place);
  std::vector<Violation> violations;
  for (Entry& entry : entries_) violations.push_back(std::move(entry.violation));
  return violations;
}

Unrolled::Unrolled(const Plan& the_plan, const WorkloadIndex& the_index, const Cluster* cluster,
                   Report& report)
    : plan(the_plan), index(the_index), layers_(static_cast<std::int64_t>(the_index.layer_count)) {
  prologue = static_cast<std::int64_t>(plan.prologue.size());
  period = static_cast<std::int64_t>(plan.period.size());
  blocks = resolve_blocks(plan, index, report);
  const LinkNumbers links = check_links(plan, cluster, report);
  if (plan.workers < 1) report.add(7, -1, "must be at least 1", "workers", "give the number of workers");
  slots.resize(static_cast<std::size_t>(prologue + period));
  for (std::size_t s = 0; s < slots.size() && !report.full(); ++s) {
    const auto n = static_cast<std::int64_t>(s);
    resolve_slot(s, n < prologue ? plan.prologue[s] : plan.period[index_of(n - prologue)], links, report);
  }
  if (!report.full()) measure(report);
}

KnownOp Unrolled::resolve(const Op& op, const LinkNumbers& links, FormCheck& form) const {
  KnownOp known{.op = &op, .blocks = form.blocks(op.blocks, "blocks"), .merges = form.merges(op.merges)};
  const auto link = links.find(op.link);
  if (link == links.end())
    form.fault("names the unknown link " + in_quotes(op.link), "use one of the plan's links");
  known.link = link == links.end() ? -1 : link->second;
  if (op.blocks.empty()) form.fault("carries no block", "remove it");
  const auto block = [&](std::int32_t b) -> const KnownBlock& { return blocks[static_cast<std::size_t>(b)]; };
  const auto dtype = [&](std::int32_t b) { return index.tensors[block(b).tensor].dtype; };
  if (std::ranges::adjacent_find(known.blocks, std::ranges::not_equal_to{}, dtype) != known.blocks.end()) {
    form.fault("fuses blocks of different dtypes", "give each dtype its own op");
  }
  known.first_layer = static_cast<std::int32_t>(layers_ - 1);
  for (const std::int32_t b : known.blocks) known.first_layer = std::min(known.first_layer, block(b).layer);
  if (op.payload != Payload::kGradient && known.merges.size() > 1) {
    form.fault("reads parameters of several iterations", "name the one iteration whose value is read");
    known.merges.resize(1);
  }
  check_compression(op, form);
  known.release = form.point(op.release.point, iteration_end());
  if (op.release.point.iteration > 0)
    form.fault("is released in an iteration after its own", "list it there");
  if (op.release.delay_ns < 0 || op.release.delay_ns > kMaxDelay)
    form.fault("has a delay out of range", "give 0 or more");
  return known;
}

KnownApply Unrolled::resolve(const Apply& apply, FormCheck& form) const {
  KnownApply known{
      .apply = &apply, .blocks = form.blocks(apply.blocks, "blocks"), .merges = form.merges(apply.merges)};
  known.at = form.point(apply.at, iteration_end());
  if (apply.blocks.empty()) form.fault("applies no block", "remove it");
  if (apply.at.iteration != 0) form.fault("is at a point of another iteration", "list it there");
  const PointKind kind = apply.at.kind;
  if (kind != PointKind::kIterationEnd && kind != PointKind::kForwardStart &&
      kind != PointKind::kBackwardEnd) {
    form.fault("is at " + point_name(apply.at), "apply at iteration_end, forward_start or backward_end");
  }
  return known;
}

void Unrolled::resolve_slot(std::size_t slot, const Iteration& iteration, const LinkNumbers& links,
                            Report& report) {
  FormCheck form(*this, layers_, report);
  KnownIteration& known = slots[slot];
  const std::string name = slot_name(slot);
  for (std::size_t k = 0; k < iteration.ops.size() && !report.full(); ++k) {
    form.at(slot, name + ".ops[" + std::to_string(k) + "]");
    known.ops.push_back(resolve(iteration.ops[k], links, form));
  }
  for (std::size_t k = 0; k < iteration.applies.size() && !report.full(); ++k) {
    form.at(slot, name + ".applies[" + std::to_string(k) + "]");
    known.applies.push_back(resolve(iteration.applies[k], form));
  }
  form.at(slot, name);
  known.dropped = form.blocks(iteration.dropped, "dropped");

  known.apply_by_rank.resize(known.applies.size());
  std::iota(known.apply_by_rank.begin(), known.apply_by_rank.end(), 0);
  const auto at = [&](std::int32_t k) { return known.applies[static_cast<std::size_t>(k)].at; };
  std::ranges::stable_sort(known.apply_by_rank, {}, at);
  for (const std::int32_t k : known.apply_by_rank) {
    known.applies[static_cast<std::size_t>(k)].rank = static_cast<std::int64_t>(known.apply_positions.size());
    known.apply_positions.push_back(at(k));
  }
}

void Unrolled::measure(Report& report) {
  if (period == 0) {
    report.add(5, -1, "has no iteration", "period", "a plan repeats at least one iteration for ever");
    return;
  }
  double work = 0;
  double period_work = 0;
  for (std::size_t s = 0; s < slots.size(); ++s) {
    double& total = static_cast<std::int64_t>(s) < prologue ? work : period_work;
    total += 1 + static_cast<double>(slots[s].dropped.size());
    const auto add = [&](const auto& item) {
      total += 1 + static_cast<double>(item.blocks.size()) * static_cast<double>(item.merges.size());
      if (!item.merges.empty()) reach = std::max<std::int64_t>(reach, -item.merges.front());
    };
    std::ranges::for_each(slots[s].ops, add);
    std::ranges::for_each(slots[s].applies, add);
  }
  checked = prologue + reach + period;
  horizon = checked + reach;
  work += period_work * (static_cast<double>(horizon - prologue) / static_cast<double>(period) + 1);
  if (work > kMaxWork) {
    report.add(7, -1,
               "is too large to be checked: unrolled, it has more than 2e8 pairs of block and iteration",
               "period", "use fewer blocks, a shorter period or smaller merges");
    return;
  }
  checkable = true;
  first_op_.assign(1, 0);
  first_apply_.assign(1, 0);
  for (std::int64_t n = 0; n < horizon; ++n) {
    first_op_.push_back(first_op_.back() + static_cast<std::int64_t>(iteration(n).ops.size()));
    first_apply_.push_back(first_apply_.back() + static_cast<std::int64_t>(iteration(n).applies.size()));
  }
}

std::size_t Unrolled::slot_of(std::int64_t n) const {
  return static_cast<std::size_t>(n < prologue ? n : prologue + (n - prologue) % period);
}

std::int64_t Unrolled::apply_number(std::int64_t n, std::size_t k) const {
  return first_apply_[index_of(n)] + iteration(n).applies[k].rank;
}

std::int64_t Unrolled::applies_before(std::int64_t n, std::int64_t position) const {
  const std::vector<std::int64_t>& at = iteration(n).apply_positions;
  return first_apply_[index_of(n)] + (std::ranges::lower_bound(at, position) - at.begin());
}

std::int64_t Unrolled::applies_until(std::int64_t n, std::int64_t position) const {
  return applies_before(n, position + 1);
}

Unrolled::Place Unrolled::op_place(std::int64_t number) const {
  const std::int64_t n = std::ranges::upper_bound(first_op_, number) - first_op_.begin() - 1;
  return {n, static_cast<std::size_t>(number - first_op_[index_of(n)])};
}

Unrolled::Place Unrolled::apply_place(std::int64_t number) const {
  const std::int64_t n = std::ranges::upper_bound(first_apply_, number) - first_apply_.begin() - 1;
  const std::int64_t rank = number - first_apply_[index_of(n)];
  return {n, static_cast<std::size_t>(iteration(n).apply_by_rank[static_cast<std::size_t>(rank)])};
}

const KnownOp& Unrolled::op(std::int64_t number) const {
  const Place place = op_place(number);
  return iteration(place.iteration).ops[place.item];
}

const KnownApply& Unrolled::apply(std::int64_t number) const {
  const Place place = apply_place(number);
  return iteration(place.iteration).applies[place.item];
}

std::int64_t Unrolled::apply_moment(std::int64_t number) const {
  const Place place = apply_place(number);
  return moment(place.iteration, iteration(place.iteration).applies[place.item].at);
}

std::string Unrolled::slot_name(std::size_t slot) const {
  const auto n = static_cast<std::int64_t>(slot);
  if (n < prologue) return "prologue[" + std::to_string(n) + "]";
  return "period[" + std::to_string(n - prologue) + "]";
}

std::string Unrolled::op_name(std::int64_t number) const {
  const Place place = op_place(number);
  return slot_name(slot_of(place.iteration)) + ".ops[" + std::to_string(place.item) + "]";
}

std::string Unrolled::apply_name(std::int64_t number) const {
  const Place place = apply_place(number);
  return slot_name(slot_of(place.iteration)) + ".applies[" + std::to_string(place.item) + "]";
}

std::string Unrolled::block_name(std::int32_t block) const {
  const Block& named = plan.blocks[static_cast<std::size_t>(block)];
  return "block " + std::to_string(block) + " (" + shortened(named.tensor) + "[" +
         std::to_string(named.begin) + ":" + std::to_string(named.end) + "])";
}

std::string Unrolled::point_name(const Point& point) const {
  std::string name(kPointNames[static_cast<std::size_t>(point.kind)]);
  if (has_layer(point.kind)) name += "(" + std::to_string(point.layer) + ")";
  if (point.iteration != 0)
    name += " of " + std::to_string(-std::int64_t{point.iteration}) + " iterations before";
  return name;
}

}  // namespace gradweave
