// DeFT: delayed updates, so that all communication is hidden at any coverage rate.
//
// L. Meng, Y. Sun, "DeFT: Mitigating Data Dependencies for Flexible Communication Scheduling in Distributed
// Training", 2025.
//
//   paper              here
//   F_k, B_k           forward_ns, backward_ns of a layer; T_f, T_b their sums
//   C_k                DeftPiece::time, on each link; "bucket k" is a piece
//   mu                 time on the slow link / time on the fast one, from each link's own cost
//   CurrentTaskList    Queues::left_, pieces of the generation being sent
//   FutureTaskList     the iterations whose gradients wait, all pieces of them
//   generation         the set of iterations merged before one reduction and one update
//
// Coverage rate CR = sum C / (T_f + T_b). Problem 2: maximise sum_{i,j} c_j x_ij subject to
// sum_j c_ij x_ij <= T_i; here link i is a knapsack of T_f or T_b, and a piece lasts its own time on it.
// Algorithm 1 with every release enforced: for each selected k, sum over the selected j <= k of C_j fits into
// sum_{i<k} B_i, what is left of the backward when bucket k's gradient exists.
// Algorithm 2, corrected, at iteration n, with G = merge(Future, {n}):
//   Case 1      forward: send what fits of Current
//   Case 2      backward, Current does not fit T_b: send what fits; Future = G
//   Cases 3, 4  backward, Current fits or is sent already: send order2 out of G in the time that is left; the
//               generation that is now complete is applied at iteration_end; Current = G - order2;
//               Future = {}
// Every gradient of every iteration is reduced once; at most two generations of a block are alive.
// Updates per iteration <= min(1, sum_i (T_f + T_b) / C_i), C_i the time of all pieces on link i.
//
// Complexity: O(pieces * links) per iteration until the state of the queues repeats.
//
// Deviations from the paper:
//  1. Algorithm 2 as printed reduces Case 4's gradients twice, never updates there and loses the gradients of
//     Case 3. No update happens at the very first Case 4.
//  2. Algorithm 1's T_{N-1} is the backward time B_{N-1}; every selected piece is held to its release, not
//     the first alone.
//  3. Case 3's remaining time is exact for each link: a link goes on from forward to backward without being
//     drained, and order2 starts on it when its own share of order1 ends.
//  4. Capacities {T, mu T} hold for times of the slow link only. Each piece has its time on each link;
//     several links of any ratio; the number of links in use is the one with the most updates.
//  5. A generation sent whole in its own iteration is applied there, without delay.
//  6. A delay is taken only where it gains: if the best plan without delay is as fast (0.1 %), that is the
//     plan.
//  7. merge=mean by default: at the learning rates measured the sum, which is the authors' code, diverges
//     with momentum (docs/schemes/deft.md). The optimizer does not step in an iteration without an update.
//  8. solver=search carries ops across the ends of iterations (search.cc).
#include "schemes/deft/deft.h"

#include <algorithm>
#include <cmath>

#include "gradweave/error.h"
#include "schemes/option_table.h"
#include "schemes/registry.h"

namespace gradweave {
namespace {

// A plan without delay that is at most this much slower than compute alone is taken instead.
constexpr Nanoseconds kAsFastPerMille = 1;
constexpr Nanoseconds kStartupsPerForward = 10;
constexpr std::size_t kMostListed = 50'000'000;
constexpr Nanoseconds kNoLimit = Nanoseconds{1} << 62;

enum class DeftSolver : std::uint8_t { kGreedy, kExact, kSearch };

struct DeftOptions {
  std::optional<double> max_block_us;  // the paper: forward time / mu
  std::optional<Merge> merge;
  Correction correction = Correction::kNone;
  DeftSolver solver = DeftSolver::kGreedy;
  Compression compression;

