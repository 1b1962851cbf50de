// A job goes on with another number of ranks: what is on its way is taken as it would have arrived.
#include "runtime/fold.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

#include "gradweave/error.h"
#include "runtime/engine.h"
#include "runtime/transport/transport.h"

namespace gradweave::runtime {
namespace {

constexpr const char* kIteration = "iteration";
const std::string kResidual = "left.";
const std::string kMomentum = "momentum.";

const at::Tensor& tensor_of(const StateTensors::Map& state, const std::string& name) {
  const auto found = state.find(name);
  if (found != state.end()) return found->second;
  throw InvalidInput("the state of one rank has no '" + name + "'", "checkpoint",
                     "give what state_dict() returned on all ranks after one iteration");
}

std::vector<at::Tensor> tensors_of(const std::vector<StateTensors::Map>& states, const std::string& name) {
  std::vector<at::Tensor> tensors;
  for (const StateTensors::Map& state : states) tensors.push_back(tensor_of(state, name));
  return tensors;
}

// What rank `rank` of `ranks` has of a message's sum after a step that another goes on with.
at::Tensor reduced_part_of(const at::Tensor& flat, const RunOp& op, int rank, int ranks,
                           int workers_per_node) {
  if (op.level == Level::kAll) return part_of(flat, rank, ranks);
  const at::Tensor shard = part_of(flat, rank % workers_per_node, workers_per_node);
  const bool whole = op.level == Level::kInside || op.collective != Collective::kReduceScatter;
  return whole ? shard : part_of(shard, rank / workers_per_node, ranks / workers_per_node);
}

// In the order of ranks, each times `factor`. Floats of 16 bits are rounded once.
at::Tensor sum_of(const std::vector<at::Tensor>& of_ranks, double factor) {
  const c10::ScalarType dtype = of_ranks.front().scalar_type();
  const bool half = dtype == c10::kHalf || dtype == c10::kBFloat16;
  at::Tensor sum;
  for (const at::Tensor& each : of_ranks) {
    const at::Tensor share = (half ? each.to(c10::kFloat) : each).mul(factor);
    sum = sum.defined() ? sum.add_(share) : share;
  }
  return sum.to(dtype);
}

}  // namespace

at::Tensor mean_over_ranks(const std::vector<at::Tensor>& of_ranks) {
  const at::Tensor& first = of_ranks.front();
  if (std::ranges::all_of(of_ranks, [&](const at::Tensor& each) { return each.equal(first); }))
    return first.clone();
  return sum_of(of_ranks, 1.0 / static_cast<double>(of_ranks.size()));
}

// ---- what is on its way

void Engine::play(const Plan& plan, const Workload& workload, const std::vector<StateTensors::Map>& states,
                  std::size_t rank) {
  const run::AsComputeThread here;
  Open& open = this->open();
  open.put_in_force(
      open.prepare(plan, workload, &states.at(rank)), workload, &states.at(rank), static_cast<int>(rank),
      [&]() REQUIRES(run::compute_thread) {
        open.run.visit_alive([&](const run::Execution& execution) REQUIRES(run::compute_thread) {
          open.host.gather(execution, open.run.queue()->done(execution), states);
        });
      });
}

void TorchHost::gather(const run::Execution& execution, bool ended,
                       const std::vector<StateTensors::Map>& states) {
  Message& message = messages_[execution];
  const RunOp& op = *execution.op;
  const std::string name = "message." + std::to_string(execution.slot);
  if (message.groups) {
    if (!ended) anchors_.gather(op, message, tensors_of(states, name + ".sent"));
    return;
  }
  if (!message.flat.defined()) return;
  if (ended && !op.goes_on) return;  // it is there
  const std::vector<at::Tensor> flats = tensors_of(states, name + ".flat");
  if (ended) {  // the step after it has not: each rank has a part of the sum, or, inside nodes, of the node's
    const auto part = [&, ranks = static_cast<int>(flats.size()),
                       of_node = static_cast<int>(parameters_.plan().workers_per_node)](
                          const at::Tensor& flat, std::size_t rank) {
      return reduced_part_of(flat, op, static_cast<int>(rank), ranks, of_node);
    };
    message.flat.zero_();
    for (std::size_t r = 0; r < flats.size(); ++r) {
      const at::Tensor to = part(message.flat, r), from = part(flats[r], r);
      op.level == Level::kInside ? to.add_(from) : to.copy_(from);
    }
  } else {
    message.flat.copy_(sum_of(flats, 1));
  }
}

void Anchors::gather(const RunOp& op, Message& message, const std::vector<at::Tensor>& sent) {
  const GroupLayout& layout = message.groups->layout;
  const auto decode = [&](const at::Tensor& bytes, auto kernel, const at::Tensor& to) {
    kernel(layout.format, bytes.const_data_ptr<std::uint8_t>(), layout.count, 0, layout.count,
           to.mutable_data_ptr<float>());
  };
  const codec::Kernels& with = codec::kernels();
  const at::Tensor sum = at::zeros({layout.count}, c10::kFloat), own = at::empty({layout.count}, c10::kFloat);
  for (const at::Tensor& each : sent) decode(each.cpu(), with.decode_add, sum);
  decode(message.groups->sent, with.decode, own);
  retire_groups(op, message);
  message.flat = sum;
  message.own = own;
}

// ---- what outlives a plan

StateTensors::Map Engine::remains() const {
  const run::AsComputeThread here;
  StateTensors tensors;
  at::Tensor iteration = at::empty({}, c10::kLong).fill_(open().run.iteration());
  tensors(kIteration, iteration);
  open().host.write_remains(tensors);
  return tensors.all();
}

void Engine::take_over(const std::vector<StateTensors::Map>& remains) {
  const run::AsComputeThread here;
  std::vector<std::int64_t> at;
  for (const at::Tensor& iteration : tensors_of(remains, kIteration))
    at.push_back(iteration.item<std::int64_t>());
  for (std::size_t r = 1; r < at.size(); ++r) {
    if (at[r] == at.front()) continue;
    throw InvalidInput("rank 0's is of iteration " + std::to_string(at.front()) + ", rank " +
                           std::to_string(r) + "'s of iteration " + std::to_string(at[r]),
                       "checkpoint", "give those of one iteration");
  }
  open().host.take_over(remains);
  open().run.begin_at(at.front());
}

void TorchHost::write_remains(StateTensors& tensors) const {
  const std::vector<NamedParameter>& parameters = parameters_.all();
  std::vector<at::Tensor> residuals = feedback_.by_parameter();
  for (std::size_t p = 0; p < residuals.size(); ++p) tensors(kResidual + parameters[p].name, residuals[p]);
  for (auto [p, momentum] : anchors_.momenta())
    tensors(kMomentum + parameters[static_cast<std::size_t>(p)].name, momentum);
}

// Each of the ranks that there are now gets the mean of the residuals, so that it is what is owed to the mean of
// their gradients. The outer optimizer's momentum is the same on all ranks.
void TorchHost::take_over(const std::vector<StateTensors::Map>& remains) {
  const std::vector<NamedParameter>& parameters = parameters_.all();
  const auto place_of = [&](const std::string& name, const at::Tensor& values) {
    const auto found = std::ranges::find(parameters, name, &NamedParameter::name);
    if (found == parameters.end() || found->tensor.numel() != values.numel()) {
      throw InvalidInput(
          "the checkpoint has a residual for it, and the model has no such parameter of that size",
          "parameter '" + name + "'", "use the model of the job that was saved");
    }
    return static_cast<std::size_t>(found - parameters.begin());
  };
  for (const StateTensors::Map& state : remains) {
    for (const auto& [name, values] : state) {
      if (!name.starts_with(kResidual)) continue;
      feedback_.carry(place_of(name.substr(kResidual.size()), values), values.to(parameters_.device()),
                      1.0 / static_cast<double>(remains.size()));
    }
  }
  for (const auto& [name, values] : remains.front()) {
    if (!name.starts_with(kMomentum)) continue;
    const auto parameter = static_cast<std::int32_t>(place_of(name.substr(kMomentum.size()), values));
    anchors_.momenta()[parameter] = copy_on(c10::kCPU, values);
  }
}

}  // namespace gradweave::runtime
