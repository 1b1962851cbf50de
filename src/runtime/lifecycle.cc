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

Engine::Engine(std::vector<NamedParameter> parameters, std::vector<LinkSpec> links,
               c10::intrusive_ptr<c10d::ProcessGroup> control, std::shared_ptr<Peers> peers, int world_size,
               EngineOptions options, TorchHost::Stepper stepper)
    : specs_(std::move(links)),
      world_size_(world_size),
      options_(on_device_of(parameters, options.link)),
      peers_(std::move(peers)),
      host_(std::move(parameters), std::move(control), peers_, world_size, options_, std::move(stepper)),
      run_(host_, {.queue = {.timeout = options_.timeout},
                   .find_unused = options.find_unused,
                   .check = options.link.check,
                   .world_size = world_size}),
      ready_ns_(host_.parameters().size()) {
  std::vector<at::Tensor> tensors;
  for (const NamedParameter& parameter : host_.parameters()) {
    if (!parameter.tensor.is_non_overlapping_and_dense()) {
      throw InvalidInput("its memory overlaps or has gaps", "parameter '" + parameter.name + "'",
                         "make it contiguous");
    }
    tensors.push_back(parameter.tensor);
  }
  hooks_ = std::make_unique<GradientHooks>(std::move(tensors), [this](std::int32_t p) { on_gradient(p); });
  run_.set_peers(peers_);
  peers_->on_verdict([queue = run_.shared_queue()](const std::string& verdict) { queue->fail(verdict); });
}

Engine::~Engine() { close(); }

void Engine::close(std::optional<run::Clock::duration> patience) {
  hooks_.reset();
  if (patience) run_.queue().settle(*patience);
  run_.close();
  host_.close();
  specs_.clear();
  peers_.reset();
}

void Engine::check_same_plan(const std::string& hash, const std::string& from) {
  const std::vector<std::string> hashes =
      peers_->agree("the comparison of plans", hash + from, options_.timeout);
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

void Engine::check_room(std::int64_t wanted) {
  const std::vector<std::string> told =
      peers_->agree("the comparison of memory", to_text(room_on(options_.device)), options_.timeout);
  std::vector<Room> ranks;
  for (const std::string& each : told) ranks.push_back(room_of(each));
  require_room(wanted, ranks);
}

const LinkSpec& Engine::spec_of(const std::string& link) const {
  const auto found = std::ranges::find(specs_, link, &LinkSpec::name);
  if (found == specs_.end()) {
    throw InvalidInput("there is no link of that name", "link '" + link + "'",
                       "name it in gradweave.wrap(links=...)");
  }
  return *found;
}

std::vector<const LinkSpec*> Engine::specs_of(const Calendar& calendar) const {
  std::vector<const LinkSpec*> specs;
  for (const std::string& name : calendar.links) specs.push_back(&spec_of(name));
  return specs;
}

Echo Engine::echo(const std::string& link) const { return {spec_of(link), options_}; }

void Engine::install(const Plan& plan, const Workload& workload, const StateTensors::Map* state) {
  const auto group = specs_.empty() ? nullptr : specs_.front().group;
  put_in_force(plan, workload, state, group ? group->getRank() : 0, [] {});
}

void Engine::put_in_force(const Plan& plan, const Workload& workload, const StateTensors::Map* state,
                          int rank, const std::function<void()>& restored) {
  const Validation validation = validate(plan, workload);
  if (!validation.valid()) {
    const Violation& first = validation.violations.front();
    throw InvalidInput(first.what, "plan: " + first.where, first.remedy);
  }
  Calendar calendar = runnable_calendar(plan, workload, world_size_, options_.device);
  std::vector<std::int32_t> parameter_of = host_.parameters_of(calendar);
  const std::vector<const LinkSpec*> specs = specs_of(calendar);
  std::string structure = calendar.hash;
  for (const Layer& layer : workload.layers) {
    structure += '/';
    for (const Tensor& tensor : layer.tensors) structure += tensor.name + ',';
  }
  check_same_plan(hash_hex(structure), state != nullptr ? resumed_at(*state) : "");
  if (validation.facts.extra_bytes > 0)  // else it needs no more than any plan
    check_room(validation.facts.extra_bytes + BufferPool(calendar, options_.device).least_bytes());
  layer_names_.clear();
  for (const Layer& layer : workload.layers) layer_names_.push_back(layer.name);
  host_.leave_plan();
  run_.install(std::move(calendar));
  host_.install(run_.calendar(), run_.slots(), std::move(parameter_of), specs.front()->group, rank);
  using Scaling = TorchHost::Scaling;
  host_.set_scaling(run_.synchronous()         ? Scaling::kNone
                    : run_.steps_in_backward() ? Scaling::kRefused
                                               : Scaling::kAtHandOver);
  if (state != nullptr) restore(*state);
  restored();
  std::vector<std::shared_ptr<run::Channel>> channels;
  for (std::size_t link = 0; link < specs.size(); ++link) {
    channels.push_back(std::make_shared<GroupChannel>(*specs[link], options_, run_.calendar().hash,
                                                      host_.messages(), host_.coder(link)));
  }
  run_.start(std::move(channels));
}

}  // namespace gradweave::runtime
