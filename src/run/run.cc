#include "run/run.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "gradweave/error.h"

namespace gradweave::run {

Run::InForce::InForce(Run& run, std::shared_ptr<Tables> made)
    : tables(std::move(made)),
      flags(run.host_, run.ending_, tables->plan.index, tables->ring.depth(), run.options_.find_unused,
            run.options_.world_size),
      context{run.host_, *run.queue_, *tables, run.cursor_, flags, run.recorder_},
      window(context),
      arrivals(tables->plan.index),
      outbox(context, window),
      applies(context, arrivals, outbox),
      forwarded(tables->plan.layers, -1) {}

Run::Run(Host& host, std::shared_ptr<Peers> peers, const RunOptions& options,
         std::unique_ptr<Stopwatch> stopwatch)
    : host_(host),
      options_(options),
      peers_(std::move(peers)),
      queue_(std::make_shared<OpQueue>(
          options.queue,
          [of = peers_](const std::string& what, Clock::duration after, const std::string& cause) {
            return of->give_up(what, after, cause);
          })),
      recorder_(std::move(stopwatch)),
      ending_(peers_, queue_, cursor_) {}

Run::~Run() = default;

void Run::install(RunPlan&& plan, std::span<const std::int32_t> accumulated) {
  if (plan_) {
    plan_->flags.settle();
    if (plan_->flags.found_unused()) options_.find_unused = FindUnused::kOn;
    queue_->launch_by(nullptr);
    plan_->links.clear();
  }
  queue_->check_failure();
  plan_.reset();
  const auto tables = std::make_shared<Tables>(std::move(plan));
  plan_ = std::make_unique<InForce>(*this, tables);
  for (std::int32_t t : accumulated) plan_->arrivals.accumulated(t);
  queue_->reset(tables->plan, tables->ring.capacity());
  recorder_.install(tables->plan);
  restart();
}

std::vector<std::int32_t> Run::accumulated() const {
  std::vector<std::int32_t> found;
  if (!plan_) return found;
  for (std::int32_t t : all_tensors()) {
    if (plan_->arrivals.has_accumulated(t)) found.push_back(t);
  }
  return found;
}

void Run::start(std::vector<std::shared_ptr<Channel>> channels) {
  queue_->set_ordered_launches(
      std::ranges::any_of(channels, [](const auto& channel) { return channel->ordered_launches(); }));
  const bool at_once = !channels.empty() && std::ranges::all_of(channels, [](const auto& channel) {
    return channel->returns_at_once();
  });
  for (std::size_t k = 0; k < channels.size(); ++k)
    plan_->links.push_back(std::make_unique<Link>(k, plan_->tables, std::move(channels[k]), queue_, peers_));
  if (!at_once) return;
  plan_->holds = has_delays(plan());
  if (plan_->holds) hold_released(PointKind::kIterationStart, 0);  // which has passed
  queue_->launch_by([this]() REQUIRES(compute_thread) { launch_due(); });
  launch_due();
}

void Run::launch_due() {
  while (const std::optional<NextTurn> next = queue_->next_turn()) {
    const Execution& execution = *next->turn.execution;
    const Stretch ran = plan_->links[next->link]->take(next->turn, next->sequence, recorder_.stopwatch());
    if (ran.end != 0) recorder_.op_ran(execution, ran);
  }
}

void Run::pass(PointKind kind, std::int32_t layer) {
  if (plan_->holds) hold_released(kind, layer);
  queue_->pass(kind, layer, cursor_.now());
}

// The delays of releases at this point begin.
void Run::hold_released(PointKind kind, std::int32_t layer) {
  for (std::int64_t n = cursor_.now(); n <= plan_->window.last(); ++n) {
    for (const Execution& execution : plan_->window.row(n)) {
      if (execution.op == nullptr || execution.op->release.delay_ns == 0) continue;
      const Point& point = execution.op->release.point;
      if (point.kind == kind && point.layer == layer && n + point.iteration == cursor_.now())
        plan_->links[static_cast<std::size_t>(execution.op->link)]->hold(execution);
    }
  }
}

// Starts at iteration 0 of the plan in force.
void Run::restart() {
  cursor_.restart();
  host_.restart();
  phase_ = Phase::kIdle;
  queue_->restart(cursor_.of_run(0));
  recorder_.restart();
  plan_->flags.restart();
  plan_->applies.restart();
  plan_->window.restart();
  std::ranges::fill(plan_->forwarded, -1);
  for (std::int32_t n = 0; n < plan().look_ahead; ++n) open(n);
  begin_iteration();
}

// ---- forward

void Run::forward_begins() {
  if (installed() && phase_ == Phase::kIdle) recorder_.layers().forward_begins();
}

void Run::forward_start(std::int32_t layer) {
  // Also where the backward will only accumulate: the forward needs the new parameters.
  if (!installed() || phase_ != Phase::kIdle) return;
  recorder_.layers().layer_started(layer);
  apply_forward(layer);
  recorder_.begin_span();
}

void Run::forward_comes(std::int32_t layer) {
  if (!installed() || phase_ != Phase::kIdle) return;
  apply_forward(layer);
}

// The real order of layers may differ from the plan's: what the plan applies to this one at layers before it comes first.
void Run::apply_forward(std::int32_t layer) {
  for (const std::int32_t before : here().updated_before[static_cast<std::size_t>(layer)])
    pass_forward(before);
  pass_forward(layer);
}

// Once in an iteration: a module may be used twice, or be computed again.
void Run::pass_forward(std::int32_t layer) {
  const auto l = static_cast<std::size_t>(layer);
  if (plan_->forwarded[l] >= cursor_.now()) return;
  plan_->applies.check_unchanged(here().at_forward[l]);
  plan_->forwarded[l] = cursor_.now();
  pass(PointKind::kForwardStart, layer);
  plan_->applies.outside_end(here().at_forward[l]);
}

void Run::forward_end(std::int32_t layer) {
  if (!installed() || phase_ != Phase::kIdle || !communicating_) return;
  pass(PointKind::kForwardEnd, layer);
  end_span(SpanKind::kForward, layer);
}

// ---- backward

void Run::backward_start() {
  if (phase_ == Phase::kBackward) return;
  if (recorder_.layers().backward_begins()) recorder_.begin_span();
  pass(PointKind::kBackwardStart, 0);
}

void Run::gradient(std::int32_t tensor) {
  if (!communicating_) {
    plan_->arrivals.accumulated(tensor, phase_ == Phase::kReduced);
    return;
  }
  enter_backward();
  if (plan_->arrivals.has_come(tensor)) {
    throw InvalidInput(
        "its gradient was computed twice in one iteration", plan_->context.text_of(tensor),
        "put all backward passes but the last of an iteration under model.no_sync() (C++: call "
        "Session::accumulate() for them); checkpoint with use_reentrant=False");
  }
  const std::size_t layer = plan().index.tensors[static_cast<std::size_t>(tensor)].layer;
  recorder_.layers().gradient_came(static_cast<std::int32_t>(layer));
  if (is_behind(layer)) {
    throw InvalidInput(
        "its gradient was computed without its last update, which waits for its module's forward",
        plan_->context.text_of(tensor) + ", " + cursor_.text(),
        "call the module itself, or choose a scheme that updates in step(), such as ddp");
  }
  plan_->arrivals.come(tensor);
  host_.take_gradient(tensor, Gradient::kComputed);
  plan_->outbox.hand_over(tensor, Gradient::kComputed);
  dealt_with(tensor);
}

// Whether something that the plan applies before the layer's forward is still to come.
bool Run::is_behind(std::size_t layer) const {
  const auto to_come = [this](std::int32_t l) REQUIRES(compute_thread) {
    return plan_->forwarded[static_cast<std::size_t>(l)] < cursor_.now();
  };
  return (!here().at_forward[layer].empty() && to_come(static_cast<std::int32_t>(layer))) ||
         std::ranges::any_of(here().updated_before[layer], to_come);
}

// Whether the plan applies the tensor's gradient, or a part of it, elsewhere than at an iteration's end. There only what was
// sent is stepped, and not what the caller has left in `.grad`.
bool Run::is_outside_end(std::int32_t tensor) const {
  return std::ranges::any_of(plan().blocks_of_tensor[static_cast<std::size_t>(tensor)],
                             [this](std::int32_t b) REQUIRES(compute_thread) {
                               return here().gradient_outside_end[static_cast<std::size_t>(b)] != 0;
                             });
}

void Run::enter_backward() {
  if (phase_ == Phase::kBackward) return;
  queue_->check_failure();
  if (phase_ == Phase::kReduced) {
    // A step that was skipped, as GradScaler does, or gradients that accumulate: as in
    // DistributedDataParallel.
    if (!here().synchronous) {
      throw InvalidInput(
          "a second backward() before optimizer.step()", cursor_.text(),
          "put all backward passes but the last of an iteration under model.no_sync(), and call "
          "step() of the optimizer that gradweave.wrap() was given, or model.gradweave.skip_step() to drop a "
          "batch (C++: Session's accumulate(), step(), skip_step())");
    }
    advance(/*accumulates=*/true);
  }
  plan_->scaled = host_.begin_backward();
  phase_ = Phase::kBackward;
  peers_->training(cursor_.of_run());
  plan_->arrivals.begin();
}

void Run::dealt_with(std::int32_t tensor) {
  const auto ended = plan_->arrivals.dealt_with(tensor);
  if (!ended) return;
  end_span(SpanKind::kBackward, ended->first);
  for (std::int32_t l = ended->last; l >= ended->first; --l) end_layer(l);
}

void Run::end_layer(std::int32_t layer) {
  plan_->applies.backward_end(layer);
  pass(PointKind::kBackwardEnd, layer);
}

void Run::finish_backward() {
  if (phase_ != Phase::kBackward) return;
  const WorkloadIndex& index = plan().index;
  const auto tensors = static_cast<std::int32_t>(index.tensors.size());
  Arrivals& arrivals = plan_->arrivals;
  // Layers that did not run in this forward: before what their backward would do.
  for (std::size_t l = 0; l < plan().layers; ++l) {
    if (!here().at_forward[l].empty()) apply_forward(static_cast<std::int32_t>(l));
  }
  for (std::int32_t t = 0; t < tensors; ++t) {
    if (arrivals.has_come(t)) continue;
    Gradient gradient = Gradient::kNone;
    if (host_.kept(t) == Kept::kGone) {
      arrivals.taken_away(t);
    } else if (arrivals.has_accumulated(t)) {
      gradient = Gradient::kAccumulated;
    } else if (here().synchronous || is_outside_end(t)) {
      gradient = Gradient::kHeld;
    }
    host_.take_gradient(t, gradient);
    plan_->outbox.hand_over(t, gradient);
    dealt_with(t);
  }
  host_.end_backward();
  for (std::size_t l = index.tensors.front().layer; l-- > 0;) end_layer(static_cast<std::int32_t>(l));
  recorder_.layers().backward_ended();
  tell_flags();
  plan_->applies.backward_ended();
  phase_ = Phase::kReduced;
  const RunIteration& now = here();
  for (std::int32_t a : now.gradients_at_end)
    plan_->applies.put_reduced(now.applies[static_cast<std::size_t>(a)]);
  for (std::int32_t t = 0; t < tensors; ++t) arrivals.keep(t, host_.kept(t) != Kept::kGone);
}

void Run::tell_flags() {
  const bool bad = (plan_->scaled && host_.overflowed()) || (options_.check && host_.not_finite() >= 0);
  std::vector<std::uint8_t> used(plan().index.tensors.size());
  for (std::size_t t = 0; t < used.size(); ++t) used[t] = plan_->arrivals.used(static_cast<std::int32_t>(t));
  const bool ask = plan_->scaled || options_.check;
  if (!plan_->flags.tell(cursor_.now(), used, bad, ask, plan_->outbox.owed())) return;
  if (!plan_->scaled) refuse_not_finite();
  plan_->flags.leave_out(cursor_.now());
  plan_->outbox.leave_out();
}

// On every rank alike, since each of them would go on with the sum.
void Run::refuse_not_finite() {
  const std::int32_t own = host_.not_finite();
  const std::vector<std::string> where = peers_->agree(
      "the check of gradients", own < 0 ? "" : plan_->context.text_of(own), options_.queue.timeout);
  std::string found;
  for (std::size_t r = 0; r < where.size(); ++r) {
    if (where[r].empty()) continue;
    found += (found.empty() ? "" : "; ") + where[r] + " on rank " + std::to_string(r);
  }
  throw InvalidInput(
      "a gradient is not finite: " + found, cursor_.text(),
      "look at that rank's batch and loss; to drop such a batch, look at the loss of all ranks "
      "before backward()");
}

// ---- from one iteration to the next

void Run::end_iteration() {
  queue_->check_failure();
  if (taken_away()) return skip();
  if (phase_ == Phase::kReduced && !steps().synchronous) check_kept();
  finish_iteration();
}

void Run::skip() {
  if (!installed() || phase_ != Phase::kReduced) {
    throw InvalidInput("there is no gradient to drop: no backward() since the last optimizer.step()",
                       "skip_step", "call it after backward(), in place of step()");
  }
  queue_->check_failure();
  leave_out();
  finish_iteration();
}

void Run::finish_iteration() {
  const RunIteration& now = here();
  for (const EndAction& action : now.end_actions) {
    if (action.optimizer) {
      recorder_.begin_span();
      plan_->applies.step(plan_->applies.sound(action.stepped));
    }
    for (std::int32_t a : action.applies) {
      const RunApply& apply = now.applies[static_cast<std::size_t>(a)];
      action.optimizer ? plan_->outbox.read_parameters(apply) : plan_->applies.average(apply);
    }
  }
  pass(PointKind::kIterationEnd, 0);
  plan_->applies.note_parameters();
  advance();
}

void Run::advance(bool accumulates) {
  accumulates_ = accumulates;
  recorder_.iteration_ended(accumulates);
  if (accumulates) {
    for (std::int32_t t : all_tensors()) plan_->arrivals.accumulates_on(t, host_.kept(t) != Kept::kGone);
  } else {
    plan_->arrivals.forget_accumulated();
  }
  retire(cursor_.now());
  cursor_.advance();
  phase_ = Phase::kIdle;
  begin_iteration();
}

void Run::begin_iteration() {
  peers_->outside(cursor_.of_run());
  open(cursor_.now() + plan().look_ahead);
  plan_->window.push(cursor_.now());
  pass(PointKind::kIterationStart, 0);
}

void Run::open(std::int64_t iteration) {
  if (plan_->window.open(iteration)) plan_->outbox.leave_out_later_steps(iteration);
}

// Gives messages back whose last apply was in `iteration`.
void Run::retire(std::int64_t iteration) {
  const std::int64_t first = std::max<std::int64_t>(0, iteration - plan().look_back);
  for (std::int64_t i = first; i <= iteration; ++i) {
    for (const Execution& execution : plan_->window.row(i)) {
      if (execution.op == nullptr || execution.iteration != i || i + execution.op->last_apply != iteration)
        continue;
      if (!execution.op->goes_on) host_.retire(execution);
    }
  }
}

// Hands the next iteration's ops to their links, as its beginning would do: op `op` among them is awaited
// now.
void Run::start_early(std::int32_t op) {
  const std::int64_t next = cursor_.now() + 1;
  open(next);
  plan_->window.push(next);
  for (const Execution* step = &at(next, op); step != nullptr && step->iteration == next;
       step = step->before) {
    for (std::int32_t before = 0; before < step->place; ++before) {
      const Execution& execution = at(next, before);
      if (execution.op->link != step->op->link || queue_->missing(execution) == 0) continue;
      throw InvalidInput(
          "part of the gradient is sent after " + describe(plan(), execution) + ", which needs a later step",
          "clip_grad_norm_", "choose another scheme, such as ddp");
    }
  }
}

void Run::visit_coming(const std::function<void(const Part&)>& visit) {
  const std::int64_t next = cursor_.now() + 1;
  for (const RunApply& apply : plan()[next].applies) {
    if (apply.at.kind != PointKind::kForwardStart || apply.source != Source::kReducedGradient) continue;
    for (const Piece& piece : apply.pieces) {
      if (piece.source.delta == 0) start_early(piece.source.op);
      const Execution& execution = at(next + piece.source.delta, piece.source.op);
      plan_->applies.wait_for(execution, -1);
      visit({&execution, piece.block, piece.offset});
    }
  }
}

// ---- what others ask

bool Run::overflowed() const { return installed() && plan_->flags.left_out(cursor_.now()); }

Stepped Run::stepped_at_end() const {
  Stepped stepped;
  for (const EndAction& action : here().end_actions) add(action.stepped, stepped);
  return stepped;
}

IterationStatistics Run::statistics(std::int64_t iterations, std::size_t rank, bool wait) {
  return recorder_.timer().statistics(iterations, rank, static_cast<std::size_t>(options_.world_size), wait);
}

std::vector<std::int32_t> Run::forward_layers() const {
  std::vector<std::int32_t> layers;
  if (!installed()) return layers;
  std::vector<std::uint8_t> wanted(plan().layers);
  for (const RunIteration& iteration : plan().iterations) {
    for (const RunOp& op : iteration.ops) {
      const PointKind kind = op.release.point.kind;
      if (kind == PointKind::kForwardStart || kind == PointKind::kForwardEnd)
        wanted[static_cast<std::size_t>(op.release.point.layer)] = 1;
    }
    for (std::size_t l = 0; l < wanted.size(); ++l)
      wanted[l] |= !iteration.at_forward[l].empty() || !iteration.updated_before[l].empty();
  }
  for (std::size_t l = 0; l < wanted.size(); ++l) {
    if (wanted[l]) layers.push_back(static_cast<std::int32_t>(l));
  }
  return layers;
}

std::vector<std::int32_t> Run::all_tensors() const {
  std::vector<std::int32_t> tensors(plan().index.tensors.size());
  std::iota(tensors.begin(), tensors.end(), 0);
  return tensors;
}

Counters Run::counters() const {
  Counters counters = recorder_.counters();
  const OpCounters links = queue_->counters();
  counters.ops = links.ops;
  counters.bytes = links.bytes;
  return counters;
}

void Run::set_timeline(bool on) {
  recorder_.set_timeline(on);
  queue_->set_timeline(on);
}

std::vector<Span> Run::take_spans() {
  std::vector<Span> spans = recorder_.take_spans();
  const std::vector<Span> links = queue_->take_spans();
  spans.insert(spans.end(), links.begin(), links.end());
  return spans;
}

}  // namespace gradweave::run
