#include "runtime/core_json.h"

#include "gradweave/effects.h"
#include "gradweave/fit.h"
#include "gradweave/json.h"
#include "gradweave/report.h"
#include "gradweave/schemes.h"
#include "gradweave/simulate.h"
#include "gradweave/timeline.h"
#include "gradweave/tune.h"
#include "gradweave/validate.h"
#include "io/result_json.h"

namespace gradweave::runtime {

std::string make_plan_text(const std::string& workload, const std::string& cluster, const std::string& scheme,
                           const std::string& options) {
  const auto set = Json::parse(options).get<std::map<std::string, std::string>>();
  const PlanResult result = make_plan(scheme, parse_workload(workload), parse_cluster(cluster), set);
  if (const auto* infeasible = std::get_if<Infeasible>(&result))
    return dump({{"starves", infeasible->reason}});
  return to_json(std::get<Plan>(result));
}

void check_options_text(const std::string& scheme, const std::string& options) {
  check_options(scheme, Json::parse(options).get<std::map<std::string, std::string>>());
}

void check_tuning_text(const std::string& scheme, const std::string& options, int trials) {
  check_tuning(scheme, Json::parse(options).get<std::map<std::string, std::string>>(), trials);
}

std::string ranked_plans_text(const std::string& workload, const std::string& cluster,
                              const std::string& options) {
  const auto set = Json::parse(options).get<std::map<std::string, std::string>>();
  return dump(to_object(ranked_plans(parse_workload(workload), parse_cluster(cluster), set)));
}

std::string demands_text(const std::string& plan) { return dump(to_object(demands_of(parse_plan(plan)))); }

std::string simulate_text(const std::string& plan, const std::string& workload, const std::string& cluster,
                          const std::string& options) {
  const Json given = Json::parse(options);
  SimulationOptions how;
  how.optimizer_ns = static_cast<Nanoseconds>(given.value("optimizer_us", 0.0) * 1000);
  how.contention = decimal_from_double(given.value("contention", 1.0), "contention");
  const SimulationResult result =
      simulate(parse_plan(plan), parse_workload(workload), parse_cluster(cluster), how);
  return dump(to_object(result));
}

std::string fit_link_text(const std::string& measurements) {
  std::vector<Measurement> points;
  const Json given = Json::parse(measurements);
  for (const Json& point : given.at("measurements")) {
    points.push_back({point.at("bytes").get<std::int64_t>(), point.at("us").get<double>()});
  }
  const LinkFit fit = fit_link(points);
  return dump({{"startup_us", fit.startup_us}, {"us_per_byte", fit.us_per_byte}, {"residual", fit.residual}});
}

std::vector<std::int32_t> cut_layers_text(const std::string& plan, const std::string& workload) {
  return cut_layers(parse_plan(plan), parse_workload(workload));
}

std::vector<std::string> validate_text(const std::string& plan, const std::string& workload) {
  std::vector<std::string> texts;
  for (const Violation& violation : validate(parse_plan(plan), parse_workload(workload)).violations) {
    texts.push_back(violation.where + ": " + violation.what + "; " + violation.remedy);
  }
  return texts;
}

std::string schemes_text() { return dump(schemes_object()); }

void write_report(const std::string& path, const std::string& given) {
  const Json all = Json::parse(given);
  ReportInput input{.measured = all.value("measured", std::vector<std::string>())};
  if (all.contains("workload")) {
    input.classes = {parse_workload(dump(all["workload"]))};
    input.cluster = parse_cluster(dump(all.at("cluster")));
    for (const SchemeInfo& scheme : schemes()) {
      if (!all.contains("schemes") && !scheme.chooses) input.schemes.emplace_back(scheme.name);
    }
    if (all.contains("schemes")) input.schemes = all["schemes"].get<std::vector<std::string>>();
    const Json plans = all.value("plans", Json::object());
    for (const auto& [name, text] : plans.items()) {
      NamedPlan named{.name = name, .plan = parse_plan(dump(text))};
      require_valid(validate(named.plan, input.classes[0], &*input.cluster), name);
      input.plans.push_back(std::move(named));
    }
  }
  for (const Json& timeline : all.value("timelines", Json::array()))
    input.timelines.push_back(parse_timeline(dump(timeline)));
  write_file(path, report_page(input));
}

std::string chrome_trace_text(const std::vector<std::string>& timelines) {
  std::vector<Timeline> parsed;
  for (const std::string& text : timelines) parsed.push_back(parse_timeline(text));
  return to_chrome_trace(parsed);
}

}  // namespace gradweave::runtime
