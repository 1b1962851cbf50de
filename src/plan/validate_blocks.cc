// Rules 2, 4 and 6, one block after another: every gradient has one fate, every result is used once, and
// nothing touches a parameter while it is in use. O(uses of blocks in the unrolled plan).
#include <algorithm>
#include <array>
#include <span>

#include "plan/facts.h"
#include "plan/unrolled.h"

namespace gradweave {
namespace {

// The ops and applies of one kind that concern (block, iteration n): how many, and the last one's number.
struct Use {
  std::int32_t count = 0;
  std::int64_t number = -1;
  void add(std::int64_t n) {
    ++count;
    number = n;
  }
};

// What happens to the gradient of iteration n of one block, and to the value after its local step.
struct Fate {
  Use reduced, dropped, local, applied;  // ops; -; applies; applies
  Use sent, averaged;                    // parameters: op that reads them; apply of the average
  Use states_sent, states_averaged;
  bool corrected = false;  // `applied` has correction local
};

// Where a block is listed.
struct Listing {
  enum class Kind : std::uint8_t { kOp, kApply, kDropped } kind;
  std::int32_t slot;
  std::int32_t item;
};

// One message for each kind of fault of a block: its other iterations have the same cause.
enum class Fault : std::uint8_t {
  kFate,
  kUse,
  kSplit,
  kLocal,
  kSent,
  kAveraged,
  kStates,
  kRelease,
  kBetween,
  kOverlap,
  kCount
};

class BlockCheck {
 public:
  BlockCheck(const Unrolled& unrolled, const std::vector<std::int64_t>& completed_by, Report& report,
             Facts& facts)
      : plan_(unrolled), completed_by_(completed_by), report_(report), facts_(facts) {
    waits.value_after.assign(completed_by.size(), 0);
    index_listings();
  }

  void run() {
    for (std::size_t b = 0; b < plan_.blocks.size() && !report_.full(); ++b) {
      if (!plan_.blocks[b].known) continue;
      block_ = static_cast<std::int32_t>(b);
      faults_.fill(false);
      collect();
      for (std::int64_t n = 0; n < plan_.checked; ++n) {
        check_fate(n);
        check_use(n);
        check_values(n);
      }
      check_generations();
      check_order();
      check_averaged_at_all();
      gather_facts();
    }
    std::ranges::sort(waits.results);
    waits.results.erase(std::unique(waits.results.begin(), waits.results.end()), waits.results.end());
  }

  Waits waits;

 private:
  // ---- from the plan's lists to one block's fates

  template <typename Visit>
  void for_each_listing(Visit visit) const {
    for (std::size_t s = 0; s < plan_.slots.size(); ++s) {
      const KnownIteration& slot = plan_.slots[s];
      const auto at = static_cast<std::int32_t>(s);
      for (std::size_t k = 0; k < slot.ops.size(); ++k) {
        for (const std::int32_t b : slot.ops[k].blocks)
          visit(b, Listing{Listing::Kind::kOp, at, static_cast<std::int32_t>(k)});
      }
      for (std::size_t k = 0; k < slot.applies.size(); ++k) {
        for (const std::int32_t b : slot.applies[k].blocks) {
          visit(b, Listing{Listing::Kind::kApply, at, static_cast<std::int32_t>(k)});
        }
      }
      for (const std::int32_t b : slot.dropped) visit(b, Listing{Listing::Kind::kDropped, at, 0});
    }
  }

  void index_listings() {
    first_.assign(plan_.blocks.size() + 1, 0);
    for_each_listing([&](std::int32_t b, const Listing&) { ++first_[static_cast<std::size_t>(b) + 1]; });
    for (std::size_t b = 1; b < first_.size(); ++b) first_[b] += first_[b - 1];
    listings_.resize(first_.back());
    std::vector<std::size_t> next(first_.begin(), first_.end() - 1);
    for_each_listing([&](std::int32_t b, const Listing& listing) {
      listings_[next[static_cast<std::size_t>(b)]++] = listing;
    });
  }

  std::span<const Listing> listings() const {
    const auto b = static_cast<std::size_t>(block_);
    return std::span(listings_).subspan(first_[b], first_[b + 1] - first_[b]);
  }

