// A session in C++: the engine, the optimizer, and a profile of the layers.
#include <torch/nn/module.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <map>
#include <optional>
#include <set>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "base/statistics.h"
#include "gradweave/error.h"
#include "gradweave/fit.h"
#include "gradweave/json.h"
#include "gradweave/schemes.h"
#include "gradweave/torch.h"
#include "gradweave/validate.h"
#include "model/hash.h"
#include "runtime/control_group.h"
#include "runtime/engine.h"
#include "runtime/fork.h"
#include "runtime/gloo.h"
#include "runtime/passes.h"
#include "runtime/probe.h"

namespace gradweave {
namespace {

using runtime::Engine;
using runtime::NamedParameter;
using Groups = std::vector<torch::optim::OptimizerParamGroup>;

constexpr const char* kLink = "default";
constexpr std::size_t kProfiled = 200;  // iterations that are kept

struct Model {
  std::vector<NamedParameter> parameters;
  Workload workload;                         // without times
  std::vector<std::vector<std::size_t>> of;  // by layer: places in `parameters`
};

// Adds the layers of `module`, called `name`, and of what it holds, in the order of registration.
void add_layers(const torch::nn::Module& module, const std::string& name, Model& model,
                std::set<const void*>& seen) {
  Layer layer{.name = name.empty() ? module.name() : name};
  const std::string prefix = name.empty() ? "" : name + ".";
  std::vector<std::size_t> places;
  for (const auto& own : module.named_parameters(/*recurse=*/false)) {
    const at::Tensor& tensor = own.value();
    if (!tensor.requires_grad() || tensor.numel() == 0) continue;
    if (!seen.insert(tensor.unsafeGetTensorImpl()).second) continue;  // shared: of the first layer
    const auto dtype = std::ranges::find(runtime::kFloats, tensor.scalar_type(), runtime::scalar_type_of);
    if (dtype == runtime::kFloats.end()) {
      throw InvalidInput("its element type has no gradients here", "parameter '" + prefix + own.key() + "'",
                         "use floats");
    }
    layer.tensors.push_back({.name = prefix + own.key(), .numel = tensor.numel(), .dtype = *dtype});
    places.push_back(model.parameters.size());
    model.parameters.push_back({prefix + own.key(), tensor});
  }
  if (!layer.tensors.empty()) {
    model.workload.layers.push_back(std::move(layer));
    model.of.push_back(std::move(places));
  }
  for (const auto& child : module.named_children())
    add_layers(*child.value(), prefix + child.key(), model, seen);
}

Model described(const torch::nn::Module& module) {
  Model model;
  model.workload.name = module.name();
  std::set<const void*> seen;
  add_layers(module, "", model, seen);
  if (model.parameters.empty()) {
    throw InvalidInput("no parameter requires a gradient", "model",
                       "register its layers before the session begins");
  }
  return model;
}

// Steps parameter by parameter: a step of some is what a step of all does to them.
bool steps_one_by_one(const torch::optim::Optimizer& optimizer) {
  return dynamic_cast<const torch::optim::SGD*>(&optimizer) != nullptr ||
         dynamic_cast<const torch::optim::Adam*>(&optimizer) != nullptr ||
         dynamic_cast<const torch::optim::AdamW*>(&optimizer) != nullptr ||
         dynamic_cast<const torch::optim::RMSprop*>(&optimizer) != nullptr ||
         dynamic_cast<const torch::optim::Adagrad*>(&optimizer) != nullptr;
}

void check_optimizer(torch::optim::Optimizer& optimizer, const Model& model) {
  if (dynamic_cast<const torch::optim::LBFGS*>(&optimizer) != nullptr) {
    throw InvalidInput("LBFGS evaluates the loss many times in a step", "optimizer", "use another one");
  }
  std::set<const void*> stepped;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& tensor : group.params()) stepped.insert(tensor.unsafeGetTensorImpl());
  }
  for (const NamedParameter& parameter : model.parameters) {
    if (stepped.erase(parameter.tensor.unsafeGetTensorImpl()) == 0) {
      throw InvalidInput("the optimizer does not have it", "parameter '" + parameter.name + "'",
                         "give the optimizer model.parameters()");
    }
  }
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& tensor : group.params()) {
      if (stepped.contains(tensor.unsafeGetTensorImpl()) && tensor.requires_grad() && tensor.numel() > 0)
        throw InvalidInput("it has parameters that the model has not", "optimizer",
                           "give each model its own");
    }
  }
}

