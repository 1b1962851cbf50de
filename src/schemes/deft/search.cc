// Beyond the paper: a link need not be drained when an iteration ends. An op that starts late is carried into
// the next iteration, so that a link is idle only while no gradient is left to send.
//
// A generation is frozen in some iteration s and all of its pieces are placed at once, on links that are free
// from e(k) on; it is complete in the iteration m in which its last op ends, and applied at the end of m. The
// next one may be frozen in m (then at most two generations of a block are alive: the complete one and the
// new one). The search keeps, for each number of generations, the kBeam states (m, e) that are furthest
// ahead, and closes a cycle of m + 1 iterations by letting the next generation begin with iteration m + 1, on
// links that are free. The cycle with the most updates per iteration wins; then the shortest.
#include <algorithm>
#include <numeric>

#include "schemes/deft/deft.h"
#include "solve/knapsack.h"

namespace gradweave {
namespace {

constexpr std::size_t kBeam = 12;
constexpr std::int64_t kLongestCycle = 48;  // iterations, unless one generation takes longer
constexpr std::size_t kMostPieces = 512;
constexpr std::size_t kMostPlacedPieces = 6'000;  // per beam state, over the whole search

// Places every piece of a generation: the knapsacks are the links until the end of some iteration.
struct Placed {
  std::vector<DeftOp> ops;        // start counted from iteration 0
  std::vector<Nanoseconds> free;  // per link, counted from iteration 0
  std::int64_t complete = 0;      // m
  std::ptrdiff_t parent = -1;     // index of the state before it
  Nanoseconds busy_until() const { return std::accumulate(free.begin(), free.end(), Nanoseconds{0}); }
};

class CarrySearch {
 public:
  explicit CarrySearch(const DeftProblem& problem) : problem_(problem) {}

  DeftSchedule run() {
    const std::size_t n = problem_.pieces.size();
    if (n == 0 || n > kMostPieces || problem_.iteration == 0) return {};
    if (problem_.least_iterations() > kMostIterationsPerGeneration) return {};
    std::vector<std::size_t> level = expand(-1);
    std::int64_t generations = 1;
    while (!level.empty()) {
      for (const std::size_t state : level) consider(state, generations);
      const std::int64_t longest = std::max(kLongestCycle, 2 * states_[0].complete + 2);
      if (static_cast<std::size_t>(generations) * n > kMostPlacedPieces) break;
      std::vector<std::size_t> next;
      for (const std::size_t state : level) {
        if (states_[state].complete + 1 >= longest) continue;
        const std::vector<std::size_t> grown = expand(static_cast<std::ptrdiff_t>(state));
        next.insert(next.end(), grown.begin(), grown.end());
      }
      keep_best(next);
      level = std::move(next);
      ++generations;
    }
    return cycle();
  }

 private:
  // Adds the states that follow `parent` (-1: the start) and returns their indices.
  std::vector<std::size_t> expand(std::ptrdiff_t parent) {
    std::vector<Nanoseconds> free(problem_.links.size(), 0);
    Nanoseconds origin = 0;
    if (parent >= 0) {
      free = states_[static_cast<std::size_t>(parent)].free;
      origin = states_[static_cast<std::size_t>(parent)].complete * problem_.iteration;
    }
    std::vector<Nanoseconds> ready;
    for (const DeftPiece& piece : problem_.pieces) ready.push_back(parent < 0 ? 0 : origin + piece.ready);
    for (Nanoseconds& each : free) each = std::max(each, origin);
    std::vector<std::size_t> added;
    for (Placed placed : {by_finish(ready, free), by_deadline(ready, free)}) {
      if (placed.ops.empty()) continue;
      placed.parent = parent;
      const Nanoseconds end = std::ranges::max(placed.free);
      placed.complete = std::max(end - 1, origin) / problem_.iteration;
      if (parent >= 0)
        placed.complete = std::max(placed.complete, states_[static_cast<std::size_t>(parent)].complete + 1);
      added.push_back(states_.size());
      states_.push_back(std::move(placed));
    }
    return added;
  }

  // Longest first, each piece on the link whose contents then end first.
  Placed by_finish(const std::vector<Nanoseconds>& ready, const std::vector<Nanoseconds>& free) const {
    std::vector<KnapsackSchedule> schedules;
    schedules.reserve(free.size());
    for (const Nanoseconds open : free) schedules.emplace_back(Knapsack{open, kNever});
    for (std::size_t p = 0; p < problem_.pieces.size(); ++p) {
      std::size_t best = 0;
      Nanoseconds best_end = kNever;
      for (std::size_t k = 0; k < schedules.size(); ++k) {
        const Nanoseconds end = schedules[k].end_with({ready[p], problem_.pieces[p].time[k], p});
        if (end < best_end) {
          best = k;
          best_end = end;
        }
      }
      schedules[best].insert({ready[p], problem_.pieces[p].time[best], p});
    }
    return placed(schedules);
  }

