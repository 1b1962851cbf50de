// Collects what is wrong with a plan.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gradweave/validate.h"

namespace gradweave {

// At most kMaxViolations, handed out in plan order.
class Report {
 public:
  // `place` orders the violations: -1 for blocks and links, else the slot of the iteration.
  void add(int rule, std::int64_t place, std::string what, std::string where, std::string remedy);
  bool full() const { return entries_.size() >= kMaxViolations; }
  std::vector<Violation> take();

  // Throws the first in plan order as InvalidInput, if there is one.
  void throw_first();

 private:
  struct Entry {
    std::int64_t place;
    Violation violation;
  };
  std::vector<Entry> entries_;
};

}  // namespace gradweave
