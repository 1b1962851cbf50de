#include <algorithm>

#include "solve/intervals.h"

namespace gradweave {

Packer::Packer(const CostModel& model, bool forward_overlap) : model_(&model) {
  for (const Link& link : model.cluster().links) {
    startup_.push_back(link.startup_ns);
    Wide denominator = 1;
    for (std::int32_t i = 0; i < std::min(times_1000(link.us_per_byte).scale, 38); ++i) denominator *= 10;
    denominator_.push_back(denominator);
  }
  const WorkloadIndex& index = model.index();
  for (std::size_t l = index.layer_count; l-- > 0;) {
    Layer layer{.layer = l, .ready = index.backward_end[l]};
    layer.awaited = index.compute_total + (forward_overlap ? index.forward_start[l] : 0);
    for (std::size_t t = index.first_tensor[l]; t < index.first_tensor[l + 1]; ++t) {
      const DType dtype = index.tensors[t].dtype;
      auto unit = std::ranges::find(layer.units, dtype, &Unit::dtype);
      if (unit == layer.units.end())
        unit = layer.units.insert(unit, Unit{.dtype = dtype, .modelled = !model.has_given_time(t)});
      unit->slices.push_back({t, 0, index.tensors[t].numel});
    }
    for (Unit& unit : layer.units) {
      for (std::size_t k = 0; k < model.link_count(); ++k) unit.work.push_back(work_of(k, unit));
    }
    if (!layer.units.empty()) layers_.push_back(std::move(layer));
  }
}

// The cost model's bytes * rate before it is rounded up. A rate of more than 38 decimals moves no message for
// a whole nanosecond, and 2^53 bytes times 18 digits stay below 10^38: the fraction never carries.
Packer::Work Packer::work_of(std::size_t link, const Unit& unit) const {
  if (!unit.modelled) return {model_->all_reduce(link, unit.slices), 0};
  const Wide product = static_cast<Wide>(model_->bytes(unit.slices)) *
                       static_cast<Wide>(times_1000(model_->cluster().links[link].us_per_byte).mantissa);
  return {static_cast<Nanoseconds>(product / denominator_[link]), product % denominator_[link]};
}

Nanoseconds Packer::least_work(std::size_t position) const {
  Nanoseconds sum = 0;
  for (const Unit& unit : layers_[position].units)
    sum += std::ranges::min_element(unit.work, {}, &Work::ns)->ns;
  return sum;
}

void Packer::Queue::clear() { std::ranges::fill(links_, LinkQueue{}); }

// Returns what link `k` becomes if `unit` joins its last message, or follows it.
Packer::Queue::LinkQueue Packer::Queue::with(const LinkQueue& link, std::size_t k, const Layer& layer,
                                             const Unit& unit, bool joins) const {
  LinkQueue next = link;
  if (joins) {
    const Wide denominator = packer_->denominator_[k];
    next.work.ns += unit.work[k].ns;
    next.work.fraction += unit.work[k].fraction;
    if (next.work.fraction >= denominator) {
      next.work.fraction -= denominator;
      ++next.work.ns;
    }
    next.modelled |= unit.modelled;
  } else {
    next.late = link.any ? std::max(link.late, link.end - link.awaited) : 0;
    next.free_before = link.end;
    next.work = unit.work[k];
    next.modelled = unit.modelled;
    next.dtype = unit.dtype;
    next.any = true;
  }
  next.awaited = layer.awaited;
  next.end = std::max(next.free_before, layer.ready) + (next.modelled ? packer_->startup_[k] : 0) +
             next.work.ns + (next.work.fraction > 0 ? 1 : 0);
  return next;
}

void Packer::Queue::append(std::size_t position, std::vector<Placed>* placed) {
  const Layer& layer = packer_->layers_[position];
  for (const Unit& unit : layer.units) {
    Placed best;
    LinkQueue after;
    for (std::size_t k = 0; k < links_.size(); ++k) {
      for (const bool joins : {true, false}) {
        if (joins && !(links_[k].any && links_[k].dtype == unit.dtype)) continue;
        const LinkQueue next = with(links_[k], k, layer, unit, joins);
        if (after.any && (next.end > after.end || (next.end == after.end && (best.joined || !joins))))
          continue;
        after = next;
        best = {k, joins};
      }
    }
    links_[best.link] = after;
    if (placed != nullptr) placed->push_back(best);
  }
}

Nanoseconds Packer::Queue::stall() const {
  Nanoseconds stall = 0;
  for (const LinkQueue& link : links_) {
    if (link.any) stall = std::max({stall, link.late, link.end - link.awaited});
  }
  return stall;
}

Nanoseconds Packer::stall(std::span<const std::size_t> positions) const {
  Queue queue(*this);
  for (std::size_t position : positions) queue.append(position);
  return queue.stall();
}

std::vector<Packer::Packed> Packer::pack(std::span<const std::size_t> positions) const {
  struct Open {
    Packed packed;
    std::size_t last_unit = 0;
  };
  std::vector<Open> messages;
  std::vector<std::size_t> last_of_link(model_->link_count());
  std::vector<Placed> placed;
  Queue queue(*this);
  std::size_t unit_number = 0;
  for (std::size_t position : positions) {
    placed.clear();
    queue.append(position, &placed);
    for (std::size_t u = 0; u < placed.size(); ++u, ++unit_number) {
      if (!placed[u].joined) {
        last_of_link[placed[u].link] = messages.size();
        messages.push_back({.packed = {.link = placed[u].link}});
      }
      Open& open = messages[last_of_link[placed[u].link]];
      const std::vector<Slice>& slices = layers_[position].units[u].slices;
      open.packed.message.slices.insert(open.packed.message.slices.end(), slices.begin(), slices.end());
      open.packed.last = position;
      open.last_unit = unit_number;
    }
  }
  std::ranges::sort(messages, {}, &Open::last_unit);
  std::vector<Packed> packed;
  for (Open& open : messages) packed.push_back(std::move(open.packed));
  return packed;
}

}  // namespace gradweave
