// Rule 5: data exists before an op is released, nothing waits in a circle, and something is updated.
//
// An op waits for its release, for its data, for the op before it on its link and for the step before, as an
// all_gather for its reduce_scatter; a point passes when the applies at it are done, and an apply waits for its results. Applies
// pass one after another, and ops wait for ops listed before them alone, so all that an op waits for comes
// down to a number: how many applies must be done before it can start. A wait is circular iff an apply waits
// for an op that needs this very apply, or one after it. O(ops and applies of the unrolled plan).
#include <algorithm>
#include <utility>

#include "plan/rules.h"

namespace gradweave {
namespace {

// How many applies must be done before an op starts, and which op it is whose own release or data says so.
struct Need {
  std::int64_t applies = 0;
  std::int64_t origin = -1;
};

class WaitCheck {
 public:
  WaitCheck(const CompiledPlan& compiled, Report& report) : plan_(compiled), report_(report) {}

  // Returns whether there is no circle. `one_order`: all links launch in one order, the list's.
  bool check(bool one_order) {
    const std::vector<Need> needs = all_needs(one_order);
    clean_ = true;
    reported_.assign(plan_.slots.size(), {});
    for (std::int64_t n = 0; n < plan_.horizon && !report_.full(); ++n) {
      for (const std::int32_t k : plan_.iteration(n).apply_by_rank) {
        const CompiledPlan::Place place{n, static_cast<std::size_t>(k)};
        OpRef last;
        for (const Delivery& delivery : plan_.deliveries(n, place.item)) {
          if (delivery.op != std::exchange(last, delivery.op)) check(place, last, needs, one_order);
        }
      }
    }
    return clean_;
  }

 private:
  void check(const CompiledPlan::Place& place, OpRef ref, const std::vector<Need>& needs, bool one_order) {
    const std::int64_t apply = plan_.apply_number(place.iteration, place.item);
    const CompiledPlan::Place op{place.iteration + ref.delta, static_cast<std::size_t>(ref.op)};
    const Need* need =
        ref.delta > 0 ? nullptr : &needs[static_cast<std::size_t>(plan_.op_number(op.iteration, op.item))];
    if (need != nullptr && need->applies <= waited_before(apply, place)) return;
    clean_ = false;
    const std::size_t slot = plan_.slot_of(place.iteration);
    reported_[slot].resize(plan_.slots[slot].applies.size());
    if (reported_[slot][place.item]) return;
    reported_[slot][place.item] = true;
    if (need != nullptr) return report_circle(slot, apply, op, *need, one_order);
    report_.add(5, static_cast<std::int64_t>(slot),
                "waits for " + plan_.op_name(op) + ", which is listed in a later iteration",
                plan_.apply_name(place), "list the op in the iteration of the apply, or before");
  }

  std::vector<Need> all_needs(bool one_order) const {
    std::vector<Need> needs(static_cast<std::size_t>(plan_.op_count()));
    std::vector<Need> last(plan_.plan.links.size() +
                           1);  // of the link's latest op; the last is for all links
    for (std::int64_t n = 0; n < plan_.horizon; ++n) {
      const std::vector<ResolvedOp>& ops = plan_.iteration(n).ops;
      for (std::size_t k = 0; k < ops.size(); ++k) {
        if (!exists(ops[k].merges, n)) continue;
        const std::int64_t number = plan_.op_number(n, k);
        Need need{own_need(n, k), number};
        for (const OpRef ref : plan_.steps_before(n, k)) {
          if (ref.delta > 0) continue;
          const std::int64_t before = plan_.op_number(n + ref.delta, static_cast<std::size_t>(ref.op));
          if (before < number) need = later(needs[static_cast<std::size_t>(before)], need);
        }
        Need* before = one_order          ? &last.back()
                       : ops[k].link >= 0 ? &last[static_cast<std::size_t>(ops[k].link)]
                                          : nullptr;
        if (before != nullptr) {
          need = later(*before, need);
          *before = need;
        }
        needs[static_cast<std::size_t>(number)] = need;
      }
    }
    return needs;
  }

  // How many applies are done when an apply waits. Reduced gradients that are applied at an iteration_end are what
  // `.grad` holds when the step begins: they are waited for before the first apply there.
  std::int64_t waited_before(std::int64_t apply, const CompiledPlan::Place& place) const {
    const ResolvedApply& at = plan_.iteration(place.iteration).applies[place.item];
    const bool at_end = at.at == plan_.iteration_end() && at.apply->source == Source::kReducedGradient;
    return at_end ? plan_.applies_before(place.iteration, at.at) : apply;
  }

