#include "gradweave/schemes.h"

#include <algorithm>
#include <iterator>

#include "base/names.h"
#include "base/quoted.h"
#include "gradweave/error.h"
#include "schemes/compressed.h"
#include "schemes/registry.h"

namespace gradweave {
namespace {

std::vector<SchemeInfo> with_compressors(std::vector<SchemeInfo> rows) {
  for (SchemeInfo& scheme : rows) {
    std::ranges::move(scheme.payload == Payload::kGradient ? compressor_options() : average_options(),
                      std::back_inserter(scheme.options));
  }
  return rows;
}

}  // namespace

const std::vector<SchemeInfo>& schemes() {
  static const std::vector<SchemeInfo> table = with_compressors({
      sequential_scheme(),
      wfbp_scheme(),
      ddp_scheme(),
      horovod_scheme(),
      mg_wfbp_scheme(),
      asc_wfbp_scheme(),
      p3_scheme(),
      bytescheduler_scheme(),
      us_byte_scheme(),
      dear_scheme(),
      deft_scheme(),
      covap_scheme(),
      local_sgd_scheme(),
      partial_sgd_scheme(),
      dreamddp_scheme(),
      delayed_averaging_scheme(),
      optimal_scheme(),
      auto_scheme(),
  });
  return table;
}

const SchemeInfo& find_scheme(std::string_view name) {
  const auto found = std::ranges::find(schemes(), name, &SchemeInfo::name);
  if (found != schemes().end()) return *found;
  std::vector<std::string_view> names;
  std::ranges::transform(schemes(), std::back_inserter(names), &SchemeInfo::name);
  throw InvalidInput("unknown scheme " + in_quotes(name), "scheme", choice_of(name, names, "use one of"));
}

OptionValues check_options(std::string_view name, const std::map<std::string, std::string>& options) {
  const SchemeInfo& scheme = find_scheme(name);
  OptionValues values(scheme.name, scheme.options, options);
  values.compression();  // checks the compressor's parameters
  if (scheme.check != nullptr) scheme.check(values);
  return values;
}

void complete_plan(Plan& plan, const Workload& workload, const Cluster& cluster, std::string_view scheme,
                   const OptionValues& values) {
  plan.scheme = scheme;
  plan.options.insert(values.set().begin(), values.set().end());
  compress_gradients(plan, values.compression());
  plan.workload_hash = hash_of(workload);
  plan.cluster_hash = hash_of(cluster);
  plan.workers = cluster.workers;
}

PlanResult make_plan(std::string_view name, const Workload& workload, const Cluster& cluster,
                     const std::map<std::string, std::string>& options) {
  const SchemeInfo& scheme = find_scheme(name);
  const OptionValues values = check_options(name, options);
  check(workload);
  check(cluster);
  PlanResult result = scheme.plan(workload, cluster, values);
  if (Plan* plan = std::get_if<Plan>(&result)) complete_plan(*plan, workload, cluster, scheme.name, values);
  return result;
}

}  // namespace gradweave
