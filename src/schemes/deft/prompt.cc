// What DeFT is measured against: no delay, forward overlap. Each link serves the waiting piece that the next
// forward needs first; layer l's forward waits for layer l's own gradients.
#include <algorithm>
#include <numeric>
#include <queue>

#include "schemes/deft/deft.h"

namespace gradweave {
namespace {

// List scheduling: whichever link is free first takes, of the pieces that are ready by then, the one of the
// lowest layer; if none is, the next to be ready. Times from the start of the iteration that computes the
// gradients. O(pieces * (links + log pieces)).
std::vector<DeftService> serve_by_layer(const DeftProblem& problem) {
  const std::size_t n = problem.pieces.size();
  std::vector<std::size_t> coming(n);
  std::iota(coming.begin(), coming.end(), std::size_t{0});
  std::ranges::stable_sort(coming, {}, [&](std::size_t p) { return problem.pieces[p].ready; });
  using Waiting = std::pair<std::int32_t, std::size_t>;  // layer, place in `coming`
  std::priority_queue<Waiting, std::vector<Waiting>, std::greater<>> waiting;
  std::vector<Nanoseconds> free(problem.links.size(), 0);
  std::vector<DeftService> order;
  Nanoseconds now = 0;  // a link that has been free for longer had nothing to serve
  for (std::size_t next = 0; order.size() < n;) {
    // The fastest link is the last: it wins ties.
    std::size_t link = free.size() - 1;
    for (std::size_t k = free.size(); k-- > 0;) link = free[k] < free[link] ? k : link;
    now = std::max(now, free[link]);
    if (waiting.empty()) now = std::max(now, problem.pieces[coming[next]].ready);
    for (; next < n && problem.pieces[coming[next]].ready <= now; ++next) {
      waiting.emplace(problem.pieces[coming[next]].layer, next);
    }
    const std::size_t p = coming[waiting.top().second];
    waiting.pop();
    order.push_back({p, link, now, now + problem.pieces[p].time[link]});
    free[link] = order.back().end;
  }
  return order;
}

}  // namespace

DeftPrompt deft_prompt(const CostModel& model, const DeftProblem& problem) {
  const WorkloadIndex& index = model.index();
  DeftPrompt prompt{.order = serve_by_layer(problem)};
  std::vector<Nanoseconds> arrival(index.layer_count, 0);
  for (const DeftService& service : prompt.order) {
    for (const Slice& slice : problem.pieces[service.piece].message.slices) {
      Nanoseconds& last = arrival[index.tensors[slice.tensor].layer];
      last = std::max(last, service.end - index.compute_total);
    }
  }
  Nanoseconds now = 0;
  for (std::size_t l = 0; l < index.layer_count; ++l) {
    now = std::max(now, arrival[l]) + index.forward_end[l] - index.forward_start[l];
  }
  prompt.iteration = now + index.backward_total;
  return prompt;
}

Plan deft_prompt_plan(const CostModel& model, const DeftProblem& problem, const DeftPrompt& prompt) {
  const WorkloadIndex& index = model.index();
  Plan plan = new_plan(model, 1);
  Iteration& iteration = plan.period[0];
  std::vector<Apply> applies(index.layer_count);
  for (const DeftService& service : prompt.order) {
    const DeftPiece& piece = problem.pieces[service.piece];
    Op op{.link = plan.links[problem.links[service.link]].name, .merges = {0}};
    op.release.point = {.kind = PointKind::kBackwardEnd, .layer = piece.layer};
    op.blocks = add_blocks(plan, model, piece.message.slices);
    for (std::size_t i = 0; i < op.blocks.size(); ++i) {
      applies[index.tensors[piece.message.slices[i].tensor].layer].blocks.push_back(op.blocks[i]);
    }
    iteration.ops.push_back(std::move(op));
  }
  for (std::size_t l = 0; l < index.layer_count; ++l) {
    if (applies[l].blocks.empty()) continue;
    applies[l].at = {.kind = PointKind::kForwardStart, .layer = static_cast<std::int32_t>(l)};
    applies[l].merges = {-1};
    std::ranges::sort(applies[l].blocks);
    iteration.applies.push_back(std::move(applies[l]));
  }
  return plan;
}

}  // namespace gradweave