  // Calls visit(i, n) for every iteration i that runs `slot` and every iteration n that `merges` meets from
  // there.
  template <typename Visit>
  void for_each_met(std::int32_t slot, const std::vector<std::int32_t>& merges, Visit visit) const {
    for (std::int64_t i = slot; i < plan_.horizon; i = plan_.next(i)) {
      for (const std::int32_t m : merges) {
        if (i + m >= 0 && i + m < plan_.checked) visit(i, i + m);
      }
    }
  }

  Fate& fate(std::int64_t n) { return fates_[static_cast<std::size_t>(n)]; }

  void collect() {
    fates_.assign(static_cast<std::size_t>(plan_.checked), {});
    steps_.clear();
    for (const Listing& listing : listings()) {
      const KnownIteration& slot = plan_.slots[static_cast<std::size_t>(listing.slot)];
      if (listing.kind == Listing::Kind::kDropped) {
        for_each_met(listing.slot, {0}, [&](std::int64_t, std::int64_t n) { fate(n).dropped.add(0); });
      } else if (listing.kind == Listing::Kind::kOp) {
        collect_op(listing, slot.ops[static_cast<std::size_t>(listing.item)]);
      } else {
        collect_apply(listing, slot.applies[static_cast<std::size_t>(listing.item)]);
      }
    }
  }

  void collect_op(const Listing& listing, const KnownOp& op) {
    if (op.gathers()) return;  // rule 3 ties it to its reduce_scatter
    for_each_met(listing.slot, op.merges, [&](std::int64_t i, std::int64_t n) {
      Fate& f = fate(n);
      Use& use = op.op->payload == Payload::kGradient    ? f.reduced
                 : op.op->payload == Payload::kParameter ? f.sent
                                                         : f.states_sent;
      use.add(plan_.op_number(i, static_cast<std::size_t>(listing.item)));
    });
  }

  void collect_apply(const Listing& listing, const KnownApply& apply) {
    const Source source = apply.apply->source;
    std::int64_t last = -1;
    for_each_met(listing.slot, apply.merges, [&](std::int64_t i, std::int64_t n) {
      Fate& f = fate(n);
      const std::int64_t number = plan_.apply_number(i, static_cast<std::size_t>(listing.item));
      Use& use = source == Source::kReducedGradient     ? f.applied
                 : source == Source::kLocalGradient     ? f.local
                 : source == Source::kAveragedParameter ? f.averaged
                                                        : f.states_averaged;
      use.add(number);
      f.corrected |= source == Source::kReducedGradient && apply.apply->correction == Correction::kLocal;
      if (number != last) steps_.push_back({number, source, apply.apply->mode});
      last = number;
    });
  }

  // ---- messages

  std::string iteration_name(std::int64_t n) const { return plan_.slot_name(plan_.slot_of(n)); }

  void fault(Fault kind, int rule, std::int64_t n, const std::string& what, const std::string& remedy) {
    bool& reported = faults_[static_cast<std::size_t>(kind)];
    if (reported) return;
    reported = true;
    report_.add(rule, static_cast<std::int64_t>(plan_.slot_of(n)), what,
                iteration_name(n) + ", " + plan_.block_name(block_), remedy);
  }

  // ---- rule 2

  void check_fate(std::int64_t n) {
    const Fate& f = fate(n);
    if (f.dropped.count > 0 && !plan_.plan.residual.enabled) {
      fault(Fault::kFate, 2, n, "its gradient is dropped, but the plan has no residual to keep it",
            "give the plan a residual");
    }
    const std::int32_t fates = f.reduced.count + f.dropped.count + f.local.count;
    if (f.corrected ? f.reduced.count == 1 && f.local.count == 1 && f.dropped.count == 0 : fates == 1) return;
    if (fates == 0) {
      fault(Fault::kFate, 2, n,
            "the gradient of this iteration is neither reduced nor dropped nor applied locally",
            "add it to an op with this iteration in its merges");
    } else if (f.corrected) {
      fault(Fault::kFate, 2, n,
            "with correction 'local', its gradient must be reduced once and applied locally once; it is "
            "reduced " +
                std::to_string(f.reduced.count) + " times, applied locally " + std::to_string(f.local.count) +
                " times",
            "give it one op and one apply of source local_gradient");
    } else {
      fault(Fault::kFate, 2, n,
            "the gradient of this iteration has " + std::to_string(fates) + " fates: " + fates_of(f),
            "leave it one");
    }
  }

