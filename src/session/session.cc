// A session in C++: what its controller decides, on torch's own modules and optimizers.
#include <algorithm>
#include <cmath>
#include <exception>
#include <iostream>
#include <iterator>
#include <memory>
#include <optional>
#include <set>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>

#include "control/controller.h"
#include "gradweave/error.h"
#include "gradweave/ranked_plans.h"
#include "gradweave/schemes.h"
#include "gradweave/torch.h"
#include "gradweave/validate.h"
#include "jobs/engine_job.h"
#include "model/hash.h"
#include "runtime/control_group.h"
#include "runtime/engine.h"
#include "runtime/fork.h"
#include "runtime/gloo.h"
#include "runtime/passes.h"
#include "session/loss_scale.h"
#include "session/model.h"
#include "session/optimizer.h"
#include "session/options.h"

namespace gradweave {
namespace {

using runtime::Engine;
using runtime::NamedParameter;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

constexpr const char* kLink = "default";
const std::string kBuffers = "the broadcast of buffers";
const std::string kUnfinished =
    "a session ended without finish(): updates on their way are lost, and parameters that ranks have stepped "
    "on their own are different; call Session::finish() on all ranks before the model is saved";

// What tensors must have alike on all ranks: messages are in the order of memory.
std::string form_of(const std::vector<at::Tensor>& tensors) {
  std::string form;
  for (const at::Tensor& tensor : tensors) {
    std::vector<std::int64_t> strides;  // of a dimension of size 1 any will do
    for (std::int64_t d = 0; d < tensor.dim(); ++d) {
      if (tensor.size(d) > 1) strides.push_back(tensor.stride(d));
    }
    form += c10::str(tensor.sizes(), at::IntArrayRef(strides), tensor.scalar_type(), "\n");
  }
  return form;
}

// The layers whose forward the plan's updates precede.
std::set<std::int32_t> updated_in_forward(const Plan& plan) {
  std::set<std::int32_t> layers;
  for (const auto* iterations : {&plan.prologue, &plan.period}) {
    for (const Iteration& iteration : *iterations) {
      for (const Apply& apply : iteration.applies) {
        if (apply.at.kind == PointKind::kForwardStart) layers.insert(apply.at.layer);
      }
    }
  }
  return layers;
}

// The line of `text` where it becomes another one than `other`.
std::string line_apart(const std::string& text, const std::string& other) {
  const auto at = std::ranges::mismatch(text, other).in1 - text.begin();
  const std::size_t begin = text.substr(0, static_cast<std::size_t>(at)).rfind('\n') + 1;
  return text.substr(begin, text.find('\n', static_cast<std::size_t>(at)) - begin);
}

// A plan for one link, whatever it calls it, for the session's one.
Plan on_only_link(Plan plan, const std::string& link) {
  if (plan.links.size() != 1) return plan;
  const std::string name = std::exchange(plan.links[0].name, link);
  for (auto* iterations : {&plan.prologue, &plan.period}) {
    for (Iteration& iteration : *iterations) {
      for (Op& op : iteration.ops) {
        if (op.link == name) op.link = link;
      }
    }
  }
  return plan;
}

// What a session is made of before a controller comes.
struct Parts {
  Parts(torch::nn::Module& module, torch::optim::Optimizer& user, const Job& the_job,
        const SessionOptions& the_options);
  // Describes the model. Errors: InvalidInput for what this rank alone finds wrong.
  void prepare(torch::optim::Optimizer& user);
  // Ranks meet first here, and tell each other their options, or that prepare() has failed. Errors: `failure`; InvalidInput
  // naming the rank that has failed or has other options.
  void meet(const std::exception_ptr& failure, const std::string& why) const;
  // Errors: InvalidInput, on every rank, unless all ranks have the same `text`.
  void agree_equal(const std::string& meeting, const std::string& text, const std::string& what,
                   const std::string& remedy) const;
  Group group(const std::string& name, const std::string& interface);
  void step_subset(std::int32_t subset) {
    const bool at_end = !engine->run(&run::Run::steps).partial;  // by the options that are set now
    subset == 0 && at_end ? optimizer.step()
                          : optimizer.step_subset(subset, engine->subset(subset).parameters);
  }

