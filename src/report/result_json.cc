#include "report/result_json.h"

#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "gradweave/json.h"

namespace gradweave {
namespace {

bool finite_decimal(std::int64_t numerator, std::int64_t denominator) {
  denominator /= std::gcd(numerator, denominator);
  for (const std::int64_t prime : {2, 5}) {
    while (denominator % prime == 0) denominator /= prime;
  }
  return denominator == 1;
}

// To 6 places, where a double has as many.
double rounded(double value) {
  return std::abs(value) < 0x1p53 / 1e6 ? std::round(value * 1e6) / 1e6 : value;
}

std::string_view name_of(OptionType type) {
  switch (type) {
    case OptionType::kInteger:
      return "integer";
    case OptionType::kNumber:
      return "number";
    case OptionType::kText:
      return "text";
  }
  return "";
}

// The default as JSON: a number where the option is one, null where the scheme finds it.
Json default_of(const OptionSpec& option) {
  if (option.default_value.empty()) return nullptr;
  if (option.type == OptionType::kText) return option.default_value;
  return Json::parse(option.default_value);
}

Json object_of(const SchemeInfo& scheme) {
  Json options = Json::array();
  for (const OptionSpec& option : scheme.options) {
    Json row = {{"name", option.name},
                {"type", name_of(option.type)},
                {"unit", name_of(option.unit)},
                {"default", default_of(option)},
                {"default_source", option.default_source},
                {"meaning", option.meaning}};
    if (option.type == OptionType::kText) {
      row["choices"] = option.choices;
    } else {
      row["minimum"] = option.minimum;
      row["maximum"] = option.maximum;
    }
    if (option.tuned) {
      row["tuned"] = {{"minimum", option.tuned->low},
                      {"maximum", option.tuned->high},
                      {"scale", name_of(option.tuned->scale)}};
    }
    options.push_back(std::move(row));
  }
  return {{"name", scheme.name},
          {"summary", scheme.summary},
          {"paper", scheme.paper},
          {"consistency", name_of(scheme.effect)},
          {"options", std::move(options)}};
}

Json names_of(const std::vector<Effect>& effects) {
  Json names = Json::array();
  for (const Effect effect : effects) names.push_back(name_of(effect));
  return names;
}

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

Json to_object(const Observer::Report& report) {
  const auto of = [](const Observer::Difference& each) {
    return Json{{"what", each.what},
                {"predicted_us", microseconds_rounded(each.predicted_ns)},
                {"measured_us", microseconds_rounded(each.measured_ns)}};
  };
  // What is not known yet is null.
  const auto known = [](double value) { return std::isfinite(value) ? Json(rounded(value)) : Json(nullptr); };
  Json links = Json::array(), differences = Json::array(), stragglers = Json::array();
  for (const Observer::Report::OfLink& link : report.links)
    links.push_back(
        {{"link", link.link}, {"factor", rounded(link.factor)}, {"uncertainty", known(link.uncertainty)}});
  for (const Observer::Difference& each : report.differences) differences.push_back(of(each));
  for (const Observer::Report::Straggler& each : report.stragglers)
    stragglers.push_back({{"rank", each.rank}, {"factor", rounded(each.factor)}});
  return {{"predicted", to_object(report.predicted)},
          {"measured",
           {{"iteration_us", microseconds_rounded(report.iteration_ns)},
            {"exposed_us", microseconds_rounded(report.exposed_ns)},
            {"forward_us", microseconds_rounded(report.forward_ns)},
            {"backward_us", microseconds_rounded(report.backward_ns)}}},
          {"ccr", rounded(report.ccr)},
          {"ccr_uncertainty", known(report.ccr_uncertainty)},
          {"links", std::move(links)},
          {"differences", std::move(differences)},
          {"op", report.op.what.empty() ? Json(nullptr) : of(report.op)},
          {"stragglers", std::move(stragglers)},
          {"text", to_text(report)}};
}

Json to_object(const PlanSummary& summary) {
  return {{"scheme", summary.scheme},
          {"options", summary.options},
          {"iteration_us", summary.iteration_us},
          {"effects", names_of(summary.effects)}};
}

Json to_object(const Demands& demands) {
  return {{"steps_in_forward", demands.steps_in_forward}, {"steps_in_backward", demands.steps_in_backward},
          {"partial_steps", demands.partial_steps},       {"slices", demands.slices},
          {"delays_gradients", demands.delays_gradients}, {"local_steps", demands.local_steps},
          {"keeps_residual", demands.keeps_residual},     {"makes_momentum", demands.makes_momentum},
          {"synchronous", demands.synchronous()}};
}

Json to_object(const RankedPlans& ranked) {
  if (const auto* infeasible = std::get_if<Infeasible>(&ranked)) return {{"starves", infeasible->reason}};
  Json plans = Json::array();
  for (const RankedPlan& ranked_plan : std::get<std::vector<RankedPlan>>(ranked)) {
    plans.push_back({{"prediction", to_object(ranked_plan.prediction)},
                     {"effects", names_of(ranked_plan.effects)},
                     {"demands", to_object(ranked_plan.demands)},
                     {"plan", Json::parse(to_json(ranked_plan.plan))}});
  }
  return {{"plans", std::move(plans)}};
}

Json to_object(const TuningReport& report) {
  Json trials = Json::array();
  for (const PlanTuner::Trial& trial : report.trials) {
    Json measured = Json::array();
    for (const double seconds : trial.seconds) {
      measured.push_back(std::isfinite(seconds) ? Json(rounded(seconds * 1e6)) : Json());
    }
    trials.push_back(
        {{"scheme", trial.scheme}, {"options", trial.options}, {"measured_us", std::move(measured)}});
  }
  return {{"trials", std::move(trials)},
          {"best", report.best},
          {"ended", report.ended},
          {"seconds", report.seconds}};
}

TuningReport tuning_report_of(const Json& object) {
  TuningReport report{.best = object.at("best").get<std::size_t>(),
                      .ended = object.at("ended").get<bool>(),
                      .seconds = object.at("seconds").get<double>()};
  for (const Json& trial : object.at("trials")) {
    PlanTuner::Trial& told = report.trials.emplace_back();
    told.scheme = trial.at("scheme").get<std::string>();
    told.options = trial.at("options").get<std::map<std::string, std::string>>();
    for (const Json& us : trial.at("measured_us")) {
      told.seconds.push_back(us.is_null() ? std::numeric_limits<double>::infinity() : us.get<double>() / 1e6);
    }
  }
  return report;
}

Json schemes_object() {
  Json rows = Json::array();
  for (const SchemeInfo& scheme : schemes()) rows.push_back(object_of(scheme));
  return {{"schemes", std::move(rows)}};
}

std::string dump(const Json& value, int indent) {
  return value.dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace gradweave
