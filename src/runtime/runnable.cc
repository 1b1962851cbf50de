#include "runtime/runnable.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include "gradweave/compression.h"
#include "gradweave/cost.h"
#include "gradweave/error.h"
#include "gradweave/json.h"
#include "runtime/buffers.h"
#include "runtime/codec/codec.h"

namespace gradweave::runtime {
namespace {

// What an average of gains asks of parameters.
void check_average(const RunOp& op, const std::string& where) {
  if (size_of(op.dtype) <= 4 && std::ranges::find(kFloats, op.dtype) != kFloats.end()) return;
  throw InvalidInput("only floats of 16 or 32 bits can be averaged with a compressor or an outer optimizer",
                     where,
                     "keep parameters in float32, with torch.autocast for the compute, or average exactly");
}

// What a compressed gradient asks of its elements.
void check_gradient(const RunOp& op, const std::string& where) {
  codec_row(op.compression);  // which the engine has, or this says so
  if (std::ranges::find(kFloats, op.dtype) == kFloats.end()) {
    throw InvalidInput("only floating-point gradients of 16, 32 or 64 bits can be compressed", where,
                       "name it in wrap(exclude=...), or use a plan without a compressor");
  }
  if (op.elements > std::numeric_limits<std::int32_t>::max()) {
    throw InvalidInput("a compressed message has more elements than 32-bit indices can name", where,
                       "use a scheme of smaller messages");
  }
}

// What two levels of links carry: exact gradients.
void check_levels(const RunOp& op) {
  const bool averages = op.payload == Payload::kParameter;
  if (op.level == Level::kAll || (!averages && op.compression.name.empty())) return;
  throw InvalidInput(std::string(averages ? "averages of parameters" : "compressed gradients") +
                         " can't be trained over two levels of links",
                     "plan", "leave workers_per_node out, or choose a scheme of exact gradients, as dear");
}

// Refuses what its parameters don't support, and says what it takes.
void prepare(RunOp& op, const RunPlan& run_plan, int world_size, c10::Device device) {
  check_levels(op);
  const bool compressed = !op.compression.name.empty();
  if (!compressed && !op.anchored) return;
  const auto first =
      static_cast<std::size_t>(run_plan.block_tensor[static_cast<std::size_t>(op.blocks.front())]);
  const std::string where = "parameter '" + run_plan.index.tensor_names[first] + "'";
  op.anchored ? check_average(op, where) : check_gradient(op, where);
  if (op.anchored) {
    op.staged = !device.is_cpu() || op.dtype != DType::kFloat32;
    op.dtype = DType::kFloat32;  // of its messages
    op.bytes = op.elements * size_of(op.dtype);
  }
  if (!compressed) return;
  std::vector<gradweave::Slice> slices;
  for (const std::int32_t b : op.blocks) {
    const auto block = static_cast<std::size_t>(b);
    slices.push_back({static_cast<std::size_t>(run_plan.block_tensor[block]), run_plan.blocks[block].begin,
                      run_plan.blocks[block].end});
  }
  const CompressedCost cost = wire_cost(
      op.compression, op.payload,
      {op.elements, size_of(op.dtype), world_size, sent_elements(op.compression, run_plan.index, slices)});
  op.bytes = cost.equivalent_bytes;
  if (!is_half(op.collective)) op.half_startups = cost.half_startups;
}

}  // namespace

RunPlan runnable_plan(const Plan& plan, const Workload& workload, int world_size, c10::Device device) {
  RunPlan run_plan = run_plan_of(plan, workload);
  run_plan.hash = hash_of(plan);
  for (RunIteration& iteration : run_plan.iterations) {
    for (RunOp& op : iteration.ops) prepare(op, run_plan, world_size, device);
  }
  return run_plan;
}

}  // namespace gradweave::runtime