  torch::nn::Module& model;
  Job job;
  SessionOptions options;
  SessionModel described;
  SessionOptimizer optimizer;
  std::shared_ptr<runtime::Peers> peers;
  std::shared_ptr<runtime::ControlGroup> messages;
  Group data;  // broadcasts and the probe
  std::unique_ptr<Engine> engine;
  std::optional<LossScale> scale;
};

Parts::Parts(torch::nn::Module& module, torch::optim::Optimizer& user, const Job& the_job,
             const SessionOptions& the_options)
    : model(module), job(the_job), options(the_options), optimizer(user, described.parameters) {
  check_timeout(options.timeout);
  if (options.links.empty()) options.links.push_back({.name = kLink});
  if (job.store) {  // of this session alone: ranks make their sessions in the same order
    static int sessions = 0;
    job.store = c10::make_intrusive<c10d::PrefixStore>("session" + std::to_string(sessions++), job.store);
  }
  peers = std::make_shared<runtime::Peers>(job.store, job.rank, job.world_size, options.timeout);
  std::exception_ptr failure;
  std::string why;
  try {
    prepare(user);
  } catch (const std::exception& error) {  // whatever it is, the other ranks must learn of it, or they wait
    failure = std::current_exception();
    why = error.what();
  }
  meet(failure, why);
  if (options.loss_scale > 0) scale.emplace(options.loss_scale);
  std::string form = form_of(module.parameters()) + form_of(module.buffers());
  for (const NamedParameter& parameter : described.parameters) form += parameter.name + "\n";
  agree_equal("Session", form, "the model", "build the same model on every rank");
  const Group control = group("control", "");
  data = group("data", "");
  messages = std::make_shared<runtime::ControlGroup>(peers, control, data, at::kCPU);
  std::vector<runtime::LinkSpec> links;
  for (const SessionLink& link : options.links) {
    std::shared_ptr<runtime::Emulation> emulation;
    if (link.startup_us > 0 || link.us_per_byte > 0) {
      emulation = std::make_shared<runtime::Emulation>();
      emulation->set(link.startup_us, link.us_per_byte);
    }
    links.push_back({.name = link.name,
                     .group = group("link " + link.name, link.interface),
                     .emulation = std::move(emulation),
                     .make_control = {},
                     .control = {}});
  }
  messages->broadcast(module.parameters(), "the broadcast of parameters");
  messages->broadcast(module.buffers(), kBuffers);
  runtime::EngineOptions engine_options;
  engine_options.link.timeout = options.timeout;
  engine_options.link.check = options.check;
  if (const std::optional<bool> given = options.find_unused_parameters)
    engine_options.find_unused = *given ? run::FindUnused::kOn : run::FindUnused::kOff;
  engine = std::make_unique<Engine>(described.parameters, std::move(links), control, peers, job.world_size,
                                    engine_options, [this](std::int32_t subset) { step_subset(subset); });
  if (scale) {
    engine->set_unscaler([this] { return at::full({}, 1 / scale->value(), at::kFloat); });
  }
}

void Parts::prepare(torch::optim::Optimizer& user) {
  check_options(options);
  described = gradweave::described(model);
  for (const NamedParameter& parameter : described.parameters) {
    if (!runtime::GradientHooks::are_on(parameter.tensor)) continue;
    throw InvalidInput("the model has a session already", "parameter '" + parameter.name + "'",
                       "train it by that one, or end that one first");
  }
  check_optimizer(user, described);
  std::vector<Tensor> tensors;
  for (const Layer& layer : described.workload.layers)
    tensors.insert(tensors.end(), layer.tensors.begin(), layer.tensors.end());
  control::check_runs({options.scheme, options.options}, tensors, job.world_size, 1,
                      runtime::unrunnable_on(job.world_size, at::kCPU));
  if (!options.dump.empty()) peers->dump().open(options.dump, job.rank);
}

void Parts::meet(const std::exception_ptr& failure, const std::string& why) const {
  const std::string failed = "failed: ";
  std::string post = failed + why;
  if (!failure) {
    post.clear();
    for (const auto& [name, value] : alike_of(options)) post += c10::str(name, " = ", value, "\n");
  }
  std::vector<std::string> posts(1);
  try {
    if (job.world_size > 1) posts = peers->agree("Session", post, options.timeout);
  } catch (const RuntimeFailure&) {
    if (!failure) throw;
  }
  if (failure) std::rethrow_exception(failure);
  const std::string remedy = "begin it alike on every rank";
  for (std::size_t rank = 0; rank < posts.size(); ++rank) {
    if (posts[rank].starts_with(failed)) {
      throw InvalidInput("rank " + std::to_string(rank) + " reports: " + posts[rank].substr(failed.size()),
                         "Session", remedy);
    }
  }
  for (std::size_t rank = 1; rank < posts.size(); ++rank) {
    if (posts[rank] == posts[0]) continue;
    throw InvalidInput("rank 0 has " + line_apart(posts[0], posts[rank]) + ", and rank " +
                           std::to_string(rank) + " " + line_apart(posts[rank], posts[0]),
                       "SessionOptions", remedy);
  }
}

void Parts::agree_equal(const std::string& meeting, const std::string& text, const std::string& what,
                        const std::string& remedy) const {
  if (job.world_size == 1) return;
  const std::vector<std::string> texts = peers->agree(meeting, hash_hex(text), options.timeout);
  for (std::size_t rank = 1; rank < texts.size(); ++rank) {
    if (texts[rank] != texts[0])
      throw InvalidInput("rank " + std::to_string(rank) + " has another one than rank 0", what, remedy);
  }
}

Group Parts::group(const std::string& name, const std::string& interface) {
  if (job.world_size == 1) return {};
  const auto store = c10::make_intrusive<c10d::PrefixStore>(name, job.store);
  return runtime::make_gloo_group(*peers, store, job.rank, job.world_size, options.timeout,
                                  {.interface = interface});
}

}  // namespace

struct Session::State : runtime::EngineJob {
  explicit State(std::unique_ptr<Parts> made);

