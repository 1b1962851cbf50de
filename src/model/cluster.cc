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
  if (growth == StartupGrowth::kConstant) return to == 1 ? 0 : startup;  // one sends nothing
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

bool has_levels(const Cluster& cluster) { return cluster.inside && cluster.workers_per_node > 1; }

std::int64_t participants(const Cluster& cluster) {
  return has_levels(cluster) ? cluster.workers / cluster.workers_per_node : cluster.workers;
}

namespace {

std::optional<std::size_t> place_of(const std::vector<Link>& links, std::string_view name) {
  const auto found = std::ranges::find(links, name, &Link::name);
  if (found == links.end()) return std::nullopt;
  return static_cast<std::size_t>(found - links.begin());
}

}  // namespace

std::optional<std::size_t> find_link(const Cluster& cluster, std::string_view name) {
  return place_of(cluster.links, name);
}

const Link& link_at(const Cluster& cluster, std::size_t number) {
  const std::size_t between = cluster.links.size();
  return number < between ? cluster.links[number] : cluster.inside->links[number - between];
}

std::optional<std::size_t> find_inside_link(const Cluster& cluster, std::string_view name) {
  if (!cluster.inside) return std::nullopt;
  const std::optional<std::size_t> place = place_of(cluster.inside->links, name);
  if (!place) return std::nullopt;
  return cluster.links.size() + *place;
}

