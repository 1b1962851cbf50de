// The engine begins, puts plans in force, and ends.
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "gradweave/error.h"
#include "gradweave/validate.h"
#include "model/hash.h"
#include "runtime/engine.h"
#include "runtime/runnable.h"

namespace gradweave::runtime {

Engine::Engine(std::vector<NamedParameter> parameters, std::vector<LinkSpec> links,
               c10::intrusive_ptr<c10d::ProcessGroup> control, std::shared_ptr<Peers> peers, int rank,
               int world_size, EngineOptions options, Stepper stepper)
    : parameters_(std::move(parameters)),
      specs_(std::move(links)),
      control_(std::move(control)),
      rank_(rank),
      world_size_(world_size),
      options_(options),
      stepper_(std::move(stepper)),
      peers_(std::move(peers)),
      exchange_(std::make_shared<Exchange>()),
      ready_ns_(parameters_.size()) {
  if (!parameters_.empty()) options_.link.device = parameters_.front().tensor.device();
  scale_ = at::scalar_tensor(1.0 / world_size, at::kDouble);
  scale_.unsafeGetTensorImpl()->set_wrapped_number(true);
  std::vector<at::Tensor> tensors;
  for (const NamedParameter& parameter : parameters_) {
    if (!parameter.tensor.is_non_overlapping_and_dense()) {
      throw InvalidInput("its memory overlaps or has gaps", "parameter '" + parameter.name + "'",
                         "make it contiguous");
    }
    tensors.push_back(parameter.tensor);
  }
  hooks_ = std::make_unique<GradientHooks>(std::move(tensors), [this](std::int32_t p) { on_gradient(p); });
  exchange_->released_at = [this](const OpRun& run) { return released_at(run); };
  exchange_->describe = [this](const OpRun& run) { return describe(run); };
  peers_->on_verdict([exchange = exchange_](const std::string& verdict) { exchange->fail(verdict); });
}

Engine::~Engine() { close(); }

void Engine::fail(const std::string& what, Clock::duration after, const std::string& cause) {
  exchange_->fail(
      peers_->give_up(what + " (iteration " + std::to_string(base_ + iteration_) + ")", after, cause));
  const std::lock_guard lock(exchange_->mutex);
  throw RuntimeFailure(exchange_->failure);
}

void Engine::drop_links() {
  links_.clear();
  const std::lock_guard lock(exchange_->mutex);
  if (!exchange_->failed()) return;
  // Threads that were given up may wake later.
  struct Held {
    std::unique_ptr<Calendar> program;
    std::vector<std::vector<OpRun>> runs;
  };
  exchange_->abandoned = std::make_shared<Held>(std::move(program_), std::move(runs_));
}

void Engine::close(bool abandon) {
  hooks_.reset();
  if (abandon) exchange_->fail("training was given up");
  if (!links_.empty()) drop_links();
  program_.reset();
  stepper_ = nullptr;
  unscaler_ = nullptr;
  specs_.clear();
  control_.reset();
  peers_.reset();
}

void Engine::check_same_plan(const std::string& hash) {
  if (world_size_ == 1) return;
  const std::vector<std::string> hashes =
      peers_->agree("the comparison of plans", hash, options_.link.timeout);
  std::map<std::string, std::vector<int>> ranks;
  for (std::size_t r = 0; r < hashes.size(); ++r) ranks[hashes[r]].push_back(static_cast<int>(r));
  if (ranks.size() == 1) return;
  std::string groups;
  for (const auto& [digest, members] : ranks) {
    groups += groups.empty() ? "" : "; ";
    groups += "plan " + digest.substr(0, 8) + " on rank";
    for (int r : members) groups += " " + std::to_string(r);
  }
  throw InvalidInput("ranks have different plans: " + groups, "plan",
                     "give every rank the same plan file, or let gradweave.wrap() make the plan");
}

void Engine::install(const Plan& plan, const Workload& workload) {
  const Validation validation = validate(plan, workload);
  if (!validation.valid()) {
    const Violation& first = validation.violations.front();
    throw InvalidInput(first.what, "plan: " + first.where, first.remedy);
  }
  auto program = std::make_unique<Calendar>(runnable_calendar(plan, workload));
  std::vector<std::int32_t> tensor_of(parameters_.size(), -1);
  std::vector<std::int32_t> parameter_of;
  for (const std::string& name : program->index.tensor_names) {
    const auto found = std::ranges::find(parameters_, name, &NamedParameter::name);
    const std::size_t t = parameter_of.size();
    if (found == parameters_.end() || found->tensor.numel() != program->index.tensors[t].numel ||
        found->tensor.scalar_type() != scalar_type_of(program->index.tensors[t].dtype)) {
      throw InvalidInput("the model has no such parameter of that size and dtype", "tensor '" + name + "'",
                         "make the plan from this model's workload");
    }
    tensor_of[static_cast<std::size_t>(found - parameters_.begin())] = static_cast<std::int32_t>(t);
    parameter_of.push_back(static_cast<std::int32_t>(found - parameters_.begin()));
  }
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    if (tensor_of[p] < 0) {
      throw InvalidInput("the plan does not know it", "parameter '" + parameters_[p].name + "'",
                         "make the plan from this model's workload");
    }
  }
  std::vector<const LinkSpec*> specs;
  for (const std::string& name : program->links) {
    const auto found = std::ranges::find(specs_, name, &LinkSpec::name);
    if (found == specs_.end()) {
      throw InvalidInput("there is no link of that name", "link '" + name + "'",
                         "name it in gradweave.wrap(links=...)");
    }
    specs.push_back(&*found);
  }
  std::string structure = program->hash;
  for (const Layer& layer : workload.layers) {
    structure += '/';
    for (const Tensor& tensor : layer.tensors) structure += tensor.name + ',';
  }
  check_same_plan(hash_hex(structure));
  retired_.clear();
  drop_links();
  check_failure();
  program_ = std::move(program);
  tensor_of_ = std::move(tensor_of);
  parameter_of_ = std::move(parameter_of);
  pool_ = std::make_unique<BufferPool>(*program_, options_.link.device);
  subsets_.assign(1, {});
  for (std::size_t p = 0; p < parameters_.size(); ++p) subsets_[0].push_back(static_cast<std::int32_t>(p));
  subset_ids_.clear();
  set_step_points();
  find_unused_ = options_.find_unused;
  residuals_.assign(program_->blocks.size(), {});
  ready_.assign(parameter_of_.size(), 0);
  touched_.assign(parameter_of_.size(), 0);
  missing_.assign(program_->layers, 0);
  layer_names_.clear();
  for (const Layer& layer : workload.layers) layer_names_.push_back(layer.name);
  std::size_t widest = 0;
  for (const CalendarIteration& iteration : program_->iterations)
    widest = std::max(widest, iteration.ops.size());
  const auto depth = static_cast<std::size_t>(program_->look_ahead + program_->look_back + 2);
  base_ += iteration_;
  runs_.clear();
  runs_.resize(depth);
  for (auto& runs : runs_) runs.resize(widest);
  for (std::size_t k = 0; k < specs.size(); ++k) {
    links_.push_back(std::make_unique<Link>(*specs[k], program_->concurrency[k],
                                            static_cast<std::int32_t>(k) + 1, depth * widest + 1,
                                            program_->hash, options_.link, exchange_, peers_, progress_));
  }
  reset_runs();
}

