#include "cli/output.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iostream>
#include <numeric>

namespace gradweave::cli {
namespace {

bool finite_decimal(std::int64_t numerator, std::int64_t denominator) {
  denominator /= std::gcd(numerator, denominator);
  for (const std::int64_t prime : {2, 5}) {
    while (denominator % prime == 0) denominator /= prime;
  }
  return denominator == 1;
}

double rounded(double value) { return std::round(value * 1e6) / 1e6; }

}  // namespace

double microseconds_of(Nanoseconds numerator_ns, std::int64_t denominator) {
  const double value = static_cast<double>(numerator_ns) / (1000.0 * static_cast<double>(denominator));
  return finite_decimal(numerator_ns, denominator) ? value : rounded(value);
}

double microseconds_rounded(double nanoseconds) { return rounded(nanoseconds / 1000.0); }

Json to_object(const SimulationResult& result) {
  Json object;
  object["name"] = result.name;
  object["iteration_us"] = microseconds_of(result.cycle_ns, result.cycle_iterations);
  object["cycle_us"] = microseconds_of(result.cycle_ns);
  object["cycle_iterations"] = result.cycle_iterations;
  object["compute_us"] = microseconds_of(result.compute_ns);
  object["exposed_us"] =
      microseconds_of(result.cycle_ns - result.compute_ns * result.cycle_iterations, result.cycle_iterations);
  object["updates_per_iteration"] = rounded(result.updates_per_iteration);
  object["staleness_max"] = result.staleness_max;
  object["staleness_mean"] = rounded(result.staleness_mean);
  object["lower_bound_us"] = microseconds_rounded(result.lower_bound.iteration_ns);
  object["lower_bound"] = result.lower_bound.name;
  object["ops_per_iteration"] = rounded(result.ops_per_iteration);
  object["bytes_per_iteration"] = rounded(result.bytes_per_iteration);
  object["extra_bytes"] = result.extra_bytes;
  object["period"] = result.period;
  object["steady"] = result.steady;
  object["method"] = result.method;
  Json bounds = Json::array();
  for (const Bound& bound : result.bounds) {
    bounds.push_back({{"name", bound.name}, {"iteration_us", microseconds_rounded(bound.iteration_ns)}});
  }
  object["bounds"] = std::move(bounds);
  Json links = Json::array();
  for (const LinkUse& link : result.links) {
    links.push_back(
        {{"name", link.link}, {"busy_us", microseconds_rounded(link.busy_ns)}, {"use", rounded(link.use)}});
  }
  object["links"] = std::move(links);
  Json layers = Json::array();
  for (const ExposedLayer& layer : result.exposed_layers) {
    layers.push_back({{"layer", layer.layer},
                      {"exposed_us", microseconds_rounded(layer.exposed_ns)},
                      {"reason", layer.reason}});
  }
  object["exposed_layers"] = std::move(layers);
  return object;
}

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

void print(const Json& value) {
  std::cout << value.dump(1, ' ', false, Json::error_handler_t::replace) << '\n';
}

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