// When the parts of an iteration began, steady clock, ns.
struct StartTimes {
  std::vector<Nanoseconds> entered;  // by layer; 0: not yet
  Nanoseconds backward = 0;
};

struct LayerTimes {
  std::vector<Nanoseconds> forward, backward;
};

}  // namespace

struct Session::State {
  State(torch::nn::Module& module, torch::optim::Optimizer& user, const Job& the_job,
        const SessionOptions& the_options)
      : model(module),
        optimizer(user),
        job(the_job),
        options(the_options),
        described(gradweave::described(module)) {
    check_optimizer(optimizer, described);
    c10::intrusive_ptr<c10d::Store> store = job.store;
    if (store) {  // of this session alone: ranks make their sessions in the same order
      static int sessions = 0;
      job.store = c10::make_intrusive<c10d::PrefixStore>("session" + std::to_string(sessions++), store);
    }
    peers = std::make_shared<runtime::Peers>(job.store, job.rank, job.world_size);
    std::string shapes;
    for (const NamedParameter& parameter : described.parameters)
      shapes += parameter.name + " " + std::to_string(parameter.tensor.numel()) + "\n";
    agree_equal("Session", shapes, "the model", "build the same model on every rank");
    control = group("control");
    link = group("link");
    data = group("data");
    exchange.emplace(peers, control, data, at::kCPU);
    exchange->broadcast(module.parameters(), "the broadcast of parameters");
    broadcast_buffers();
    runtime::EngineOptions engine_options;
    engine_options.link.timeout = options.timeout;
    engine_options.link.check = options.check;
    std::vector<runtime::LinkSpec> links{{.name = kLink, .group = link, .emulation = nullptr, .control = {}}};
    engine = std::make_unique<Engine>(described.parameters, std::move(links), control, peers, job.world_size,
                                      engine_options, [this](std::int32_t subset) { step_subset(subset); });
    started.entered.resize(described.workload.layers.size());
    const Cluster unknown{.workers = job.world_size, .links = {{.name = kLink, .startup_ns = 1000}}};
    engine->install(std::get<Plan>(make_plan("sequential", described.workload, unknown)), described.workload);
  }

  // Errors: InvalidInput, on every rank, unless all ranks have the same `text`.
  void agree_equal(const std::string& meeting, const std::string& text, const std::string& what,
                   const std::string& remedy) const {
    if (job.world_size == 1) return;
    const std::vector<std::string> texts = peers->agree(meeting, hash_hex(text), options.timeout);
    for (std::size_t rank = 1; rank < texts.size(); ++rank) {
      if (texts[rank] != texts[0])
        throw InvalidInput("rank " + std::to_string(rank) + " has another one than rank 0", what, remedy);
    }
  }

  c10::intrusive_ptr<c10d::ProcessGroup> group(const std::string& name) {
    if (job.world_size == 1) return {};
    const auto store = c10::make_intrusive<c10d::PrefixStore>(name, job.store);
    return runtime::make_gloo_group(*peers, store, job.rank, job.world_size, options.timeout);
  }

  void broadcast_buffers() { exchange->broadcast(model.buffers(), "the broadcast of buffers"); }

  // Optimizer::zero_grad() refuses gradients that are views, as the engine's are of its messages.
  void lend_gradients() const {
    for (const NamedParameter& parameter : described.parameters) {
      at::Tensor& gradient = parameter.tensor.mutable_grad();
      if (gradient.defined() && gradient.is_view()) gradient = gradient.detach();
    }
  }

  void step_subset(std::int32_t subset) {
    if (subset == 0) {
      optimizer.step();
      return;
    }
    Groups& groups = optimizer.param_groups();
    auto [entry, made] = narrowed.try_emplace(subset);
    Groups& mine = entry->second;
    if (made) {
      std::set<const void*> wanted;
      for (const std::int32_t p : engine->subset(subset).parameters)
        wanted.insert(described.parameters[static_cast<std::size_t>(p)].tensor.unsafeGetTensorImpl());
      for (const auto& group : groups) {
        std::erase_if(mine.emplace_back(group).params(), [&](const at::Tensor& tensor) {
          return !wanted.contains(tensor.unsafeGetTensorImpl());
        });
      }
    }
    if (frozen.empty()) freeze_options();
    for (std::size_t g = 0; g < mine.size(); ++g) mine[g].set_options(frozen[g]->clone());
    // The vectors, so that what the caller refers to in his groups stays where it is.
    std::swap(groups, mine);
    try {
      optimizer.step();
    } catch (...) {
      std::swap(groups, mine);
      throw;
    }
    std::swap(groups, mine);
  }