  std::string install(const Plan& plan, const Workload& workload) override;
  void profiles(bool /*on*/) override {}  // layers are entered all the time
  run::LayerTimes end_profile() override;
  void look_at_optimizers() override;
  control::Costs measure(const Workload& workload) override;
  std::optional<StepRule> step_rule() override { return parts->optimizer.rule(); }
  std::vector<double> learning_rates() override { return parts->optimizer.learning_rates(); }
  runtime::OptimizerMoments moments() override { return parts->optimizer.moments(); }
  void tell(const std::string& line) override;

  void broadcast_buffers() { parts->messages->broadcast(parts->model.buffers(), kBuffers); }
  void run_backward(const at::Tensor& loss);
  void unscale();
  bool overflowed() const;
  bool dropped() const;
  void check_reduced(const char* where) const;
  void drop_batch();
  void end_iteration(bool drop);
  bool unfinished() const;
  std::string missing_layer(const Plan& plan) const;
  std::string lost_state(const Demands& demands) const;
  void average_states_of(const std::vector<std::int32_t>& apart);
  using Handed = std::pair<const void*, std::uint32_t>;  // a gradient's memory, and its version
  std::vector<Handed> gradients_now() const;
  const std::string& layer_name(std::int32_t layer) const {
    return parts->described.workload.layers[static_cast<std::size_t>(layer)].name;
  }

