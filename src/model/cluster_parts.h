// What those who read, change and check clusters share.
#pragma once

#include <string_view>

#include "gradweave/cluster.h"

namespace gradweave {

// By StartupGrowth.
inline constexpr std::string_view kStartupGrowths[] = {"linear", "log", "constant"};

// Calls visit(startup, rate, key) for each cost of the link that is a line.
template <typename AnyLink, typename Visit>
void for_each_line(AnyLink& link, const Visit& visit) {
  visit(link.startup_ns, link.us_per_byte, "");
  if (!link.halves) return;
  visit(link.halves->reduce_scatter.startup_ns, link.halves->reduce_scatter.us_per_byte, "reduce_scatter.");
  visit(link.halves->all_gather.startup_ns, link.halves->all_gather.us_per_byte, "all_gather.");
}

}  // namespace gradweave
