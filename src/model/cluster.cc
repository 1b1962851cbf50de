#include "gradweave/cluster.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <unordered_set>

#include "gradweave/error.h"
#include "model/cluster_parts.h"
#include "model/hash.h"

namespace gradweave {
namespace {

__extension__ using Wide = __int128;

constexpr Nanoseconds kMaxStartup = std::int64_t{1} << 53;
constexpr std::int64_t kMaxWorkers = 10'000'000;
constexpr std::int32_t kMaxConcurrency = 1'000'000;

// log2 P in units of 2^-32, rounded: integers keep plans identical on every machine.
std::int64_t log2_fixed(std::int64_t workers) {
  return std::llround(std::log2(static_cast<double>(workers)) * 0x1p32);
}

Nanoseconds scaled_startup(Nanoseconds startup, StartupGrowth growth, std::int64_t from, std::int64_t to) {
  if (growth == StartupGrowth::kConstant) return startup;
  const bool linear = growth == StartupGrowth::kLinear;
  const std::int64_t numerator = linear ? to - 1 : log2_fixed(to);
  const std::int64_t denominator = linear ? from - 1 : log2_fixed(from);
  const auto scaled = (static_cast<Wide>(startup) * numerator + denominator / 2) / denominator;
  if (scaled > kMaxStartup) {
    throw InvalidInput("makes the start-up cost exceed 2^53 ns", "workers", "give fewer workers");
  }
  return static_cast<Nanoseconds>(scaled);
}

}  // namespace

std::optional<std::size_t> find_link(const Cluster& cluster, std::string_view name) {
  const auto found = std::ranges::find(cluster.links, name, &Link::name);
  if (found == cluster.links.end()) return std::nullopt;
  return static_cast<std::size_t>(found - cluster.links.begin());
}

namespace {

void check_startup(Nanoseconds startup, const std::string& where) {
  if (startup < 0) throw InvalidInput("must not be negative", where, "give a time of 0 or more");
  if (startup > kMaxStartup) throw InvalidInput("exceeds 2^53 ns", where, "give a smaller time");
}

}  // namespace

void check(const Cluster& cluster) {
  if (cluster.workers < 1 || cluster.workers > kMaxWorkers) {
    throw InvalidInput("must be between 1 and 10000000", "workers", "give the number of workers");
  }
  if (cluster.workers_per_node < 1 || cluster.workers_per_node > kMaxWorkers) {
    throw InvalidInput("must be between 1 and 10000000", "workers_per_node",
                       "give the number of workers on one node");
  }
  if (cluster.links.empty())
    throw InvalidInput("must have at least one link", "links", "describe the network");
  std::unordered_set<std::string_view> names;
  for (std::size_t k = 0; k < cluster.links.size(); ++k) {
    const Link& link = cluster.links[k];
    const std::string where = "links[" + std::to_string(k) + "]";
    if (link.name.empty()) throw InvalidInput("must not be empty", where + ".name", "name the link");
    if (!names.insert(link.name).second) {
      throw InvalidInput("repeats the name '" + link.name + "'", where + ".name",
                         "give each link its own name");
    }
    for_each_line(link, [&where](Nanoseconds startup, const Decimal&, const char* key) {
      check_startup(startup, where + "." + key + "startup_us");
    });
    if (link.concurrency < 0 || link.concurrency > kMaxConcurrency) {
      throw InvalidInput("must be between 0 and 1000000", where + ".concurrency", "0 means unlimited");
    }
    if (link.measured &&
        !(0 <= link.measured->smallest && link.measured->smallest <= link.measured->largest)) {
      throw InvalidInput("is no range of sizes", where + ".measured_bytes",
                         "give [smallest, largest] in bytes");
    }
    // 0 is what scaled_to() leaves to one worker, who communicates with nobody.
    if (link.relative_time.mantissa < (cluster.workers == 1 ? 0 : 1)) {
      throw InvalidInput("must be above 0", where + ".relative_time",
                         "1 is the speed of the published times");
    }
  }
}

std::string not_modelled(const Cluster& cluster) {
  if (cluster.workers_per_node == 1) return {};
  return "workers_per_node is " + std::to_string(cluster.workers_per_node) +
         ": two levels, links within a node and between nodes, aren't modelled yet; plans and predictions "
         "are those "
         "of one worker on each node";
}

std::string hash_of(const Cluster& cluster) {
  std::string text;
  const auto put_number = [&text](std::int64_t number) { text.append(std::to_string(number)).append(";"); };
  const auto put = [&](Decimal value) { put_number(value.mantissa), put_number(value.scale); };
  put_number(cluster.workers);
  put_number(cluster.workers_per_node);
  put_number(static_cast<std::int64_t>(cluster.startup_growth));
  for (const Link& link : cluster.links) {
    text.append(std::to_string(link.name.size())).append(":").append(link.name);
    put_number(link.startup_ns);
    put(link.us_per_byte);
    put_number(link.concurrency);
    put(link.relative_time);
    if (!link.halves) continue;  // a file without them has the hash that it always had
    for (const Line& half : {link.halves->reduce_scatter, link.halves->all_gather}) {
      text.append("half:");
      put_number(half.startup_ns);
      put(half.us_per_byte);
    }
  }
  for (const auto& [name, rate] : cluster.compressor_rates) {
    text.append(name).append(":");
    put(rate.encode_us_per_byte);
    put(rate.decode_us_per_byte);
  }
  return hash_hex(text);
}

Cluster scaled_to(const Cluster& cluster, std::int64_t workers) {
  Cluster scaled = cluster;
  scaled.workers = workers;
  if (workers == cluster.workers) return scaled;
  if (workers < 1 || workers > kMaxWorkers) {
    throw InvalidInput("must be between 1 and 10000000", "workers", "give a number of workers in that range");
  }
  if (cluster.workers == 1) {
    throw InvalidInput(
        "the cluster was measured with 1 worker, which says nothing of " + std::to_string(workers), "workers",
        "measure with at least 2 workers");
  }
  for (Link& link : scaled.links) {
    // 2(P-1)/P over the same at the measured P.
    const auto rescale = [&](Decimal rate) {
      return multiply_ratio(rate, (workers - 1) * cluster.workers, workers * (cluster.workers - 1));
    };
    for_each_line(link, [&](Nanoseconds& startup, Decimal& rate, const char*) {
      startup = scaled_startup(startup, cluster.startup_growth, cluster.workers, workers);
      rate = rescale(rate);
    });
    link.relative_time = rescale(link.relative_time);
  }
  return scaled;
}

Cluster with_bandwidth(const Cluster& cluster, double gigabits) {
  const double before = to_double(cluster.links.front().us_per_byte);
  if (cluster.workers < 2 || before == 0) {
    throw InvalidInput("the first link has no bandwidth to change", "links[0].us_per_byte",
                       "give a cluster of 2 or more workers with us_per_byte above 0");
  }
  const auto workers = static_cast<double>(cluster.workers);
  const double ratio = 2 * (workers - 1) / workers * 8 / (gigabits * 1000) / before;
  const auto rescale = [ratio](Decimal rate) {
    char text[32];
    std::snprintf(text, sizeof text, "%.15g", to_double(rate) * ratio);
    return decimal_from_double(std::strtod(text, nullptr), "links[].us_per_byte");
  };
  Cluster changed = cluster;
  for (Link& link : changed.links) {
    for_each_line(link, [&](Nanoseconds&, Decimal& rate, const char*) { rate = rescale(rate); });
    link.relative_time = rescale(link.relative_time);
  }
  return changed;
}

}  // namespace gradweave
