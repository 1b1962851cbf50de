#include "gradweave/fit.h"
#include "gradweave/json.h"
#include "io/json_tree.h"
#include "io/kind.h"
#include "model/cluster_parts.h"

namespace gradweave {
namespace {

constexpr std::string_view kMeasuredCollectives[] = {
    name_of(Collective::kAllReduce), name_of(Collective::kReduceScatter), name_of(Collective::kAllGather)};

LinkMeasurements link_measurements_from(const JsonNode& node) {
  node.require_keys({"name", "concurrency", "measurements"});
  LinkMeasurements link{.name = node.at("name").text()};
  if (const auto concurrency = node.find("concurrency"))
    link.concurrency = static_cast<std::int32_t>(concurrency->integer(0, 1'000'000));
  std::vector<Measurement>* const lists[] = {&link.all_reduce, &link.reduce_scatter, &link.all_gather};
  const JsonNode measurements = node.at("measurements");
  for (std::size_t i = 0; i < measurements.size(); ++i) {
    const JsonNode entry = measurements.item(i);
    entry.require_keys({"bytes", "us", "collective"});
    const auto collective = entry.find("collective");
    const JsonNode us = entry.at("us");
    if (!(us.number() > 0)) us.fail("is not positive", "give a time in microseconds");
    static_cast<void>(us.microseconds());  // refuses what is out of range
    lists[collective ? collective->one_of(kMeasuredCollectives) : 0]->push_back(
        {entry.at("bytes").integer(0, std::int64_t{1} << 53), us.number()});
  }
  return link;
}

std::vector<LinkMeasurements> links_measured(const JsonNode& node) {
  std::vector<LinkMeasurements> links;
  for (std::size_t k = 0; k < node.size(); ++k) links.push_back(link_measurements_from(node.item(k)));
  return links;
}

}  // namespace

ClusterMeasurements parse_link_measurements(std::string_view text) {
  const JsonValue tree = parse_json(text);
  const JsonNode root(tree);
  require_kind(root, "link measurements");
  root.require_keys({"version", "description", "source", "workers", "workers_per_node", "startup_growth",
                     "links", "inside"});
  ClusterMeasurements measured{.workers = root.at("workers").integer(1, 10'000'000)};
  if (const auto per_node = root.find("workers_per_node"))
    measured.workers_per_node = per_node->integer(1, 10'000'000);
  if (const auto growth = root.find("startup_growth"))
    measured.startup_growth = static_cast<StartupGrowth>(growth->one_of(kStartupGrowths));
  if (const auto description = root.find("description"))
    measured.description = description->text(kMaxTextBytes);
  if (const auto source = root.find("source")) measured.source = source->text(kMaxTextBytes);
  measured.links = links_measured(root.at("links"));
  if (const auto inside = root.find("inside")) {
    inside->require_keys({"startup_growth", "links"});
    measured.inside.emplace();
    if (const auto growth = inside->find("startup_growth"))
      measured.inside->startup_growth = static_cast<StartupGrowth>(growth->one_of(kStartupGrowths));
    measured.inside->links = links_measured(inside->at("links"));
  }
  return measured;
}

}  // namespace gradweave