  std::string fates_of(const Fate& f) const {
    std::string text;
    const auto add = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
    if (f.reduced.count > 0)
      add(std::to_string(f.reduced.count) + " times reduced, last by " + plan_.op_name(f.reduced.number));
    if (f.dropped.count > 0) add(std::to_string(f.dropped.count) + " times dropped");
    if (f.local.count > 0) {
      add(std::to_string(f.local.count) + " times applied locally, last by " +
          plan_.apply_name(f.local.number));
    }
    return text;
  }

  // ---- rule 4

  void check_use(std::int64_t n) {
    const Fate& f = fate(n);
    if (f.reduced.count == 0 && f.applied.count > 0) {
      fault(
          Fault::kUse, 4, n,
          plan_.apply_name(f.applied.number) + " applies the gradient of this iteration, which no op reduces",
          "remove it there, or reduce it");
    } else if (f.reduced.count == 1 && f.applied.count != 1) {
      const std::string op = plan_.op_name(f.reduced.number);
      if (f.applied.count == 0) {
        fault(Fault::kUse, 4, n, "the gradient that " + op + " reduces is never applied",
              "add it to an apply with the same merges");
      } else {
        fault(Fault::kUse, 4, n,
              "the gradient that " + op + " reduces is applied " + std::to_string(f.applied.count) +
                  " times, last by " + plan_.apply_name(f.applied.number),
              "apply it once");
      }
    }
    if (f.local.count > 0 && plan_.apply_moment(f.local.number) < computed(n)) {
      fault(Fault::kLocal, 4, n,
            plan_.apply_name(f.local.number) + " applies a gradient that is not computed yet",
            "apply it at backward_end of its layer or later");
    }
    if (f.reduced.count == 1 && f.applied.count == 1) await(f.applied.number, f.reduced.number);
    if (f.applied.count == 1) facts_.add_use(n, plan_.apply_place(f.applied.number).iteration);
  }

  std::int64_t computed(std::int64_t n) const {
    return plan_.moment(n, plan_.backward_end(plan_.blocks[static_cast<std::size_t>(block_)].layer));
  }

  void await(std::int64_t apply, std::int64_t op) {
    const std::int64_t last = completed_by_[static_cast<std::size_t>(op)];
    if (last >= 0) waits.results.emplace_back(apply, last);
  }

  // An op's generation is consumed by one apply: a sum can't be taken apart.
  void check_generations() {
    for (const Listing& listing : listings()) {
      if (listing.kind != Listing::Kind::kOp) continue;
      const KnownOp& op =
          plan_.slots[static_cast<std::size_t>(listing.slot)].ops[static_cast<std::size_t>(listing.item)];
      if (op.op->payload != Payload::kGradient || op.gathers() || op.merges.size() < 2) continue;
      std::int64_t iteration = -1;
      std::int64_t apply = -1;
      for_each_met(listing.slot, op.merges, [&](std::int64_t i, std::int64_t n) {
        const Use& use = fate(n).applied;
        if (use.count != 1) return;
        if (i == iteration && use.number != apply) {
          fault(Fault::kSplit, 4, i,
                "what " + plan_.op_name(plan_.op_number(i, static_cast<std::size_t>(listing.item))) +
                    " merges is applied in parts, by " + plan_.apply_name(apply) + " and " +
                    plan_.apply_name(use.number),
                "apply all its merges at once");
        }
        iteration = i;
        apply = use.number;
      });
    }
  }

  // ---- parameters and states that are averaged: rules 4, 5 and 6

  void check_values(std::int64_t n) {
    const Fate& f = fate(n);
    check_sent(n, f.sent, f.averaged, f.local, "parameters", Fault::kSent);
    if (f.sent.count > 1) {
      fault(Fault::kAveraged, 4, n,
            "the parameters after this iteration are sent " + std::to_string(f.sent.count) + " times",
            "send them once");
    }
    check_sent(n, f.states_sent, f.states_averaged, f.local, "states", Fault::kStates);
  }