  static Need later(const Need& a, const Need& b) { return a.origin >= 0 && a.applies >= b.applies ? a : b; }

  // What release and data ask for.
  std::int64_t own_need(std::int64_t n, std::size_t k) const {
    const ResolvedOp& op = plan_.iteration(n).ops[k];
    std::int64_t need = 0;
    if (op.op->payload == Payload::kGradient) {
      need = plan_.applies_before(n + op.merges.back(), plan_.backward_end(op.first_layer));
    } else {
      for (const Reading& reading : plan_.readings(n, k)) {
        if (n + reading.delta < plan_.horizon)
          need = std::max(need,
                          plan_.apply_number(n + reading.delta, static_cast<std::size_t>(reading.apply)) + 1);
      }
    }
    const std::int64_t release = n + op.op->release.point.iteration;
    if (release >= 0 && release < plan_.horizon)
      need = std::max(need, plan_.applies_until(release, op.release));
    return need;
  }

  void report_circle(std::size_t slot, std::int64_t apply, const CompiledPlan::Place& op, const Need& need,
                     bool one_order) {
    std::string what = "waits for " + plan_.op_name(op);
    if (need.origin != plan_.op_number(op.iteration, op.item)) {
      what += one_order ? ", which launches after " : ", which comes after ";
      what += plan_.op_name(need.origin);
    }
    const ResolvedOp& origin = plan_.op(need.origin);
    if (need.applies <= apply) {
      what +=
          ", which needs a step of this iteration_end, before whose first apply all reduced gradients are "
          "there";
      report_.add(one_order ? 7 : 5, static_cast<std::int64_t>(slot), what, plan_.apply_name(apply),
                  "list the op before " + plan_.op_name(need.origin) + ", or apply it later");
      return;
    }
    what += ", which can't start before " + plan_.point_name(origin.op->release.point) +
            " and its data, and these come after " + plan_.point_name(plan_.apply(apply).apply->at) +
            ": training would hang";
    report_.add(one_order ? 7 : 5, static_cast<std::int64_t>(slot), what, plan_.apply_name(apply),
                one_order ? "list the ops of all links in an order in which they can start"
                          : "apply it later, release the op earlier, or list it earlier");
  }

  const CompiledPlan& plan_;
  Report& report_;
  bool clean_ = true;
  std::vector<std::vector<bool>> reported_;  // per slot and apply
};

// Gradients: no release before the backward_end that completes the data.
void check_gradient_releases(const CompiledPlan& compiled, Report& report) {
  for (std::size_t s = 0; s < compiled.slots.size() && !report.full(); ++s) {
    const std::vector<ResolvedOp>& ops = compiled.slots[s].ops;
    for (std::size_t k = 0; k < ops.size(); ++k) {
      const ResolvedOp& op = ops[k];
      if (op.op->payload != Payload::kGradient || op.merges.empty() || op.blocks.empty()) continue;
      const std::pair<std::int64_t, std::int64_t> data{op.merges.back(),
                                                       compiled.backward_end(op.first_layer)};
      const std::pair<std::int64_t, std::int64_t> release{op.op->release.point.iteration, op.release};
      if (release >= data) continue;
      const Point exists{PointKind::kBackwardEnd, op.first_layer, op.merges.back()};
      report.add(5, static_cast<std::int64_t>(s),
                 "is released at " + compiled.point_name(op.op->release.point) +
                     ", before its data exists, at " + compiled.point_name(exists),
                 compiled.slot_name(s) + ".ops[" + std::to_string(k) + "]",
                 "release it at " + compiled.point_name(exists) + " or later");
    }
  }
}

void check_updates(const CompiledPlan& compiled, Report& report) {
  if (compiled.index.tensors.empty()) return;
  for (std::int64_t n = compiled.prologue; n < compiled.prologue + compiled.period; ++n) {
    for (const ResolvedApply& apply : compiled.iteration(n).applies) {
      const Source source = apply.apply->source;
      if (source == Source::kReducedGradient || source == Source::kLocalGradient) return;
    }
  }
  report.add(5, -1, "updates nothing: no apply of a gradient", "period", "apply what is reduced");
}

}  // namespace

void check_waits(const CompiledPlan& compiled, Report& report) {
  check_gradient_releases(compiled, report);
  check_updates(compiled, report);
  WaitCheck check(compiled, report);
  if (check.check(false) && compiled.plan.links.size() > 1) check.check(true);
}

}  // namespace gradweave
