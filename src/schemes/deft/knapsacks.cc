// DeFT's Algorithms 1 and 2, corrected (deft.cc says how), run until their state repeats.
#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "schemes/deft/deft.h"
#include "solve/knapsack.h"

namespace gradweave {
namespace {

constexpr std::int64_t kExactNodes = 5'000;  // per knapsack problem
// Without a repeated state for this long, one generation is started an iteration late: that state soon
// repeats.
constexpr std::size_t kIterationsToReset = 128;
constexpr std::size_t kMostIterations = 512;

// The two queues of Algorithm 2, and the step from one iteration to the next.
class Queues {
 public:
  // All that decides the future. Iterations since `sent_until_` wait in the future queue.
  using State = std::tuple<bool, std::int64_t, std::int64_t, std::vector<std::int32_t>>;

  Queues(const DeftProblem& problem, DeftFill fill) : problem_(problem), fill_(fill) {}

  State state() const { return {busy_, busy_ ? current_size_ : 0, waiting_, left_}; }

  // Whether the last step neither sent nor applied anything although every knapsack was empty: it never will.
  bool stuck() const { return stuck_; }

  // `reset`: a generation that would start in the middle of this iteration starts with the next one.
  DeftIteration next(bool reset) {
    DeftIteration iteration;
    std::vector<Nanoseconds> free(problem_.links.size(), 0);
    const Generation current{-waiting_ - current_size_, -waiting_ - 1};
    if (busy_) {
      place_left(current, problem_.forward, free, iteration);    // Case 1
      place_left(current, problem_.iteration, free, iteration);  // order1 of Cases 2 and 3
      if (!left_.empty()) {                                      // Case 2: Future = G
        ++waiting_;
        stuck_ = iteration.ops.empty();
        return iteration;
      }
      iteration.applied = current;
    }
    // Cases 3 and 4: G = merge(Future, new); send order2 of it; Current = G - sent; Future is empty.
    const Generation merged{-waiting_, 0};
    left_.resize(problem_.pieces.size());
    std::iota(left_.begin(), left_.end(), 0);
    if (!reset) place_new(merged, free, iteration);
    current_size_ = waiting_ + 1;
    waiting_ = 0;
    busy_ = true;
    if (left_.empty() && !iteration.applied) {
      iteration.applied = merged;
      busy_ = false;
    }
    return iteration;
  }

 private:
  // Fills [free, close) of each link with pieces of the current queue, whose gradients all exist.
  void place_left(Generation generation, Nanoseconds close, std::vector<Nanoseconds>& free,
                  DeftIteration& iteration) {
    if (left_.empty()) return;
    std::vector<KnapsackItem> items;
    for (const std::int32_t p : left_) items.push_back(item(p, 0));
    const std::vector<Knapsack> knapsacks = windows(free, close);
    send(items, knapsacks, fill(items, knapsacks), generation, free, iteration);
  }

  // Algorithm 1: the best over k of the pieces that are ready from bucket k's backward on. Every piece is
  // held to its own release, so that all of it is hidden.
  void place_new(Generation generation, std::vector<Nanoseconds>& free, DeftIteration& iteration) {
    std::vector<KnapsackItem> items;
    for (const std::int32_t p : left_)
      items.push_back(item(p, problem_.pieces[static_cast<std::size_t>(p)].ready));
    const std::vector<Knapsack> knapsacks = windows(free, problem_.iteration);
    Placement best = fill(items, knapsacks);
    if (fill_ == DeftFill::kGreedy) best = best_suffix(items, knapsacks, std::move(best));
    send(items, knapsacks, best, generation, free, iteration);
  }

