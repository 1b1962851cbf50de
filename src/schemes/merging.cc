#include "schemes/merging.h"

#include <algorithm>
#include <limits>

#include "schemes/schedule.h"

namespace gradweave {
namespace {

Nanoseconds ready(const CostModel& model, const Slice& slice) {
  return model.index().backward_end[model.index().tensors[slice.tensor].layer] - model.index().forward_total;
}

MessageLoad load_of(const CostModel& model, const Slice& slice) {
  return model.load(0, std::span(&slice, 1));
}

Nanoseconds cost(const CostModel& model, const MessageLoad& load) {
  return model.all_reduce_of(0, load).total();
}

bool same_dtype(const CostModel& model, const Slice& x, const Slice& y) {
  return model.index().tensors[x.tensor].dtype == model.index().tensors[y.tensor].dtype;
}

}  // namespace

std::vector<Message> merged_greedily(const CostModel& model, MergeRule rule) {
  std::vector<Message> groups;
  Nanoseconds link_free = 0;  // end(l+1)
  Nanoseconds start = 0;      // start(l) of the last group
  MessageLoad load;           // of the last group
  for (const Slice& slice : tensors_in_backward_order(model)) {
    const MessageLoad own = load_of(model, slice);
    if (!groups.empty() && same_dtype(model, groups.back().slices.front(), slice)) {
      // a: what the merge saves; nothing where given times hold.
      const Nanoseconds a = cost(model, load) + cost(model, own) - cost(model, load + own);
      if (ready(model, slice) < start + (rule == MergeRule::kStartup ? a : 0)) {
        groups.back().slices.push_back(slice);
        start = std::max(link_free, ready(model, slice));
        load = load + own;
        continue;
      }
    }
    if (!groups.empty()) link_free = start + cost(model, load);
    groups.push_back({{slice}});
    start = std::max(link_free, ready(model, slice));
    load = own;
  }
  return groups;
}

namespace {

// What groups of consecutive tensors cost on the first link, and quick lower bounds on that.
class GroupCosts {
 public:
  GroupCosts(const CostModel& model, std::span<const Slice> tensors, bool compressed)
      : model_(model), loads_(tensors.size() + 1), least_work_(tensors.size() + 1, 0), bounded_(!compressed) {
    const double ns_per_byte = to_double(times_1000(model.cluster().links[0].us_per_byte));
    bool all_modelled = true;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const MessageLoad own = load_of(model, tensors[i]);
      all_modelled = all_modelled && own.given_elements == 0;
      loads_[i + 1] = loads_[i] + own;
      const auto modelled = static_cast<double>(loads_[i + 1].bytes - loads_[i + 1].given_bytes);
      least_work_[i + 1] = modelled * ns_per_byte + static_cast<double>(loads_[i + 1].given);
    }
    // Above what the rounding of all sums comes to.
    slack_ = 2 + 1e-12 * (least_work_.back() + static_cast<double>(model.index().backward_total));
    if (all_modelled) slack_ -= static_cast<double>(model.cluster().links[0].startup_ns);
  }

  // Returns the cost of tensors i..j-1 as one message.
  Nanoseconds cost(std::size_t i, std::size_t j) const {
    return model_.all_reduce_of(0, loads_[j] - loads_[i]).total();
  }
  // Returns a time that cost(i, j) is not below. (A compressor's cost need not follow the bytes.)
  double at_least(std::size_t i, std::size_t j) const {
    return bounded_ ? least_work_[j] - least_work_[i] - slack_ : 0;
  }

 private:
  const CostModel& model_;
  std::vector<MessageLoad> loads_;  // of the first tensors
  std::vector<double> least_work_;  // and the time that they take at least, without start-up
  double slack_ = 0;
  bool bounded_;
};

}  // namespace

std::vector<Message> merged_optimally(const CostModel& model, bool compressed) {
  const std::vector<Slice> tensors = tensors_in_backward_order(model);
  const std::size_t n = tensors.size();
  // end[j]: the earliest end of the first j tensors; a prefix that ends earlier never delays what follows it.
  std::vector<Nanoseconds> end(n + 1, std::numeric_limits<Nanoseconds>::max());
  std::vector<std::size_t> first_of_last(n + 1, 0);
  end[0] = 0;
  const GroupCosts costs(model, tensors, compressed);
  std::size_t run = 0;  // the first tensor of the run of one dtype that j - 1 is in
  for (std::size_t j = 1; j <= n; ++j) {
    if (!same_dtype(model, tensors[run], tensors[j - 1])) run = j - 1;
    const Nanoseconds last_ready = ready(model, tensors[j - 1]);
    // The best cut moves little from one tensor to the next: what it costs now is worth beating.
    const std::size_t guess = std::max(run, first_of_last[j - 1]);
    const Nanoseconds enough = std::max(end[guess], last_ready) + costs.cost(guess, j) + 1;
    for (std::size_t i = j; i-- > run;) {
      const Nanoseconds start = std::max(end[i], last_ready);
      const Nanoseconds limit = std::min(end[j], enough);
      if (static_cast<double>(start) + costs.at_least(i, j) < static_cast<double>(limit)) {
        const Nanoseconds group_end = start + costs.cost(i, j);
        if (group_end < end[j]) {
          end[j] = group_end;
          first_of_last[j] = i;
        }
      }
      if (start == last_ready) break;  // a longer group starts no earlier and costs more
    }
  }
  std::vector<Message> groups;
  for (std::size_t j = n; j > 0; j = first_of_last[j]) {
    groups.push_back({{tensors.begin() + static_cast<std::ptrdiff_t>(first_of_last[j]),
                       tensors.begin() + static_cast<std::ptrdiff_t>(j)}});
  }
  std::ranges::reverse(groups);
  return groups;
}

Plan merged_plan(const CostModel& model, const std::vector<Message>& groups, bool compressed) {
  std::vector<std::vector<Message>> candidates = {groups};
  if (model.link_count() > 1) {
    candidates.push_back(merged_optimally(model, compressed));
    std::vector<Message>& alone = candidates.emplace_back();
    for (const Slice& slice : tensors_in_backward_order(model)) alone.push_back({{slice}});
  }
  std::vector<ScheduledOp> best;
  Nanoseconds least = std::numeric_limits<Nanoseconds>::max();
  for (const std::vector<Message>& candidate : candidates) {
    std::vector<ScheduledOp> ops = scheduled_when_ready(model, candidate);
    assign_links(model, ops);
    const Nanoseconds iteration = iteration_time(model, ops);
    if (iteration < least) {
      least = iteration;
      best = std::move(ops);
    }
  }
  return synchronous_plan(model, best);
}

}  // namespace gradweave
