// The engine begins, puts plans in force, and ends.
#include <algorithm>
#include <map>

#include "gradweave/error.h"
#include "gradweave/validate.h"
#include "model/hash.h"
#include "runtime/engine.h"
#include "runtime/room.h"
#include "runtime/runnable.h"

namespace gradweave::runtime {
namespace {

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
          {.queue = {.timeout = options.timeout},
           .find_unused = given.find_unused,
           .check = options.check,
           .world_size = world_size}),
      ready_ns(host.parameters().all().size()) {}

Engine::Engine(std::vector<NamedParameter> parameters, std::vector<LinkSpec> links,
               c10::intrusive_ptr<c10d::ProcessGroup> control, std::shared_ptr<Peers> peers, int world_size,
               EngineOptions options, Stepper stepper)
    : open_(std::make_unique<Open>(std::move(parameters), std::move(links), std::move(control),
                                   std::move(peers), world_size, options, std::move(stepper))) {
  std::vector<at::Tensor> tensors;
  for (const NamedParameter& parameter : open_->host.parameters().all()) tensors.push_back(parameter.tensor);
  open_->hooks =
      std::make_unique<GradientHooks>(std::move(tensors), [this](std::int32_t p) { on_gradient(p); });
  open_->peers->on_verdict(
      [queue = open_->run.queue()](const std::string& verdict) { queue->fail(verdict); });
}

Engine::~Engine() { close(); }

Engine::Open& Engine::open() const {
  if (!open_) {
    throw InvalidInput("this training was ended by close()", "model.gradweave",
                       "ask before close(), or wrap the model again");
  }
  return *open_;
}

void Engine::close(std::optional<run::Clock::duration> patience) {
  if (!open_) return;
  open_->hooks.reset();
  if (patience) open_->run.queue()->settle(*patience);
  open_.reset();
}

void Engine::Open::check_same_plan(const std::string& hash, const std::string& from) const {
  const std::vector<std::string> hashes =
      peers->agree("the comparison of plans", hash + from, options.timeout);
  std::map<std::string, std::vector<int>> ranks;
  for (std::size_t r = 0; r < hashes.size(); ++r) ranks[hashes[r]].push_back(static_cast<int>(r));
  if (ranks.size() == 1) return;
  std::string groups;
  for (const auto& [digest, members] : ranks) {
    groups += groups.empty() ? "" : "; ";
    groups += "plan " + digest.substr(0, 8) + digest.substr(hash.size()) + " on rank";
    for (int r : members) groups += " " + std::to_string(r);
  }
  throw InvalidInput("ranks have different plans: " + groups, "plan",
                     "give every rank the same plan file, or let gradweave.wrap() make the plan; go on from "
                     "checkpoints of one iteration");
}

void Engine::Open::check_room(std::int64_t wanted) const {
  const std::vector<std::string> told =
      peers->agree("the comparison of memory", to_text(room_on(options.device)), options.timeout);
  std::vector<Room> ranks;
  for (const std::string& each : told) ranks.push_back(room_of(each));
  require_room(wanted, ranks);
}

const LinkSpec& Engine::Open::link_called(const std::string& name) const {
  const auto found = std::ranges::find(links, name, &LinkSpec::name);
  if (found == links.end()) {
    throw InvalidInput("there is no link of that name", "link '" + name + "'",
                       "name it in gradweave.wrap(links=...)");
  }
  return *found;
}

std::vector<const LinkSpec*> Engine::Open::links_of(const RunPlan& run_plan) const {
  std::vector<const LinkSpec*> found;
  for (const std::string& name : run_plan.links) found.push_back(&link_called(name));
  return found;
}

Echo Engine::echo(const std::string& link) const { return {open().link_called(link), open().options}; }

void Engine::install(const Plan& plan, const Workload& workload, const StateTensors::Map* state) {
  const run::AsComputeThread here;
  Open& open = this->open();
  const auto group = open.links.empty() ? nullptr : open.links.front().group;
  open.put_in_force(plan, workload, state, group ? group->getRank() : 0, [] {});
}

void Engine::Open::put_in_force(const Plan& plan, const Workload& workload, const StateTensors::Map* state,
                                int rank, const std::function<void()>& restored) {
  const Validation validation = validate(plan, workload);
  if (!validation.valid()) {
    const Violation& first = validation.violations.front();
    throw InvalidInput(first.what, "plan: " + first.where, first.remedy);
  }
  RunPlan run_plan = runnable_plan(plan, workload, world_size, options.device);
  std::vector<std::int32_t> parameter_of = host.parameters().of_tensors(run_plan);
  const std::vector<const LinkSpec*> specs = links_of(run_plan);
  std::string structure = run_plan.hash;
  for (const Layer& layer : workload.layers) {
    structure += '/';
    for (const Tensor& tensor : layer.tensors) structure += tensor.name + ',';
  }
  check_same_plan(hash_hex(structure), state != nullptr ? resumed_at(*state) : "");
  if (validation.facts.extra_bytes > 0)  // else it needs no more than any plan
    check_room(validation.facts.extra_bytes + BufferPool(run_plan, options.device).least_bytes());
  layer_names.clear();
  for (const Layer& layer : workload.layers) layer_names.push_back(layer.name);
  host.leave_plan();
  run.install(std::move(run_plan));
  host.install(run.plan(), run.slots(), std::move(parameter_of), specs.front()->group, rank);
  using Meaning = LossScale::Meaning;
  const run::StepPoints steps = run.steps();
  host.handover().loss_scale().set_meaning(steps.synchronous   ? Meaning::kNone
                                           : steps.in_backward ? Meaning::kRefused
                                                               : Meaning::kAtHandOver);
  if (state != nullptr) restore(*state);
  restored();
  std::vector<std::shared_ptr<run::Channel>> channels;
  for (std::size_t link = 0; link < specs.size(); ++link) {
    channels.push_back(std::make_shared<GroupChannel>(*specs[link], options, run.plan().hash,
                                                      host.messages().all(), host.feedback().coder(link)));
  }
  run.start(std::move(channels));
}

}  // namespace gradweave::runtime
