#include "io/import/rank_trace.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <optional>
#include <ranges>
#include <set>
#include <tuple>
#include <utility>

#include "base/quoted.h"
#include "gradweave/error.h"
#include "io/json_write.h"

namespace gradweave {
namespace {

constexpr std::size_t kMostRecords = std::size_t{1} << 24;
constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();
constexpr Nanoseconds kTraceEnd =
    std::numeric_limits<Nanoseconds>::max();  // of a trace that shows no iterations
constexpr std::string_view kModule = "nn.Module: ";
constexpr std::string_view kEvaluate = "autograd::engine::evaluate_function: ";
constexpr std::string_view kAccumulate = "torch::autograd::AccumulateGrad";
constexpr std::string_view kRecording = "torch.profiler.profile(record_shapes=True, with_stack=True)";

struct CppType {
  std::string_view name;
  DType dtype;
};

constexpr std::array kCppTypes = {CppType{"float", DType::kFloat32},
                                  CppType{"double", DType::kFloat64},
                                  CppType{"c10::Half", DType::kFloat16},
                                  CppType{"c10::BFloat16", DType::kBFloat16},
                                  CppType{"c10::complex<float>", DType::kComplex64},
                                  CppType{"c10::complex<double>", DType::kComplex128}};

}  // namespace

std::uint32_t RankTrace::number_of(std::string_view text) {
  const auto [place, is_new] = numbers_.emplace(valid_utf8(text), static_cast<std::uint32_t>(texts_.size()));
  if (is_new) texts_.push_back(place->first);
  return place->second;
}

void RankTrace::keep(const TraceEvent& event, Kind kind, std::int64_t key, std::string_view name) {
  const auto thread =
      threads_.emplace(event.thread, static_cast<std::int32_t>(threads_.size())).first->second;
  Record record{.begin = event.begin,
                .end = event.end,
                .key = key,
                .thread = thread,
                .name = number_of(name),
                .kind = kind};
  if (kind == Kind::kNode) record.forward = static_cast<std::int32_t>(event.forward_thread.value_or(0));
  if (kind == Kind::kGradient) record.forward = static_cast<std::int32_t>(number_of(event.dtype));
  records_.push_back(record);
}

void RankTrace::add(const TraceEvent& event) {
  if (records_.size() + launches_.size() + kernels_.size() >= kMostRecords) {
    throw InvalidInput("holds more than " + std::to_string(kMostRecords) + " operators, modules and kernels",
                       "", "record fewer iterations: 10 are plenty");
  }
  const std::string_view category = event.category, name = event.name;
  if (category == "python_function") {
    if (name.starts_with(kModule)) keep(event, Kind::kModule, -1, name.substr(kModule.size()));
  } else if (category == "cpu_op") {
    if (name == kAccumulate) {
      keep(event, Kind::kGradient, event.numel.value_or(-1), name);
    } else if (name.starts_with(kEvaluate)) {
      keep(event, Kind::kNode, event.sequence_number.value_or(-1), kEvaluate);
    } else if (event.sequence_number && event.forward_thread.value_or(0) == 0) {
      keep(event, Kind::kOperator, *event.sequence_number, name);
    }
  } else if (category == "user_annotation") {
    if (name.starts_with("ProfilerStep#")) keep(event, Kind::kStep, -1, name);
    if (name.starts_with("Optimizer.step#")) keep(event, Kind::kOptimizer, -1, name);
  } else if (event.correlation) {
    if (category.ends_with("_runtime") || category.ends_with("_driver")) {
      launches_.push_back({*event.correlation, event.begin});
    } else if ((category == "kernel" && !name.starts_with("nccl")) || category == "gpu_memcpy" ||
               category == "gpu_memset") {
      kernels_.push_back({*event.correlation, event.end});
    }
  }
}

// Finds the passes, each one forward and its backward, in the records of a trace.
class PassFinder {
 public:
  using Kind = RankTrace::Kind;
  using Record = RankTrace::Record;