  Placement best_suffix(const std::vector<KnapsackItem>& items, const std::vector<Knapsack>& knapsacks,
                        Placement best) const {
    std::vector<Nanoseconds> releases;
    releases.reserve(items.size());
    for (const KnapsackItem& each : items) releases.push_back(each.ready);
    std::ranges::sort(releases);
    releases.erase(std::unique(releases.begin(), releases.end()), releases.end());
    std::int64_t best_value = value_of(items, best);
    for (std::size_t k = 1; k < releases.size(); ++k) {
      std::vector<KnapsackItem> suffix;
      std::vector<std::size_t> origin;
      for (std::size_t i = 0; i < items.size(); ++i) {
        if (items[i].ready < releases[k]) continue;
        suffix.push_back(items[i]);
        origin.push_back(i);
      }
      const Placement placement = fill_greedy(suffix, knapsacks);
      const std::int64_t value = value_of(suffix, placement);
      if (value <= best_value) continue;
      best_value = value;
      best.assign(items.size(), kLeftOut);
      for (std::size_t i = 0; i < suffix.size(); ++i) best[origin[i]] = placement[i];
    }
    return best;
  }

  KnapsackItem item(std::int32_t p, Nanoseconds ready) const {
    const DeftPiece& piece = problem_.pieces[static_cast<std::size_t>(p)];
    return {piece.time.back(), ready, piece.time};
  }

  static std::vector<Knapsack> windows(const std::vector<Nanoseconds>& free, Nanoseconds close) {
    std::vector<Knapsack> knapsacks;
    knapsacks.reserve(free.size());
    for (const Nanoseconds open : free) knapsacks.push_back({open, close});
    return knapsacks;
  }

  Placement fill(const std::vector<KnapsackItem>& items, const std::vector<Knapsack>& knapsacks) const {
    if (fill_ == DeftFill::kGreedy) return fill_greedy(items, knapsacks);
    return fill_exact(items, knapsacks, kExactNodes).placement;
  }

  // Turns a placement into ops, takes their pieces out of left_, moves `free` on.
  void send(const std::vector<KnapsackItem>& items, const std::vector<Knapsack>& knapsacks,
            const Placement& placement, Generation generation, std::vector<Nanoseconds>& free,
            DeftIteration& iteration) {
    for (std::size_t k = 0; k < knapsacks.size(); ++k) {
      KnapsackSchedule schedule(knapsacks[k]);
      for (std::size_t i = 0; i < items.size(); ++i) {
        if (placement[i] == static_cast<std::int32_t>(k))
          schedule.insert({items[i].ready, items[i].time[k], i});
      }
      for (const KnapsackSchedule::Entry& entry : schedule.entries()) {
        const Nanoseconds start = std::max(free[k], entry.ready);
        iteration.ops.push_back({left_[entry.item], static_cast<std::int32_t>(k), start, generation});
        free[k] = start + entry.time;
      }
    }
    std::vector<std::int32_t> left;
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (placement[i] == kLeftOut) left.push_back(left_[i]);
    }
    left_ = std::move(left);
  }

  const DeftProblem& problem_;
  DeftFill fill_;
  bool stuck_ = false;
  bool busy_ = false;               // there is a current queue
  std::vector<std::int32_t> left_;  // its pieces that are not yet sent, longest first
  std::int64_t current_size_ = 0;   // iterations merged in it
  std::int64_t waiting_ = 0;        // iterations merged in the future queue
};

}  // namespace

DeftSchedule deft_knapsacks(const DeftProblem& problem, DeftFill fill) {
  if (problem.least_iterations() > kMostIterationsPerGeneration) return {};
  Queues queues(problem, fill);
  std::map<Queues::State, std::size_t> seen;
  std::vector<DeftIteration> iterations;
  std::size_t next_reset = kIterationsToReset;
  for (;;) {
    const auto [known, fresh] = seen.emplace(queues.state(), iterations.size());
    if (!fresh) {
      const auto cycle = iterations.begin() + static_cast<std::ptrdiff_t>(known->second);
      return {{iterations.begin(), cycle}, {cycle, iterations.end()}};
    }
    iterations.push_back(queues.next(iterations.size() >= next_reset));
    if (queues.stuck() || iterations.size() > kMostIterations) return {};
    if (iterations.size() > next_reset && iterations.back().applied)
      next_reset = iterations.size() + kIterationsToReset;
  }
}

}  // namespace gradweave