// Starts at iteration 0 of the plan in force.
void Engine::reset_runs() {
  iteration_ = 0;
  prepared_ = pushed_ = -1;
  phase_ = Phase::kIdle;
  {
    const std::lock_guard lock(exchange_->mutex);
    passed_.assign((static_cast<std::size_t>(PointKind::kIterationEnd) + 1) * program_->layers, {});
  }
  installed_.assign(parameter_of_.size(), -1);
  handed_.assign(parameter_of_.size(), {});
  used_.assign(runs_.size(), {});
  for (Used& used : used_)
    used.flags = at::zeros({static_cast<std::int64_t>(parameter_of_.size()) + 2}, at::kByte);
  for (auto& runs : runs_) {
    for (OpRun& run : runs) run.op = nullptr;
  }
  for (std::int32_t n = 0; n < program_->look_ahead; ++n) prepare(n);
  begin_iteration();
}

// Makes the executions of an iteration's ops ready to be written to.
void Engine::prepare(std::int64_t iteration) {
  if (iteration <= prepared_) return;
  prepared_ = iteration;
  const CalendarIteration& listed = (*program_)[iteration];
  auto& runs = runs_[static_cast<std::size_t>(iteration) % runs_.size()];
  for (std::size_t i = 0; i < runs.size(); ++i) {
    OpRun& run = runs[i];
    run.op = i < listed.ops.size() ? &listed.ops[i] : nullptr;
    if (run.op == nullptr) continue;
    run.iteration = iteration;
    run.run_iteration = base_ + iteration;
    run.place = static_cast<std::int32_t>(i);
    run.written.assign(run.op->blocks.size(), 0);
    const auto parts = static_cast<std::int32_t>(run.op->blocks.size());
    run.pending = parts * static_cast<std::int32_t>(run.op->merges.size());
    run.partner = nullptr;
    run.absent = run.forced = run.done = false;
    if (run.op->collective == Collective::kAllGather) {
      run.pending = 0;
      run.partner = &run_at(iteration + run.op->partner.delta, run.op->partner.op);
    }
  }
}

