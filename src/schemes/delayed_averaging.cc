// Delayed averaging of parameters: every worker makes its own step in every iteration; parameters are
// averaged in the background, and what a worker has gained meanwhile is kept.
//
// S. Shen et al., "Faster Distributed Deep Net Training: Computation and Communication Decoupled Stochastic
// Gradient Descent" (CoCoD-SGD), IJCAI 2019; J. Wang et al., "Overlap Local-SGD", ICASSP 2020.
//
//   K    period      every block is averaged at least once in K iterations
//   T    compute     time of one iteration's computation
//   c_k  finish      time of a message on link k, the link's own start-up and rate
//   x    parameters after an iteration's local step; x_sent: the copy that was sent
//
//   local step, every iteration:       x <- step(x, own gradient)                       (1)
//   correction, when an average lands: x <- x + mean over workers of x_sent - x_sent    (2)
//   hidden:                            c_k(messages of one slot) <= w T (1 - headroom)  (3)
//
// Link time is cut into slots of w iterations, from one iteration's end to another's. A message is read at
// its slot's begin and applied at its slot's end, so by (3) nobody ever waits, and a block is in flight for
// w iterations.
//   1. K: the smallest for which slots of some w hold the model, by bisection. One slot of K iterations on each
//      link has the fewest start-ups; narrower ones may pack elements that are long better.
//   2. w: the smallest of 1, 2, 4, .. K that holds it too: fewest bytes in flight. w > 1 only where a
//      start-up fills a large part of T.
//   3. The smallest tensors, up to `frequent_share` of the bytes, get periods of their own, the smallest
//      divisors of K that leave half of the links' idle time idle: they ride in messages that go anyway.
//   4. The least time per slot that still holds everything spreads the bytes evenly over iterations and
//      links.
// With `period` given and too small for (3), step 4 gives the least time that each iteration then takes.
//
// `compressor=auto`: fewer bits harm less than rarer averages (docs/schemes/compressors.md has the figures). So K
// is the smallest of all codecs that keep the accuracy, and the codec the one with the most bits that has it; with
// `period` given, the one with the most bits that hides everything, else the one that takes least.
//
// Complexity: O((log^2 K + divisors(K) log tensors + 10) * (tensors + K * links)).
// Deviations from the papers: blocks instead of the whole model, several links, periods per tensor; the
// correction (2) is theirs (Overlap Local-SGD with its pull-back at 1). A link that serves several ops at
// once is planned as if its messages went one after another, which takes no less.
#include <algorithm>
#include <map>
#include <numeric>

#include "schemes/common.h"
#include "schemes/compressed.h"
#include "schemes/option_table.h"
#include "schemes/registry.h"
#include "solve/slots.h"

namespace gradweave {
namespace {

constexpr std::int64_t kLongestPeriod = 1000;

struct DelayedAveragingOptions {
  std::optional<std::int64_t> period;  // K; nothing: the smallest that hides everything
  double frequent_share = 0.05;
  double headroom = 0;
  AverageOptions averages;
};

class Averager {
 public:
  // `budget`: the link time of an iteration that may be used.
  Averager(const CostModel& model, Nanoseconds budget)
      : model_(model), budget_(budget), tensors_(whole_tensors(model)) {
    // One dtype after another: a message has one.
    std::ranges::stable_sort(tensors_, {},
                             [&](const Slice& s) { return model.index().tensors[s.tensor].dtype; });
  }

  // Step 1. Returns K, or 0 if no period up to kLongestPeriod hides everything.
  std::int64_t smallest_period() const {
    const auto hides = [&](std::int64_t period) {
      bool held = fits(period, period, {}, budget_);
      for (std::int64_t width = 1; !held && width < period; width *= 2)
        held = fits(period, width, {}, budget_);
      return held;
    };
    if (hides(1)) return 1;
    if (budget_ == 0 || !hides(kLongestPeriod)) return 0;
    std::int64_t too_small = 1;
    std::int64_t enough = kLongestPeriod;
    while (enough - too_small > 1) {
      const std::int64_t middle = too_small + (enough - too_small) / 2;
      (hides(middle) ? enough : too_small) = middle;
    }
    return enough;
  }

