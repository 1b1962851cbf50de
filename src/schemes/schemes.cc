#include "gradweave/schemes.h"

#include <algorithm>
#include <iterator>
#include <sstream>

#include "base/names.h"
#include "base/quoted.h"
#include "gradweave/error.h"
#include "schemes/compressed.h"
#include "schemes/levels.h"
#include "schemes/registry.h"

namespace gradweave {
namespace {

// Whether some option's value is none of the scheme's choices, but one of another's.
bool others_serve(const SchemeInfo& scheme, const std::map<std::string, std::string>& written) {
  const auto offers = [](const SchemeInfo& some, const auto& option) {
    const auto spec = std::ranges::find(some.options, option.first, &OptionSpec::name);
    return spec != some.options.end() &&
           std::ranges::find(spec->choices, option.second) != spec->choices.end();
  };
  return std::ranges::any_of(written, [&](const auto& option) {
    return !offers(scheme, option) &&
           std::ranges::any_of(schemes(), [&](const SchemeInfo& other) { return offers(other, option); });
  });
}

}  // namespace

const std::vector<SchemeInfo>& schemes() {
  static const std::vector<SchemeInfo> table = {
      sequential_scheme(), wfbp_scheme(),        ddp_scheme(),      horovod_scheme(),
      mg_wfbp_scheme(),    asc_wfbp_scheme(),    p3_scheme(),       bytescheduler_scheme(),
      us_byte_scheme(),    dear_scheme(),        deft_scheme(),     covap_scheme(),
      local_sgd_scheme(),  partial_sgd_scheme(), dreamddp_scheme(), delayed_averaging_scheme(),
      optimal_scheme(),    auto_scheme(),
  };
  return table;
}

const SchemeInfo& find_scheme(std::string_view name) {
  const auto found = std::ranges::find(schemes(), name, &SchemeInfo::name);
  if (found != schemes().end()) return *found;
  std::vector<std::string_view> names;
  std::ranges::transform(schemes(), std::back_inserter(names), &SchemeInfo::name);
  throw InvalidInput("unknown scheme " + in_quotes(name), "scheme", choice_of(name, names, "use one of"));
}

SchemeOptions options_of(std::string_view scheme) {
  const SchemeInfo& info = find_scheme(scheme);
  return {info.name, info.options};
}

SchemeOptions parse_options(std::string_view scheme, const std::map<std::string, std::string>& written) {
  SchemeOptions options = options_of(scheme);
  for (const auto& [name, value] : written) options.parse(name, value);
  find_scheme(scheme).check(options);
  return options;
}

Method parse_method(std::string_view text) {
  std::istringstream words{std::string(text)};
  Method method{.name = std::string(text), .scheme = {}, .options = {}};
  words >> method.scheme;
  for (std::string word; words >> word;) {
    const std::size_t equals = word.find('=');
    if (equals == std::string::npos || equals == 0) {
      throw InvalidInput(in_quotes(word) + " is not an assignment", "method " + in_quotes(text),
                         "write SCHEME NAME=VALUE NAME=VALUE, and ',' between methods");
    }
    if (!method.options.emplace(word.substr(0, equals), word.substr(equals + 1)).second)
      throw InvalidInput("sets " + in_quotes(word.substr(0, equals)) + " twice", "method " + in_quotes(text),
                         "set it once");
  }
  parse_options(method.scheme, method.options);
  return method;
}

CommonOptions CommonOptions::with(const Method& method) const {
  CommonOptions all(method.options);
  all.written_.insert(written_.begin(), written_.end());
  return all;
}

std::variant<SchemeOptions, Infeasible> CommonOptions::of(std::string_view scheme) const {
  const SchemeInfo& info = find_scheme(scheme);
  std::map<std::string, std::string> own = written_;
  std::erase_if(own, [&](const auto& option) {
    return std::ranges::find(info.options, option.first, &OptionSpec::name) == info.options.end();
  });
  try {
    return parse_options(scheme, own);
  } catch (const InvalidInput& error) {
    if (!others_serve(info, own)) throw;  // nobody can serve them
    return Infeasible{error.what()};
  }
}

CommonOptions CommonOptions::without_compressor() const {
  CommonOptions others = *this;
  std::erase_if(others.written_, [](const auto& option) { return is_compressor_option(option.first); });
  return others;
}

void complete_plan(Plan& plan, const Workload& workload, const Cluster& cluster,
                   const SchemeOptions& options) {
  plan.scheme = options.scheme();
  plan.options.merge(options.written());
  // A plan over levels is one that has been completed before.
  if (find_scheme(plan.scheme).payload == Payload::kGradient && !has_levels(plan))
    compress_gradients(plan, compression_of(options));
  plan.workload_hash = hash_of(workload);
  plan.cluster_hash = hash_of(cluster);
  plan.workers = cluster.workers;
}

PlanResult make_plan(const Workload& workload, const Cluster& cluster, const SchemeOptions& options) {
  const SchemeInfo& scheme = find_scheme(options.scheme());
  scheme.check(options);
  check(workload);
  check(cluster);
  // Those who choose among the plans of others choose among plans over levels.
  const bool levels = has_levels(cluster) && !scheme.chooses;
  PlanResult result = scheme.plan(workload, levels ? flattened(cluster) : cluster, options);
  if (Plan* plan = std::get_if<Plan>(&result)) {
    complete_plan(*plan, workload, cluster, options);
    if (levels) *plan = over_levels(*plan, workload, cluster);
  }
  return result;
}

PlanResult make_plan(std::string_view scheme, const Workload& workload, const Cluster& cluster,
                     const std::map<std::string, std::string>& written) {
  return make_plan(workload, cluster, parse_options(scheme, written));
}

}  // namespace gradweave