namespace {

void check_startup(Nanoseconds startup, const std::string& where) {
  if (startup < 0) throw InvalidInput("must not be negative", where, "give a time of 0 or more");
  if (startup > kMaxStartup) throw InvalidInput("exceeds 2^53 ns", where, "give a smaller time");
}

void check_rate(Decimal us_per_byte, const std::string& where) {
  constexpr double kMost = 1e15;
  if (to_double(us_per_byte) > kMost) throw InvalidInput("exceeds 1e15", where, "give a smaller rate");
}

// The links of one level, among `workers` of them; `names` are those of the links before.
void check_links(const std::vector<Link>& links, const std::string& key, std::int64_t workers, bool levels,
                 std::unordered_set<std::string_view>& names) {
  if (links.empty()) throw InvalidInput("must have at least one link", key, "describe the network");
  for (std::size_t k = 0; k < links.size(); ++k) {
    const Link& link = links[k];
    const std::string where = key + "[" + std::to_string(k) + "]";
    if (link.name.empty()) throw InvalidInput("must not be empty", where + ".name", "name the link");
    if (!names.insert(link.name).second) {
      throw InvalidInput("repeats the name '" + link.name + "'", where + ".name",
                         "give each link its own name");
    }
    for_each_line(link, [&where](Nanoseconds startup, const Decimal& rate, const char* name) {
      check_startup(startup, where + "." + name + "startup_us");
      check_rate(rate, where + "." + name + "us_per_byte");
    });
    if (link.concurrency < 0 || link.concurrency > kMaxConcurrency) {
      throw InvalidInput("must be between 0 and 1000000", where + ".concurrency", "0 means unlimited");
    }
    if (link.measured &&
        !(0 <= link.measured->smallest && link.measured->smallest <= link.measured->largest)) {
      throw InvalidInput("is not a range of sizes", where + ".measured_bytes",
                         "give [smallest, largest] in bytes");
    }
    // 0 is what scaled_to() leaves to one worker, who communicates with nobody.
    if (link.relative_time.mantissa < (workers == 1 ? 0 : 1)) {
      throw InvalidInput("must be above 0", where + ".relative_time",
                         "1 is the speed of the published times");
    }
    if (link.each_worker && !levels) {
      throw InvalidInput("is only for links between nodes of several workers", where + ".each_worker",
                         "leave it out, or describe the links inside a node");
    }
  }
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
  if (has_levels(cluster) && cluster.workers % cluster.workers_per_node != 0) {
    throw InvalidInput("is not a multiple of workers_per_node, " + std::to_string(cluster.workers_per_node),
                       "workers", "give whole nodes, or leave out what is inside one");
  }
  std::unordered_set<std::string_view> names;
  check_links(cluster.links, "links", participants(cluster), cluster.inside.has_value(), names);
  if (cluster.inside)
    check_links(cluster.inside->links, "inside.links", cluster.workers_per_node, false, names);
}

std::string not_modelled(const Cluster& cluster) {
  if (cluster.workers_per_node == 1 || cluster.inside) return {};
  return "workers_per_node is " + std::to_string(cluster.workers_per_node) +
         ", but 'inside', the links within a node, is missing: plans and predictions take each node for one "
         "worker";
}

std::string hash_of(const Cluster& cluster) {
  std::string text;
  const auto put_number = [&text](std::int64_t number) { text.append(std::to_string(number)).append(";"); };
  const auto put = [&](Decimal value) { put_number(value.mantissa), put_number(value.scale); };
  put_number(cluster.workers);
  put_number(cluster.workers_per_node);
  put_number(static_cast<std::int64_t>(cluster.startup_growth));
  const auto put_link = [&](const Link& link) {
    text.append(std::to_string(link.name.size())).append(":").append(link.name);
    put_number(link.startup_ns);
    put(link.us_per_byte);
    put_number(link.concurrency);
    put(link.relative_time);
    if (link.each_worker) text.append("each_worker;");  // a file of one level has the hash that it always had
    if (!link.halves) return;
    for (const Line& half : {link.halves->reduce_scatter, link.halves->all_gather}) {
      text.append("half:");
      put_number(half.startup_ns);
      put(half.us_per_byte);
    }
  };
  std::ranges::for_each(cluster.links, put_link);
  if (cluster.inside) {
    text.append("inside:");
    put_number(static_cast<std::int64_t>(cluster.inside->startup_growth));
    std::ranges::for_each(cluster.inside->links, put_link);
  }
  for (const auto& [name, rate] : cluster.compressor_rates) {
    text.append(name).append(":");
    put(rate.encode_us_per_byte);
    put(rate.decode_us_per_byte);
  }
  return hash_hex(text);
}

namespace {

// The links of one level, measured among `from`, among `to` of them: 2(P-1)/P over the same at the measured P.
void scale(std::vector<Link>& links, StartupGrowth growth, std::int64_t from, std::int64_t to) {
  for (Link& link : links) {
    const auto rescale = [&](Decimal rate) { return multiply_ratio(rate, (to - 1) * from, to * (from - 1)); };
    for_each_line(link, [&](Nanoseconds& startup, Decimal& rate, const char*) {
      startup = scaled_startup(startup, growth, from, to);
      rate = rescale(rate);
    });
    link.relative_time = rescale(link.relative_time);
  }
}

}  // namespace

Cluster scaled_to(const Cluster& cluster, std::int64_t workers) {
  Cluster scaled = cluster;
  scaled.workers = workers;
  if (workers == cluster.workers) return scaled;
  if (workers < 1 || workers > kMaxWorkers) {
    throw InvalidInput("must be between 1 and 10000000", "workers", "give a number of workers in that range");
  }
  if (has_levels(cluster) && workers % cluster.workers_per_node != 0) {
    throw InvalidInput(std::to_string(workers) + " is not a multiple of workers_per_node, " +
                           std::to_string(cluster.workers_per_node),
                       "workers", "give whole nodes, or change the workers of a node first");
  }
  if (participants(cluster) == 1) {
    const std::string one = has_levels(cluster) ? "node" : "worker";
    throw InvalidInput("the cluster was measured with 1 " + one + ", which says nothing about " +
                           std::to_string(workers) + " workers",
                       "workers", "measure with at least 2 " + one + "s");
  }
  scale(scaled.links, cluster.startup_growth, participants(cluster), participants(scaled));
  return scaled;
}

Cluster with_workers_per_node(const Cluster& cluster, std::int64_t workers_per_node) {
  if (workers_per_node == cluster.workers_per_node) return cluster;
  if (!has_levels(cluster)) {
    throw InvalidInput("the cluster says nothing about the links within a node of several workers", "inside",
                       "describe them, and at least 2 workers_per_node");
  }
  const std::int64_t nodes = participants(cluster);
  if (workers_per_node < 1 || workers_per_node > kMaxWorkers / nodes) {
    throw InvalidInput("must be at least 1, and at most 10000000 workers in all", "workers_per_node",
                       "give the number of workers on one node");
  }
  Cluster changed = cluster;
  changed.workers = nodes * workers_per_node;
  changed.workers_per_node = workers_per_node;
  scale(changed.inside->links, cluster.inside->startup_growth, cluster.workers_per_node, workers_per_node);
  return changed;
}

namespace {

Line sum_of(const Line& a, const Line& b) {
  return {a.startup_ns + b.startup_ns, gradweave::sum_of(a.us_per_byte, b.us_per_byte)};
}

// The cost of halves, measured or not.
Halves halves_of(const Link& link) {
  const Nanoseconds first = link.startup_ns / 2;
  const Decimal rate = multiply_ratio(link.us_per_byte, 1, 2);
  return link.halves.value_or(Halves{{first, rate}, {link.startup_ns - first, rate}});
}

}  // namespace

Cluster flattened(const Cluster& cluster) {
  const Link& inside = cluster.inside->links.front();
  Cluster flat = cluster;
  flat.inside.reset();
  flat.workers = participants(cluster);
  flat.workers_per_node = 1;
  for (Link& link : flat.links) {
    const std::int64_t apart = link.each_worker ? cluster.workers_per_node : 1;
    const auto shard = [apart](Line line) {
      return Line{line.startup_ns, multiply_ratio(line.us_per_byte, 1, apart)};
    };
    link.levels = {.inside = {inside.startup_ns, inside.us_per_byte},
                   .between = shard({link.startup_ns, link.us_per_byte}),
                   .shards = cluster.workers_per_node};
    const Line whole = sum_of(link.levels->inside, link.levels->between);
    if (link.halves || inside.halves) {
      const Halves a = halves_of(inside), b = halves_of(link);
      link.halves = {sum_of(a.reduce_scatter, shard(b.reduce_scatter)),
                     sum_of(a.all_gather, shard(b.all_gather))};
    }
    link.startup_ns = whole.startup_ns;
    link.us_per_byte = whole.us_per_byte;
    link.relative_time =
        gradweave::sum_of(inside.relative_time, multiply_ratio(link.relative_time, 1, apart));
    link.each_worker = false;
    link.measured.reset();
  }
  return flat;
}

Cluster with_bandwidth(const Cluster& cluster, double gigabits) {
  const double before = to_double(cluster.links.front().us_per_byte);
  if (participants(cluster) < 2 || before == 0) {
    throw InvalidInput("the first link has no bandwidth to change", "links[0].us_per_byte",
                       "give a cluster of 2 or more workers, or nodes, with us_per_byte above 0");
  }
  const auto workers = static_cast<double>(participants(cluster));
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