  void check_sent(std::int64_t n, const Use& sent, const Use& averaged, const Use& local,
                  const std::string& what, Fault kind) {
    if (sent.count == 0) {
      if (averaged.count > 0) {
        fault(kind, 4, n,
              plan_.apply_name(averaged.number) + " applies averaged " + what +
                  " of this iteration, which no op sends",
              "name the iteration whose value was read in its merges");
      }
      return;
    }
    if (averaged.count != 1) {
      fault(kind, 4, n,
            "the averaged " + what + " of " + plan_.op_name(sent.number) + " are applied " +
                std::to_string(averaged.count) + " times",
            "apply them once");
      return;
    }
    await(averaged.number, sent.number);
    if (local.count == 0) {
      fault(kind, 5, n,
            plan_.op_name(sent.number) + " reads the " + what + " after a local step that is not in the plan",
            "name an iteration with an apply of source local_gradient in its merges");
      return;
    }
    std::int64_t& after = waits.value_after[static_cast<std::size_t>(sent.number)];
    after = std::max(after, local.number + 1);
    check_release(n, sent.number, local.number, what);
  }

  void check_release(std::int64_t n, std::int64_t number, std::int64_t local, const std::string& what) {
    const Unrolled::Place place = plan_.op_place(number);
    const KnownOp& op = plan_.op(number);
    const std::int64_t release = plan_.moment(place.iteration + op.op->release.point.iteration, op.release);
    // Applies at iteration_end run when the last backward has ended: a release there is not before them.
    const KnownApply& step = plan_.apply(local);
    const std::int64_t at = step.at == plan_.iteration_end() ? step.at - 1 : step.at;
    if (release >= plan_.moment(plan_.apply_place(local).iteration, at)) return;
    fault(Fault::kRelease, 5, n,
          plan_.op_name(number) + " is released at " + plan_.point_name(op.op->release.point) +
              ", before the " + what + " that it reads exist",
          "release it at the point of " + plan_.apply_name(local) + " or later");
  }

  struct Step {
    std::int64_t number;  // of the apply
    Source source;
    Mode mode;
  };

  // Rule 6, second half: what happens to the block between a read and its apply.
  void check_order() {
    std::ranges::sort(steps_, {}, &Step::number);
    std::int64_t landed = -1;  // the apply of the average that was sent before
    std::vector<std::pair<std::int64_t, std::int64_t>> reads;  // (local apply, n), in the order of reading
    for (std::int64_t n = 0; n < plan_.checked; ++n) {
      if (fate(n).local.count == 1) reads.emplace_back(fate(n).local.number, n);
    }
    std::ranges::sort(reads);
    for (const auto& [read, n] : reads) {
      const Fate& f = fate(n);
      if (f.sent.count == 1 && f.averaged.count == 1) {
        if (landed > read) {
          fault(Fault::kOverlap, 6, n,
                "the parameters are read again before the average of an earlier reading is applied by " +
                    plan_.apply_name(landed),
                "list that apply before the local step whose value is read");
        }
        landed = f.averaged.number;
        check_between(n, read, f.averaged.number, Source::kAveragedParameter);
        if (plan_.apply(f.averaged.number).apply->mode == Mode::kCorrect) {
          facts_.add_sent_copy(block_, read, f.averaged.number);
        }
      }
      if (f.states_sent.count > 0 && f.states_averaged.count == 1) {
        check_between(n, read, f.states_averaged.number, Source::kAveragedOptimizerState);
      }
    }
  }

  void check_between(std::int64_t n, std::int64_t read, std::int64_t apply, Source result) {
    const auto first = std::ranges::upper_bound(steps_, read, {}, &Step::number);
    const auto last = std::ranges::lower_bound(steps_, apply, {}, &Step::number);
    if (last == steps_.end() || last->mode == Mode::kCorrect) return;
    const bool states = result == Source::kAveragedOptimizerState;
    const Source harmless = states ? Source::kAveragedParameter : Source::kAveragedOptimizerState;
    for (auto step = first; step < last; ++step) {
      if (step->source == harmless || step->source == result) continue;
      fault(Fault::kBetween, 6, n,
            plan_.apply_name(step->number) + " changes " + (states ? "the states" : "the parameters") +
                " between their reading and " + plan_.apply_name(apply) + ", which replaces them",
            "apply the average before that, or with mode 'correct'");
      return;
    }
  }

  // Rule 6, last part.
  void check_averaged_at_all() {
    bool stepped = false;
    bool averaged = false;
    std::int64_t where = plan_.prologue;
    for (std::int64_t n = plan_.prologue; n < plan_.prologue + plan_.period; ++n) {
      const Fate& f = fate(n);
      averaged |= f.sent.count > 0;
      if (f.local.count == 0 || f.corrected) continue;
      if (!stepped) where = n;
      stepped = true;
    }
    if (stepped && !averaged) {
      fault(Fault::kAveraged, 6, where, "is stepped locally but its parameters are never averaged",
            "add an op of payload parameter and an apply of its average to the period");
    }
  }

