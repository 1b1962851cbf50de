#include "plan/facts.h"

#include <algorithm>
#include <optional>

#include "gradweave/decimal.h"
#include "gradweave/workload.h"

namespace gradweave {

Facts::Facts(const CompiledPlan& compiled)
    : compiled_(compiled), applied_in_(static_cast<std::size_t>(compiled.checked), -1) {}

void Facts::add_use(std::int64_t n, std::int64_t iteration) {
  std::int64_t& known = applied_in_[static_cast<std::size_t>(n)];
  if (known < 0) known = iteration;
  facts_.mixed_staleness |= known != iteration;
}

void Facts::add_generations(std::int32_t block, std::vector<Generation> generations) {
  std::ranges::sort(generations, {}, [](const Generation& g) { return std::pair(g.apply, g.first); });
  const auto same = [](const Generation& a, const Generation& b) { return a.apply == b.apply; };
  generations.erase(std::unique(generations.begin(), generations.end(), same), generations.end());

  struct Event {
    std::int64_t moment, alive, copies;
  };
  std::vector<Event> events;
  const std::int64_t computed =
      compiled_.backward_end(compiled_.blocks[static_cast<std::size_t>(block)].layer);
  for (const Generation& g : generations) {
    events.push_back({compiled_.moment(g.first, computed), 1, g.copies});
    events.push_back({compiled_.apply_moment(g.apply), -1, -g.copies});
  }
  std::ranges::sort(events, {},
                    [](const Event& e) { return std::pair(e.moment, e.alive); });  // ends before begins
  std::int64_t alive = 0;
  std::int64_t copies = 0;
  for (const Event& event : events) {
    const std::int64_t before = std::max<std::int64_t>(copies - 1, 0);
    alive += event.alive;
    copies += event.copies;
    facts_.generations_alive = std::max(facts_.generations_alive, static_cast<std::int32_t>(alive));
    const std::int64_t more = std::max<std::int64_t>(copies - 1, 0) - before;
    if (more != 0) changes_.emplace_back(event.moment, more * bytes_of(block));
  }
}

void Facts::add_sent(std::int32_t block, const ResolvedOp& op, std::int64_t read, std::int64_t apply) {
  const std::optional<Outer>& outer = compiled_.plan.outer;
  if ((op.compressed() || outer) && anchored_ != block) {
    anchored_ = block;
    const std::int64_t anchors = outer && outer->momentum > 0 ? 2 : 1;
    const std::int64_t shards = op.level == Level::kBetween ? compiled_.plan.workers_per_node : 1;
    anchor_bytes_ += (gain_bytes_of(block) * anchors + shards - 1) / shards;
  }
  const Slice& slice = compiled_.block(block).slice;
  // Of an encoded message each block holds its share, rounded up.
  const std::int64_t others = op.elements - (slice.end - slice.begin);
  const std::int64_t encoded =
      op.compressed() ? op.encoded_bytes - floor_share(op.encoded_bytes, others, op.elements) : 0;
  // Of two levels the whole copy is held too: what comes back is the node's, and is corrected by what this rank sent.
  const bool whole = !op.compressed() || op.level == Level::kBetween;
  const bool gains = outer || op.compressed();
  const std::int64_t held = encoded + (!whole ? 0 : gains ? gain_bytes_of(block) : bytes_of(block));
  changes_.emplace_back(compiled_.apply_moment(read), held);
  changes_.emplace_back(compiled_.apply_moment(apply), -held);
}

std::int64_t Facts::gain_bytes_of(std::int32_t block) const {
  const Slice& slice = compiled_.block(block).slice;
  return (slice.end - slice.begin) * size_of_gain(compiled_.index.tensors[slice.tensor].dtype);
}

void Facts::add_residual(std::int32_t block) { residual_bytes_ += bytes_of(block); }

PlanFacts Facts::result() {
  std::ranges::sort(changes_);  // at one moment, what is freed comes first
  std::int64_t held = 0;
  std::int64_t peak = 0;
  for (const auto& [moment, bytes] : changes_) {
    held += bytes;
    peak = std::max(peak, held);
  }
  facts_.extra_bytes = peak + residual_bytes_ + anchor_bytes_;
  return facts_;
}

}  // namespace gradweave