  // Returns by how much what `filler` holds takes longer in an iteration than it may.
  Nanoseconds over_budget(const SlotFiller& filler) const {
    return std::max<Nanoseconds>(filler.time_per_iteration() - budget_, 0);
  }

  // Steps 2 to 4.
  SlotFiller filled(std::int64_t period, double frequent_share) const {
    for (std::int64_t width = 1;; width = std::min(2 * width, period)) {
      if (fits(period, width, {}, budget_)) {
        const Nanoseconds tolerance = budget_ / 1024;
        SlotFiller even = filled_evenly(period, width, {}, budget_, tolerance);
        if (width > 1 || period == 1) return even;
        const Nanoseconds limit = even.time_per_iteration() + (budget_ - even.time_per_iteration()) / 2;
        return filled_evenly(period, width, own_periods(period, frequent_share, limit), limit, tolerance);
      }
      if (width == period) return least_exposed(period);
    }
  }

 private:
  static std::vector<std::int64_t> divisors(std::int64_t number) {
    std::vector<std::int64_t> divisors;
    for (std::int64_t d = 1; d < number; ++d) {
      if (number % d == 0) divisors.push_back(d);
    }
    return divisors;
  }

  std::vector<Slot> slots(std::int64_t period, std::int64_t width) const {
    std::vector<Slot> slots;
    const std::int64_t count = period / width;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t first = period * i / count;
      for (std::size_t k = 0; k < model_.link_count(); ++k) {
        slots.push_back({k, static_cast<std::int32_t>(first),
                         static_cast<std::int32_t>(period * (i + 1) / count - first)});
      }
    }
    return slots;
  }

  // Puts `slice` into one slot of each iteration of phase, phase + every, ... below `end`, on the link that
  // is through first. Returns whether they all have room.
  bool place_often(SlotFiller& filler, const Slice& slice, std::int64_t every, std::int64_t phase,
                   std::int64_t end) const {
    const std::size_t links = model_.link_count();
    for (std::int64_t i = phase; i < end; i += every) {
      const std::size_t first = static_cast<std::size_t>(i) * links;
      if (!filler.add_where_first(first, first + links, slice)) return false;
    }
    return true;
  }

  bool fits(std::int64_t period, std::int64_t width, const std::vector<std::int64_t>& every,
            Nanoseconds time) const {
    SlotFiller filler(model_, slots(period, width), time, false);
    return fill(filler, period, every);
  }

  // Fills `filler`, whose slots are of that period. `every`: the period of each of tensors_, or empty where
  // all have the same; slots then have width 1. Returns whether everything found a place.
  bool fill(SlotFiller& filler, std::int64_t period, const std::vector<std::int64_t>& every) const {
    if (every.empty()) return filler.pour(tensors_);
    std::int64_t cycle = 1;  // after so many iterations everything but what is poured comes again
    for (const std::int64_t each : every) cycle = each == period ? cycle : std::lcm(cycle, each);
    std::map<std::int64_t, std::vector<std::int64_t>> bytes_by_phase;
    std::vector<Slice> rest;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      if (every[i] == period) {
        rest.push_back(tensors_[i]);
        continue;
      }
      std::vector<std::int64_t>& bytes = bytes_by_phase[every[i]];
      bytes.resize(static_cast<std::size_t>(every[i]));
      const auto phase = std::ranges::min_element(bytes);
      *phase += model_.index().tensor_bytes(tensors_[i].tensor);
      if (!place_often(filler, tensors_[i], every[i], phase - bytes.begin(), cycle)) return false;
    }
    filler.repeat(static_cast<std::size_t>(cycle) * model_.link_count());
    return filler.pour(rest);
  }