  explicit PassFinder(RankTrace& trace) : trace_(trace), records_(trace.records_) {
    std::ranges::sort(records_, [](const Record& a, const Record& b) {
      return std::tuple(a.begin, -a.end, a.kind) < std::tuple(b.begin, -b.end, b.kind);
    });
    require_gradients();
    index_device();
    index_operators();
    find_scopes();
    find_owners();
  }

  RankTrace::Result result() {
    RankTrace::Result result{.modules = modules_};
    for (const auto& [begin, end] : iterations()) {
      if (auto layers = layers_between(begin, end)) {
        result.iterations.push_back(std::move(*layers));
      } else if (has_gradient(begin, end)) {
        ++result.incomplete;
      }
    }
    return result;
  }

 private:
  // One forward and one backward; positions in records_.
  struct Pass {
    std::vector<std::size_t> forward, nodes, gradients;
    bool whole = true;
  };

  struct TimedPass {
    std::vector<Layer> layers;
    Nanoseconds backward = 0;  // its begin
  };

  void require_gradients() const {
    auto gradients = std::views::filter(records_, [](const Record& r) { return r.kind == Kind::kGradient; });
    if (gradients.empty()) {
      throw InvalidInput("shows no gradients", "",
                         "record whole iterations on the processors too, with ProfilerActivity.CPU and " +
                             std::string(kRecording));
    }
    if (std::ranges::all_of(gradients, [](const Record& r) { return r.key < 0; }))
      throw InvalidInput("shows no sizes of gradients", "", "record with " + std::string(kRecording));
  }

  // A moment of the host's as an event recorded then on the device would tell it: when all that had been launched before
  // was done.
  void index_device() {
    std::ranges::sort(trace_.launches_, {}, &RankTrace::Done::correlation);
    for (const RankTrace::Done& kernel : trace_.kernels_) {
      const auto launch =
          std::ranges::lower_bound(trace_.launches_, kernel.correlation, {}, &RankTrace::Done::correlation);
      if (launch != trace_.launches_.end() && launch->correlation == kernel.correlation)
        device_.emplace_back(launch->at, kernel.at);
    }
    std::ranges::sort(device_);
    for (std::size_t i = 1; i < device_.size(); ++i)
      device_[i].second = std::max(device_[i].second, device_[i - 1].second);
  }

  Nanoseconds moment(Nanoseconds host) const {
    const auto after =
        std::ranges::lower_bound(device_, host, {}, &std::pair<Nanoseconds, Nanoseconds>::first);
    return after == device_.begin() ? host : std::max(host, std::prev(after)->second);
  }

  // Sequence numbers are counted by each thread; which one a node's forward ran on is a number of another kind. It is
  // the thread that has most of the numbers of those nodes.
  void index_operators() {
    for (std::size_t i = 0; i < records_.size(); ++i) {
      if (records_[i].kind == Kind::kOperator) operators_[{records_[i].thread, records_[i].key}].push_back(i);
    }
    std::map<std::int32_t, std::map<std::int32_t, std::size_t>> votes;
    std::set<std::int32_t> threads;
    for (const auto& [key, places] : operators_) threads.insert(key.first);
    for (const Record& node : records_) {
      if (node.kind != Kind::kNode || node.key < 0) continue;
      for (const std::int32_t thread : threads)
        votes[node.forward][thread] += operators_.contains({thread, node.key}) ? 1 : 0;
    }
    for (const auto& [forward, counts] : votes)
      thread_of_[forward] =
          std::ranges::max_element(counts, {}, [](const auto& c) { return c.second; })->first;
  }

  // Returns the operator that made the node: of those with its number the last one before it, since whatever is called
  // before a node is made sees the number that this one will get.
  std::size_t maker_of(std::size_t node) const {
    const Record& record = records_[node];
    const auto thread = thread_of_.find(record.forward);
    if (record.key < 0 || thread == thread_of_.end()) return kNone;
    const auto found = operators_.find({thread->second, record.key});
    if (found == operators_.end()) return kNone;
    const auto after = std::ranges::lower_bound(found->second, node);
    return after == found->second.begin() ? kNone : *std::prev(after);
  }

