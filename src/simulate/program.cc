#include "simulate/program.h"

#include <algorithm>
#include <string>
#include <unordered_map>

#include "gradweave/error.h"
#include "simulate/carriers.h"

namespace gradweave {
namespace {

// Absurd plans are refused rather than unrolled.
constexpr std::int32_t kMaxReach = 1'000'000;
constexpr std::int64_t kMaxUnrolled = 20'000'000;  // items; some 32 bytes each
constexpr Nanoseconds kMaxPlanTime = std::int64_t{1} << 60;

// A moment of an iteration in the order in which moments pass. Applies at one point follow each other in list
// order; backward_end fires before its applies, every other point after.
using Moment = std::int64_t;
constexpr Moment kPointShift = std::int64_t{1} << 32;

class Compiler {
 public:
  Compiler(const Plan& plan, std::span<const Workload> classes, const CostModel& model,
           const SimulationOptions& options, bool fine)
      : plan_(plan),
        classes_(classes),
        index_(model.index()),
        model_(model),
        options_(options),
        fine_(fine),
        layers_(static_cast<std::int32_t>(model.index().layer_count)) {}

  Program compile() {
    check_parts();
    measure();
    register_carriers();
    for (std::int64_t n = 0; n < codes(); ++n) compile_ops(n);
    mark_moments();
    for (std::int64_t n = 0; n < codes(); ++n) compile_steps(n);
    resolve_gates();
    check_times();
    return std::move(program_);
  }

 private:
  struct PendingGate {
    std::int32_t iteration = 0;  // relative
    Moment moment = 0;
    Nanoseconds delay = 0;
    bool release = false;
  };
  struct PlanOp {  // what is the same in every repetition of an op
    std::int32_t link = 0;
    OpCost cost;
    std::int32_t first_layer = 0;  // whose gradient is ready last
  };

  std::int64_t codes() const { return program_.head + program_.period; }
  std::int64_t listed() const {
    return static_cast<std::int64_t>(plan_.prologue.size() + plan_.period.size());
  }
  std::size_t row(std::int64_t n) const {  // of the plan's own list of iterations
    const auto prologue = static_cast<std::int64_t>(plan_.prologue.size());
    return static_cast<std::size_t>(n < prologue ? n : prologue + (n - prologue) % program_.period);
  }
  // Merges are intersected with the iterations that exist; an item left empty does not exist.
  static bool exists(const std::vector<std::int32_t>& merges, std::int64_t n) {
    return !merges.empty() && n + *std::ranges::max_element(merges) >= 0;
  }

  // --- points ---
  std::int64_t point_index(const Point& point) const {
    switch (point.kind) {
      case PointKind::kIterationStart:
        return 0;
      case PointKind::kForwardStart:
        return 1 + 2 * point.layer;
      case PointKind::kForwardEnd:
        return 2 + 2 * point.layer;
      case PointKind::kBackwardStart:
        return 2 * layers_ + 1;
      case PointKind::kBackwardEnd:
        return 3 * layers_ + 1 - point.layer;
      case PointKind::kIterationEnd:
        break;
    }
    return 3 * layers_ + 2;
  }
  Moment moment_of(const Point& point) const {
    const Moment base = point_index(point) * kPointShift;
    return point.kind == PointKind::kBackwardEnd ? base : base + kPointShift - 1;
  }
  Moment moment_of_apply(const Point& at, std::size_t apply) const {
    return point_index(at) * kPointShift + 1 + static_cast<Moment>(apply);
  }
  Moment backward_end(std::int32_t layer) const {
    return moment_of({.kind = PointKind::kBackwardEnd, .layer = layer});
  }