  // Step 3. Returns the period of each of tensors_, such that `limit` per iteration is enough.
  std::vector<std::int64_t> own_periods(std::int64_t period, double share, Nanoseconds limit) const {
    std::vector<std::size_t> by_size(tensors_.size());
    std::iota(by_size.begin(), by_size.end(), 0);
    const auto bytes = [&](std::size_t i) { return model_.index().tensor_bytes(tensors_[i].tensor); };
    std::ranges::stable_sort(by_size, {}, bytes);
    std::size_t small = 0;
    double left = share * static_cast<double>(model_.index().total_bytes);
    while (small < by_size.size() && static_cast<double>(bytes(by_size[small])) <= left)
      left -= static_cast<double>(bytes(by_size[small++]));

    std::vector<std::int64_t> every(tensors_.size(), period);
    std::size_t done = 0;
    for (std::int64_t divisor : divisors(period)) {
      const auto with_first = [&](std::size_t end) {
        std::vector<std::int64_t> changed = every;
        for (std::size_t i = done; i < end; ++i) changed[by_size[i]] = divisor;
        return changed;
      };
      std::size_t enough = done;
      std::size_t too_many = small + 1;
      while (too_many - enough > 1) {
        const std::size_t middle = enough + (too_many - enough) / 2;
        (fits(period, 1, with_first(middle), limit) ? enough : too_many) = middle;
      }
      every = with_first(enough);
      done = enough;
    }
    return every;
  }

  // Step 4. Returns the slots filled in the least time, but for `tolerance`; `enough` is one in which
  // everything fits.
  SlotFiller filled_evenly(std::int64_t period, std::int64_t width, const std::vector<std::int64_t>& every,
                           Nanoseconds enough, Nanoseconds tolerance) const {
    const Nanoseconds time =
        least_time(enough, tolerance, [&](Nanoseconds t) { return fits(period, width, every, t); });
    SlotFiller filler(model_, slots(period, width), time, true);
    fill(filler, period, every);
    return filler;
  }

  // For a period that is too short: the width whose slots take the least time; the narrowest of those.
  SlotFiller least_exposed(std::int64_t period) const {
    std::optional<SlotFiller> best;
    for (std::int64_t width = 1;; width = std::min(2 * width, period)) {
      const Nanoseconds enough = time_that_fits(
          std::max<Nanoseconds>(budget_, 1), [&](Nanoseconds time) { return fits(period, width, {}, time); });
      SlotFiller filler = filled_evenly(period, width, {}, enough, 0);
      if (!best || filler.time_per_iteration() < best->time_per_iteration()) best = std::move(filler);
      if (width == period) return *std::move(best);
    }
  }

  const CostModel& model_;
  Nanoseconds budget_;
  std::vector<Slice> tensors_;
};

// Returns the plan that carries the slots' messages. Each tensor is cut wherever some message cuts it.
Plan plan_of(const CostModel& model, const SlotFiller& filler, std::int64_t period) {
  std::map<std::pair<std::size_t, std::int64_t>, std::int32_t> block_at;
  std::vector<Slice> slices;
  for (std::size_t s = 0; s < filler.slots().size(); ++s) {
    for (const Message& message : filler.messages(s))
      slices.insert(slices.end(), message.slices.begin(), message.slices.end());
  }
  const auto key = [](const Slice& slice) { return std::pair(slice.tensor, slice.begin); };
  std::ranges::sort(slices, {}, key);
  slices.erase(std::unique(slices.begin(), slices.end()), slices.end());

  Plan plan = new_plan(model, static_cast<std::size_t>(period));
  const std::vector<std::int32_t> all = add_blocks(plan, model, slices);
  for (std::size_t i = 0; i < slices.size(); ++i) block_at[key(slices[i])] = all[i];
  const Point end{.kind = PointKind::kIterationEnd};
  for (std::size_t s = 0; s < filler.slots().size(); ++s) {
    const Slot& slot = filler.slots()[s];
    for (const Message& message : filler.messages(s)) {
      Op op{.link = plan.links[slot.link].name,
            .payload = Payload::kParameter,
            .merges = {0},
            .release = {end}};
      Apply apply{
          .at = end, .merges = {-slot.width}, .source = Source::kAveragedParameter, .mode = Mode::kCorrect};
      for (const Slice& slice : message.slices) {
        op.blocks.push_back(block_at[key(slice)]);
        apply.slices |= slice.end - slice.begin < model.index().tensors[slice.tensor].numel;
      }
      apply.blocks = op.blocks;
      plan.period[static_cast<std::size_t>(slot.first)].ops.push_back(std::move(op));
      plan.period[static_cast<std::size_t>((slot.first + slot.width) % period)].applies.push_back(
          std::move(apply));
    }
  }
  // After the corrections of the same moment: what is sent next must not hold what they correct.
  for (Iteration& iteration : plan.period) {
    if (!all.empty())
      iteration.applies.push_back(
          {.at = end, .blocks = all, .merges = {0}, .source = Source::kLocalGradient});
  }
  return plan;
}

