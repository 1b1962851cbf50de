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

std::vector<Message> merged_optimally(const CostModel& model) {
  const std::vector<Slice> tensors = tensors_in_backward_order(model);
  const std::size_t n = tensors.size();
  // end[j]: the earliest end of the first j tensors; a prefix that ends earlier never delays what follows it.
  std::vector<Nanoseconds> end(n + 1, std::numeric_limits<Nanoseconds>::max());
  std::vector<std::size_t> first_of_last(n + 1, 0);
  end[0] = 0;
  for (std::size_t j = 1; j <= n; ++j) {
    const Slice& last = tensors[j - 1];
    MessageLoad load;
    for (std::size_t i = j; i-- > 0 && same_dtype(model, tensors[i], last);) {
      load = load + load_of(model, tensors[i]);
      const Nanoseconds group_end = std::max(end[i], ready(model, last)) + cost(model, load);
      if (group_end < end[j]) {
        end[j] = group_end;
        first_of_last[j] = i;
      }
      if (ready(model, last) + cost(model, load) > end[j]) break;  // a longer group costs more still
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

Plan merged_plan(const CostModel& model, const std::vector<Message>& groups) {
  std::vector<std::vector<Message>> candidates = {groups};
  if (model.link_count() > 1) {
    candidates.push_back(merged_optimally(model));
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
