// The engine begins, puts plans in force, and ends.
#include <algorithm>
#include <exception>
#include <map>
#include <optional>
#include <utility>

#include "gradweave/error.h"
#include "gradweave/validate.h"
#include "model/hash.h"
#include "peers/refusal.h"
#include "peers/sign.h"
#include "runtime/device_stopwatch.h"
#include "runtime/engine.h"
#include "runtime/room.h"
#include "runtime/runnable.h"

namespace gradweave::runtime {
namespace {

// What is kept of the last iterations: ten of a model with a hundred layers, in half a megabyte.
constexpr std::size_t kFlightEvents = 8192;

LinkOptions on_device_of(const std::vector<NamedParameter>& parameters, LinkOptions options) {
  if (!parameters.empty()) options.device = parameters.front().tensor.device();
  return options;
}

}  // namespace

Engine::Open::Open(std::vector<NamedParameter> parameters, std::vector<LinkSpec> the_links,
                   c10::intrusive_ptr<c10d::ProcessGroup> control, std::shared_ptr<Peers> the_peers,
                   int the_world_size, const EngineOptions& given, Stepper stepper)
    : links(std::move(the_links)),
      world_size(the_world_size),
      options(on_device_of(parameters, given.link)),
      peers(std::move(the_peers)),
      host(std::move(parameters), std::move(control), peers, world_size, options, std::move(stepper)),
      run(host, peers,
          {.queue = {.timeout = options.timeout, .flight_events = peers->dump().wanted() ? kFlightEvents : 0},
           .find_unused = given.find_unused,
           .check = options.check,
           .world_size = world_size},
          stopwatch_of(options.device)) {}

Engine::Engine(std::vector<NamedParameter> parameters, std::vector<LinkSpec> links,
               c10::intrusive_ptr<c10d::ProcessGroup> control, std::shared_ptr<Peers> peers, int world_size,
               const EngineOptions& options, Stepper stepper)
    : open_(std::make_unique<Open>(std::move(parameters), std::move(links), std::move(control),
                                   std::move(peers), world_size, options, std::move(stepper))) {
  std::vector<at::Tensor> tensors;
  for (const NamedParameter& parameter : open_->host.parameters().all()) {
    tensors.push_back(parameter.place ? at::Tensor() : parameter.tensor);
    open_->has_places |= parameter.place != nullptr;
  }
  open_->hooks =
      std::make_unique<GradientHooks>(std::move(tensors), [this](std::int32_t p) { on_gradient(p); });
  open_->peers->dump().set_source([queue = open_->run.queue()] { return queue->flight(); });
  const auto backends = open_->backends =
      std::make_shared<DeviceBackends>(open_->links, open_->options.device);
  open_->peers->on_verdict([queue = open_->run.queue(), backends,
                            peers = std::weak_ptr(open_->peers)](const std::string& verdict) {
    queue->fail(verdict);
    if (backends->empty()) return;
    const auto told = [queue, peers] {
      const auto alive = peers.lock();
      return queue->told() || !alive || alive->tells();
    };
    Thread ending([=] { backends->end(verdict, told); }, [](const std::string&) {});
    ending.give_up();  // it may wait for Python's lock
  });
  if (backends->empty()) return;
  open_->watch = std::make_unique<DeviceWatch>(
      backends, open_->options.timeout,
      [queue = open_->run.queue(), peers = open_->peers](
          const std::string& what, std::chrono::nanoseconds after, const std::string& cause) {
        if (!queue->failed()) queue->fail(peers->give_up(what, after, cause));
      });
}

Engine::~Engine() { close(run::Clock::duration::zero()); }

Engine::Open& Engine::open() const {
  if (!open_) {
    throw InvalidInput("this training was ended by close()", "model.gradweave",
                       "call this before close(), or wrap the model again");
  }
  return *open_;
}

void Engine::unhook() { open().hooks.reset(); }

void Engine::close(std::optional<run::Clock::duration> patience) {
  if (!open_) return;
  open_->backends->set_interrupt(nullptr);
  open_->hooks.reset();
  open_->run.queue()->settle(patience.value_or(open_->options.timeout));
  open_.reset();
}

void Engine::Open::check_same_plan(const Prepared* prepared, const std::string& refusal) const {
  const std::string mine = prepared != nullptr ? prepared->hash + prepared->from : "";
  std::vector<std::string> refusals;
  std::map<std::string, std::vector<int>> ranks;
  for (const std::string& post :
       peers->agree("the comparison of plans", gradweave::peers::join({mine, refusal}), options.timeout)) {
    const std::vector<std::string> fields = gradweave::peers::fields_of(post, 2);
    ranks[fields[0]].push_back(static_cast<int>(refusals.size()));
    refusals.push_back(fields[1]);
  }
  if (const std::string why = gradweave::peers::refusal_of(refusals); !why.empty())
    throw InvalidInput(why, "");
  if (ranks.size() == 1) return;
  std::string groups;
  for (const auto& [digest, members] : ranks) {
    groups += groups.empty() ? "" : "; ";
    groups += "plan " + digest.substr(0, 8) + digest.substr(prepared->hash.size()) + " on rank";
    for (int r : members) groups += " " + std::to_string(r);
  }
  throw InvalidInput("ranks have different plans: " + groups, "plan",
                     "give every rank the same plan file, or let gradweave.wrap() make the plan; go on from "
                     "checkpoints of one iteration");
}

void Engine::Open::check_room(std::int64_t wanted, c10::Device on, std::int64_t held) const {
  Room own = room_on(on);
  own.held = held;
  const std::vector<std::string> told =
      peers->agree("the comparison of memory", to_text(own), options.timeout);
  std::vector<Room> ranks;
  for (const std::string& each : told) ranks.push_back(room_of(each));
  require_room(wanted, ranks);
}

const LinkSpec& Engine::Open::link_called(const std::string& name, Level level) const {
  const auto found = std::ranges::find_if(
      links, [&](const LinkSpec& link) { return link.name == name && link.level == level; });
  if (found == links.end()) {
    if (level != Level::kAll) {
      throw InvalidInput(
          "the plan is of two levels, and the job has no such link inside nodes or between them",
          "link '" + name + "'", "give gradweave.wrap() the plan or workers_per_node=");
    }
    throw InvalidInput("there is no link of that name", "link '" + name + "'",
                       "name it in gradweave.wrap(links=...) (C++: in SessionOptions::links)");
  }
  return *found;
}

std::vector<const LinkSpec*> Engine::Open::links_of(const RunPlan& run_plan) const {
  std::vector<const LinkSpec*> found;
  for (std::size_t k = 0; k < run_plan.links.size(); ++k) {
    const LinkSpec& link = link_called(run_plan.links[k], run_plan.levels[k]);
    if (link.group && link.level == Level::kBetween && link.shards != run_plan.workers_per_node) {
      throw InvalidInput("it is for nodes of " + std::to_string(run_plan.workers_per_node) + " workers",
                         "plan", "make one for nodes of " + std::to_string(link.shards) + ", as this job's");
    }
    found.push_back(&link);
  }
  return found;
}

void Engine::Open::open_controls(const std::vector<const LinkSpec*>* only) {
  for (LinkSpec& link : links) {
    if (link.control || !link.make_control) continue;
    if (only == nullptr || std::ranges::find(*only, &link) != only->end()) link.control = link.make_control();
  }
}

void Engine::open_controls() { open().open_controls(nullptr); }

Echo Engine::echo(const std::string& link) const { return {open().link_called(link), open().options}; }

void Engine::install(const Plan& plan, const Workload& workload, const StateTensors::Map* state,
                     const std::string& refusal) {
  const run::AsComputeThread here;
  Open& open = this->open();
  std::optional<Open::Prepared> prepared;
  std::string mine = refusal;
  if (mine.empty()) {
    try {
      prepared = open.prepare(plan, workload, state);
    } catch (const std::exception& error) {  // whatever it is, the other ranks must learn of it
      mine = error.what();
    }
  }
  open.check_same_plan(prepared ? &*prepared : nullptr, mine);
  // Checks have such messages too.
  if (open.options.check || Anchors::staged_bytes(prepared->run_plan) > 0)
    open.open_controls(&prepared->links);
  if (prepared->extra_bytes > 0) {  // else it needs no more than any plan
    const BufferPool buffers(prepared->run_plan, open.options.device);
    const std::int64_t staged = Anchors::staged_bytes(prepared->run_plan);
    const bool on_processor = open.options.device.is_cpu();
    const std::int64_t here = on_processor ? std::max(prepared->extra_bytes, staged)
                                           : std::max<std::int64_t>(prepared->extra_bytes - staged, 0);
    // A plan that is in force has its room; so one that is refused can be followed by the one before.
    const bool in_force = open.run.installed() && open.run.plan().hash == prepared->run_plan.hash;
    const auto check = [&](std::int64_t kept, c10::Device on) REQUIRES(run::compute_thread) {
      const std::int64_t wanted = kept + buffers.least_bytes(on);
      open.check_room(wanted, on, in_force ? wanted : open.host.buffer_bytes(on));
    };
    check(here, open.options.device);
    if (staged > 0 && !on_processor) check(staged, c10::kCPU);
  }
  const auto group = open.links.empty() ? nullptr : open.links.front().group;
  open.put_in_force(*std::move(prepared), workload, state, group ? group->getRank() : 0, [] {});
}

Engine::Open::Prepared Engine::Open::prepare(const Plan& plan, const Workload& workload,
                                             const StateTensors::Map* state) {
  const Validation validation = validate(plan, workload);
  if (!validation.valid()) {
    const Violation& first = validation.violations.front();
    throw InvalidInput(first.what, "plan: " + first.where, first.remedy);
  }
  Prepared prepared{.run_plan = runnable_plan(plan, workload, world_size, options.device),
                    .extra_bytes = validation.facts.extra_bytes};
  prepared.parameter_of = host.parameters().of_tensors(prepared.run_plan);
  prepared.links = links_of(prepared.run_plan);
  if (has_delays(prepared.run_plan) && std::ranges::any_of(prepared.links, [this](const LinkSpec* link) {
        return returns_at_once(*link, options);
      })) {
    if (!options.pause && make_pause) options.pause = make_pause();
    if (!options.pause) {
      throw InvalidInput("releases with a delay need torch's _sleep(), which this accelerator does not have",
                         "plan", "leave delay_us out, as horovod with cycle_us=0 does");
    }
  }
  std::string structure = prepared.run_plan.hash;
  for (const Layer& layer : workload.layers) {
    structure += '/';
    for (const Tensor& tensor : layer.tensors) structure += tensor.name + ',';
  }
  prepared.hash = hash_hex(structure);
  if (state != nullptr) prepared.from = resumed_at(*state);
  return prepared;
}

void Engine::Open::put_in_force(Prepared&& prepared, const Workload& workload, const StateTensors::Map* state,
                                int rank, const std::function<void()>& restored) {
  const std::vector<const LinkSpec*> specs = std::move(prepared.links);
  layer_names.clear();
  for (const Layer& layer : workload.layers) layer_names.push_back(layer.name);
  run.queue()->name_layers(layer_names);
  std::vector<std::int32_t> accumulated = run.accumulated();
  for (std::int32_t& t : accumulated) {  // plans number tensors each their own way
    const std::int32_t parameter = host.parameters().number_of(t);
    const auto& of_next = prepared.parameter_of;
    t = static_cast<std::int32_t>(std::ranges::find(of_next, parameter) - of_next.begin());
  }
  host.leave_plan();
  run.install(std::move(prepared.run_plan), accumulated);
  host.install(run.plan(), run.slots(), std::move(prepared.parameter_of), links.front().group, rank);
  using Meaning = LossScale::Meaning;
  const run::StepPoints steps = run.steps();
  host.handover().loss_scale().set_meaning(steps.synchronous   ? Meaning::kNone
                                           : steps.in_backward ? Meaning::kRefused
                                                               : Meaning::kAtHandOver);
  if (state != nullptr) restore(*state);
  restored();
  std::vector<std::shared_ptr<run::Channel>> channels;
  LinkOptions of_plan = options;
  of_plan.staged = Anchors::staged_bytes(run.plan()) > 0;
  for (std::size_t link = 0; link < specs.size(); ++link) {
    channels.push_back(std::make_shared<GroupChannel>(*specs[link], of_plan, run.plan().hash,
                                                      host.messages().all(), host.feedback().coder(link)));
  }
  run.start(std::move(channels));
}

}  // namespace gradweave::runtime
