// DeFT section III.D: tensors are fused and re-partitioned until every piece fits the smallest knapsack.
#include <algorithm>
#include <cassert>
#include <numeric>

#include "schemes/deft/deft.h"

namespace gradweave {
namespace {

// A fused message is closed once it is so long that start-ups are at most 1/20 of it, and is at least 1/64 of
// all: finer pieces pack no better and cost planning time.
constexpr Nanoseconds kStartupsPerPiece = 20;
constexpr Nanoseconds kPiecesPerModel = 64;

// The cluster's `count` fastest links for this workload's bytes, slowest of them first.
std::vector<std::size_t> fastest_links(const CostModel& model, std::size_t count) {
  const std::vector<Slice> all = tensors_in_backward_order(model);
  std::vector<Nanoseconds> time;
  for (std::size_t k = 0; k < model.link_count(); ++k) time.push_back(model.all_reduce(k, all));
  std::vector<std::size_t> links(model.link_count());
  std::iota(links.begin(), links.end(), std::size_t{0});
  std::ranges::stable_sort(links, {}, [&](std::size_t k) { return time[k]; });
  links.resize(count);
  std::ranges::reverse(links);
  return links;
}

Nanoseconds fusion_target(const CostModel& model, std::size_t link) {
  return std::max(model.cluster().links[link].startup_ns * kStartupsPerPiece,
                  model.all_reduce(link, tensors_in_backward_order(model)) / kPiecesPerModel);
}

// Fuses and cuts tensors to the limit.
class Partition {
 public:
  // Pieces take at most `limit` on link `judge`, and are fused until they take `target` on link `fast`.
  Partition(const CostModel& model, std::size_t fast, std::size_t judge, Nanoseconds target,
            Nanoseconds limit)
      : model_(model), fast_(fast), judge_(judge), target_(target), limit_(limit) {}

  // False if no partition meets the limit.
  bool run(std::vector<Message>& pieces) {
    for (const Slice& slice : tensors_in_backward_order(model_)) {
      const OpCost cost = model_.cost(judge_, Collective::kAllReduce, std::span(&slice, 1));
      if (!open_.slices.empty() && !may_join(slice, cost)) close(pieces);
      if (cost.total() > limit_) {
        close(pieces);
        if (!split(slice, pieces)) return false;
        continue;
      }
      open_.slices.push_back(slice);
      add(open_judge_, cost);
      add(open_fast_, model_.cost(fast_, Collective::kAllReduce, std::span(&slice, 1)));
      if (open_fast_.total() >= target_) close(pieces);
    }
    close(pieces);
    return true;
  }

 private:
  // A fused message takes at most the sum of its parts' work and one start-up.
  static void add(OpCost& sum, OpCost cost) {
    sum.startup = std::max(sum.startup, cost.startup);
    sum.work += cost.work;
  }

  bool may_join(const Slice& slice, OpCost cost) const {
    const auto& tensors = model_.index().tensors;
    if (tensors[slice.tensor].dtype != tensors[open_.slices.back().tensor].dtype) return false;
    add(cost, open_judge_);
    return cost.total() <= limit_;
  }

  void close(std::vector<Message>& pieces) {
    if (!open_.slices.empty()) pieces.push_back(std::move(open_));
    open_ = {};
    open_judge_ = open_fast_ = {};
  }

  // Even parts, as few as the limit allows.
  bool split(const Slice& slice, std::vector<Message>& pieces) const {
    const std::int64_t numel = slice.end - slice.begin;
    const OpCost whole = model_.cost(judge_, Collective::kAllReduce, std::span(&slice, 1));
    if (whole.startup >= limit_) return false;
    const std::int64_t most = std::min<std::int64_t>(numel, kMaxDeftPieces);
    const Nanoseconds room = limit_ - whole.startup;
    for (std::int64_t parts = (whole.work + room - 1) / room; parts <= most; ++parts) {
      const std::vector<Slice> cut = even_parts(slice, parts);
      if (std::ranges::any_of(cut,
                              [&](const Slice& part) { return model_.all_reduce(judge_, part) > limit_; }))
        continue;
      for (const Slice& part : cut) pieces.push_back({{part}});
      return true;
    }
    return false;
  }

  static std::vector<Slice> even_parts(const Slice& slice, std::int64_t parts) {
    const std::int64_t numel = slice.end - slice.begin;
    std::vector<Slice> cut;
    for (std::int64_t p = 0; p < parts; ++p) {
      cut.push_back({slice.tensor, slice.begin + floor_share(numel, p, parts),
                     slice.begin + floor_share(numel, p + 1, parts)});
    }
    return cut;
  }

  const CostModel& model_;
  std::size_t fast_;
  std::size_t judge_;
  Nanoseconds target_;
  Nanoseconds limit_;
  Message open_;
  OpCost open_judge_, open_fast_;
};

}  // namespace

double DeftProblem::least_iterations() const {
  double work = 0;
  std::vector<double> density(links.size(), 0);
  for (std::size_t p = 0; p < pieces.size(); ++p) {
    work += static_cast<double>(value(p));
    for (std::size_t k = 0; k < links.size(); ++k) {
      if (value(p) > 0)
        density[k] =
            std::max(density[k], static_cast<double>(value(p)) / static_cast<double>(pieces[p].time[k]));
    }
  }
  const double capacity =
      static_cast<double>(iteration) * std::accumulate(density.begin(), density.end(), 0.0);
  return work == 0 ? 0 : work / capacity;
}

std::optional<DeftProblem> deft_problem(const CostModel& model, std::size_t link_count,
                                        std::optional<Nanoseconds> limit, DeftFusion fusion) {
  assert(link_count >= 1 && link_count <= model.link_count());
  const WorkloadIndex& index = model.index();
  DeftProblem problem{.forward = index.forward_total,
                      .iteration = index.compute_total,
                      .links = fastest_links(model, link_count)};
  for (const std::size_t link : problem.links) {
    problem.serial = problem.serial && model.cluster().links[link].concurrency == 1;
  }
  const std::size_t fast = problem.links.back();
  const std::size_t judge = limit ? fast : problem.links.front();
  const Nanoseconds target = fusion == DeftFusion::kOff ? 0 : fusion_target(model, fast);
  std::vector<Message> messages;
  if (!Partition(model, fast, judge, target, limit.value_or(index.forward_total)).run(messages))
    return std::nullopt;
  if (messages.size() > kMaxDeftPieces + index.tensors.size()) return std::nullopt;
  for (Message& message : messages) {
    DeftPiece piece{.layer = static_cast<std::int32_t>(last_ready_layer(model, message.slices))};
    piece.ready = index.backward_end[static_cast<std::size_t>(piece.layer)];
    for (const std::size_t link : problem.links) piece.time.push_back(model.all_reduce(link, message.slices));
    piece.message = std::move(message);
    problem.pieces.push_back(std::move(piece));
  }
  std::ranges::stable_sort(problem.pieces, std::greater<>(),
                           [](const DeftPiece& piece) { return piece.time.back(); });
  return problem;
}

}  // namespace gradweave