  // The scope of an operator: the innermost module around it or, without modules, the outermost operator that is no
  // part of the backward. Its root: the outermost module, or the scope itself.
  void find_scopes() {
    modules_ = std::ranges::any_of(records_, [](const Record& r) { return r.kind == Kind::kModule; });
    scope_.assign(records_.size(), kNone);
    root_.assign(records_.size(), kNone);
    in_backward_.assign(records_.size(), false);
    std::map<std::int32_t, std::vector<std::size_t>>
        open;  // modules, operators and nodes of a thread, by nesting
    for (std::size_t i = 0; i < records_.size(); ++i) {
      const Record& record = records_[i];
      if (record.kind == Kind::kStep || record.kind == Kind::kOptimizer || record.kind == Kind::kGradient)
        continue;
      auto& around = open[record.thread];
      while (!around.empty() && records_[around.back()].end <= record.begin) around.pop_back();
      around.push_back(i);
      if (record.kind == Kind::kNode) continue;
      const Kind wanted = modules_ ? Kind::kModule : Kind::kOperator;
      const auto last_node = std::ranges::find(around | std::views::reverse, Kind::kNode,
                                               [&](std::size_t at) { return records_[at].kind; });
      in_backward_[i] = last_node != around.rend();
      const auto is_wanted = [&](std::size_t at) { return records_[at].kind == wanted; };
      const auto outermost = std::find_if(last_node.base(), around.end(), is_wanted);
      if (outermost == around.end()) continue;
      root_[i] = *outermost;
      scope_[i] = modules_ ? *std::ranges::find_if(around | std::views::reverse, is_wanted) : *outermost;
    }
  }

  // Who owns each gradient: the scope of what made the node that was evaluated last before it.
  void find_owners() {
    std::map<std::int32_t, std::size_t> last;  // node with a number, by thread
    std::set<std::size_t> owners;
    owner_.assign(records_.size(), kNone);
    node_.assign(records_.size(), kNone);
    for (std::size_t i = 0; i < records_.size(); ++i) {
      const Record& record = records_[i];
      if (record.kind == Kind::kNode && record.key >= 0) {
        last[record.thread] = i;
      } else if (record.kind == Kind::kGradient && last.contains(record.thread)) {
        const std::size_t maker = maker_of(last[record.thread]);
        if (maker == kNone || scope_[maker] == kNone) continue;
        owner_[i] = scope_[maker];
        node_[i] = last[record.thread];
        owners.insert(key_of(owner_[i]));
      }
    }
    used_.assign(records_.size(), false);
    for (std::size_t i = 0; i < records_.size(); ++i) {
      if (scope_[i] == i && owners.contains(key_of(i))) used_[root_[i]] = true;
    }
  }

  // [begin, end) of each iteration: the profiler's steps. Those in which no optimizer steps, as where profiler.step() is called
  // after each pass of several, belong to the next one in which one does.
  std::vector<std::pair<Nanoseconds, Nanoseconds>> iterations() const {
    std::vector<std::pair<Nanoseconds, Nanoseconds>> spans;
    std::vector<Nanoseconds> optimizers;
    for (const Record& r : records_) {
      if (r.kind == Kind::kStep) spans.emplace_back(r.begin, r.end);
      if (r.kind == Kind::kOptimizer) optimizers.push_back(r.begin);
    }
    if (!spans.empty()) return optimizers.empty() ? spans : joined(spans, optimizers);
    Nanoseconds before = std::numeric_limits<Nanoseconds>::min();
    for (const Nanoseconds step : optimizers) spans.emplace_back(std::exchange(before, step), step);
    if (spans.empty()) spans.emplace_back(before, kTraceEnd);
    return spans;
  }

  std::vector<std::pair<Nanoseconds, Nanoseconds>> joined(
      const std::vector<std::pair<Nanoseconds, Nanoseconds>>& steps,
      const std::vector<Nanoseconds>& optimizers) const {
    std::vector<std::pair<Nanoseconds, Nanoseconds>> spans;
    std::optional<Nanoseconds> open;
    for (const auto& [begin, end] : steps) {
      const auto next = std::ranges::lower_bound(optimizers, begin);
      const bool has_optimizer = next != optimizers.end() && *next < end;
      if (!has_optimizer && has_gradient(begin, end)) {
        if (!open) open = begin;
      } else if (has_optimizer) {
        spans.emplace_back(open.value_or(begin), end);
        open.reset();
      }
    }
    return spans;
  }

