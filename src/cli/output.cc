#include "cli/output.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iostream>

namespace gradweave::cli {
Json summary_of(const Workload& workload) {
  const WorkloadIndex index(workload);
  return {{"name", workload.name},
          {"hash", hash_of(workload)},
          {"layers", index.layer_count},
          {"tensors", index.tensors.size()},
          {"bytes", index.total_bytes},
          {"forward_us", microseconds_of(index.forward_total)},
          {"backward_us", microseconds_of(index.backward_total)}};
}

Json summary_of(const Cluster& cluster) {
  Json links = Json::array();
  for (const Link& link : cluster.links) {
    links.push_back({{"name", link.name},
                     {"startup_us", microseconds_of(link.startup_ns)},
                     {"us_per_byte", to_double(link.us_per_byte)},
                     {"concurrency", link.concurrency}});
  }
  return {{"hash", hash_of(cluster)}, {"workers", cluster.workers}, {"links", std::move(links)}};
}

void print(const Json& value) { std::cout << dump(value, 1) << '\n'; }

std::string Table::text() const {
  std::vector<std::size_t> widths(header.size());
  const auto measure = [&](const std::vector<std::string>& row) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  };
  measure(header);
  std::ranges::for_each(rows, measure);
  std::string text;
  const auto append = [&](const std::vector<std::string>& row) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const bool to_left = i < left.size() ? left[i] : i == 0;
      line +=
          to_left ? fmt::format("{:<{}}  ", row[i], widths[i]) : fmt::format("{:>{}}  ", row[i], widths[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  };
  append(header);
  std::ranges::for_each(rows, append);
  return text;
}

std::string human_time(double nanoseconds) {
  if (std::abs(nanoseconds) < 1e6) return fmt::format("{:.3f} us", nanoseconds / 1e3);
  if (std::abs(nanoseconds) < 1e10) return fmt::format("{:.3f} ms", nanoseconds / 1e6);
  return fmt::format("{:.3f} s", nanoseconds / 1e9);
}

std::string human_bytes(double bytes) {
  constexpr std::array kUnits = {"B", "kB", "MB", "GB", "TB"};
  std::size_t unit = 0;
  for (; bytes >= 1000 && unit + 1 < kUnits.size(); ++unit) bytes /= 1000;
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.1f} {}", bytes, kUnits[unit]);
}

}  // namespace gradweave::cli
