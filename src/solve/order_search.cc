#include "solve/order_search.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <limits>
#include <tuple>

namespace gradweave {
namespace {

using Kind = OrderedOp::Kind;
using Mask = std::uint32_t;

struct Open {  // reduce-scattered, not yet gathered
  Mask units = 0;
  std::size_t link = 0;
  Nanoseconds end = 0;
  friend auto operator<=>(const Open&, const Open&) = default;
};

// The last op on a link, as far as the order of its neighbour depends on it.
struct Last {
  bool any = false;
  Kind kind = Kind::kAllReduce;
  Mask units = 0;
  Nanoseconds start = 0;
};

struct Node {
  Mask left = 0;  // units not yet sent
  std::vector<Open> open;
  std::vector<Nanoseconds> free;
  std::vector<Last> last;
  Nanoseconds start = 0;  // of the last op; ops are appended in order of (start, link)
  std::size_t start_link = 0;
  Nanoseconds value = 0;  // iteration time that the ops so far force
};

struct Step {
  OrderedOp op;
  Nanoseconds start = 0, end = 0, bound = 0;
};

class Search {
 public:
  Search(const CostModel& model, const std::vector<Slice>& units, Nanoseconds limit, std::int64_t max_nodes)
      : model_(model),
        units_(units),
        links_(model.link_count()),
        masks_(Mask{1} << units.size()),
        max_nodes_(max_nodes) {
    best_.iteration = limit;
    measure();
    weigh();
  }

  OrderSearchResult run() {
    Node root{.left = masks_ - 1,
              .open = {},
              .free = std::vector<Nanoseconds>(links_, 0),
              .last = std::vector<Last>(links_)};
    root.value = model_.index().compute_total;
    best_.complete = true;
    if (bound(root) < best_.iteration) visit(root);
    return std::move(best_);
  }

 private:
  // --- tables over sets of units ---
  void measure() {
    const WorkloadIndex& index = model_.index();
    ready_.assign(masks_, 0);
    tail_.assign(masks_, 0);
    fusible_.assign(masks_, true);
    for (Mask m = 1; m < masks_; ++m) {
      const auto u = static_cast<std::size_t>(std::countr_zero(m));
      const TensorPlace& place = index.tensors[units_[u].tensor];
      const Mask rest = m & (m - 1);
      ready_[m] = std::max(ready_[rest], index.backward_end[place.layer] - index.forward_total);
      tail_[m] = std::max(tail_[rest], index.forward_total - index.forward_start[place.layer]);
      if (rest == 0) continue;
      fusible_[m] =
          fusible_[rest] &&
          place.dtype == index.tensors[units_[static_cast<std::size_t>(std::countr_zero(rest))].tensor].dtype;
    }
    for (std::size_t k = 0; k < links_; ++k) {
      std::vector<Nanoseconds>& scatter = scatter_.emplace_back(masks_, 0);
      std::vector<Nanoseconds>& whole = whole_.emplace_back(masks_, 0);
      for (Mask m = 1; m < masks_; ++m) {
        if (!fusible_[m]) continue;
        const std::vector<Slice> slices = slices_of(m);
        whole[m] = model_.all_reduce(k, slices);
        scatter[m] = model_.cost(k, Collective::kReduceScatter, slices).total();
      }
      // A set of several dtypes takes at least one message for each.
      for (Mask m = 1; m < masks_; ++m) {
        if (fusible_[m]) continue;
        const Mask same = same_dtype(m);
        whole[m] = whole[same] + whole[m & ~same];
      }
    }
  }

  std::vector<Slice> slices_of(Mask m) const {
    std::vector<Slice> slices;
    for (; m != 0; m &= m - 1) slices.push_back(units_[static_cast<std::size_t>(std::countr_zero(m))]);
    return slices;
  }

  Mask same_dtype(Mask m) const {
    const auto dtype = [&](Mask rest) {
      return model_.index().tensors[units_[static_cast<std::size_t>(std::countr_zero(rest))].tensor].dtype;
    };
    Mask same = 0;
    for (Mask rest = m; rest != 0; rest &= rest - 1) {
      if (dtype(rest) == dtype(m)) same |= rest & (~rest + 1);
    }
    return same;
  }