  void gather_facts() {
    std::vector<Facts::Generation> generations;
    bool dropped = false;
    for (std::int64_t n = 0; n < plan_.checked; ++n) {
      const Fate& f = fate(n);
      if (f.applied.count == 1) generations.push_back({f.applied.number, n, f.corrected ? 2 : 1});
      dropped |= f.dropped.count > 0;
    }
    facts_.add_generations(block_, std::move(generations));
    if (dropped) facts_.add_residual(block_);
  }

  const Unrolled& plan_;
  const std::vector<std::int64_t>& completed_by_;
  Report& report_;
  Facts& facts_;
  std::vector<std::size_t> first_;  // per block, into listings_
  std::vector<Listing> listings_;
  std::int32_t block_ = 0;
  std::vector<Fate> fates_;  // per checked iteration
  std::vector<Step> steps_;  // every apply of the block
  std::array<bool, static_cast<std::size_t>(Fault::kCount)> faults_{};
};

// Rule 6, first half: where an apply may stand. Forward and backward of a layer must see the same parameters.
void check_apply_points(const Unrolled& unrolled, Report& report) {
  for (std::size_t s = 0; s < unrolled.slots.size() && !report.full(); ++s) {
    const std::vector<KnownApply>& applies = unrolled.slots[s].applies;
    for (std::size_t k = 0; k < applies.size(); ++k) {
      const Point& at = applies[k].apply->at;
      if (at.kind != PointKind::kForwardStart && at.kind != PointKind::kBackwardEnd) continue;
      const auto used = std::ranges::find_if(applies[k].blocks, [&](std::int32_t b) {
        return unrolled.blocks[static_cast<std::size_t>(b)].layer < at.layer;
      });
      if (used == applies[k].blocks.end()) continue;
      report.add(6, static_cast<std::int64_t>(s),
                 "at " + unrolled.point_name(at) + ", forward and backward of the block's layer " +
                     std::to_string(unrolled.blocks[static_cast<std::size_t>(*used)].layer) +
                     " lie around the apply",
                 unrolled.slot_name(s) + ".applies[" + std::to_string(k) + "], " + unrolled.block_name(*used),
                 "apply it at forward_start or backward_end of its own layer, or at iteration_end");
    }
  }
}

// Rule 4: a partial step of a tensor needs an elementwise optimizer, so the plan must say `slices`.
void check_whole_tensors(const Unrolled& unrolled, Report& report) {
  std::vector<std::int64_t> bytes(unrolled.index.tensors.size(), 0);
  for (std::size_t s = 0; s < unrolled.slots.size() && !report.full(); ++s) {
    const std::vector<KnownApply>& applies = unrolled.slots[s].applies;
    for (std::size_t k = 0; k < applies.size(); ++k) {
      if (applies[k].apply->slices) continue;
      const auto block = [&](std::int32_t b) -> const KnownBlock& {
        return unrolled.blocks[static_cast<std::size_t>(b)];
      };
      for (const std::int32_t b : applies[k].blocks) bytes[block(b).tensor] += block(b).bytes;
      const auto part = std::ranges::find_if(applies[k].blocks, [&](std::int32_t b) {
        return bytes[block(b).tensor] < unrolled.index.tensor_bytes(block(b).tensor);
      });
      if (part != applies[k].blocks.end()) {
        report.add(
            4, static_cast<std::int64_t>(s), "applies a part of the tensor",
            unrolled.slot_name(s) + ".applies[" + std::to_string(k) + "], " + unrolled.block_name(*part),
            "add the tensor's other blocks, or set slices: true for an elementwise optimizer");
      }
      for (const std::int32_t b : applies[k].blocks) bytes[block(b).tensor] = 0;
    }
  }
}

}  // namespace

Waits check_blocks(const Unrolled& unrolled, const std::vector<std::int64_t>& completed_by, Report& report,
                   PlanFacts& facts) {
  check_apply_points(unrolled, report);
  check_whole_tensors(unrolled, report);
  Facts gathered(unrolled);
  BlockCheck check(unrolled, completed_by, report, gathered);
  check.run();
  facts = gathered.result();
  return std::move(check.waits);
}

}  // namespace gradweave
