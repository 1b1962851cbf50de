#include "solve/slots.h"

#include <algorithm>

#include "gradweave/error.h"

namespace gradweave {
namespace {

constexpr Nanoseconds kLongestTime = Nanoseconds{1} << 53;

}  // namespace

SlotFiller::SlotFiller(const CostModel& model, std::vector<Slot> slots, Nanoseconds time_per_iteration)
    : model_(&model),
      slots_(std::move(slots)),
      time_per_iteration_(time_per_iteration),
      contents_(slots_.size()) {}

Nanoseconds SlotFiller::part_cost(std::size_t link, std::int64_t modelled_bytes, Nanoseconds given) const {
  return given + (modelled_bytes > 0 ? model_->all_reduce_bytes(link, modelled_bytes) : 0);
}

// Ops that share a link lose less than `parts` ns each time that one of them starts or ends, by rounding.
Nanoseconds SlotFiller::reserve(std::size_t link, std::size_t parts) const {
  const bool shares = model_->cluster().links[link].concurrency != 1 && parts > 1;
  return shares ? static_cast<Nanoseconds>(2 * parts * parts) : 0;
}

Nanoseconds SlotFiller::finish_with(std::size_t s, const Slice& slice) const {
  const Content& content = contents_[s];
  const std::size_t link = slots_[s].link;
  const DType dtype = model_->index().tensors[slice.tensor].dtype;
  const bool given = model_->has_given_time(slice.tensor);
  const Nanoseconds more = given ? model_->all_reduce(link, slice) : 0;
  const std::int64_t bytes = given ? 0 : (slice.end - slice.begin) * size_of(dtype);
  const auto part = std::ranges::find(content.parts, dtype, &Part::dtype);
  if (part == content.parts.end()) {
    const std::size_t parts = content.parts.size();
    return content.finish + part_cost(link, bytes, more) + reserve(link, parts + 1) - reserve(link, parts);
  }
  return content.finish - part_cost(link, part->modelled_bytes, part->given) +
         part_cost(link, part->modelled_bytes + bytes, part->given + more);
}

void SlotFiller::add(std::size_t s, const Slice& slice) {
  Content& content = contents_[s];
  content.finish = finish_with(s, slice);
  const DType dtype = model_->index().tensors[slice.tensor].dtype;
  auto part = std::ranges::find(content.parts, dtype, &Part::dtype);
  if (part == content.parts.end()) part = content.parts.insert(part, Part{.dtype = dtype});
  if (model_->has_given_time(slice.tensor)) {
    part->given += model_->all_reduce(slots_[s].link, slice);
  } else {
    part->modelled_bytes += (slice.end - slice.begin) * size_of(dtype);
  }
  part->slices.push_back(slice);
}

std::int64_t SlotFiller::elements_that_fit(std::size_t s, const Slice& slice) const {
  std::int64_t fits = 0;
  std::int64_t too_many = slice.end - slice.begin + 1;
  while (too_many - fits > 1) {
    const std::int64_t middle = fits + (too_many - fits) / 2;
    const bool fit = finish_with(s, {slice.tensor, slice.begin, slice.begin + middle}) <= limit(s);
    (fit ? fits : too_many) = middle;
  }
  return fits;
}

bool SlotFiller::pour(std::span<const Slice> slices) {
  std::size_t s = 0;
  for (Slice rest : slices) {
    while (rest.begin < rest.end) {
      if (s == slots_.size()) return false;
      if (finish_with(s, rest) <= limit(s)) {
        add(s, rest);
        break;
      }
      const std::int64_t fits = elements_that_fit(s, rest);
      if (fits > 0) add(s, {rest.tensor, rest.begin, rest.begin + fits});
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