  // Steps of parts use the hyperparameters of now, also those that come later.
  void freeze_options() {
    frozen.clear();
    for (const auto& group : optimizer.param_groups()) frozen.push_back(group.options().clone());
  }

  void keep_profile() {
    const std::vector<Nanoseconds>& entered = started.entered;
    if (started.backward == 0 || std::ranges::find(entered, 0) != entered.end()) return;
    const std::size_t layers = entered.size();
    LayerTimes times{.forward = std::vector<Nanoseconds>(layers),
                     .backward = std::vector<Nanoseconds>(layers)};
    Nanoseconds before = started.backward;
    for (std::size_t l = layers; l-- > 0;) {
      times.forward[l] =
          std::max<Nanoseconds>(0, (l + 1 < layers ? entered[l + 1] : started.backward) - entered[l]);
      Nanoseconds ready = before;
      for (const std::size_t p : described.of[l]) ready = std::max(ready, engine->ready_ns()[p]);
      times.backward[l] = ready - before;
      before = ready;
    }
    if (profiled.size() == kProfiled) profiled.erase(profiled.begin());
    profiled.push_back(std::move(times));
  }

  torch::nn::Module& model;
  torch::optim::Optimizer& optimizer;
  Job job;
  SessionOptions options;
  Model described;
  std::shared_ptr<runtime::Peers> peers;
  c10::intrusive_ptr<c10d::ProcessGroup> control, link, data;  // flags; ops; broadcasts and the probe
  std::optional<runtime::ControlGroup> exchange;
  std::unique_ptr<Engine> engine;
  std::map<std::int32_t, Groups> narrowed;                              // by subset
  std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> frozen;  // by group
  std::int32_t layer = -1;                                              // that the forward is in
  bool stepped = false;                                                 // some iteration has ended
  StartTimes started;
  std::vector<LayerTimes> profiled;
  std::set<std::int32_t> ever_entered;
  int exceptions = std::uncaught_exceptions();
  int generation = runtime::fork_generation();
};

Session::Session(torch::nn::Module& model, torch::optim::Optimizer& optimizer, const Job& job,
                 const SessionOptions& options)
    : state_(std::make_unique<State>(model, optimizer, job, options)) {}

Session::~Session() {
  if (runtime::fork_generation() != state_->generation) {  // the threads are the parent's
    static_cast<void>(state_.release());
    return;
  }
  const bool failed = std::uncaught_exceptions() > state_->exceptions;
  try {
    if (failed) {
      state_->peers->report("an exception ended the session");
      state_->engine->close(run::Clock::duration::zero());
    } else {
      state_->peers->end();
      state_->engine->close();
    }
    state_->peers->close();
  } catch (const std::exception&) {  // the ranks that are left have been told, or find out
  }
}

void Session::enter(const std::string& layer) {
  State& state = *state_;
  const std::vector<Layer>& layers = state.described.workload.layers;
  const auto found = std::ranges::find(layers, layer, &Layer::name);
  if (found == layers.end()) {
    throw InvalidInput("the model has no module of that name with parameters of its own",
                       "Session::enter: '" + layer + "'", "name it as named_modules() does");
  }
  const auto number = static_cast<std::int32_t>(found - layers.begin());
  if (state.layer >= 0) state.engine->forward_end(state.layer);
  state.layer = number;
  if (at::GradMode::is_enabled()) {
    std::vector<Nanoseconds>& entered = state.started.entered;
    Nanoseconds& here = entered[static_cast<std::size_t>(number)];
    if (here == 0) {
      if (std::ranges::any_of(entered.begin() + number + 1, entered.end(),
                              [](Nanoseconds at) { return at != 0; })) {
        throw InvalidInput("the forward reaches it after layers that are registered behind it",
                           "layer '" + layer + "'",
                           "register modules in the order in which the forward runs them");
      }
      here = run::ns_of(run::Clock::now());
      state.ever_entered.insert(number);
    }
  }
  state.engine->forward_start(number);
}

void Session::backward(const at::Tensor& loss) {
  State& state = *state_;
  if (state.layer >= 0) state.engine->forward_end(state.layer);
  state.layer = -1;
  for (const std::int32_t layer : state.engine->run(&run::Run::forward_layers)) {
    if (state.started.entered[static_cast<std::size_t>(layer)] == 0) {
      throw InvalidInput(
          "the plan updates it in the forward, which did not enter it",
          "layer '" + state.described.workload.layers[static_cast<std::size_t>(layer)].name + "'",
          "call Session::enter() in the first line of the layer's forward, in every iteration");
    }
  }
  if (loss.requires_grad()) {
    loss.register_hook([&state](const at::Tensor&) { state.engine->backward_start(); });
  }
  if (state.engine->run(&run::Run::steps).in_backward) state.freeze_options();
  state.started.backward = run::ns_of(run::Clock::now());
  loss.backward();
}