  std::optional<Nanoseconds> max_block() const {
    if (!max_block_us) return std::nullopt;
    return std::llround(*max_block_us * 1000);
  }
  bool corrects_locally() const { return correction == Correction::kLocal; }
  // A correction adds what each local step lacked, which is a sum.
  Merge merged_by() const { return merge.value_or(corrects_locally() ? Merge::kSum : Merge::kMean); }
};

void check_deft(const DeftOptions& options) {
  if (options.corrects_locally() && options.merge == Merge::kMean) {
    throw InvalidInput(
        "correction=local adds what each local step lacked, which is a sum over the generation",
        "option merge of deft", "leave merge out, or set merge=sum");
  }
}

// A problem with its best schedule.
struct Candidate {
  DeftProblem problem;
  DeftSchedule schedule;
};

// Whether `a` makes more updates per iteration than `b`; then less delay.
bool better(const DeftSchedule& a, const DeftSchedule& b) {
  const std::int64_t rate_a = a.updates() * static_cast<std::int64_t>(b.period.size());
  const std::int64_t rate_b = b.updates() * static_cast<std::int64_t>(a.period.size());
  if (rate_a != rate_b) return rate_a > rate_b;
  return a.updates() > 0 && a.mean_delay() < b.mean_delay();
}

// Carried ops compete on serial links alone: where ops share a link, one that is carried slows down those
// that must end by the iteration's end.
DeftSchedule solve(const DeftProblem& problem, DeftSolver solver) {
  if (solver == DeftSolver::kGreedy) return deft_knapsacks(problem, DeftFill::kGreedy);
  if (solver == DeftSolver::kExact) return deft_knapsacks(problem, DeftFill::kExact);
  DeftSchedule best = deft_knapsacks(problem, DeftFill::kGreedy);
  const auto consider = [&](DeftSchedule other) {
    if (best.updates() == 0 || better(other, best)) best = std::move(other);
  };
  consider(deft_knapsacks(problem, DeftFill::kExact));
  if (problem.serial || best.updates() == 0) consider(deft_search(problem));
  return best;
}

// Whether the plan would list more than kMostListed merged gradients, block by block: nobody could run or
// simulate it.
bool too_long(const DeftProblem& problem, const DeftSchedule& schedule) {
  std::size_t blocks = 0;
  for (const DeftPiece& piece : problem.pieces) blocks += piece.message.slices.size();
  std::int64_t longest = 1;
  for (const DeftIteration& iteration : schedule.period) {
    if (iteration.applied)
      longest = std::max(longest, iteration.applied->last - iteration.applied->first + 1);
  }
  const std::size_t iterations = schedule.prologue.size() + schedule.period.size();
  return blocks * iterations * static_cast<std::size_t>(longest) > kMostListed;
}

// The best over the number of links in use; nothing if no number yields an update.
std::optional<Candidate> best_candidate(const CostModel& model, std::optional<Nanoseconds> limit,
                                        DeftSolver solver) {
  std::optional<Candidate> best;
  for (std::size_t count = 1; count <= model.link_count(); ++count) {
    std::optional<DeftProblem> problem = deft_problem(model, count, limit);
    if (!problem) continue;
    DeftSchedule schedule = solve(*problem, solver);
    if (schedule.updates() == 0 || too_long(*problem, schedule)) continue;
    if (best && !better(schedule, best->schedule)) continue;
    best = Candidate{std::move(*problem), std::move(schedule)};
  }
  return best;
}

// Without a limit asked for: the paper's, or an iteration's time where that updates more often (a short
// forward). Ops that last longer than an iteration where neither updates, or start-ups take much of a
// forward.
std::optional<Candidate> solve_all(const CostModel& model, const DeftOptions& options) {
  if (options.max_block_us) return best_candidate(model, options.max_block(), options.solver);
  std::optional<Candidate> best = best_candidate(model, std::nullopt, options.solver);
  const auto consider = [&](Nanoseconds limit, DeftSolver solver) {
    std::optional<Candidate> other = best_candidate(model, limit, solver);
    if (!best || (other && better(other->schedule, best->schedule))) best = std::move(other);
  };
  consider(model.index().compute_total, options.solver);
  const Nanoseconds startup = std::ranges::min(model.cluster().links, {}, &Link::startup_ns).startup_ns;
  if (!best || startup >= model.index().forward_total / kStartupsPerForward)
    consider(kNoLimit, DeftSolver::kSearch);
  return best;
}

std::vector<std::int32_t> merges_of(Generation generation) {
  std::vector<std::int32_t> merges;
  for (std::int64_t i = generation.first; i <= generation.last; ++i)
    merges.push_back(static_cast<std::int32_t>(i));
  return merges;
}

// Turns a schedule into a plan.
class Writer {
 public:
  Writer(const CostModel& model, const DeftProblem& problem, const DeftOptions& options)
      : problem_(problem), options_(options), plan_(new_plan(model, 0)) {
    plan_.merge = options.merged_by();
    for (const DeftPiece& piece : problem.pieces)
      blocks_.push_back(add_blocks(plan_, model, piece.message.slices));
    for (std::size_t b = 0; b < plan_.blocks.size(); ++b) all_.push_back(static_cast<std::int32_t>(b));
  }