  // --- checks ---
  void check_point(const Point& point, const std::string& where) const {
    const bool has_layer = point.kind == PointKind::kForwardStart || point.kind == PointKind::kForwardEnd ||
                           point.kind == PointKind::kBackwardEnd;
    if (has_layer && (point.layer < 0 || point.layer >= layers_)) {
      throw InvalidInput("the workload has no layer " + std::to_string(point.layer), where + ".layer",
                         "use 0 to " + std::to_string(layers_ - 1));
    }
    if (point.iteration > 0 || point.iteration < -kMaxReach) {
      throw InvalidInput("must be between -1000000 and 0", where + ".iteration",
                         "name an earlier iteration or this one");
    }
  }
  void check_merges(const std::vector<std::int32_t>& merges, const std::string& where) const {
    for (const std::int32_t merge : merges) {
      if (merge > 0 || merge < -kMaxReach) {
        throw InvalidInput("must be between -1000000 and 0", where + ".merges",
                           "name earlier iterations or this one");
      }
    }
  }
  void check_blocks(const std::vector<std::int32_t>& blocks, const std::string& where) const {
    for (const std::int32_t block : blocks) {
      if (block < 0 || static_cast<std::size_t>(block) >= plan_.blocks.size()) {
        throw InvalidInput("the plan has no block " + std::to_string(block), where + ".blocks",
                           "use indices into the plan's blocks");
      }
    }
  }

  void check_parts() {
    if (plan_.period.empty())
      throw InvalidInput("must have at least one iteration", "period", "make the plan again");
    std::unordered_map<std::string, std::int32_t> links;
    for (const PlanLink& link : plan_.links) {
      const std::string where = "links[" + std::to_string(links.size()) + "]";
      const std::optional<std::size_t> found = find_link(model_.cluster(), link.name);
      if (!found)
        throw InvalidInput("the cluster has no link '" + link.name + "'", where, "use the cluster's names");
      if (!links.emplace(link.name, static_cast<std::int32_t>(links.size())).second) {
        throw InvalidInput("repeats the link '" + link.name + "'", where, "list each link once");
      }
      if (link.concurrency < 0)
        throw InvalidInput("must not be negative", where + ".concurrency", "0 means unlimited");
      program_.concurrency.push_back(link.concurrency);
      cluster_link_.push_back(*found);
    }
    for (const Block& block : plan_.blocks) add_block(block);
    for (std::int64_t i = 0; i < listed(); ++i) check_iteration(i, links);
  }

  void add_block(const Block& block) {
    const std::string where = "blocks[" + std::to_string(block_slices_.size()) + "]";
    const std::optional<std::size_t> tensor = index_.find_tensor(block.tensor);
    if (!tensor)
      throw InvalidInput("the workload has no tensor '" + block.tensor + "'", where, "make the plan again");
    if (block.begin < 0 || block.end < block.begin || block.end > index_.tensors[*tensor].numel) {
      throw InvalidInput("is not an interval of tensor '" + block.tensor + "'", where,
                         "use 0 <= begin < end <= " + std::to_string(index_.tensors[*tensor].numel));
    }
    block_slices_.push_back({*tensor, block.begin, block.end});
  }

  void check_iteration(std::int64_t i, const std::unordered_map<std::string, std::int32_t>& links) {
    const auto prologue = static_cast<std::int64_t>(plan_.prologue.size());
    const std::string name =
        i < prologue ? "prologue[" + std::to_string(i) : "period[" + std::to_string(i - prologue);
    const Iteration& iteration = iteration_at(plan_, i);
    std::vector<PlanOp>& row = plan_ops_.emplace_back();
    std::vector<Slice> slices;
    for (const Op& op : iteration.ops) {
      const std::string where = name + "].ops[" + std::to_string(row.size()) + "]";
      const auto link = links.find(op.link);
      if (link == links.end()) {
        throw InvalidInput("the plan has no link '" + op.link + "'", where + ".link",
                           "use one of the plan's links");
      }
      check_blocks(op.blocks, where);
      check_merges(op.merges, where);
      check_point(op.release.point, where + ".release");
      if (op.release.delay_ns < 0 || op.release.delay_ns > kMaxPlanTime) {
        throw InvalidInput("must be between 0 and 2^60 ns", where + ".release.delay",
                           "give a time of 0 or more");
      }
      PlanOp& compiled = row.emplace_back();
      compiled.link = link->second;
      compiled.first_layer = layers_ - 1;
      slices.clear();
      for (std::size_t copy = 0; copy < std::max<std::size_t>(op.states.size(), 1); ++copy) {
        for (const std::int32_t block : op.blocks)
          slices.push_back(block_slices_[static_cast<std::size_t>(block)]);
      }
      for (const Slice& slice : slices) {
        compiled.first_layer =
            std::min(compiled.first_layer, static_cast<std::int32_t>(index_.tensors[slice.tensor].layer));
      }
      compiled.cost = model_.cost(cluster_link_[static_cast<std::size_t>(compiled.link)], op.collective,
                                  slices, op.compression);
      note_reach(op.merges, op.release.point);
    }
    for (std::size_t a = 0; a < iteration.applies.size(); ++a) {
      const Apply& apply = iteration.applies[a];
      const std::string where = name + "].applies[" + std::to_string(a) + "]";
      check_blocks(apply.blocks, where);
      check_merges(apply.merges, where);
      check_point(apply.at, where + ".at");
      if (apply.at.kind != PointKind::kIterationEnd && apply.at.kind != PointKind::kForwardStart &&
          apply.at.kind != PointKind::kBackwardEnd) {
        throw InvalidInput("is not a point at which results are applied", where + ".at",
                           "use iteration_end, forward_start or backward_end");
      }
      if (apply.at.iteration != 0)
        throw InvalidInput("must be 0", where + ".at.iteration", "list it where it happens");
      note_reach(apply.merges, {});
    }
  }