  std::ranges::subrange<std::vector<Record>::const_iterator> between(Nanoseconds begin,
                                                                     Nanoseconds end) const {
    return {std::ranges::lower_bound(records_, begin, {}, &Record::begin),
            std::ranges::lower_bound(records_, end, {}, &Record::begin)};
  }

  bool has_gradient(Nanoseconds begin, Nanoseconds end) const {
    return std::ranges::any_of(between(begin, end),
                               [](const Record& r) { return r.kind == Kind::kGradient; });
  }

  // Returns the passes between the two moments that are whole.
  std::vector<Pass> passes_between(Nanoseconds begin, Nanoseconds end) const {
    std::vector<Pass> found;
    Pass pass;
    const auto close = [&] {
      if (pass.whole && !pass.forward.empty() && !pass.gradients.empty()) found.push_back(std::move(pass));
      pass = {};
    };
    const auto span = between(begin, end);
    const auto first = static_cast<std::size_t>(span.begin() - records_.begin());
    for (std::size_t i = first; i < first + span.size(); ++i) {
      const Record& record = records_[i];
      if (record.kind == Kind::kNode) {
        pass.nodes.push_back(i);
      } else if (record.kind == Kind::kGradient) {
        pass.gradients.push_back(i);
        pass.whole = pass.whole && owner_[i] != kNone && record.key >= 0;
      } else if (scope_[i] == i && used_[root_[i]] && !in_backward_[i]) {
        if (!pass.gradients.empty()) close();
        pass.forward.push_back(i);
      }
    }
    close();
    return found;
  }

  // Layers by what names them: with modules their name, else the operator's place in records_.
  std::size_t key_of(std::size_t scope) const { return modules_ ? records_[scope].name : scope; }

  // Of several passes, whose gradients are accumulated, the first forward counts and the last backward; what lies between is
  // compute of the last layer's forward, as in a job (run/layer_timer.h). Where the trace shows no iterations, each pass is
  // taken for one, and the last counts.
  std::optional<std::vector<Layer>> layers_between(Nanoseconds begin, Nanoseconds end) const {
    std::vector<TimedPass> passes;
    for (const Pass& pass : passes_between(begin, end)) {
      if (auto timed = timed_pass(pass)) passes.push_back(std::move(*timed));
    }
    if (passes.empty()) return std::nullopt;
    TimedPass& last = passes.back();
    if (end == kTraceEnd) return std::move(last.layers);
    const TimedPass& first = *std::ranges::find_if(
        passes, [&](const TimedPass& pass) { return have_same_layers(pass.layers, last.layers); });
    for (std::size_t l = 0; l < last.layers.size(); ++l)
      last.layers[l].forward_ns = first.layers[l].forward_ns;
    last.layers.back().forward_ns += last.backward - first.backward;
    return std::move(last.layers);
  }

  static bool have_same_layers(const std::vector<Layer>& a, const std::vector<Layer>& b) {
    return std::ranges::equal(
        a, b, [](const Layer& x, const Layer& y) { return x.name == y.name && x.tensors == y.tensors; });
  }