  Plan write(const DeftSchedule& schedule) {
    for (const DeftIteration& iteration : schedule.prologue) plan_.prologue.push_back(written(iteration));
    for (const DeftIteration& iteration : schedule.period) plan_.period.push_back(written(iteration));
    return std::move(plan_);
  }

 private:
  Iteration written(const DeftIteration& iteration) const {
    Iteration result;
    std::vector<DeftOp> ops = iteration.ops;
    std::ranges::stable_sort(ops, {}, [&](const DeftOp& op) {
      const DeftPiece& piece = problem_.pieces[static_cast<std::size_t>(op.piece)];
      return std::tuple(op.start, op.link, piece.time[static_cast<std::size_t>(op.link)]);
    });
    for (const DeftOp& op : ops) result.ops.push_back(written(op));
    const Point end{.kind = PointKind::kIterationEnd};
    if (iteration.applied) {
      result.applies.push_back({.at = end, .blocks = all_, .merges = merges_of(*iteration.applied)});
      if (options_.corrects_locally()) result.applies.back().correction = Correction::kLocal;
    }
    if (options_.corrects_locally()) {
      result.applies.push_back({.at = end, .blocks = all_, .merges = {0}, .source = Source::kLocalGradient});
    }
    return result;
  }

  Op written(const DeftOp& op) const {
    const auto piece = static_cast<std::size_t>(op.piece);
    Op result{.link = plan_.links[problem_.links[static_cast<std::size_t>(op.link)]].name};
    result.blocks = blocks_[piece];
    result.merges = merges_of(op.generation);
    if (op.generation.last == 0) {
      result.release.point = {.kind = PointKind::kBackwardEnd, .layer = problem_.pieces[piece].layer};
    }
    return result;
  }