  // iteration_start(n) is iteration_end(n - 1), hence one iteration further back.
  void note_reach(const std::vector<std::int32_t>& merges, const Point& release) {
    for (const std::int32_t merge : merges) program_.reach = std::max(program_.reach, -merge);
    program_.reach = std::max(program_.reach, 1 - release.iteration);
  }

  void measure() {
    program_.reach = std::max(program_.reach, 1);
    program_.period = static_cast<std::int64_t>(plan_.period.size());
    // From prologue + reach on every merge exists; references of iterations further on see only such
    // iterations.
    program_.head = static_cast<std::int64_t>(plan_.prologue.size()) + 3 * std::int64_t{program_.reach};
    program_.class_count = classes_.size();
    std::int64_t prologue_items = 0, period_items = 0;
    for (std::int64_t i = 0; i < listed(); ++i) {
      const Iteration& iteration = iteration_at(plan_, i);
      std::int64_t& items = i < std::ssize(plan_.prologue) ? prologue_items : period_items;
      items += 1;
      for (const Op& op : iteration.ops)
        items += 1 + static_cast<std::int64_t>(op.blocks.size() * op.merges.size());
      for (const Apply& apply : iteration.applies) {
        items += 1 + static_cast<std::int64_t>(apply.blocks.size() * apply.merges.size());
      }
    }
    const std::int64_t periods = (codes() + program_.reach) / program_.period + 1;
    if (periods > kMaxUnrolled / period_items || prologue_items > kMaxUnrolled) {
      throw InvalidInput(
          "the plan is too long, or its merges and releases reach too far back, to be simulated", "period",
          "use a shorter period");
    }
  }

  // --- who carries what ---
  void register_carriers() {
    for (std::int64_t n = 0; n < codes() + program_.reach; ++n) {
      const Iteration& iteration = iteration_at(plan_, n);
      for (std::size_t i = 0; i < iteration.ops.size(); ++i) {
        const Op& op = iteration.ops[i];
        CarrierTable& table = op.payload == Payload::kParameter             ? parameters_
                              : op.payload == Payload::kOptimizerState      ? states_
                              : op.collective == Collective::kReduceScatter ? scatters_
                                                                            : gradients_;
        add_carriers(table, op.blocks, op.merges, n, i);
      }
      for (std::size_t a = 0; a < iteration.applies.size(); ++a) {
        const Apply& apply = iteration.applies[a];
        if (apply.source == Source::kLocalGradient)
          add_carriers(local_applies_, apply.blocks, apply.merges, n, a);
      }
    }
    for (CarrierTable* table : {&gradients_, &scatters_, &parameters_, &states_, &local_applies_})
      table->freeze();
    register_positions();
  }

