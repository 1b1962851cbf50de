#include "run/run.h"

#include <algorithm>
#include <utility>

#include "gradweave/error.h"

namespace gradweave::run {

Run::Run(Host& host, const RunOptions& options)
    : host_(host), options_(options), queue_(std::make_shared<OpQueue>(options.queue)) {}

Run::~Run() { close(); }

void Run::close() {
  links_.clear();
  tables_.reset();
  peers_.reset();
}

void Run::install(Calendar&& calendar) {
  links_.clear();
  queue_->check_failure();
  tables_ = std::make_shared<Tables>(std::move(calendar));
  const Calendar& compiled = tables_->calendar;
  queue_->reset(compiled, tables_->ring.capacity());
  const std::size_t tensors = compiled.index.tensors.size();
  all_tensors_.clear();
  for (std::size_t t = 0; t < tensors; ++t) all_tensors_.push_back(static_cast<std::int32_t>(t));
  set_step_points();
  find_unused_ = options_.find_unused;
  ready_.assign(tensors, 0);
  present_.assign(tensors, 0);
  touched_.assign(tensors, 0);
  missing_.assign(compiled.layers, 0);
  timer_.install(compiled);
  base_ += iteration_;
  restart();
}

void Run::start(std::vector<std::shared_ptr<Channel>> channels) {
  queue_->set_ordered_launches(
      std::ranges::any_of(channels, [](const auto& channel) { return channel->ordered_launches(); }));
  for (std::size_t k = 0; k < channels.size(); ++k)
    links_.push_back(std::make_unique<Link>(k, tables_, std::move(channels[k]), queue_, peers_));
}

// Starts at iteration 0 of the plan in force.
void Run::restart() {
  iteration_ = 0;
  prepared_ = pushed_ = last_spoilt_ = updated_ = -1;
  phase_ = Phase::kIdle;
  queue_->restart();
  timer_.restart();
  const std::size_t tensors = tables_->calendar.index.tensors.size();
  put_.assign(tables_->calendar.blocks.size(), -1);
  for (Flags& flags : flags_) finish_exchange(flags);
  forwarded_.assign(tables_->calendar.layers, -1);
  flags_.assign(tables_->ring.depth(), {});
  for (Flags& flags : flags_) flags.values.assign(tensors + 2, 0);
  tables_->ring.clear();
  for (std::int32_t n = 0; n < tables_->calendar.look_ahead; ++n) prepare(n);
  begin_iteration();
}

void Run::set_step_points() {
  partial_steps_ = steps_in_backward_ = steps_in_forward_ = false;
  const Calendar& calendar = tables_->calendar;
  for (const CalendarIteration& iteration : calendar.iterations) {
    for (const EndAction& action : iteration.end_actions)
      partial_steps_ |= action.optimizer && action.stepped.tensors.size() != calendar.index.tensors.size();
    for (const CalendarApply& apply : iteration.applies) {
      if (apply.at.kind == PointKind::kIterationEnd || apply.source == Source::kAveragedParameter) continue;
      partial_steps_ = true;
      (apply.at.kind == PointKind::kForwardStart ? steps_in_forward_ : steps_in_backward_) = true;
    }
  }
  synchronous_ = std::ranges::all_of(calendar.iterations, &CalendarIteration::synchronous);
}

// ---- forward

void Run::forward_begins() {
  if (installed() && phase_ == Phase::kIdle) timer_.forward_begins(ns_of(Clock::now()));
}

void Run::forward_start(std::int32_t layer) {
  // Also where the backward will only accumulate: the forward needs the new parameters.
  if (!installed() || phase_ != Phase::kIdle) return;
  apply_forward(layer);
  if (timeline_) span_begin_ = Clock::now();
}

// Once in an iteration: a module may be used twice, or be computed again.
void Run::apply_forward(std::int32_t layer) {
  const auto l = static_cast<std::size_t>(layer);
  if (forwarded_[l] >= iteration_) return;
  forwarded_[l] = iteration_;
  pass(PointKind::kForwardStart, layer);
  apply_outside_end(here().at_forward[l]);
}

void Run::forward_end(std::int32_t layer) {
  if (!installed() || phase_ != Phase::kIdle || !communicating_) return;
  pass(PointKind::kForwardEnd, layer);
  record(SpanKind::kForward, layer);
}

// ---- backward

void Run::backward_start() {
  if (phase_ == Phase::kBackward) return;
  timer_.backward_begins(ns_of(Clock::now()));
  pass(PointKind::kBackwardStart, 0);
}

void Run::gradient(std::int32_t tensor) {
  const auto t = static_cast<std::size_t>(tensor);
  if (!communicating_) {
    touched_[t] = 1;
    return;
  }
  enter_backward();
  if (ready_[t]) {
    throw InvalidInput(
        "its gradient was computed twice in one iteration", tensor_text(tensor),
        "put all backward passes but the last of an iteration under model.no_sync(); checkpoint "
        "with use_reentrant=False");
  }
  const std::size_t layer = tables_->calendar.index.tensors[t].layer;
  if (!here().at_forward[layer].empty() && forwarded_[layer] < iteration_) {
    throw InvalidInput(
        "its gradient was computed without its last update, which waits for its module's forward",
        tensor_text(tensor) + ", " + iteration_text(),
        "call the module itself, or choose a scheme that updates in step(), such as ddp");
  }
  ready_[t] = 1;
  host_.take_gradient(tensor, Gradient::kComputed);
  hand_over(tensor);
  complete_layer_of(tensor);
}

void Run::enter_backward() {
  if (phase_ == Phase::kBackward) return;
  queue_->check_failure();
  if (phase_ == Phase::kReduced) {
    // A step that was skipped, as GradScaler does, or gradients that accumulate: as in
    // DistributedDataParallel.
    if (!here().synchronous) {
      throw InvalidInput(
          "a second backward() before optimizer.step()", iteration_text(),
          "put all backward passes but the last of an iteration under model.no_sync(), and call "
          "step() of the optimizer that gradweave.wrap() was given, or model.gradweave.skip_step() to drop a "
          "batch");
    }
    advance();
  }
  scaled_ = host_.begin_backward();
  phase_ = Phase::kBackward;
  peers_->training(base_ + iteration_);
  std::ranges::fill(ready_, 0);
  const WorkloadIndex& index = tables_->calendar.index;
  for (std::size_t l = 0; l < missing_.size(); ++l)
    missing_[l] = static_cast<std::int32_t>(index.first_tensor[l + 1] - index.first_tensor[l]);
  if (timeline_) span_begin_ = Clock::now();
}

void Run::complete_layer_of(std::int32_t tensor) {
  const WorkloadIndex& index = tables_->calendar.index;
  const std::size_t layer = index.tensors[static_cast<std::size_t>(tensor)].layer;
  if (--missing_[layer] > 0) return;
  timer_.layer_ended(static_cast<std::int32_t>(layer), ns_of(Clock::now()));
  record(SpanKind::kBackward, static_cast<std::int32_t>(layer));
  // Layers without tensors end with the one whose backward follows theirs.
  std::size_t last = layer;
  while (last + 1 < missing_.size() && index.first_tensor[last + 1] == index.first_tensor[last + 2]) ++last;
  for (std::size_t l = last + 1; l-- > layer;) end_layer(static_cast<std::int32_t>(l));
}

// An apply waits until the backward's end where it may hold a gradient that is unused: only then ranks know.
bool Run::waits_for_unused(const CalendarApply& apply, std::int32_t layer) const {
  if (apply.source == Source::kLocalGradient) return false;
  if (std::any_of(missing_.begin() + layer, missing_.end(), [](std::int32_t left) { return left > 0; }))
    return true;
  return apply.source == Source::kReducedGradient && apply.merges.back() == 0 &&
         find_unused_ != FindUnused::kOff;
}

void Run::end_layer(std::int32_t layer) {
  const std::vector<std::int32_t>& due = here().at_backward[static_cast<std::size_t>(layer)];
  const auto waits = [&](std::int32_t a) {
    return waits_for_unused(here().applies[static_cast<std::size_t>(a)], layer);
  };
  if (late_.empty() && std::ranges::none_of(due, waits)) {
    apply_outside_end(due);
  } else {
    late_.insert(late_.end(), due.begin(), due.end());
  }
  pass(PointKind::kBackwardEnd, layer);
}

void Run::finish_backward() {
  if (phase_ != Phase::kBackward) return;
  // Layers that did not run in this forward: before what their backward would do.
  for (std::size_t l = 0; l < missing_.size(); ++l) {
    if (!here().at_forward[l].empty()) apply_forward(static_cast<std::int32_t>(l));
  }
  for (std::int32_t t : all_tensors_) {
    if (ready_[static_cast<std::size_t>(t)]) continue;
    host_.take_gradient(t, touched_[static_cast<std::size_t>(t)] ? Gradient::kAccumulated : Gradient::kNone);
    hand_over(t);
    complete_layer_of(t);
  }
  for (std::size_t l = tables_->calendar.index.tensors.front().layer; l-- > 0;)
    end_layer(static_cast<std::int32_t>(l));
  backward_end_ns_ = ns_of(Clock::now());
  timer_.backward_ended(backward_end_ns_);
  exchange_flags();
  apply_outside_end(std::exchange(late_, {}));
  phase_ = Phase::kReduced;
  const CalendarIteration& now = here();
  for (std::int32_t a : now.gradients_at_end) apply_reduced(now.applies[static_cast<std::size_t>(a)]);
  for (std::int32_t t : all_tensors_) {
    const auto place = static_cast<std::size_t>(t);
    present_[place] = ready_[place] && host_.kept(t) != Kept::kGone;
  }
}

// ---- from one iteration to the next

void Run::end_iteration() {
  queue_->check_failure();
  if (taken_away()) return skip();
  if (phase_ == Phase::kReduced && !synchronous_) check_kept();
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
  const CalendarIteration& now = here();
  for (const EndAction& action : now.end_actions) {
    if (action.optimizer) step(sound(action.stepped));
    for (std::int32_t a : action.applies) {
      const CalendarApply& apply = now.applies[static_cast<std::size_t>(a)];
      action.optimizer ? read_parameters(apply) : apply_average(apply);
    }
  }
  pass(PointKind::kIterationEnd, 0);
  note_parameters();
  advance();
}

void Run::advance() {
  ++counters_.iterations;
  timer_.iteration_ended(ns_of(Clock::now()));
  std::ranges::fill(touched_, 0);
  retire(iteration_);
  ++iteration_;
  phase_ = Phase::kIdle;
  begin_iteration();
}

void Run::begin_iteration() {
  peers_->outside(base_ + iteration_);
  prepare(iteration_ + tables_->calendar.look_ahead);
  push(iteration_);
  pass(PointKind::kIterationStart, 0);
}

// Makes the executions of an iteration's ops ready to be written to.
void Run::prepare(std::int64_t iteration) {
  if (iteration <= prepared_) return;
  prepared_ = iteration;
  if (const std::int64_t before = iteration - static_cast<std::int64_t>(tables_->ring.depth()); before >= 0) {
    queue_->times(tables_->ring.row(before), op_ns_);  // its place is used again
    timer_.ops_ended(before, op_ns_);
  }
  tables_->ring.open(tables_->calendar, iteration, base_ + iteration);
  queue_->open(tables_->ring.row(iteration));
  // The other half may have been left out before this one was there.
  for (const Execution& execution : tables_->ring.row(iteration)) {
    if (execution.op == nullptr || execution.partner == nullptr) continue;
    const auto left_out = [&](std::int32_t m) {
      const std::int64_t of = iteration + m;
      return of >= 0 && of < iteration_ && spoilt(of);
    };
    if (std::ranges::any_of(execution.op->merges, left_out)) host_.leave_out(execution);
  }
}

void Run::push(std::int64_t iteration) {
  if (iteration <= pushed_) return;
  pushed_ = iteration;
  queue_->push(tables_->ring.row(iteration), iteration);
}

// Hands the next iteration's ops to their links, as its beginning would do: op `op` among them is awaited
// now.
void Run::start_early(std::int32_t op) {
  const std::int64_t next = iteration_ + 1;
  prepare(next);
  push(next);
  const std::int32_t link = at(next, op).op->link;
  for (std::int32_t before = 0; before < op; ++before) {
    const Execution& execution = at(next, before);
    if (execution.op->link != link || queue_->missing(execution) == 0) continue;
    throw InvalidInput("part of the gradient is sent behind " + describe(tables_->calendar, execution) +
                           ", which needs a later step",
                       "clip_grad_norm_", "choose another scheme, such as ddp");
  }
}

void Run::visit_coming(const std::function<void(const Part&)>& visit) {
  const std::int64_t next = iteration_ + 1;
  for (const CalendarApply& apply : tables_->calendar[next].applies) {
    if (apply.at.kind != PointKind::kForwardStart || apply.source != Source::kReducedGradient) continue;
    for (const Piece& piece : apply.pieces) {
      if (piece.source.delta == 0) start_early(piece.source.op);
      const Execution& execution = at(next + piece.source.delta, piece.source.op);
      wait_for(execution, -1);
      visit({&execution, piece.block, piece.offset});
    }
  }
}

// ---- what others ask

Stepped Run::stepped_at_end() const {
  Stepped stepped;
  for (const EndAction& action : here().end_actions) add(action.stepped, stepped);
  return stepped;
}

std::vector<std::int32_t> Run::forward_layers() const {
  std::vector<std::int32_t> layers;
  if (!installed()) return layers;
  std::vector<std::uint8_t> wanted(tables_->calendar.layers);
  for (const CalendarIteration& iteration : tables_->calendar.iterations) {
    for (const CalendarOp& op : iteration.ops) {
      const PointKind kind = op.release.point.kind;
      if (kind == PointKind::kForwardStart || kind == PointKind::kForwardEnd)
        wanted[static_cast<std::size_t>(op.release.point.layer)] = 1;
    }
    for (std::size_t l = 0; l < wanted.size(); ++l) wanted[l] |= !iteration.at_forward[l].empty();
  }
  for (std::size_t l = 0; l < wanted.size(); ++l) {
    if (wanted[l]) layers.push_back(static_cast<std::int32_t>(l));
  }
  return layers;
}

Counters Run::counters() const {
  Counters counters = counters_;
  const OpCounters links = queue_->counters();
  counters.ops = links.ops;
  counters.bytes = links.bytes;
  return counters;
}

void Run::fail(const std::string& what, Clock::duration after, const std::string& cause) {
  queue_->fail(peers_->give_up(what + " (" + iteration_text() + ")", after, cause));
  throw RuntimeFailure(queue_->failure());
}

std::string Run::tensor_text(std::int32_t tensor) const {
  return "parameter '" + tables_->calendar.index.tensor_names[static_cast<std::size_t>(tensor)] + "'";
}

void Run::set_timeline(bool on) {
  timeline_ = on;
  span_begin_ = Clock::now();
  queue_->set_timeline(on);
}

// What compute has done since the last record.
void Run::record(SpanKind kind, std::int32_t layer) {
  if (!timeline_) return;
  const auto now = Clock::now();
  spans_.push_back({.kind = kind,
                    .iteration = base_ + iteration_,
                    .layer = layer,
                    .begin_ns = ns_of(span_begin_),
                    .end_ns = ns_of(now)});
  span_begin_ = now;
}

std::vector<Span> Run::take_spans() {
  std::vector<Span> spans = std::exchange(spans_, {});
  const std::vector<Span> links = queue_->take_spans();
  spans.insert(spans.end(), links.begin(), links.end());
  return spans;
}

}  // namespace gradweave::run