  const DeftProblem& problem_;
  const DeftOptions& options_;
  Plan plan_;
  std::vector<std::vector<std::int32_t>> blocks_;  // per piece
  std::vector<std::int32_t> all_;
};

struct PromptCandidate {
  DeftProblem problem;
  DeftPrompt prompt;
};

// The fastest schedule without delay: with the pieces of the limit, with whole tensors fused, with each
// tensor by itself; over the number of links in use.
PromptCandidate best_prompt(const CostModel& model, std::optional<Nanoseconds> limit) {
  std::optional<PromptCandidate> best;
  const auto consider = [&](std::size_t count, std::optional<Nanoseconds> each, DeftFusion fusion) {
    std::optional<DeftProblem> problem = deft_problem(model, count, each, fusion);
    if (!problem) return;
    DeftPrompt prompt = deft_prompt(model, *problem);
    if (!best || prompt.iteration < best->prompt.iteration)
      best = PromptCandidate{std::move(*problem), std::move(prompt)};
  };
  for (std::size_t count = 1; count <= model.link_count(); ++count) {
    consider(count, limit, DeftFusion::kOn);
    consider(count, kNoLimit, DeftFusion::kOn);
    consider(count, kNoLimit, DeftFusion::kOff);
  }
  return std::move(*best);
}

// Why nothing is updated under the max_block_us that was asked for.
Infeasible infeasible(const CostModel& model, const DeftOptions& options) {
  const std::optional<DeftProblem> problem = deft_problem(model, model.link_count(), options.max_block());
  if (!problem) {
    return {
        "nothing can be sent: max_block_us is shorter than an op of one element, or cuts the model into more "
        "than " +
        std::to_string(kMaxDeftPieces) + " pieces. Raise max_block_us or leave it out"};
  }
  if (problem->least_iterations() > kMostIterationsPerGeneration) {
    return {"the links need more than " + std::to_string(std::lround(kMostIterationsPerGeneration)) +
            " iterations for one update. Leave max_block_us out for a plan without delay"};
  }
  const auto us = [](Nanoseconds ns) { return std::to_string(ns / 1000) + " us"; };
  const WorkloadIndex& index = model.index();
  return {"nothing would ever be updated: no knapsack holds every piece; the longest (" +
          index.tensor_names[problem->pieces[0].message.slices[0].tensor] + ") lasts " +
          us(problem->value(0)) + ", forward " + us(index.forward_total) + ", backward " +
          us(index.backward_total) + ". Lower max_block_us or leave it out, or set solver=search"};
}

PlanResult plan_deft(const Workload& workload, const Cluster& cluster, const DeftOptions& options) {
  const CostModel model(workload, cluster, options.compression);
  const Nanoseconds compute = model.index().compute_total;
  const Nanoseconds as_fast = compute + compute / 1000 * kAsFastPerMille;
  const auto prompt_plan = [&](const PromptCandidate& best) {
    return deft_prompt_plan(model, best.problem, best.prompt);
  };
  // No plan without delay is faster than the links.
  if (deft_problem(model, model.link_count(), kNoLimit)->least_iterations() < 1.01) {
    const PromptCandidate best = best_prompt(model, options.max_block());
    if (best.prompt.iteration <= as_fast) return prompt_plan(best);
  }
  const std::optional<Candidate> delayed = solve_all(model, options);
  if (delayed) return Writer(model, delayed->problem, options).write(delayed->schedule);
  if (options.max_block_us) return infeasible(model, options);
  return prompt_plan(best_prompt(model, options.max_block()));
}

}  // namespace

std::int64_t DeftSchedule::updates() const {
  return std::ranges::count_if(period,
                               [](const DeftIteration& iteration) { return iteration.applied.has_value(); });
}

double DeftSchedule::mean_delay() const {
  std::int64_t delay = 0;
  std::int64_t gradients = 0;
  for (const DeftIteration& iteration : period) {
    if (!iteration.applied) continue;
    const auto [first, last] = *iteration.applied;
    gradients += last - first + 1;
    delay += -(first + last) * (last - first + 1) / 2;
  }
  return gradients == 0 ? 0 : static_cast<double>(delay) / static_cast<double>(gradients);
}

SchemeInfo deft_scheme() {
  return scheme_row<DeftOptions>(
      {.name = "deft",
       .summary = "delayed updates: generations of gradients fill the links, nothing waits",
       .paper = "DeFT, 2025",
       .effect = Effect::kDelayed},
      {option(&DeftOptions::max_block_us,
              {.name = "max_block_us",
               .unit = Unit::kMicroseconds,
               .default_source = "DeFT III.D: the smallest knapsack, forward time on the slowest link",
               .minimum = 0.001,
               .maximum = 0x1p43,
               .meaning = "no piece takes longer on the fastest link"}),
       option(&DeftOptions::merge, {{"sum", Merge::kSum}, {"mean", Merge::kMean}},
              {.name = "merge",
               .default_source =
                   "mean (DeFT IV.C, diverges less than the authors' sum); sum with correction=local",
               .meaning = "how the iterations of a generation are combined"}),
       option(&DeftOptions::correction, {{"none", Correction::kNone}, {"local", Correction::kLocal}},
              {.name = "correction",
               .default_source = "DeFT",
               .meaning = "local: step with the own gradient at once, add (mean - own) when it arrives"}),
       option(
           &DeftOptions::solver,
           {{"greedy", DeftSolver::kGreedy}, {"exact", DeftSolver::kExact}, {"search", DeftSolver::kSearch}},
           {.name = "solver",
            .default_source = "DeFT III.C",
            .meaning = "how knapsacks are filled; search carries ops across iterations"})},
      plan_deft, check_deft);
}

}  // namespace gradweave