  static void add_carriers(CarrierTable& table, const std::vector<std::int32_t>& blocks,
                           const std::vector<std::int32_t>& merges, std::int64_t n, std::size_t item) {
    for (const std::int32_t block : blocks) {
      for (const std::int32_t merge : merges) {
        if (n + merge >= 0) table.add({block, n + merge, n, static_cast<std::int32_t>(item)});
      }
    }
  }

  void register_positions() {
    std::vector<std::int32_t> count(program_.link_count());
    for (std::int64_t n = 0; n < codes(); ++n) {
      position_begin_.push_back(positions_.size());
      std::ranges::fill(count, 0);
      const Iteration& iteration = iteration_at(plan_, n);
      for (std::size_t i = 0; i < iteration.ops.size(); ++i) {
        const auto link = static_cast<std::size_t>(plan_ops_[row(n)][i].link);
        positions_.push_back(exists(iteration.ops[i].merges, n) ? count[link]++ : -1);
      }
    }
  }

  OpRef reference(const Carrier& carrier, std::int64_t from) const {
    const auto item = static_cast<std::size_t>(carrier.item);
    return {static_cast<std::int32_t>(carrier.iteration - from), plan_ops_[row(carrier.iteration)][item].link,
            positions_[position_begin_[program_.code_of(carrier.iteration)] + item]};
  }

  void collect(const CarrierTable& table, const std::vector<std::int32_t>& blocks,
               const std::vector<std::int32_t>& merges, std::int64_t n, std::vector<OpRef>& refs) const {
    for (const std::int32_t block : blocks) {
      for (const std::int32_t merge : merges) {
        for (const Carrier& carrier : table.find(block, n + merge)) refs.push_back(reference(carrier, n));
      }
    }
  }

  // Appends `refs` to the program without repetition, and on links that serve one op at a time only the last.
  void append_refs(std::vector<OpRef>& refs) {
    std::ranges::sort(refs, {},
                      [](const OpRef& ref) { return std::tuple(ref.link, -ref.iteration, -ref.position); });
    for (std::size_t i = 0; i < refs.size(); ++i) {
      const bool same_link = i > 0 && refs[i].link == refs[i - 1].link;
      const bool in_order = program_.concurrency[static_cast<std::size_t>(refs[i].link)] == 1;
      if (!(same_link && (in_order || refs[i] == refs[i - 1]))) program_.refs.push_back(refs[i]);
    }
    refs.clear();
  }

  // --- ops ---
  void compile_ops(std::int64_t n) {
    const Iteration& iteration = iteration_at(plan_, n);
    for (std::size_t link = 0; link < program_.link_count(); ++link) {
      program_.op_begin.push_back(static_cast<std::uint32_t>(program_.ops.size()));
      for (std::size_t i = 0; i < iteration.ops.size(); ++i) {
        if (plan_ops_[row(n)][i].link == static_cast<std::int32_t>(link) &&
            exists(iteration.ops[i].merges, n)) {
          compile_op(n, iteration.ops[i], static_cast<std::int32_t>(i));
        }
      }
    }
    if (n == codes() - 1) program_.op_begin.push_back(static_cast<std::uint32_t>(program_.ops.size()));
  }

  void compile_op(std::int64_t n, const Op& op, std::int32_t place) {
    const PlanOp& listed = plan_ops_[row(n)][static_cast<std::size_t>(place)];
    OpCode code{.startup = listed.cost.startup, .work = listed.cost.work, .plan_op = place};
    code.gate_begin = static_cast<std::uint32_t>(pending_gates_.size());
    if (op.payload == Payload::kGradient) {
      const std::int32_t last = *std::ranges::max_element(op.merges);
      add_gate(code, {last, backward_end(listed.first_layer)});
    } else {
      add_reads(code, op, n);
    }
    add_release(code, op.release, n);
    code.gate_end = static_cast<std::uint32_t>(pending_gates_.size());
    code.after_begin = static_cast<std::uint32_t>(program_.refs.size());
    if (op.collective == Collective::kAllGather && op.payload == Payload::kGradient) {
      std::vector<OpRef> refs;
      collect(scatters_, op.blocks, op.merges, n, refs);
      append_refs(refs);
    }
    code.after_end = static_cast<std::uint32_t>(program_.refs.size());
    program_.ops.push_back(code);
  }

