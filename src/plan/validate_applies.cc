// Where an apply may stand and what it must hold, whatever becomes of the gradients: parts of rules 4 and 6.
#include <algorithm>

#include "plan/rules.h"

namespace gradweave {
namespace {

// Rule 6, first half: where an apply may stand. Forward and backward of a layer must see the same parameters.
void check_apply_points(const CompiledPlan& compiled, Report& report) {
  for (std::size_t s = 0; s < compiled.slots.size() && !report.full(); ++s) {
    const std::vector<ResolvedApply>& applies = compiled.slots[s].applies;
    for (std::size_t k = 0; k < applies.size(); ++k) {
      const Point& at = applies[k].apply->at;
      if (at.kind != PointKind::kForwardStart && at.kind != PointKind::kBackwardEnd) continue;
      const auto used = std::ranges::find_if(applies[k].blocks, [&](std::int32_t b) {
        return compiled.blocks[static_cast<std::size_t>(b)].layer < at.layer;
      });
      if (used == applies[k].blocks.end()) continue;
      report.add(6, static_cast<std::int64_t>(s),
                 "at " + compiled.point_name(at) + ", forward and backward of the block's layer " +
                     std::to_string(compiled.blocks[static_cast<std::size_t>(*used)].layer) +
                     " lie around the apply",
                 compiled.slot_name(s) + ".applies[" + std::to_string(k) + "], " + compiled.block_name(*used),
                 "apply it at forward_start or backward_end of its own layer, or at iteration_end");
    }
  }
}

// Rule 4: a partial step of a tensor needs an elementwise optimizer, so the plan must say `slices`.
void check_whole_tensors(const CompiledPlan& compiled, Report& report) {
  std::vector<std::int64_t> bytes(compiled.index.tensors.size(), 0);
  for (std::size_t s = 0; s < compiled.slots.size() && !report.full(); ++s) {
    const std::vector<ResolvedApply>& applies = compiled.slots[s].applies;
    for (std::size_t k = 0; k < applies.size(); ++k) {
      if (applies[k].apply->slices) continue;
      const auto block = [&](std::int32_t b) -> const ResolvedBlock& {
        return compiled.blocks[static_cast<std::size_t>(b)];
      };
      for (const std::int32_t b : applies[k].blocks) bytes[block(b).slice.tensor] += block(b).bytes;
      const auto part = std::ranges::find_if(applies[k].blocks, [&](std::int32_t b) {
        return bytes[block(b).slice.tensor] < compiled.index.tensor_bytes(block(b).slice.tensor);
      });
      if (part != applies[k].blocks.end()) {
        report.add(
            4, static_cast<std::int64_t>(s), "applies a part of the tensor",
            compiled.slot_name(s) + ".applies[" + std::to_string(k) + "], " + compiled.block_name(*part),
            "add the tensor's other blocks, or set slices: true for an elementwise optimizer");
      }
      for (const std::int32_t b : applies[k].blocks) bytes[block(b).slice.tensor] = 0;
    }
  }
}

}  // namespace

void check_applies(const CompiledPlan& compiled, Report& report) {
  check_apply_points(compiled, report);
  check_whole_tensors(compiled, report);
}

}  // namespace gradweave