  std::unique_ptr<Parts> parts;
  Engine& engine;
  control::Loop loop;
  control::Controller controller;
  std::int32_t layer = -1;              // that the forward is in
  std::set<std::int32_t> in_pass;       // layers that this forward has entered
  std::set<std::int32_t> entered;       // ... that this iteration has
  std::set<std::int32_t> ever_entered;  // ... that some iteration has
  bool stepped = false;                 // some iteration has ended
  std::vector<Handed> handed;           // as the backward left them
  bool unscaled = false;                // the gradients of this iteration
  std::int64_t finished_at = 0;         // the iteration of the last finish()
  std::int64_t synchronized_at = 0;     // ... synchronize()
  int exceptions = std::uncaught_exceptions();
  int generation = runtime::fork_generation();
};

Session::State::State(std::unique_ptr<Parts> made)
    : EngineJob(*made->engine, made->peers, made->messages, made->job.rank, made->job.world_size,
                made->job.rank == 0, made->options.timeout),
      parts(std::move(made)),
      engine(*parts->engine),
      controller(*this, loop,
                 {.request = {parts->options.scheme, parts->options.options},
                  .warm_up = parts->options.warm_up,
                  .profile_iterations = parts->options.profile_iterations,
                  .compares_gradients = parts->job.world_size > 1 && !parts->scale,
                  .follows = parts->options.follow.value_or(parts->options.scheme == kAuto),
                  .trials = parts->options.tune},
                 runtime::unrunnable_on(parts->job.world_size, at::kCPU)) {
  if (parts->scale) loop.saw("scales");
  std::vector<std::string> names;
  for (const SessionLink& link : parts->options.links) names.push_back(link.name);
  controller.begin();
  controller.layers_known(parts->described.workload, {names});
}

// ---- what the controller commands

std::string Session::State::install(const Plan& plan, const Workload& workload) {
  std::string refusal;
  try {
    if (validate(plan, workload).valid()) {  // else the engine says what is wrong
      look_at_optimizers();
      const Demands demands = demands_of(plan);
      refusal = loop.refusal(demands);
      if (refusal.empty()) refusal = missing_layer(plan);
      if (refusal.empty()) refusal = lost_state(demands);
    }
  } catch (const std::exception& error) {  // the other ranks must learn of it, or they wait for this one
    refusal = error.what();
  }
  try {
    const std::vector<std::int32_t> apart = engine.stepped_locally();
    engine.install(plan, workload, nullptr, refusal);
    average_states_of(apart);
    parts->optimizer.forget();
    finished_at = engine.run(&run::Run::iteration);
  } catch (const RuntimeFailure&) {
    throw;
  } catch (const std::exception& error) {  // as above
    return error.what();
  }
  return "";
}

// Returns why the plan can't run: it updates a layer in a forward that was never seen to enter it.
std::string Session::State::missing_layer(const Plan& plan) const {
  for (const std::int32_t updated : updated_in_forward(plan)) {
    if (!stepped || ever_entered.contains(updated)) continue;
    return "the plan updates layer '" + layer_name(updated) +
           "' in the forward, which does not enter it; call Session::enter() in the first line of the "
           "layer's "
           "forward";
  }
  return "";
}

// Returns why the plan can't follow the one in force: ranks would go on alike from optimizers that differ.
std::string Session::State::lost_state(const Demands& demands) const {
  if (demands.local_steps || engine.stepped_locally().empty() || !parts->optimizer.keeps_unknown_state())
    return "";
  return "ranks have stepped on their own, and what their optimizers keep can be averaged of torch's SGD, "
         "Adam, AdamW, RMSprop and Adagrad only; train by such a plan from the start, or by one of these";
}

// What optimizers keep of parameters that ranks stepped on their own, and step alike from here on.
void Session::State::average_states_of(const std::vector<std::int32_t>& apart) {
  const std::vector<std::int32_t> still = engine.stepped_locally();
  std::vector<std::int32_t> alike;
  std::ranges::copy_if(apart, std::back_inserter(alike),
                       [&](std::int32_t p) { return std::ranges::find(still, p) == still.end(); });
  if (!alike.empty()) parts->optimizer.average_states(alike, *parts->messages);
}

run::LayerTimes Session::State::end_profile() {
  run::LayerTimes times = EngineJob::end_profile();
  if (!times.every_layer) {
    throw InvalidInput("no iteration entered every layer", "Session",
                       "call Session::enter() in the first line of each layer's forward, or give a plan by "
                       "Session::install()");
  }
  return times;
}

void Session::State::look_at_optimizers() {
  if (!parts->optimizer.steps_one_by_one())
    loop.saw("couples", "only torch's SGD, Adam, AdamW, RMSprop and Adagrad are known to step parts");
  loop.saw("couples elements", "a session in C++ steps whole tensors");
  if (const auto rule = step_rule(); rule && rule->momentum > 0) loop.saw("has momentum", "SGD");
}

control::Costs Session::State::measure(const Workload& workload) {
  return measured(workload, parts->options.scheme, parts->options.options, parts->options.probe_seconds);
}

void Session::State::tell(const std::string& line) {
  if (parts->options.tell) {
    parts->options.tell(line);
  } else {
    std::cerr << "gradweave: " << line << '\n';
  }
}

// ---- an iteration

std::vector<Session::State::Handed> Session::State::gradients_now() const {
  std::vector<Handed> now;
  for (const NamedParameter& parameter : parts->described.parameters) {
    const at::Tensor& gradient = parameter.tensor.grad();
    now.emplace_back(gradient.defined() ? gradient.const_data_ptr() : nullptr,
                     gradient.defined() ? gradient._version() : 0);
  }
  return now;
}

// Whether the loop has taken all gradients away since the backward.
bool Session::State::dropped() const {
  if (!engine.run(&run::Run::steps).synchronous) return engine.run(&run::Run::taken_away);
  return engine.run(&run::Run::reduced) &&
         std::ranges::none_of(parts->described.parameters, [](const NamedParameter& parameter) {
           return parameter.tensor.grad().defined();
         });
}

// Before another forward or backward: a batch that was dropped, and then no step.
void Session::State::drop_batch() {
  if (dropped()) end_iteration(/*drop=*/true);
}

void Session::State::run_backward(const at::Tensor& loss) {
  if (layer >= 0) engine.forward_end(layer);
  layer = -1;
  in_pass.clear();
  (parts->scale ? loss * parts->scale->value() : loss).backward();
}

// Takes the loss scale out of reduced gradients, once in an iteration.
void Session::State::unscale() {
  if (!parts->scale || unscaled || !engine.run(&run::Run::steps).synchronous) return;
  unscaled = true;
  for (const NamedParameter& parameter : parts->described.parameters) {
    at::Tensor& gradient = parameter.tensor.mutable_grad();
    if (gradient.defined()) gradient.mul_(1 / parts->scale->value());
  }
}

// Alike on all ranks: of reduced gradients, or as the ranks have agreed.
bool Session::State::overflowed() const {
  if (!parts->scale) return false;
  if (!engine.run(&run::Run::steps).synchronous) return engine.run(&run::Run::overflowed);
  return std::ranges::any_of(parts->described.parameters, [](const NamedParameter& parameter) {
    const at::Tensor& gradient = parameter.tensor.grad();
    return gradient.defined() && !at::isfinite(gradient).all().item<bool>();
  });
}

void Session::State::check_reduced(const char* where) const {
  if (engine.run(&run::Run::reduced)) return;
  throw InvalidInput("no backward() since the last one", where,
                     "call backward() with the last loss of each step, and accumulate() with those before");
}

void Session::State::end_iteration(bool drop) {
  parts->optimizer.freeze_options();
  unscale();
  const bool spoilt = overflowed();
  if (drop || (spoilt && engine.run(&run::Run::steps).synchronous)) {
    engine.skip();
  } else {
    engine.end_iteration();
  }
  if (parts->scale) parts->scale->update(spoilt);
  entered.clear();
  in_pass.clear();
  layer = -1;
  unscaled = false;
  stepped = true;
  optimizer_stepped();
  controller.iteration_ended();
}

// Whether finish() would change parameters.
bool Session::State::unfinished() const {
  if (!controller.plan()) return false;
  const Demands demands = demands_of(*controller.plan());
  const std::int64_t iteration = engine.run(&run::Run::iteration);
  if (demands.delays_gradients || (demands.local_steps && parts->job.world_size > 1))
    return iteration > finished_at;
  return demands.steps_in_forward && iteration > std::max(finished_at, synchronized_at);
}

Session::Session(torch::nn::Module& model, torch::optim::Optimizer& optimizer, const Job& job,
                 const SessionOptions& options)
    : state_(std::make_unique<State>(std::make_unique<Parts>(model, optimizer, job, options))) {}

Session::~Session() {
  State& state = *state_;
  if (runtime::fork_generation() != state.generation) {  // the threads are the parent's
    static_cast<void>(state_.release());
    return;
  }
  const bool failed = std::uncaught_exceptions() > state.exceptions;
  try {
    if (failed) state.parts->peers->report("an exception ended the session");
    if (!failed && state.decides() && state.unfinished()) state.tell(kUnfinished);
    state.controller.close(failed);
    if (!failed) state.parts->peers->end();
    failed ? state.engine.close(run::Clock::duration::zero()) : state.engine.close();
    state.parts->peers->close();
  } catch (const std::exception&) {  // the ranks that are left have been told, or find out
  }
}

void Session::enter(const std::string& layer) {
  State& state = *state_;
  const std::vector<Layer>& layers = state.parts->described.workload.layers;
  // As described() calls the layer of the model's own parameters.
  const std::string& name = layer.empty() ? state.parts->model.name() : layer;
  const auto found = std::ranges::find(layers, name, &Layer::name);
  if (found == layers.end()) {
    throw InvalidInput(
        "the model has no module of that name with parameters of its own", "Session::enter: '" + layer + "'",
        "name it as named_modules() does; the model itself, which is for parameters of its own, is ''");
  }
  const auto number = static_cast<std::int32_t>(found - layers.begin());
  if (at::GradMode::is_enabled()) state.drop_batch();
  if (state.layer >= 0) state.engine.forward_end(state.layer);
  state.layer = number;
  if (at::GradMode::is_enabled()) {
    if (state.in_pass.empty()) state.engine.forward_begins();
    if (!state.in_pass.contains(number) && !state.in_pass.empty() && *state.in_pass.rbegin() > number) {
      throw InvalidInput("the forward reaches it after layers that are registered later",
                         "layer '" + layer + "'",
                         "register modules in the order in which the forward runs them");
    }
    state.in_pass.insert(number);
    state.entered.insert(number);
    state.ever_entered.insert(number);
  }
  state.engine.forward_start(number);
}

void Session::accumulate(const at::Tensor& loss) {
  State& state = *state_;
  state.drop_batch();
  state.engine.run(&run::Run::set_communicating, false);
  try {
    state.run_backward(loss);
  } catch (...) {
    state.engine.run(&run::Run::set_communicating, true);
    throw;
  }
  state.engine.run(&run::Run::set_communicating, true);
}

void Session::backward(const at::Tensor& loss) {
  State& state = *state_;
  state.drop_batch();
  for (const std::int32_t layer : state.engine.run(&run::Run::forward_layers)) {
    if (state.entered.contains(layer)) continue;
    throw InvalidInput("the plan updates it in the forward, which did not enter it",
                       "layer '" + state.layer_name(layer) + "'",
                       "call Session::enter() in the first line of the layer's forward, in every iteration");
  }
  if (state.engine.run(&run::Run::reduced)) state.loop.saw("accumulates");
  if (loss.requires_grad()) {
    loss.register_hook([&state](const at::Tensor&) { state.engine.backward_start(); });
  }
  if (state.engine.run(&run::Run::steps).in_backward) state.parts->optimizer.freeze_options();
  state.run_backward(loss);
  state.backward_ended();
  if (state.controller.profiling()) state.handed = state.gradients_now();
}

double Session::clip_grad_norm(double max_norm, double norm_type) {
  State& state = *state_;
  const run::StepPoints steps = state.engine.run(&run::Run::steps);
  if (steps.in_backward) {
    throw InvalidInput("the plan in force steps parameters in the backward, before the norm is known",
                       "Session::clip_grad_norm",
                       "choose a scheme that steps in step() or in the next forward, such as ddp or dear");
  }
  state.unscale();
  const std::vector<NamedParameter>& parameters = state.parts->described.parameters;
  std::vector<std::vector<at::Tensor>> coming(parameters.size());
  if (state.engine.run(&run::Run::reduced) && steps.partial) {
    coming = state.engine.coming_gradients();
  } else {
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      if (const at::Tensor& gradient = parameters[p].tensor.grad(); gradient.defined())
        coming[p] = {gradient};
    }
  }
  std::vector<at::Tensor> norms;
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    if (coming[p].empty()) continue;
    const at::Tensor whole = coming[p].size() == 1 ? coming[p].front().detach() : at::cat(coming[p]);
    // In the parameter's shape: a norm of one dimension is summed in another order.
    const at::Tensor& like = parameters[p].tensor;
    const bool all = whole.numel() == like.numel();
    norms.push_back((all ? whole.as_strided(like.sizes(), like.strides(), whole.storage_offset()) : whole)
                        .norm(norm_type));
  }
  if (norms.empty()) return 0;
  // As torch::nn::utils::clip_grad_norm_(), which asks for parameters.
  const at::Tensor norm = norms.size() == 1 ? norms.front() : at::stack(norms).norm(norm_type);
  const at::Tensor factor = at::clamp_max(max_norm / (norm + 1e-6), 1.0);
  for (const std::vector<at::Tensor>& of_parameter : coming) {
    for (const at::Tensor& part : of_parameter) part.detach().mul_(factor);
  }
  if (state.controller.profiling()) {
    state.loop.saw("clips");
    state.handed = state.gradients_now();
  }
  return norm.item<double>();
}