  std::optional<TimedPass> timed_pass(const Pass& pass) const {
    std::map<std::size_t, std::vector<std::size_t>> gradients;  // by layer, in the backward's order
    for (const std::size_t g : pass.gradients) gradients[key_of(owner_[g])].push_back(g);
    std::vector<std::pair<Nanoseconds, std::size_t>> order;  // the forward's: begin, layer
    for (const std::size_t f : pass.forward) {
      const std::size_t key = key_of(f);
      if (gradients.contains(key) &&
          std::ranges::find(order, key, &std::pair<Nanoseconds, std::size_t>::second) == order.end())
        order.emplace_back(records_[f].begin, key);
    }
    if (order.size() != gradients.size()) return std::nullopt;  // a layer whose forward is elsewhere

    // The backward begins with the first node of the layers': before it come those of the loss.
    Nanoseconds forward_end = 0;
    for (const std::size_t f : pass.forward) forward_end = std::max(forward_end, records_[f].end);
    const auto of_layers = [&](std::size_t node) {
      const std::size_t maker = maker_of(node);
      return maker != kNone && records_[maker].begin < forward_end;
    };
    const auto first = std::ranges::find_if(pass.nodes, of_layers);
    if (first == pass.nodes.end()) return std::nullopt;
    const Nanoseconds backward = moment(records_[*first].begin);
    Nanoseconds backward_end = 0;
    for (const std::size_t n : pass.nodes) backward_end = std::max(backward_end, moment(records_[n].end));

    std::vector<Layer> layers;
    for (std::size_t l = 0; l < order.size(); ++l) {
      const Nanoseconds starts = moment(l == 0 ? records_[pass.forward.front()].begin : order[l].first);
      const Nanoseconds ends = l + 1 < order.size() ? moment(order[l + 1].first) : backward;
      layers.push_back({.forward_ns = std::max<Nanoseconds>(0, ends - starts)});
    }
    Nanoseconds before = backward;
    for (std::size_t l = order.size(); l-- > 0;) {
      Nanoseconds ready = before;
      for (const std::size_t g : gradients[order[l].second]) ready = std::max(ready, moment(records_[g].end));
      layers[l].backward_ns = ready - before;
      before = ready;
    }
    layers.front().backward_ns += std::max<Nanoseconds>(0, backward_end - before);
    name(layers, order, gradients);
    return TimedPass{.layers = std::move(layers), .backward = backward};
  }

  // Names the layers and their tensors. These stand as the forward uses them: nodes in reverse, of one node as they come.
  void name(std::vector<Layer>& layers, const std::vector<std::pair<Nanoseconds, std::size_t>>& order,
            const std::map<std::size_t, std::vector<std::size_t>>& gradients) const {
    std::map<std::string, std::size_t> count;  // operators of one name
    for (std::size_t l = 0; l < layers.size(); ++l) {
      const std::size_t key = order[l].second;
      std::string text = trace_.texts_[modules_ ? key : records_[key].name];
      if (!modules_) {
        text = text.substr(text.starts_with("aten::") ? 6 : 0);
        text += "_" + std::to_string(count[text]++);
      }
      layers[l].name = text;
      std::vector<std::size_t> ordered = gradients.at(key);
      std::ranges::stable_sort(ordered, std::ranges::greater{}, [&](std::size_t g) { return node_[g]; });
      for (const std::size_t g : ordered) {
        if (records_[g].key == 0) continue;
        layers[l].tensors.push_back(
            {.name = text + "." + std::to_string(layers[l].tensors.size()),
             .numel = records_[g].key,
             .dtype = dtype_of(trace_.texts_[static_cast<std::size_t>(records_[g].forward)])});
      }
    }
  }

  static DType dtype_of(const std::string& name) {
    const auto row = std::ranges::find(kCppTypes, name, &CppType::name);
    if (row == kCppTypes.end())
      throw InvalidInput("has gradients of the unknown type " + in_quotes(name), "",
                         "train with floating-point parameters");
    return row->dtype;
  }

  struct NumberHash {
    std::size_t operator()(const std::pair<std::int32_t, std::int64_t>& key) const {
      return std::hash<std::int64_t>{}(key.second * 64 + key.first);
    }
  };

  RankTrace& trace_;
  std::vector<Record>& records_;
  std::vector<std::pair<Nanoseconds, Nanoseconds>> device_;  // launched at, all until then done at
  std::unordered_map<std::pair<std::int32_t, std::int64_t>, std::vector<std::size_t>, NumberHash> operators_;
  std::map<std::int32_t, std::int32_t> thread_of_;  // a node's number of its forward's thread -> our number
  bool modules_ = false;
  std::vector<std::size_t> scope_, root_;  // of operators and modules
  std::vector<bool> in_backward_;          // they lie in a node
  std::vector<std::size_t> owner_, node_;  // of gradients: the scope, the node evaluated before
  std::vector<bool> used_;                 // roots around scopes that own gradients
};

RankTrace::Result RankTrace::layers() { return PassFinder(*this).result(); }

}  // namespace gradweave