std::int32_t Engine::subset_id(const std::vector<std::int32_t>& tensors) {
  if (tensors.size() == parameters_.size()) return 0;
  const auto [found, added] = subset_ids_.try_emplace(tensors, static_cast<std::int32_t>(subsets_.size()));
  if (added) {
    std::vector<std::int32_t>& parameters = subsets_.emplace_back();
    for (std::int32_t t : tensors) parameters.push_back(parameter_of_[static_cast<std::size_t>(t)]);
    std::ranges::sort(parameters);
  }
  return found->second;
}

// ---- what others ask

std::vector<std::int32_t> Engine::forward_layers() const {
  std::vector<std::int32_t> layers;
  if (!program_) return layers;
  const auto add = [&](std::int32_t layer) {
    if (std::ranges::find(layers, layer) == layers.end()) layers.push_back(layer);
  };
  for (const CalendarIteration& iteration : program_->iterations) {
    for (const CalendarOp& op : iteration.ops) {
      const PointKind kind = op.release.point.kind;
      if (kind == PointKind::kForwardStart || kind == PointKind::kForwardEnd) add(op.release.point.layer);
    }
    for (std::size_t l = 0; l < program_->layers; ++l) {
      if (!iteration.at_forward[l].empty()) add(static_cast<std::int32_t>(l));
    }
  }
  std::ranges::sort(layers);
  return layers;
}

void Engine::set_step_points() {
  partial_steps_ = steps_in_backward_ = steps_in_forward_ = false;
  for (const CalendarIteration& iteration : program_->iterations) {
    for (const EndAction& action : iteration.end_actions) {
      partial_steps_ |= action.optimizer && action.tensors.size() != parameters_.size();
    }
    for (const CalendarApply& apply : iteration.applies) {
      if (apply.at.kind == PointKind::kIterationEnd || apply.source == Source::kAveragedParameter) continue;
      partial_steps_ = true;
      (apply.at.kind == PointKind::kForwardStart ? steps_in_forward_ : steps_in_backward_) = true;
    }
  }
  synchronous_ = std::ranges::all_of(program_->iterations, &CalendarIteration::synchronous);
}

Counters Engine::counters() const {
  Counters counters = counters_;
  counters.buffer_bytes = pool_ ? pool_->bytes() : 0;
  for (const auto& link : links_) {
    counters.ops += link->counters().ops;
    counters.bytes += link->counters().bytes;
  }
  return counters;
}

void Engine::set_timeline(bool on) {
  options_.link.timeline = on;
  span_begin_ = Clock::now();
  for (const auto& link : links_) link->set_timeline(on);
}

Timeline Engine::take_timeline() {
  Timeline timeline{.name = "run", .origin = "measured", .spans = std::exchange(spans_, {})};
  if (!program_) return timeline;
  timeline.links = program_->links;
  for (const auto& link : links_) {
    if (link->emulated()) timeline.origin = "measured, emulated link";
    const std::vector<Span> spans = link->take_spans();
    timeline.spans.insert(timeline.spans.end(), spans.begin(), spans.end());
  }
  for (Span& span : timeline.spans) {
    if (span.kind == SpanKind::kForward || span.kind == SpanKind::kBackward)
      span.label = layer_names_[static_cast<std::size_t>(span.layer)];
    if (span.kind == SpanKind::kOptimizer) span.label = "optimizer";
  }
  std::ranges::sort(timeline.spans, {}, [](const Span& span) {
    return std::tuple(span.begin_ns, span.track, span.kind, span.iteration);
  });
  return timeline;
}

}  // namespace gradweave::runtime