  // A parameter or state is read after the local apply of its iteration, else once backward is through with
  // it.
  void add_reads(OpCode& code, const Op& op, std::int64_t n) {
    for (const std::int32_t merge : op.merges) {
      if (n + merge < 0) continue;
      for (const std::int32_t block : op.blocks) {
        const auto layer = static_cast<std::int32_t>(
            index_.tensors[block_slices_[static_cast<std::size_t>(block)].tensor].layer);
        add_gate(code, {merge, backward_end(layer)});
        for (const Carrier& carrier : local_applies_.find(block, n + merge)) {
          const auto apply = static_cast<std::size_t>(carrier.item);
          const Point& at = iteration_at(plan_, carrier.iteration).applies[apply].at;
          add_gate(code, {static_cast<std::int32_t>(carrier.iteration - n), moment_of_apply(at, apply)});
        }
      }
    }
  }

  void add_release(OpCode& code, const Release& release, std::int64_t n) {
    PendingGate gate{release.point.iteration, moment_of(release.point), release.delay_ns, true};
    if (n + gate.iteration < 0) return;
    if (release.point.kind == PointKind::kIterationStart) {
      if (n + gate.iteration == 0) {
        code.earliest = release.delay_ns;
        return;
      }
      --gate.iteration;
      gate.moment = moment_of({.kind = PointKind::kIterationEnd});
    }
    add_gate(code, gate);
  }

  // Adds a gate unless an equal or later one holds the op anyway; drops those that it makes superfluous.
  void add_gate(const OpCode& code, const PendingGate& gate) {
    const auto implied = [](const PendingGate& a, const PendingGate& b) {
      return std::pair(a.iteration, a.moment) <= std::pair(b.iteration, b.moment) && a.delay <= b.delay;
    };
    const auto first = pending_gates_.begin() + code.gate_begin;
    if (std::any_of(first, pending_gates_.end(),
                    [&](const PendingGate& other) { return implied(gate, other); }))
      return;
    pending_gates_.erase(std::remove_if(first, pending_gates_.end(),
                                        [&](const PendingGate& other) { return implied(other, gate); }),
                         pending_gates_.end());
    pending_gates_.push_back(gate);
  }

  // --- steps ---
  // Notes at which moments of each code a step must end because some op waits for them.
  void mark_moments() {
    moments_.resize(static_cast<std::size_t>(codes()));
    for (std::int64_t n = 0; n < codes() + program_.reach; ++n) {
      const std::size_t code = program_.code_of(n);
      for (std::size_t link = 0; link < program_.link_count(); ++link) {
        for (const OpCode& op : program_.ops_of(code, link)) {
          for (std::uint32_t g = op.gate_begin; g < op.gate_end; ++g) {
            moments_[program_.code_of(n + pending_gates_[g].iteration)].push_back(pending_gates_[g].moment);
          }
        }
      }
    }
    for (std::vector<Moment>& moments : moments_) {
      std::ranges::sort(moments);
      moments.erase(std::unique(moments.begin(), moments.end()), moments.end());
    }
    step_at_.resize(moments_.size());
    for (std::size_t code = 0; code < moments_.size(); ++code) step_at_[code].resize(moments_[code].size());
  }

