// The engine's part of a checkpoint: what is on its way, residuals, anchors.
#include <ATen/ops/from_blob.h>

#include "gradweave/error.h"
#include "runtime/engine.h"

namespace gradweave::runtime {
namespace {

constexpr const char* kNumbers = "numbers";

std::vector<std::int64_t> numbers_in(const StateTensors::Map& state) {
  const auto found = state.find(kNumbers);
  if (found == state.end() || found->second.scalar_type() != c10::kLong || found->second.dim() != 1) {
    throw InvalidInput("it has no state of the engine", "checkpoint", "give what state_dict() returned");
  }
  const at::Tensor numbers = found->second.cpu().contiguous();
  const auto* const values = numbers.const_data_ptr<std::int64_t>();
  return {values, values + numbers.numel()};
}

}  // namespace

StateTensors::Map Engine::state() {
  const run::AsComputeThread here;
  Open& open = this->open();
  if (!open.run.installed()) return {};
  open.rest();
  run::Archive numbers;
  StateTensors tensors;
  open.archive(numbers, tensors);
  std::vector<std::int64_t> values = numbers.numbers();
  at::Tensor whole = at::from_blob(values.data(), {static_cast<std::int64_t>(values.size())}, at::kLong);
  tensors(kNumbers, whole);
  return tensors.all();
}

void Engine::Open::restore(const StateTensors::Map& state) {
  run::Archive numbers(numbers_in(state));
  StateTensors tensors(state, options.device);
  archive(numbers, tensors);
  numbers.end();
}

std::string Engine::Open::resumed_at(const StateTensors::Map& state) {
  run::Archive numbers(numbers_in(state));
  return " resumed at iteration " + std::to_string(run::Run::archived_iteration(numbers));
}

void Engine::Open::archive(run::Archive& numbers, StateTensors& tensors) {
  run.archive(numbers);
  host.archive(numbers, tensors);
  run.visit_alive([&](const run::Execution& execution)
                      REQUIRES(run::compute_thread) { host.archive(execution, numbers, tensors); });
  if (numbers.ended()) return;  // of a version that kept nothing else
  run.archive_given(numbers);
  host.archive_begun(numbers);
}

void TorchHost::archive(run::Archive& numbers, StateTensors& tensors) {
  feedback_.archive(numbers, tensors);
  anchors_.archive(numbers, tensors);
  versions_.archive(numbers);
}

void TorchHost::archive(const run::Execution& execution, run::Archive& numbers, StateTensors& tensors) {
  Message& message = messages_[execution];
  const std::string name = "message." + std::to_string(execution.slot);
  bool filled = message.flat.defined(), in_groups = message.groups.has_value();
  numbers(filled);
  numbers(in_groups);
  if (tensors.reads() && filled) messages_.acquire(execution);
  if (execution.op->anchored && (filled || in_groups))
    anchors_.archive_staged(execution, message, tensors, name);
  if (filled) {
    const c10::Device device = parameters_.device();
    message.result.wait(device);  // this stream wrote its data
    tensors.contents(name + ".flat", message.flat);
    tensors.contents(name + ".own", message.own);
    if (tensors.reads()) {
      message.data.record(device);
      message.result.record(device);
    }
  }
  if (in_groups) anchors_.archive(execution, message, numbers, tensors, name);
}

void Anchors::archive(run::Archive& numbers, StateTensors& tensors) {
  numbers(down_);
  for (std::size_t t = 0; t < anchors_.size(); ++t) {
    tensors.contents("anchor." + std::to_string(t), anchors_[t].value);
    const std::string name = "momentum." + std::to_string(t);
    at::Tensor momentum = anchors_[t].momentum;
    // An earlier plan's, for the next one that has an outer optimizer.
    if (!momentum.defined() && (tensors.reads() ? tensors.has(name) : momenta_.contains(parameter_of_[t])))
      momentum = momentum_of(t);
    tensors.contents(name, momentum);
  }
  for (std::size_t k = 0; auto& [key, kind] : kinds_)
    tensors.contents("rest." + std::to_string(k++), kind.rest);
}

void Anchors::archive_staged(const run::Execution& execution, Message& message, StateTensors& tensors,
                             const std::string& name) {
  const std::string corrections = name + ".corrections";
  if (!tensors.reads()) {
    if (!message.gain) return;
    message.gain->await();
    message.gain->send(message.groups, message.flat, message.own);
    if (message.gain->landed()) tensors.contents(corrections, message.gain->values());
    return;
  }
  const RunOp& op = *execution.op;
  const bool landed = tensors.has(corrections);
  if (!op.staged && !landed) return;
  acquire_staged(execution, message);
  for (std::size_t i = 0; i < op.blocks.size(); ++i) {
    const Slices of = slices_of(op.blocks[i]);
    message.gain->place(op.offsets[i], of.anchor, of.momentum);
  }
  message.gain->restore(landed);
  if (landed) tensors.contents(corrections, message.gain->values());
}

void Anchors::archive(const run::Execution& execution, Message& message, run::Archive& numbers,
                      StateTensors& tensors, const std::string& name) {
  if (tensors.reads()) acquire(execution, message);
  numbers(message.groups->key);
  tensors.contents(name + ".sent", message.groups->sent);
  tensors.contents(name + ".arrived", message.groups->arrived);
}

void Coder::archive(run::Archive& numbers, StateTensors& tensors, const std::string& name) {
  const MutexLock lock(mutex_);
  std::vector<Key> keys;
  for (const auto& [key, store] : stores_) keys.push_back(key);
  std::size_t count = keys.size();
  numbers(count);
  for (std::size_t i = 0; i < count; ++i) {
    Key key = i < keys.size() ? keys[i] : Key();
    numbers.list(key.first);
    numbers(key.second);
    Store& store = stores_[key];
    store.take();
    const std::string here = name + "." + std::to_string(i);
    tensors(here + ".left_behind", store.now.residual);
    std::size_t further = store.now.further.size();
    numbers(further);
    store.now.further.resize(further);
    for (std::size_t j = 0; j < further; ++j) tensors(here + "." + std::to_string(j), store.now.further[j]);
    std::vector<Name> left_out(store.left_out.begin(), store.left_out.end());
    std::size_t names = left_out.size();
    numbers(names);
    left_out.resize(names);
    for (Name& each : left_out) {
      numbers(each.first);
      numbers(each.second);
    }
    store.left_out = {left_out.begin(), left_out.end()};
    if (tensors.reads() && store.now.residual.defined()) store.used.record(store.now.residual.device());
  }
}

}  // namespace gradweave::runtime