  // Each link filled, smallest knapsack first, until the end of the first iteration that holds everything:
  // the slow links to the brim, the fastest with what is left.
  Placed by_deadline(const std::vector<Nanoseconds>& ready, const std::vector<Nanoseconds>& free) const {
    std::vector<KnapsackItem> items;
    Nanoseconds work = 0;
    for (std::size_t p = 0; p < problem_.pieces.size(); ++p) {
      items.push_back({problem_.value(p), ready[p], problem_.pieces[p].time});
      work += problem_.value(p);
    }
    const std::int64_t first = std::ranges::max(free) / problem_.iteration;
    const std::int64_t links = static_cast<std::int64_t>(free.size());
    const std::int64_t earliest = first + work / problem_.iteration / links;
    for (std::int64_t m = earliest; m <= earliest + 3; ++m) {
      std::vector<Knapsack> knapsacks;
      knapsacks.reserve(free.size());
      for (const Nanoseconds open : free) knapsacks.push_back({open, (m + 1) * problem_.iteration});
      const Placement placement = fill_greedy(items, knapsacks);
      if (std::ranges::find(placement, kLeftOut) != placement.end()) continue;
      std::vector<KnapsackSchedule> schedules;
      schedules.reserve(free.size());
      for (const Knapsack& knapsack : knapsacks) schedules.emplace_back(knapsack);
      for (std::size_t i = 0; i < items.size(); ++i) {
        const auto k = static_cast<std::size_t>(placement[i]);
        schedules[k].insert({items[i].ready, items[i].time[k], i});
      }
      return placed(schedules);
    }
    return {};
  }

  static Placed placed(const std::vector<KnapsackSchedule>& schedules) {
    Placed result;
    for (std::size_t k = 0; k < schedules.size(); ++k) {
      Nanoseconds now = schedules[k].knapsack().open;
      for (const KnapsackSchedule::Entry& entry : schedules[k].entries()) {
        const Nanoseconds start = std::max(now, entry.ready);
        result.ops.push_back(
            {static_cast<std::int32_t>(entry.item), static_cast<std::int32_t>(k), start, {}});
        now = start + entry.time;
      }
      result.free.push_back(now);
    }
    return result;
  }

  // Keeps the kBeam states that are complete first and leave the links free earliest.
  void keep_best(std::vector<std::size_t>& level) const {
    std::ranges::stable_sort(
        level, {}, [&](std::size_t s) { return std::pair(states_[s].complete, states_[s].busy_until()); });
    const auto same = [&](std::size_t a, std::size_t b) {
      return states_[a].complete == states_[b].complete && states_[a].free == states_[b].free;
    };
    level.erase(std::unique(level.begin(), level.end(), same), level.end());
    if (level.size() > kBeam) level.resize(kBeam);
  }

  void consider(std::size_t state, std::int64_t generations) {
    const std::int64_t length = states_[state].complete + 1;
    // generations / length against best_generations_ / best_length_, exactly.
    const std::int64_t ours = generations * best_length_;
    const std::int64_t best = best_generations_ * length;
    if (ours < best || (ours == best && length >= best_length_)) return;
    best_state_ = static_cast<std::ptrdiff_t>(state);
    best_generations_ = generations;
    best_length_ = length;
  }

  // The best cycle as a schedule. Its first generation holds the iterations since the last one was frozen, of
  // the turn before; in the first turn those that don't exist are left out, so that no prologue is needed.
  DeftSchedule cycle() const {
    DeftSchedule schedule;
    if (best_state_ < 0) return schedule;
    schedule.period.resize(static_cast<std::size_t>(best_length_));
    for (std::ptrdiff_t s = best_state_; s >= 0; s = states_[static_cast<std::size_t>(s)].parent) {
      const Placed& state = states_[static_cast<std::size_t>(s)];
      const Generation generation = merged_by(state);
      for (DeftOp op : state.ops) {
        const std::int64_t iteration = std::min(op.start / problem_.iteration, state.complete);
        op.start -= iteration * problem_.iteration;
        op.generation = {generation.first - iteration, generation.last - iteration};
        schedule.period[static_cast<std::size_t>(iteration)].ops.push_back(op);
      }
      schedule.period[static_cast<std::size_t>(state.complete)].applied =
          Generation{generation.first - state.complete, generation.last - state.complete};
    }
    return schedule;
  }

  // The iterations whose gradients the state's generation merges, counted from the start of the cycle.
  Generation merged_by(const Placed& state) const {
    if (state.parent < 0) {
      const Placed& last = states_[static_cast<std::size_t>(best_state_)];
      const std::int64_t frozen =
          last.parent < 0 ? -1 : states_[static_cast<std::size_t>(last.parent)].complete;
      return {frozen + 1 - best_length_, -1};
    }
    const Placed& before = states_[static_cast<std::size_t>(state.parent)];
    const std::int64_t frozen =
        before.parent < 0 ? -1 : states_[static_cast<std::size_t>(before.parent)].complete;
    return {frozen + 1, before.complete};
  }

  static constexpr Nanoseconds kNever = Nanoseconds{1} << 60;

  const DeftProblem& problem_;
  std::vector<Placed> states_;
  std::ptrdiff_t best_state_ = -1;
  std::int64_t best_generations_ = 0;
  std::int64_t best_length_ = 1;
};

}  // namespace

DeftSchedule deft_search(const DeftProblem& problem) { return CarrySearch(problem).run(); }

}  // namespace gradweave
