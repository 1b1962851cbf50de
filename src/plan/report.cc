#include "plan/report.h"

#include <algorithm>

#include "gradweave/error.h"

namespace gradweave {

void Report::add(int rule, std::int64_t place, std::string what, std::string where, std::string remedy) {
  if (full()) return;
  entries_.push_back({place, {rule, std::move(what), std::move(where), std::move(remedy)}});
}

std::vector<Violation> Report::take() {
  std::ranges::stable_sort(entries_, {}, &Entry::place);
  std::vector<Violation> violations;
  for (Entry& entry : entries_) violations.push_back(std::move(entry.violation));
  return violations;
}

void Report::throw_first() {
  if (entries_.empty()) return;
  const Violation& first = std::ranges::min_element(entries_, {}, &Entry::place)->violation;
  throw InvalidInput(first.what, first.where, first.remedy);
}

}  // namespace gradweave