Averager averager_for(const CostModel& model, double headroom) {
  const auto busy_share = 1 - headroom;
  return {model, static_cast<Nanoseconds>(static_cast<double>(model.index().compute_total) * busy_share)};
}

PlanResult plan_delayed_averaging(const Workload& workload, const Cluster& cluster,
                                  const DelayedAveragingOptions& options) {
  std::optional<Plan> best;
  std::pair<std::int64_t, Nanoseconds> least;  // period, time over the budget
  for (const Compression& codec : average_codecs(options.averages)) {
    const CostModel model(workload, cluster, codec, Payload::kParameter, options.averages.outer.has_value());
    const Averager averager = averager_for(model, options.headroom);
    const std::int64_t period = options.period ? *options.period : averager.smallest_period();
    if (period == 0) continue;
    const SlotFiller filler = averager.filled(period, options.frequent_share);
    const std::pair needed(period, averager.over_budget(filler));
    if (best && needed >= least) continue;
    least = needed;
    best = plan_of(model, filler, period);
    set_averages(*best, codec, options.averages);
  }
  if (best) return *std::move(best);
  const bool computes = WorkloadIndex(workload).compute_total > 0;
  return Infeasible{
      computes ? "hiding the averages takes a period of more than " + std::to_string(kLongestPeriod) +
                     " iterations; set period to average more often and wait"
               : "the workload computes nothing, so no communication can be hidden; set period to "
                 "average all the same"};
}

}  // namespace

SchemeInfo delayed_averaging_scheme() {
  using Options = DelayedAveragingOptions;
  return scheme_row<Options>(
      {.name = "delayed_averaging",
       .summary = "local steps; parameters averaged in the background, local progress kept",
       .paper = "CoCoD-SGD, IJCAI 2019; Overlap Local-SGD, ICASSP 2020",
       .effect = Effect::kCorrected},
      {option(&Options::period,
              {.name = "period",
               .unit = Unit::kIterations,
               .default_source = "the smallest that hides everything",
               .minimum = 1,
               .maximum = kLongestPeriod,
               .meaning = "K: every parameter is averaged at least once in this many iterations"}),
       option(&Options::frequent_share,
              {.name = "frequent_share",
               .default_source = "Gradweave: biases and norms of usual networks, at little more traffic",
               .minimum = 0,
               .maximum = 1,
               .meaning = "the smallest tensors, up to this share of the bytes, are averaged more often than "
                          "once in a period where that stays hidden"}),
       option(&Options::headroom,
              {.name = "headroom",
               .default_source = "the smallest period that the profile allows",
               .minimum = 0,
               .maximum = 0.9,
               .meaning =
                   "share of each iteration in which links stay idle, in reserve for slower iterations"})},
      plan_delayed_averaging);
}

}  // namespace gradweave
