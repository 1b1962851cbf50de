#include "runtime/text.h"

#include <nlohmann/json.hpp>

#include "gradweave/fit.h"
#include "gradweave/json.h"
#include "gradweave/schemes.h"
#include "gradweave/simulate.h"
#include "gradweave/timeline.h"
#include "gradweave/validate.h"

namespace gradweave::runtime {
namespace {

using Json = nlohmann::json;

}  // namespace

std::string make_plan_text(const std::string& workload, const std::string& cluster, const std::string& scheme,
                           const std::string& options) {
  const auto set = Json::parse(options).get<std::map<std::string, std::string>>();
  const PlanResult result = make_plan(scheme, parse_workload(workload), parse_cluster(cluster), set);
  if (const auto* starves = std::get_if<Starves>(&result)) return Json{{"starves", starves->reason}}.dump();
  return to_json(std::get<Plan>(result));
}

std::string simulate_text(const std::string& plan, const std::string& workload, const std::string& cluster,
                          const std::string& options) {
  const Json given = Json::parse(options);
  SimulationOptions how;
  how.optimizer_ns = static_cast<Nanoseconds>(given.value("optimizer_us", 0.0) * 1000);
  how.contention = decimal_from_double(given.value("contention", 1.0), "contention");
  const SimulationResult result =
      simulate(parse_plan(plan), parse_workload(workload), parse_cluster(cluster), how);
  return Json{{"name", result.name},
              {"iteration_us", result.iteration_ns() / 1000},
              {"cycle_us", static_cast<double>(result.cycle_ns) / 1000},
              {"cycle_iterations", result.cycle_iterations},
              {"compute_us", static_cast<double>(result.compute_ns) / 1000},
              {"exposed_us", result.exposed_ns / 1000},
              {"updates_per_iteration", result.updates_per_iteration},
              {"staleness_max", result.staleness_max},
              {"lower_bound_us", result.lower_bound.iteration_ns / 1000},
              {"lower_bound", result.lower_bound.name},
              {"ops_per_iteration", result.ops_per_iteration},
              {"bytes_per_iteration", result.bytes_per_iteration},
              {"extra_bytes", result.extra_bytes},
              {"period", result.period}}
      .dump();
}

std::string fit_link_text(const std::string& measurements) {
  std::vector<Measurement> points;
  const Json given = Json::parse(measurements);
  for (const Json& point : given.at("measurements")) {
    points.push_back({point.at("bytes").get<std::int64_t>(), point.at("us").get<double>()});
  }
  const LinkFit fit = fit_link(points);
  return Json{{"startup_us", fit.startup_us}, {"us_per_byte", fit.us_per_byte}, {"residual", fit.residual}}
      .dump();
}

std::vector<std::string> validate_text(const std::string& plan, const std::string& workload) {
  std::vector<std::string> texts;
  for (const Violation& violation : validate(parse_plan(plan), parse_workload(workload)).violations) {
    texts.push_back(violation.where + ": " + violation.what + "; " + violation.remedy);
  }
  return texts;
}

std::string schemes_text() {
  Json rows = Json::array();
  for (const SchemeInfo& scheme : schemes()) {
    Json options = Json::array();
    for (const OptionSpec& option : scheme.options)
      options.push_back({{"name", option.name},
                         {"unit", option.unit},
                         {"default", option.default_value},
                         {"meaning", option.meaning}});
    rows.push_back({{"name", scheme.name},
                    {"summary", scheme.summary},
                    {"consistency", name_of(scheme.consistency)},
                    {"options", options}});
  }
  return Json{{"schemes", rows}}.dump();
}

std::string chrome_trace_text(const std::vector<std::string>& timelines) {
  std::vector<Timeline> parsed;
  for (const std::string& text : timelines) parsed.push_back(parse_timeline(text));
  return to_chrome_trace(parsed);
}

}  // namespace gradweave::runtime
