#include "gradweave/json.h"
#include "io/json_tree.h"
#include "io/json_write.h"
#include "io/kind.h"
#include "model/cluster_parts.h"

namespace gradweave {
namespace {

constexpr std::int64_t kMaxWorkers = 10'000'000;

Line line_from(const JsonNode& node) {
  node.require_keys({"startup_us", "us_per_byte"});
  return {node.at("startup_us").duration(), node.at("us_per_byte").decimal()};
}

Link link_from(const JsonNode& node) {
  node.require_keys({"name", "startup_us", "us_per_byte", "concurrency", "relative_time", "reduce_scatter",
                     "all_gather", "measured_bytes", "each_worker"});
  Link link{.name = node.at("name").text(),
            .startup_ns = node.at("startup_us").duration(),
            .us_per_byte = node.at("us_per_byte").decimal()};
  if (const auto concurrency = node.find("concurrency")) {
    link.concurrency = static_cast<std::int32_t>(concurrency->integer(0, 1'000'000));
  }
  if (const auto relative = node.find("relative_time")) link.relative_time = relative->decimal();
  if (const auto measured = node.find("measured_bytes")) {
    if (measured->size() != 2) measured->fail("is not a range of sizes", "give [smallest, largest] in bytes");
    constexpr std::int64_t kMost = std::int64_t{1} << 53;
    link.measured = {measured->item(0).integer(0, kMost), measured->item(1).integer(0, kMost)};
  }
  if (const auto each = node.find("each_worker")) link.each_worker = each->boolean();
  if (node.find("reduce_scatter") || node.find("all_gather")) {  // neither without the other
    link.halves = {line_from(node.at("reduce_scatter")), line_from(node.at("all_gather"))};
  }
  return link;
}

std::vector<Link> links_from(const JsonNode& node) {
  std::vector<Link> links;
  for (std::size_t k = 0; k < node.size(); ++k) links.push_back(link_from(node.item(k)));
  return links;
}

StartupGrowth growth_from(const JsonNode& node) {
  const auto growth = node.find("startup_growth");
  return growth ? static_cast<StartupGrowth>(growth->one_of(kStartupGrowths)) : StartupGrowth::kLinear;
}

Inside inside_from(const JsonNode& node) {
  node.require_keys({"startup_growth", "links"});
  return {growth_from(node), links_from(node.at("links"))};
}

CompressorRate rate_from(const JsonNode& node) {
  node.require_keys({"encode_us_per_byte", "decode_us_per_byte"});
  return {node.at("encode_us_per_byte").decimal(), node.at("decode_us_per_byte").decimal()};
}

std::string text_of(std::string_view key, const Line& line) {
  return ", " + json_string(key) + ": {\"startup_us\": " + microseconds(line.startup_ns) +
         ", \"us_per_byte\": " + json_number(line.us_per_byte) + "}";
}

std::string text_of(const Link& link) {
  return "{\"name\": " + json_string(link.name) + ", \"startup_us\": " + microseconds(link.startup_ns) +
         ", \"us_per_byte\": " + json_number(link.us_per_byte) +
         ", \"concurrency\": " + std::to_string(link.concurrency) +
         ", \"relative_time\": " + json_number(link.relative_time) +
         (link.halves ? text_of("reduce_scatter", link.halves->reduce_scatter) +
                            text_of("all_gather", link.halves->all_gather)
                      : "") +
         (link.measured ? ", \"measured_bytes\": [" + std::to_string(link.measured->smallest) + ", " +
                              std::to_string(link.measured->largest) + "]"
                        : "") +
         (link.each_worker ? ", \"each_worker\": true" : "") + "}";
}

// One a line, `indent` spaces deep.
std::string text_of(const std::vector<Link>& links, std::size_t indent) {
  std::string text = "[\n";
  for (std::size_t k = 0; k < links.size(); ++k) {
    text.append(indent, ' ').append(text_of(links[k])).append(k + 1 < links.size() ? ",\n" : "\n");
  }
  return text.append(indent - 2, ' ') + "]";
}

std::string text_of(StartupGrowth growth) {
  return "\"" + std::string(kStartupGrowths[static_cast<std::size_t>(growth)]) + "\"";
}

std::string text_of(const Inside& inside) {
  return "{\n    \"startup_growth\": " + text_of(inside.startup_growth) +
         ",\n    \"links\": " + text_of(inside.links, 6) + "\n  }";
}

std::string text_of(const std::string& name, const CompressorRate& rate) {
  return "    " + json_string(name) + ": {\"encode_us_per_byte\": " + json_number(rate.encode_us_per_byte) +
         ", \"decode_us_per_byte\": " + json_number(rate.decode_us_per_byte) + "}";
}

}  // namespace

Cluster parse_cluster(std::string_view text) {
  const JsonValue tree = parse_json(text);
  const JsonNode root(tree);
  require_kind(root, "cluster");
  root.require_keys({"version", "description", "source", "workers", "workers_per_node", "startup_growth",
                     "links", "inside", "compressor_rates"});
  Cluster cluster{.workers = root.at("workers").integer(1, kMaxWorkers)};
  if (const auto per_node = root.find("workers_per_node"))
    cluster.workers_per_node = per_node->integer(1, kMaxWorkers);
  cluster.startup_growth = growth_from(root);
  if (const auto description = root.find("description"))
    cluster.description = description->text(kMaxTextBytes);
  if (const auto source = root.find("source")) cluster.source = source->text(kMaxTextBytes);
  cluster.links = links_from(root.at("links"));
  if (const auto inside = root.find("inside")) cluster.inside = inside_from(*inside);
  if (const auto rates = root.find("compressor_rates")) {
    for (const JsonNode& rate : rates->members())
      cluster.compressor_rates.emplace(rate.key(), rate_from(rate));
  }
  check(cluster);
  return cluster;
}

std::string to_json(const Cluster& cluster) {
  std::string text = "{\n  \"version\": 1,\n";
  if (!cluster.description.empty()) text += "  \"description\": " + json_string(cluster.description) + ",\n";
  if (!cluster.source.empty()) text += "  \"source\": " + json_string(cluster.source) + ",\n";
  text += "  \"workers\": " + std::to_string(cluster.workers) +
          ",\n  \"workers_per_node\": " + std::to_string(cluster.workers_per_node) +
          ",\n  \"startup_growth\": " + text_of(cluster.startup_growth) +
          ",\n  \"links\": " + text_of(cluster.links, 4);
  if (cluster.inside) text += ",\n  \"inside\": " + text_of(*cluster.inside);
  if (!cluster.compressor_rates.empty()) {
    text += ",\n  \"compressor_rates\": {";
    bool first = true;
    for (const auto& [name, rate] : cluster.compressor_rates) {
      text += (first ? "\n" : ",\n") + text_of(name, rate);
      first = false;
    }
    text += "\n  }";
  }
  return text + "\n}\n";
}

}  // namespace gradweave