  // Weights w_k > 0 of links, sum 1: for any of them, T with sum_k w_k (T - free_k) >= sum over u of min_k
  // w_k work_k(u) bounds a time in which the links do the work (a feasible point of the dual of the fluid
  // relaxation). Ratio of speeds.
  void weigh() {
    if (links_ == 1) return;
    double total = 0;
    for (std::size_t k = 0; k < links_; ++k) {
      weights_.push_back(1.0 / static_cast<double>(std::max<Nanoseconds>(1, whole_[k][masks_ - 1])));
      total += weights_.back();
    }
    for (double& weight : weights_) weight /= total;
    for (std::size_t u = 0; u < units_.size(); ++u) {
      const Mask unit = Mask{1} << u;
      double least = std::numeric_limits<double>::infinity();
      for (std::size_t k = 0; k < links_; ++k)
        least = std::min(least, weights_[k] * static_cast<double>(work_of(k, unit)));
      least_work_.push_back(least);
    }
  }

  // What unit adds to a message at least: its work without start-up, less what rounding may give back.
  Nanoseconds work_of(std::size_t link, Mask unit) const {
    const Slice& slice = units_[static_cast<std::size_t>(std::countr_zero(unit))];
    const Nanoseconds work = model_.cost(link, Collective::kAllReduce, std::span(&slice, 1)).work;
    return model_.has_given_time(slice.tensor) ? work : std::max<Nanoseconds>(0, work - 1);
  }

  Nanoseconds gather(std::size_t link, Mask m) const { return whole_[link][m] - scatter_[link][m]; }

  // --- bounds ---
  // Everything left is done no earlier than this after `from` on all links together.
  Nanoseconds earliest_end(const Node& node, Nanoseconds from, Mask left, const std::vector<Open>& open,
                           Mask open_tails) const {
    if (links_ == 1) {
      Nanoseconds end = std::max(node.free[0], from) + whole_[0][left];
      for (const Open& each : open) {
        if ((each.units & open_tails) != 0) end += gather(0, each.units);
      }
      return end;
    }
    double work = 0;
    for (Mask m = left; m != 0; m &= m - 1)
      work += least_work_[static_cast<std::size_t>(std::countr_zero(m))];
    for (const Open& each : open) {
      if ((each.units & open_tails) != 0)
        work += weights_[each.link] * static_cast<double>(gather(each.link, each.units));
    }
    return weighted_end(node.free, from, work);
  }

  // The least T with sum over k of w_k max(0, T - max(free_k, from)) >= work, rounded down.
  Nanoseconds weighted_end(const std::vector<Nanoseconds>& free, Nanoseconds from, double work) const {
    double end = std::numeric_limits<double>::infinity();
    for (const Nanoseconds latest : free) {  // links that are free by then take part
      double weight = 0, sum = work;
      for (std::size_t k = 0; k < links_; ++k) {
        if (free[k] > latest) continue;
        weight += weights_[k];
        sum += weights_[k] * static_cast<double>(std::max(free[k], from));
      }
      end = std::min(end, sum / weight);
    }
    return static_cast<Nanoseconds>(end * (1 - 1e-12)) - 1;
  }

  // Carlier's bound: for each layer l, all that is left of layers <= l starts no earlier than the least of
  // its heads and ends before the least of its tails. Units are in forward order, so heads fall and tails
  // fall with the layer.
  Nanoseconds bound(const Node& node) const {
    Nanoseconds bound = node.value;
    for (Mask upto = 1; upto < masks_; upto = (upto << 1) | 1) {
      const Mask top = upto ^ (upto >> 1);  // the last unit of the prefix
      const Mask left = node.left & upto;
      if (left != 0 && (node.left & top) != 0) {
        bound = std::max(bound, earliest_end(node, ready_[top], left, {}, 0) + tail_[top]);
      }
      if (node.open.empty()) continue;
      // With the open messages that some layer <= l waits for: their heads are over.
      bound = std::max(bound, earliest_end(node, 0, left, node.open, upto) + tail_[top]);
    }
    return bound;
  }

  // --- branching ---
  // Of two neighbours on a link that could both have started when the first did, the other order is no worse:
  // results that a forward waits for go before reduce-scatters, longer tails first.
  std::tuple<int, Nanoseconds, Mask> rank(Kind kind, Mask units) const {
    return {kind == Kind::kReduceScatter ? 1 : 0, kind == Kind::kReduceScatter ? 0 : -tail_[units], units};
  }

  bool out_of_order(const Last& last, Kind kind, Mask units, Nanoseconds available) const {
    return last.any && available <= last.start && rank(kind, units) < rank(last.kind, last.units);
  }

