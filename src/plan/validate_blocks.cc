// One block after another: every gradient has one fate, every result is used once, and nothing touches a
// parameter while it is in use. O(uses of blocks in the unrolled plan).
#include <algorithm>

#include "plan/block_check.h"
#include "plan/rules.h"

namespace gradweave {

BlockCheck::BlockCheck(const CompiledPlan& compiled, Report& report)
    : plan(compiled),
      fates(compiled),
      facts(compiled),
      report_(report),
      corrected_(static_cast<std::size_t>(compiled.op_count()), -1) {
  std::int64_t averages = 0;
  for (std::int64_t n = 0; n < plan.horizon; ++n) {
    const ResolvedIteration& here = plan.iteration(n);
    for (const std::int32_t k : here.apply_by_rank) {
      averages +=
          here.applies[static_cast<std::size_t>(k)].apply->source == Source::kAveragedParameter ? 1 : 0;
      step_of_.push_back(averages);
    }
  }
}

void BlockCheck::begin(std::int32_t block) {
  fates.collect(block);
  faults_.fill(false);
}

void BlockCheck::fault(Fault kind, int rule, std::int64_t n, const std::string& what,
                       const std::string& remedy) {
  bool& reported = faults_[static_cast<std::size_t>(kind)];
  if (reported) return;
  reported = true;
  const std::size_t slot = plan.slot_of(n);
  report_.add(rule, static_cast<std::int64_t>(slot), what,
              plan.slot_name(slot) + ", " + plan.block_name(fates.block()), remedy);
}

void BlockCheck::use(std::int64_t n, std::int64_t apply, std::int64_t op) {
  const Apply& used = *plan.apply(apply).apply;
  const bool corrected = used.source == Source::kAveragedParameter ? used.mode == Mode::kCorrect
                                                                   : used.correction == Correction::kLocal;
  std::int8_t& known = corrected_[static_cast<std::size_t>(op)];
  if (known < 0) known = corrected ? 1 : 0;
  if (known != (corrected ? 1 : 0)) {
    fault(Fault::kCorrected, 4, n,
          plan.op_name(op) + " carries blocks that are corrected and blocks that are not",
          "give them an op each, or apply all of them alike");
  }
}

namespace {

void gather_facts(BlockCheck& block) {
  const CompiledPlan& plan = block.plan;
  std::vector<Facts::Generation> generations;
  bool dropped = false;
  for (std::int64_t n = 0; n < plan.checked; ++n) {
    const Fate& f = block.fates.of(n);
    if (f.applied.count == 1) generations.push_back({f.applied.number, n, f.corrected ? 2 : 1});
    dropped |= f.dropped.count > 0;
  }
  block.facts.add_generations(block.fates.block(), std::move(generations));
  if (dropped) block.facts.add_residual(block.fates.block());
}

}  // namespace

PlanFacts check_blocks(const CompiledPlan& compiled, Report& report) {
  check_applies(compiled, report);
  BlockCheck block(compiled, report);
  for (std::size_t b = 0; b < compiled.blocks.size() && !report.full(); ++b) {
    if (!compiled.blocks[b].known) continue;
    block.begin(static_cast<std::int32_t>(b));
    for (std::int64_t n = 0; n < compiled.checked; ++n) {
      check_gradient(block, n);
      check_values(block, n);
    }
    check_generations(block);
    check_order(block);
    check_steps(block);
    check_averaged(block);
    gather_facts(block);
  }
  return block.facts.result();
}

}  // namespace gradweave
