#include "simulate/cycle_ratio.h"

#include <optional>
#include <vector>

namespace gradweave {
namespace {

__extension__ using Wide = __int128;

// Nodes are the steps and ops of one period. An edge u -> v of weight w and `periods` p says: v of period k
// ends no earlier than u of period k - p plus w.
struct Edge {
  std::uint32_t from = 0;
  Nanoseconds weight = 0;
  std::int64_t periods = 0;
};

class EventGraph {
 public:
  explicit EventGraph(const Program& program) : program_(program) {
    const std::size_t first = static_cast<std::size_t>(program.head);
    for (std::size_t code = first; code < program.code_count(); ++code) {
      step_base_.push_back(nodes_);
      nodes_ += (program.step_begin[code + 1] - program.step_begin[code]) *
                static_cast<std::uint32_t>(program.class_count);
      for (std::size_t k = 0; k < program.link_count(); ++k) {
        op_base_.push_back(nodes_);
        nodes_ += static_cast<std::uint32_t>(program.ops_of(code, k).size());
      }
    }
    in_.resize(nodes_);
    for (std::size_t c = 0; c < program.class_count; ++c) add_class(c);
    for (std::size_t k = 0; k < program.link_count(); ++k) add_link(k);
    keep_what_compute_waits_for();
  }

  CycleRatio maximum() const {
    CycleRatio best{0, program_.period};
    while (const std::optional<CycleRatio> better = cycle_above(best)) best = *better;
    return best;
  }

 private:
  struct Place {
    std::size_t slot = 0;
    std::int64_t periods = 0;  // back
  };
  Place place(std::size_t slot, std::int32_t iterations) const {
    const std::int64_t at = static_cast<std::int64_t>(slot) + iterations;
    const std::int64_t period = program_.period;
    const std::int64_t wrapped = ((at % period) + period) % period;
    return {static_cast<std::size_t>(wrapped), (wrapped - at) / period};
  }
  std::size_t code(std::size_t slot) const { return static_cast<std::size_t>(program_.head) + slot; }
  std::uint32_t steps_of(std::size_t slot) const {
    return program_.step_begin[code(slot) + 1] - program_.step_begin[code(slot)];
  }
  std::uint32_t step_node(std::size_t slot, std::size_t c, std::uint32_t step) const {
    return step_base_[slot] + static_cast<std::uint32_t>(c) * steps_of(slot) + step;
  }
  std::uint32_t op_node(std::size_t slot, std::size_t k, std::size_t position) const {
    return op_base_[slot * program_.link_count() + k] + static_cast<std::uint32_t>(position);
  }
  void add_after(std::uint32_t node, std::size_t slot, const OpPlace& ref, Nanoseconds weight) {
    const Place from = place(slot, ref.iteration);
    in_[node].push_back(
        {op_node(from.slot, static_cast<std::size_t>(ref.link), static_cast<std::size_t>(ref.position)),
         weight, from.periods});
  }

  void add_class(std::size_t c) {
    std::optional<std::uint32_t> last, first;
    for (std::size_t slot = 0; slot < step_base_.size(); ++slot) {
      for (std::uint32_t s = 0; s < steps_of(slot); ++s) {
        const std::uint32_t node = step_node(slot, c, s);
        const std::uint32_t index = program_.step_begin[code(slot)] + s;
        const Nanoseconds weight = program_.duration(c, index);
        if (last) in_[node].push_back({*last, weight, 0});
        if (!first) first = node, first_weight_ = weight;
        const Step& step = program_.steps[index];
        for (std::uint32_t r = step.wait_begin; r < step.wait_end; ++r)
          add_after(node, slot, program_.refs[r], weight);
        last = node;
      }
    }
    in_[*first].push_back({*last, first_weight_, 1});
    roots_.push_back(*last);
  }

