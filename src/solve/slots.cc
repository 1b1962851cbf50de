#include "solve/slots.h"

#include <algorithm>

#include "gradweave/error.h"

namespace gradweave {
namespace {

constexpr Nanoseconds kLongestTime = Nanoseconds{1} << 53;

}  // namespace

SlotFiller::SlotFiller(const CostModel& model, std::vector<Slot> slots, Nanoseconds time_per_iteration,
                       bool keep)
    : model_(&model),
      slots_(std::move(slots)),
      time_per_iteration_(time_per_iteration),
      keep_(keep),
      contents_(slots_.size()) {}

// Ops that share a link lose less than `parts` ns each time that one of them starts or ends, by rounding.
Nanoseconds SlotFiller::reserve(std::size_t link, std::size_t parts) const {
  const bool shares = model_->cluster().links[link].concurrency != 1 && parts > 1;
  return shares ? static_cast<Nanoseconds>(2 * parts * parts) : 0;
}

SlotFiller::Trial SlotFiller::with(std::size_t s, const Slice& slice) const {
  const Content& content = contents_[s];
  const std::size_t link = slots_[s].link;
  const DType dtype = model_->index().tensors[slice.tensor].dtype;
  Trial trial{.load = model_->load(link, std::span(&slice, 1))};
  while (trial.part < content.parts.size() && content.parts[trial.part].dtype != dtype) ++trial.part;
  Nanoseconds before = 0;
  if (trial.part < content.parts.size()) {
    const Part& part = content.parts[trial.part];
    trial.load = part.load + trial.load;
    before = part.cost;
  } else {
    before = reserve(link, trial.part) - reserve(link, trial.part + 1);
  }
  trial.cost = model_->all_reduce_of(link, trial.load).total();
  trial.finish = content.finish - before + trial.cost;
  return trial;
}

void SlotFiller::add(std::size_t s, const Slice& slice, const Trial& trial) {
  Content& content = contents_[s];
  if (trial.part == content.parts.size())
    content.parts.push_back({.dtype = model_->index().tensors[slice.tensor].dtype});
  Part& part = content.parts[trial.part];
  part.load = trial.load;
  part.cost = trial.cost;
  content.finish = trial.finish;
  if (keep_) part.slices.push_back(slice);
}

bool SlotFiller::add_where_first(std::size_t first, std::size_t end, const Slice& slice) {
  std::size_t best = first;
  Trial trial = with(first, slice);
  for (std::size_t s = first + 1; s < end; ++s) {
    const Trial other = with(s, slice);
    if (other.finish >= trial.finish) continue;
    best = s;
    trial = other;
  }
  if (trial.finish > limit(best)) return false;
  add(best, slice, trial);
  return true;
}

void SlotFiller::repeat(std::size_t count) {
  for (std::size_t s = count; s < contents_.size(); ++s) contents_[s] = contents_[s - count];
}

std::int64_t SlotFiller::elements_that_fit(std::size_t s, const Slice& slice) const {
  std::int64_t fits = 0;
  std::int64_t too_many = slice.end - slice.begin + 1;
  while (too_many - fits > 1) {
    const std::int64_t middle = fits + (too_many - fits) / 2;
    const bool fit = with(s, {slice.tensor, slice.begin, slice.begin + middle}).finish <= limit(s);
    (fit ? fits : too_many) = middle;
  }
  return fits;
}

bool SlotFiller::pour(std::span<const Slice> slices) {
  std::size_t s = 0;
  for (Slice rest : slices) {
    while (rest.begin < rest.end) {
      if (s == slots_.size()) return false;
      const Trial whole = with(s, rest);
      if (whole.finish <= limit(s)) {
        add(s, rest, whole);
        break;
      }
      const std::int64_t fits = elements_that_fit(s, rest);
      if (fits > 0) {
        const Slice part{rest.tensor, rest.begin, rest.begin + fits};
        add(s, part, with(s, part));
      }
      rest.begin += fits;
      ++s;
    }
  }
  return true;
}

std::vector<Message> SlotFiller::messages(std::size_t s) const {
  std::vector<Message> messages;
  for (const Part& part : contents_[s].parts) messages.push_back({part.slices});
  return messages;
}

Nanoseconds least_time(Nanoseconds enough, Nanoseconds tolerance,
                       const std::function<bool(Nanoseconds)>& fits) {
  Nanoseconds too_little = -1;
  while (enough - too_little > 1 + tolerance) {
    const Nanoseconds middle = too_little + (enough - too_little) / 2;
    (fits(middle) ? enough : too_little) = middle;
  }
  return enough;
}

Nanoseconds time_that_fits(Nanoseconds from, const std::function<bool(Nanoseconds)>& fits) {
  while (!fits(from)) {
    if (from > kLongestTime / 2) {
      throw InvalidInput("one average of the parameters takes more than 50 days", "cluster: links",
                         "check startup_us and us_per_byte");
    }
    from *= 2;
  }
  return from;
}

}  // namespace gradweave