void Session::step() {
  State& state = *state_;
  state.check_reduced("Session::step");
  check_frozen(state.parts->described);
  const bool dropped = state.dropped();
  if (state.controller.profiling() && !dropped && state.handed != state.gradients_now())
    state.loop.saw("edits");
  state.end_iteration(dropped);
}

void Session::skip_step() {
  state_->check_reduced("Session::skip_step");
  state_->end_iteration(/*drop=*/true);
}

void Session::install(const Plan& plan) {
  State& state = *state_;
  state.controller.install(on_only_link(plan, state.parts->options.links.front().name));
}

void Session::synchronize() {
  state_->engine.synchronize();
  state_->synchronized_at = state_->engine.run(&run::Run::iteration);
}

void Session::finish() {
  State& state = *state_;
  state.drop_batch();
  state.engine.drain("Session::finish()");
  state.finished_at = state.engine.run(&run::Run::iteration);
  state.controller.finish();
  state.parts->agree_equal("the comparison of buffers", form_of(state.parts->model.buffers()), "the buffers",
                           "give them the same shapes and dtypes on every rank");
  state.broadcast_buffers();
  std::string all;
  for (const at::Tensor& parameter : state.parts->model.parameters())  // also those that are frozen
    all += std::to_string(runtime::checksum_of(parameter)) + "\n";
  state.parts->agree_equal(
      "the comparison of parameters", all, "parameters",
      "every rank must take the same steps with the same hyperparameters, and change parameters only alike");
}

const std::optional<Plan>& Session::plan() const { return state_->controller.plan(); }
const std::optional<Workload>& Session::workload() const { return state_->controller.workload(); }
const std::optional<Cluster>& Session::cluster() const { return state_->controller.cluster(); }
std::optional<Observer::Report> Session::report() { return state_->controller.report(); }

}  // namespace gradweave