  void add_link(std::size_t k) {
    std::optional<std::uint32_t> last, first;
    for (std::size_t slot = 0; slot < step_base_.size(); ++slot) {
      const std::span<const OpCode> ops = program_.ops_of(code(slot), k);
      for (std::size_t i = 0; i < ops.size(); ++i) {
        const std::uint32_t node = op_node(slot, k, i);
        const Nanoseconds weight = ops[i].total();
        if (last) in_[node].push_back({*last, weight, 0});
        if (!first) first = node, first_weight_ = weight;
        for (std::uint32_t g = ops[i].gate_begin; g < ops[i].gate_end; ++g) {
          const Gate& gate = program_.gates[g];
          const Place from = place(slot, gate.iteration);
          for (std::size_t c = 0; c < program_.class_count; ++c) {
            in_[node].push_back({step_node(from.slot, c, static_cast<std::uint32_t>(gate.step)),
                                 weight + gate.delay, from.periods});
          }
        }
        for (std::uint32_t r = ops[i].after_begin; r < ops[i].after_end; ++r) {
          const OpPlace& before = program_.refs[r];
          add_after(node, slot, before, weight + program_.handover_after(before, k));
        }
        last = node;
      }
    }
    if (first) in_[*first].push_back({*last, first_weight_, 1});
  }

  void keep_what_compute_waits_for() {
    std::vector<char> kept(nodes_, 0);
    std::vector<std::uint32_t> stack = roots_;
    for (const std::uint32_t root : roots_) kept[root] = 1;
    while (!stack.empty()) {
      const std::uint32_t node = stack.back();
      stack.pop_back();
      for (const Edge& edge : in_[node]) {
        if (kept[edge.from] == 0) kept[edge.from] = 1, stack.push_back(edge.from);
      }
    }
    for (std::uint32_t node = 0; node < nodes_; ++node) {
      if (kept[node] == 0) in_[node].clear();
    }
  }

  // Returns the ratio of some cycle that exceeds `ratio`, or nothing if there is none.
  std::optional<CycleRatio> cycle_above(const CycleRatio& ratio) const {
    const std::int64_t periods = ratio.iterations / program_.period;
    std::vector<Wide> distance(nodes_, 0);
    std::vector<const Edge*> parent(nodes_, nullptr);
    for (bool changed = true; changed;) {
      changed = false;
      for (std::uint32_t node = 0; node < nodes_; ++node) {
        for (const Edge& edge : in_[node]) {
          const Wide through = distance[edge.from] + static_cast<Wide>(edge.weight) * periods -
                               static_cast<Wide>(ratio.time) * edge.periods;
          if (through > distance[node]) {
            distance[node] = through;
            parent[node] = &edge;
            changed = true;
          }
        }
      }
      if (changed) {
        if (const std::optional<CycleRatio> found = parent_cycle(parent)) return found;
      }
    }
    return std::nullopt;
  }

  // A cycle among the parents has a positive sum (Bellman-Ford), hence a greater ratio.
  std::optional<CycleRatio> parent_cycle(const std::vector<const Edge*>& parent) const {
    std::vector<std::uint32_t> seen(nodes_, 0);
    for (std::uint32_t start = 0; start < nodes_; ++start) {
      std::uint32_t node = start;
      while (seen[node] == 0 && parent[node] != nullptr) {
        seen[node] = start + 1;
        node = parent[node]->from;
      }
      if (parent[node] == nullptr || seen[node] != start + 1) continue;
      CycleRatio cycle{0, 0};
      const std::uint32_t entry = node;
      do {
        cycle.time += parent[node]->weight;
        cycle.iterations += parent[node]->periods * program_.period;
        node = parent[node]->from;
      } while (node != entry);
      return cycle;
    }
    return std::nullopt;
  }

  const Program& program_;
  std::uint32_t nodes_ = 0;
  Nanoseconds first_weight_ = 0;
  std::vector<std::uint32_t> step_base_;  // per slot of the period
  std::vector<std::uint32_t> op_base_;    // per slot and link
  std::vector<std::vector<Edge>> in_;     // edges into each node
  std::vector<std::uint32_t> roots_;      // the last step of each class
};

}  // namespace

CycleRatio maximum_cycle_ratio(const Program& program) { return EventGraph(program).maximum(); }

}  // namespace gradweave