  void compile_steps(std::int64_t n) {
    code_ = static_cast<std::size_t>(n);
    program_.step_begin.push_back(static_cast<std::uint32_t>(program_.steps.size()));
    open_ = false;
    const Iteration& iteration = iteration_at(plan_, n);
    std::vector<std::pair<std::int64_t, std::size_t>> by_point;
    for (std::size_t a = 0; a < iteration.applies.size(); ++a) {
      if (exists(iteration.applies[a].merges, n))
        by_point.emplace_back(point_index(iteration.applies[a].at), a);
    }
    std::ranges::sort(by_point);
    optimizer_shares(iteration, n);
    next_apply_ = by_point;
    for (std::int32_t l = 0; l < layers_; ++l) {
      apply_at({.kind = PointKind::kForwardStart, .layer = l}, iteration, n, l);
      mark(moment_of({.kind = PointKind::kForwardStart, .layer = l}));
      compute(SpanKind::kForward, l,
              [&](const Workload& w) { return w.layers[static_cast<std::size_t>(l)].forward_ns; });
      mark(moment_of({.kind = PointKind::kForwardEnd, .layer = l}));
    }
    mark(moment_of({.kind = PointKind::kBackwardStart}));
    for (std::int32_t l = layers_; l-- > 0;) {
      compute(SpanKind::kBackward, l,
              [&](const Workload& w) { return w.layers[static_cast<std::size_t>(l)].backward_ns; });
      mark(backward_end(l));
      apply_at({.kind = PointKind::kBackwardEnd, .layer = l}, iteration, n, l);
    }
    apply_at({.kind = PointKind::kIterationEnd}, iteration, n, -1);
    mark(moment_of({.kind = PointKind::kIterationEnd}));
    if (n == codes() - 1) program_.step_begin.push_back(static_cast<std::uint32_t>(program_.steps.size()));
  }

  void apply_at(const Point& at, const Iteration& iteration, std::int64_t n, std::int32_t layer) {
    const std::int64_t point = point_index(at);
    std::vector<OpRef> refs;
    for (; !next_apply_.empty() && next_apply_.front().first == point; next_apply_ = next_apply_.subspan(1)) {
      const std::size_t a = next_apply_.front().second;
      const Apply& apply = iteration.applies[a];
      switch (apply.source) {
        case Source::kReducedGradient:
          collect(gradients_, apply.blocks, apply.merges, n, refs);
          if (refs.empty()) collect(scatters_, apply.blocks, apply.merges, n, refs);
          break;
        case Source::kAveragedParameter:
          collect(parameters_, apply.blocks, apply.merges, n, refs);
          break;
        case Source::kAveragedOptimizerState:
          collect(states_, apply.blocks, apply.merges, n, refs);
          break;
        case Source::kLocalGradient:
          break;
      }
      if (!refs.empty()) wait(refs, layer);
      if (optimizer_share_[a] > 0) {
        compute(SpanKind::kOptimizer, layer, [&](const Workload&) { return optimizer_share_[a]; });
      }
      mark(moment_of_apply(at, a));
    }
  }

  // Spreads one optimizer step over an iteration's gradient applies, so that applies of all bytes take just
  // one.
  void optimizer_shares(const Iteration& iteration, std::int64_t n) {
    optimizer_share_.assign(iteration.applies.size(), 0);
    if (options_.optimizer_ns == 0 || index_.total_bytes == 0) return;
    std::int64_t bytes = 0;
    Nanoseconds spent = 0;
    for (std::size_t a = 0; a < iteration.applies.size(); ++a) {
      const Apply& apply = iteration.applies[a];
      if (!exists(apply.merges, n) || apply.source > Source::kLocalGradient) continue;
      for (const std::int32_t block : apply.blocks)
        bytes += model_.bytes({&block_slices_[static_cast<std::size_t>(block)], 1});
      const Nanoseconds until = floor_share(options_.optimizer_ns, bytes, index_.total_bytes);
      optimizer_share_[a] = until - spent;
      spent = until;
    }
  }

  void open_step() {
    if (open_) return;
    open_ = true;
    computed_ = false;
    const auto refs = static_cast<std::uint32_t>(program_.refs.size());
    program_.steps.push_back({.wait_begin = refs, .wait_end = refs});
    step_durations_.resize(step_durations_.size() + classes_.size(), 0);
  }

  void wait(std::vector<OpRef>& refs, std::int32_t layer) {
    open_ = false;
    open_step();
    append_refs(refs);
    program_.steps.back().wait_end = static_cast<std::uint32_t>(program_.refs.size());
    program_.steps.back().wait_layer = layer;
  }

