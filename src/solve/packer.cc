#include <algorithm>
#include <limits>

#include "gradweave/error.h"
#include "solve/intervals.h"

namespace gradweave {

Packer::Packer(const CostModel& model, bool forward_overlap) : model_(&model) {
  const WorkloadIndex& index = model.index();
  for (std::size_t k = 0; k < model.link_count(); ++k) {
    model.all_reduce_bytes(k, index.total_bytes);  // throws if the times leave the range of the clock
    LinkCost& link = links_.emplace_back();
    link.startup = model.cluster().links[k].startup_ns;
    for (std::int32_t i = 0; i < std::min(times_1000(model.cluster().links[k].us_per_byte).scale, 38); ++i) {
      link.denominator *= 10;
    }
  }
  for (std::size_t l = index.layer_count; l-- > 0;) {
    Layer layer{.layer = l, .ready = index.backward_end[l], .first_unit = units_.size()};
    layer.awaited = index.compute_total + (forward_overlap ? index.forward_start[l] : 0);
    for (std::size_t t = index.first_tensor[l]; t < index.first_tensor[l + 1]; ++t) {
      const DType dtype = index.tensors[t].dtype;
      const auto first = units_.begin() + static_cast<std::ptrdiff_t>(layer.first_unit);
      auto unit = std::ranges::find(first, units_.end(), dtype, &Unit::dtype);
      if (unit == units_.end()) {
        unit = units_.insert(unit, Unit{.dtype = dtype, .modelled = !model.has_given_time(t)});
      }
      unit->slices.push_back({t, 0, index.tensors[t].numel});
    }
    layer.end_unit = units_.size();
    if (layer.end_unit > layer.first_unit) layers_.push_back(layer);
  }
  for (const Unit& unit : units_) {
    for (std::size_t k = 0; k < links_.size(); ++k) {
      work_.push_back(work_of(k, unit));
      if (compresses()) load_.push_back(model.load(k, unit.slices));
    }
  }
  check_times(index.compute_total);
  if (!compresses()) find_plain_layers();
}

// No queue takes longer than all units one after another, each on the link where it is shortest.
void Packer::check_times(Nanoseconds total) const {
  constexpr Nanoseconds kMost = std::int64_t{1} << 60;  // beyond this sums of stalls could overflow
  for (std::size_t u = 0; u < units_.size(); ++u) {
    Nanoseconds least = std::numeric_limits<Nanoseconds>::max();
    for (std::size_t k = 0; k < links_.size(); ++k) {
      least = std::min(least, compresses() ? model_->all_reduce_of(k, load(u, k)).total()
                                           : links_[k].startup + work(u, k).ns + 1);
    }
    if (least > kMost - total)
      throw InvalidInput("the times of one period exceed 2^60 ns", "plan",
                         "give shorter times or a shorter period");
    total += least;
  }
}

void Packer::find_plain_layers() {
  constexpr Wide kMostDenominator = Wide{1} << 62;
  if (links_.size() > 2) return;
  if (std::ranges::any_of(links_, [](const LinkCost& l) { return l.denominator > kMostDenominator; })) return;
  if (units_.size() != layers_.size()) return;  // some layer has two dtypes
  if (std::ranges::any_of(units_, [&](const Unit& u) { return !u.modelled || u.dtype != units_[0].dtype; }))
    return;
  for (std::size_t position = 0; position < layers_.size(); ++position) {
    const Layer& layer = layers_[position];
    PlainLayer& plain = plain_layers_.emplace_back(PlainLayer{layer.ready, layer.awaited, {}});
    for (std::size_t k = 0; k < links_.size(); ++k) {
      const Work& each = work(layer.first_unit, k);
      plain.work[k] = {each.ns, static_cast<std::uint64_t>(each.fraction)};
    }
  }
}

// The cost model's bytes * rate before it is rounded up. A rate of more than 38 decimals moves no message for
// a whole nanosecond, and 2^53 bytes times 18 digits stay below 10^38: the fraction never carries.
Packer::Work Packer::work_of(std::size_t link, const Unit& unit) const {
  if (!unit.modelled) return {model_->all_reduce(link, unit.slices), 0};
  const Wide product = static_cast<Wide>(model_->bytes(unit.slices)) *
                       static_cast<Wide>(times_1000(model_->cluster().links[link].us_per_byte).mantissa);
  const Wide denominator = links_[link].denominator;
  return {static_cast<Nanoseconds>(product / denominator), product % denominator};
}

inline Packer::Work Packer::sum(std::size_t link, const Work& a, const Work& b) const {
  const Wide fraction = a.fraction + b.fraction;
  const bool carries = fraction >= links_[link].denominator;
  return {a.ns + b.ns + (carries ? 1 : 0), carries ? fraction - links_[link].denominator : fraction};
}

Nanoseconds Packer::least_work(std::size_t position) const {
  Nanoseconds total = 0;
  if (compresses()) return total;
  for (std::size_t u = layers_[position].first_unit; u < layers_[position].end_unit; ++u) {
    Nanoseconds least = work(u, 0).ns;
    for (std::size_t k = 1; k < links_.size(); ++k) least = std::min(least, work(u, k).ns);
    total += least;
  }
  return total;
}

void Packer::Queue::clear() { std::ranges::fill(links_, LinkQueue{}); }

Packer::Queue::Choice Packer::Queue::best_for(const Layer& layer, std::size_t unit) const {
  const auto end = [](Nanoseconds start, Nanoseconds startup, const Work& work) {
    return start + startup + work.ns + (work.fraction > 0 ? 1 : 0);
  };
  const Unit& added = packer_->units_[unit];
  const auto compressed_end = [&](Nanoseconds start, std::size_t k, const MessageLoad& load) {
    return start + packer_->model_->all_reduce_of(k, load).total();
  };
  Choice best{.end = std::numeric_limits<Nanoseconds>::max()};
  for (std::size_t k = 0; k < links_.size(); ++k) {
    const LinkQueue& link = links_[k];
    const Nanoseconds startup = packer_->links_[k].startup;
    const Work& work = packer_->work(unit, k);
    if (link.any && link.dtype == added.dtype) {
      const Nanoseconds start = std::max(link.free_before, layer.ready);
      const Nanoseconds joined =
          packer_->compresses()
              ? compressed_end(start, k, link.load + packer_->load(unit, k))
              : end(start, link.modelled || added.modelled ? startup : 0, packer_->sum(k, link.work, work));
      if (joined < best.end || (joined == best.end && !best.placed.joined)) best = {joined, {k, true}};
    }
    const Nanoseconds start = std::max(link.end, layer.ready);
    const Nanoseconds alone = packer_->compresses() ? compressed_end(start, k, packer_->load(unit, k))
                                                    : end(start, added.modelled ? startup : 0, work);
    if (alone < best.end) best = {alone, {k, false}};
  }
  return best;
}

void Packer::Queue::append(std::size_t position, std::vector<Placed>* placed) {
  const Layer& layer = packer_->layers_[position];
  for (std::size_t u = layer.first_unit; u < layer.end_unit; ++u) {
    const Choice choice = best_for(layer, u);
    const std::size_t k = choice.placed.link;
    const Unit& unit = packer_->units_[u];
    LinkQueue& link = links_[k];
    if (choice.placed.joined) {
      link.work = packer_->sum(k, link.work, packer_->work(u, k));
      link.modelled |= unit.modelled;
      if (packer_->compresses()) link.load = link.load + packer_->load(u, k);
    } else {
      if (link.any) link.late = std::max(link.late, link.end - link.awaited);
      link.free_before = link.end;
      link.work = packer_->work(u, k);
      link.modelled = unit.modelled;
      if (packer_->compresses()) link.load = packer_->load(u, k);
      link.dtype = unit.dtype;
      link.any = true;
    }
    link.awaited = layer.awaited;
    link.end = choice.end;
    if (placed != nullptr) placed->push_back(choice.placed);
  }
}

Nanoseconds Packer::Queue::stall() const {
  Nanoseconds stall = 0;
  for (const LinkQueue& link : links_) {
    if (link.any) stall = std::max({stall, link.late, link.end - link.awaited});
  }
  return stall;
}

void Packer::Interval::clear() {
  links_ = {};
  if (packer_->plain_layers_.empty()) queue_.clear();
}

template <std::size_t kLinks>
Nanoseconds Packer::Interval::append_plain(std::size_t position) {
  const PlainLayer& layer = packer_->plain_layers_[position];
  struct Choice {
    Nanoseconds end, work_ns;
    std::uint64_t fraction;
    std::size_t link;
    bool joined;
  };
  Choice best{std::numeric_limits<Nanoseconds>::max(), 0, 0, 0, false};
  for (std::size_t k = 0; k < kLinks; ++k) {
    const PlainLink& link = links_[k];
    const auto denominator = static_cast<std::uint64_t>(packer_->links_[k].denominator);
    const Nanoseconds startup = packer_->links_[k].startup;
    const PlainWork& own = layer.work[k];
    const std::uint64_t sum = link.fraction + own.fraction;
    const bool carries = sum >= denominator;
    const std::uint64_t fraction = carries ? sum - denominator : sum;
    const Nanoseconds work = link.work_ns + own.ns + (carries ? 1 : 0);
    const Nanoseconds joined =
        std::max(link.free_before, layer.ready) + startup + work + (fraction > 0 ? 1 : 0);
    if (joined < best.end || (joined == best.end && !best.joined)) best = {joined, work, fraction, k, true};
    const Nanoseconds alone = std::max(link.end, layer.ready) + startup + own.ns + (own.fraction > 0 ? 1 : 0);
    if (alone < best.end) best = {alone, own.ns, own.fraction, k, false};
  }
  PlainLink& link = links_[best.link];
  if (!best.joined) {
    link.late = std::max(link.late, link.end - link.awaited);
    link.free_before = link.end;
  }
  link.work_ns = best.work_ns;
  link.fraction = best.fraction;
  link.awaited = layer.awaited;
  link.end = best.end;
  Nanoseconds stall = 0;
  for (std::size_t k = 0; k < kLinks; ++k)
    stall = std::max({stall, links_[k].late, links_[k].end - links_[k].awaited});
  return stall;
}

Nanoseconds Packer::Interval::append(std::size_t position) {
  if (packer_->plain_layers_.empty()) {
    queue_.append(position);
    return queue_.stall();
  }
  return packer_->links_.size() == 1 ? append_plain<1>(position) : append_plain<2>(position);
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
      const std::vector<Slice>& slices = units_[layers_[position].first_unit + u].slices;
      open.packed.message.slices.insert(open.packed.message.slices.end(), slices.begin(), slices.end());
      open.packed.last = position;
      open.last_unit = unit_number;
    }
  }
  std::ranges::sort(messages, {}, &Open::last_unit);
  std::vector<Packed> packed;
  packed.reserve(messages.size());
  for (Open& open : messages) packed.push_back(std::move(open.packed));
  return packed;
}

}  // namespace gradweave