void Session::step() {
  State& state = *state_;
  state.keep_profile();
  state.freeze_options();
  state.engine->end_iteration();
  state.lend_gradients();
  state.started.entered.assign(state.started.entered.size(), 0);
  state.started.backward = 0;
  state.layer = -1;
  state.stepped = true;
}

Workload Session::profile() {
  State& state = *state_;
  Workload workload = state.described.workload;
  if (!state.profiled.empty()) {
    std::vector<std::vector<double>> iterations;
    for (const LayerTimes& times : state.profiled) {
      iterations.emplace_back(times.forward.begin(), times.forward.end());
      iterations.back().insert(iterations.back().end(), times.backward.begin(), times.backward.end());
    }
    const std::vector<double> typical = typical_row(iterations);
    const std::size_t layers = workload.layers.size();
    for (std::size_t l = 0; l < layers; ++l) {
      workload.layers[l].forward_ns = std::llround(typical[l]);
      workload.layers[l].backward_ns = std::llround(typical[layers + l]);
    }
  }
  std::vector<std::string> texts{state.profiled.empty() ? "" : to_json(workload)};
  if (state.job.world_size > 1)
    texts = state.peers->agree("Session::profile()", texts.front(), state.options.timeout);
  std::vector<Workload> classes;
  for (const std::string& text : texts) {
    if (text.empty()) {
      throw InvalidInput(
          "no iteration entered every layer", "Session::profile()",
          "call Session::enter() in the first line of each layer's forward, backward() and step(), before");
    }
    classes.push_back(parse_workload(text));
  }
  state.profiled.clear();
  return slowest_of(classes);
}

Cluster Session::probe(double seconds) {
  const State& state = *state_;
  if (!state.data) return {.workers = state.job.world_size, .links = {{.name = kLink, .startup_ns = 1000}}};
  return fit_cluster({.workers = state.job.world_size,
                      .links = {runtime::measure_link(*state.peers, kLink, state.data, at::kCPU, seconds)}})
      .cluster;
}

void Session::install(const Plan& given) {
  State& state = *state_;
  Plan plan = given;
  if (plan.links.size() == 1) {
    const std::string name = std::exchange(plan.links[0].name, kLink);
    for (std::vector<Iteration>* iterations : {&plan.prologue, &plan.period}) {
      for (Iteration& iteration : *iterations) {
        for (Op& op : iteration.ops) {
          if (op.link == name) op.link = kLink;
        }
      }
    }
  }
  if (validate(plan, state.described.workload).valid()) {
    const Demands demands = demands_of(plan);
    if (demands.slices) {
      throw InvalidInput("the plan steps parts of tensors, and a session steps whole ones",
                         "Session::install", "plan with slices=off, or use another scheme");
    }
    if (demands.partial_steps && !steps_one_by_one(state.optimizer)) {
      throw InvalidInput("the plan steps parts of the model, which is not known to equal a whole step",
                         "optimizer", "use torch's SGD, Adam, AdamW, RMSprop or Adagrad, or scheme ddp");
    }
  }
  state.engine->drain("Session::install()");
  state.lend_gradients();
  state.narrowed.clear();
  state.engine->install(plan, state.described.workload);
  for (const std::int32_t layer : state.engine->run(&run::Run::forward_layers)) {
    if (state.stepped && !state.ever_entered.contains(layer)) {
      throw InvalidInput(
          "the plan updates it in the forward, which does not enter it",
          "layer '" + state.described.workload.layers[static_cast<std::size_t>(layer)].name + "'",
          "call Session::enter() in the first line of the layer's forward");
    }
  }
}

void Session::finish() {
  State& state = *state_;
  state.engine->drain("Session::finish()");
  state.lend_gradients();
  state.broadcast_buffers();
  std::string all;
  for (const NamedParameter& parameter : state.described.parameters)
    all += std::to_string(runtime::checksum_of(parameter.tensor)) + "\n";
  state.agree_equal(
      "the comparison of parameters", all, "parameters",
      "every rank must take the same steps with the same hyperparameters, and change parameters only alike");
}

}  // namespace gradweave