  template <typename Duration>
  void compute(SpanKind kind, std::int32_t layer, const Duration& duration) {
    if (fine_ && computed_) open_ = false;
    open_step();
    computed_ = true;
    program_.steps.back().kind = kind;
    program_.steps.back().layer = layer;
    for (std::size_t c = 0; c < classes_.size(); ++c) {
      step_durations_[step_durations_.size() - classes_.size() + c] += duration(classes_[c]);
    }
  }

  void mark(Moment moment) {
    const std::vector<Moment>& moments = moments_[code_];
    const auto found = std::ranges::lower_bound(moments, moment);
    if (found == moments.end() || *found != moment) return;
    if (program_.steps.size() == program_.step_begin.back()) open_step();
    open_ = false;
    step_at_[code_][static_cast<std::size_t>(found - moments.begin())] =
        static_cast<std::int32_t>(program_.steps.size() - 1 - program_.step_begin.back());
  }

  void resolve_gates() {
    program_.gates.resize(pending_gates_.size());
    for (std::int64_t n = 0; n < codes(); ++n) {
      for (std::size_t link = 0; link < program_.link_count(); ++link) {
        for (const OpCode& op : program_.ops_of(static_cast<std::size_t>(n), link)) {
          for (std::uint32_t g = op.gate_begin; g < op.gate_end; ++g) {
            const PendingGate& gate = pending_gates_[g];
            const std::size_t code = program_.code_of(n + gate.iteration);
            const auto found = std::ranges::lower_bound(moments_[code], gate.moment);
            program_.gates[g] = {gate.iteration,
                                 step_at_[code][static_cast<std::size_t>(found - moments_[code].begin())],
                                 gate.delay, gate.release};
          }
        }
      }
    }
    program_.durations.resize(step_durations_.size());
    for (std::size_t s = 0; s < program_.steps.size(); ++s) {
      for (std::size_t c = 0; c < classes_.size(); ++c) {
        program_.durations[c * program_.steps.size() + s] = step_durations_[s * classes_.size() + c];
      }
    }
  }

  // One pass through all codes must stay far from the end of the clock.
  void check_times() {
    Nanoseconds total = 0;
    const auto add = [&total](Nanoseconds time) {
      if (time > kMaxPlanTime - total) {
        throw InvalidInput("the times of one period exceed 2^60 ns", "plan",
                           "give shorter times or a shorter period");
      }
      total += time;
    };
    for (const OpCode& op : program_.ops) add(op.startup), add(op.work), add(op.earliest);
    for (const Gate& gate : program_.gates) add(gate.delay);
    for (const Nanoseconds duration : program_.durations) add(duration);
    Nanoseconds slowest = -1;
    for (std::size_t c = 0; c < classes_.size(); ++c) {
      Nanoseconds compute = 0;
      for (const Layer& layer : classes_[c].layers) compute += layer.forward_ns + layer.backward_ns;
      if (compute > slowest) {
        slowest = compute;
        program_.main_class = c;
      }
    }
  }

  const Plan& plan_;
  std::span<const Workload> classes_;
  const WorkloadIndex& index_;
  const CostModel& model_;
  const SimulationOptions& options_;
  const bool fine_;
  const std::int32_t layers_;
  Program program_;
  std::vector<std::size_t> cluster_link_;
  std::vector<Slice> block_slices_;
  std::vector<std::vector<PlanOp>> plan_ops_;
  CarrierTable gradients_, scatters_, parameters_, states_, local_applies_;
  std::vector<std::size_t> position_begin_;
  std::vector<std::int32_t> positions_;
  std::vector<PendingGate> pending_gates_;
  std::vector<std::vector<Moment>> moments_;
  std::vector<std::vector<std::int32_t>> step_at_;  // parallel to moments_
  std::vector<Nanoseconds> step_durations_;         // [step][class]
  std::vector<Nanoseconds> optimizer_share_;
  std::span<const std::pair<std::int64_t, std::size_t>> next_apply_;
  std::size_t code_ = 0;
  bool open_ = false;
  bool computed_ = false;
};

}  // namespace

Program compile(const Plan& plan, std::span<const Workload> classes, const CostModel& model,
                const SimulationOptions& options, bool fine) {
  return Compiler(plan, classes, model, options, fine).compile();
}

}  // namespace gradweave
