#include <algorithm>
#include <cmath>

#include "gradweave/error.h"
#include "gradweave/fit.h"

namespace gradweave {
namespace {

constexpr double kPoorFit = 0.1;  // relative residual

std::vector<std::string> doubts_of(const FittedLine& line) {
  const double small = static_cast<double>(line.smallest) * line.fit.us_per_byte;
  const double large = static_cast<double>(line.largest) * line.fit.us_per_byte;
  std::vector<std::string> doubts;
  if (line.fit.startup_us < small) {
    doubts.push_back(
        "the start-up is extrapolated from messages that take at least twice as long; measure smaller ones");
  }
  if (large < line.fit.startup_us) {
    doubts.push_back(
        "even the largest message takes mostly start-up, so the rate is uncertain; measure larger ones");
  }
  if (line.fit.residual > kPoorFit) {
    doubts.push_back(
        "no straight line fits these measurements; measure the sizes that training sends, more often");
  }
  return doubts;
}

FittedLine fitted(const LinkMeasurements& link, Collective collective,
                  const std::vector<Measurement>& measured, const std::string& where) try {
  FittedLine line{.link = link.name,
                  .collective = collective,
                  .fit = fit_link(measured),
                  .measurements = measured.size()};
  const auto [smallest, largest] = std::ranges::minmax(measured, {}, &Measurement::bytes);
  line.smallest = smallest.bytes;
  line.largest = largest.bytes;
  line.doubts = doubts_of(line);
  return line;
} catch (const InvalidInput& error) {
  throw error.within(where + ", " + std::string(name_of(collective)));
}

Line line_of(const LinkFit& fit, const std::string& where) {
  return {std::llround(fit.startup_us * 1000), decimal_from_double(fit.us_per_byte, where)};
}

// Appends what was fitted to `lines`.
std::vector<Link> fitted_links(const std::vector<LinkMeasurements>& measured, const std::string& key,
                               std::vector<FittedLine>& lines) {
  std::vector<Link> links;
  for (std::size_t k = 0; k < measured.size(); ++k) {
    const LinkMeasurements& from = measured[k];
    const std::string where = key + "[" + std::to_string(k) + "]";
    if (from.reduce_scatter.empty() != from.all_gather.empty()) {
      throw InvalidInput("one half of an all-reduce is measured without the other", where,
                         "measure reduce_scatter and all_gather, or neither");
    }
    const auto fit = [&](Collective collective, const std::vector<Measurement>& times) {
      lines.push_back(fitted(from, collective, times, where));
      return line_of(lines.back().fit, where);
    };
    const Line whole = fit(Collective::kAllReduce, from.all_reduce);
    Link link{.name = from.name,
              .startup_ns = whole.startup_ns,
              .us_per_byte = whole.us_per_byte,
              .concurrency = from.concurrency,
              .measured = MeasuredBytes{lines.back().smallest, lines.back().largest}};
    if (!from.reduce_scatter.empty()) {
      const Line first = fit(Collective::kReduceScatter, from.reduce_scatter);
      link.halves = {first, fit(Collective::kAllGather, from.all_gather)};
    }
    links.push_back(std::move(link));
  }
  return links;
}

}  // namespace

ClusterFit fit_cluster(const ClusterMeasurements& measured) {
  ClusterFit result{.cluster = {.workers = measured.workers,
                                .workers_per_node = measured.workers_per_node,
                                .startup_growth = measured.startup_growth,
                                .description = measured.description,
                                .source = measured.source}};
  result.cluster.links = fitted_links(measured.links, "links", result.lines);
  if (measured.inside) {
    result.cluster.inside = {measured.inside->startup_growth,
                             fitted_links(measured.inside->links, "inside.links", result.lines)};
  }
  check(result.cluster);
  return result;
}

}  // namespace gradweave