  // Whether an idle stretch before `start` could hold a message of a single unit: sending it there is no
  // worse.
  bool wastes(const Node& node, std::size_t k, Nanoseconds start) const {
    for (Mask m = node.left; m != 0; m &= m - 1) {
      const Mask unit = m & (~m + 1);
      const Nanoseconds earlier = std::max(node.free[k], ready_[unit]);
      if (earlier < start && earlier + whole_[k][unit] <= start) return true;
    }
    return false;
  }

  void consider(const Node& node, OrderedOp op, Nanoseconds available, Nanoseconds duration,
                std::vector<Step>& steps) const {
    const Nanoseconds start = std::max(node.free[op.link], available);
    if (std::tie(start, op.link) < std::tie(node.start, node.start_link)) return;
    if (out_of_order(node.last[op.link], op.kind, op.units, available) || wastes(node, op.link, start))
      return;
    steps.push_back({op, start, start + duration, 0});
  }

  std::vector<Step> steps_from(const Node& node) const {
    std::vector<Step> steps;
    for (const Open& open : node.open) {
      const Last& last = node.last[open.link];
      // At once after its reduce-scatter it would be an all-reduce.
      if (last.kind == Kind::kReduceScatter && last.units == open.units) continue;
      consider(node, {Kind::kAllGather, open.link, open.units}, open.end, gather(open.link, open.units),
               steps);
    }
    for (Mask m = node.left; m != 0; m = (m - 1) & node.left) {
      if (!fusible_[m]) continue;
      for (std::size_t k = 0; k < links_; ++k) {
        consider(node, {Kind::kAllReduce, k, m}, ready_[m], whole_[k][m], steps);
        consider(node, {Kind::kReduceScatter, k, m}, ready_[m], scatter_[k][m], steps);
      }
    }
    return steps;
  }

  Node after(const Node& node, const Step& step) const {
    Node next = node;
    const OrderedOp& op = step.op;
    next.free[op.link] = step.end;
    next.last[op.link] = {true, op.kind, op.units, step.start};
    next.start = step.start;
    next.start_link = op.link;
    if (op.kind == Kind::kAllGather) {
      std::erase_if(next.open, [&](const Open& open) { return open.units == op.units; });
    } else {
      next.left &= ~op.units;
    }
    if (op.kind == Kind::kReduceScatter) {
      next.open.push_back({op.units, op.link, step.end});
      std::ranges::sort(next.open);
    } else {
      next.value = std::max(next.value, step.end + tail_[op.units]);
    }
    return next;
  }

  void visit(const Node& node) {
    if (node.left == 0 && node.open.empty()) {
      if (node.value < best_.iteration) {
        best_.iteration = node.value;
        best_.ops = path_;
      }
      return;
    }
    std::vector<std::pair<Step, Node>> children;
    for (Step& step : steps_from(node)) {
      if (++best_.nodes > max_nodes_) {
        best_.complete = false;
        return;
      }
      Node next = after(node, step);
      step.bound = bound(next);
      if (step.bound < best_.iteration) children.emplace_back(step, std::move(next));
    }
    std::ranges::stable_sort(children, {},
                             [](const auto& child) { return std::pair(child.first.bound, child.first.end); });
    for (const auto& [step, next] : children) {
      if (step.bound >= best_.iteration) return;
      path_.push_back(step.op);
      visit(next);
      path_.pop_back();
      if (!best_.complete) return;
    }
  }

  const CostModel& model_;
  const std::vector<Slice>& units_;
  std::size_t links_;
  Mask masks_;
  std::int64_t max_nodes_;
  std::vector<Nanoseconds> ready_,
      tail_;                   // per set: when all is ready; what its first layer's forward leaves to do
  std::vector<bool> fusible_;  // per set: one dtype
  std::vector<std::vector<Nanoseconds>> whole_, scatter_;  // [link][set]
  std::vector<double> weights_, least_work_;               // per link, per unit
  std::vector<OrderedOp> path_;
  OrderSearchResult best_;
};

}  // namespace

OrderSearchResult search_order(const CostModel& model, const std::vector<Slice>& units, Nanoseconds limit,
                               std::int64_t max_nodes) {
  assert(units.size() <= kMaxOrderUnits);
  return Search(model, units, limit, max_nodes).run();
}

}  // namespace gradweave
