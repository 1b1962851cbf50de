// Speed of the planners, with growth in the number of tensors: plan/SCHEME/LINKS/tensors. What the schemes
// cost together: choose/auto and compare/all.
//
//   LINKS   one, two   each serves one op at a time; coverage rate about 1 on the first
//           fluid      one on which any number of ops share the bandwidth
//           slow       two, a hundred times slower
#include <benchmark/benchmark.h>

#include <filesystem>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "gradweave/json.h"
#include "gradweave/schemes.h"
#include "gradweave/simulate.h"
#include "workloads.h"

namespace gradweave {
namespace {

using Options = std::map<std::string, std::string>;

constexpr std::int64_t kSizes[] = {30, 100, 300, 1000, 3000};
constexpr std::int64_t kSizeOfChoice = 400;
constexpr const char* kEverything = "exact+corrected+local+compressed+delayed";

struct Links {
  std::string name;
  Cluster cluster;
};

const std::vector<Links>& all_links() {
  static const std::vector<Links> links = [] {
    std::vector<Links> made = {{"one", bench::cluster()},
                               {"two", bench::cluster(2)},
                               {"fluid", bench::cluster(1, 0)},
                               {"slow", bench::cluster(2)}};
    for (Link& link : made.back().cluster.links) link.us_per_byte.scale -= 2;
    return made;
  }();
  return links;
}

void BM_Plan(benchmark::State& state, const std::string& scheme, const Links& links, const Options& options) {
  const Workload workload = bench::workload(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(make_plan(scheme, workload, links.cluster, options));
}

// Whatever a scheme searches by default is measured under its own name; `fixed` is the scheme without it.
void register_plans(const std::string& scheme, const std::string& name, const Options& options) {
  for (const Links& links : all_links()) {
    auto* entry = benchmark::RegisterBenchmark(
        ("plan/" + name + "/" + links.name).c_str(),
        [&links, scheme, options](benchmark::State& state) { BM_Plan(state, scheme, links, options); });
    for (const std::int64_t size : kSizes) entry->Arg(size);
    entry->Unit(benchmark::kMicrosecond);
  }
}

void BM_Auto(benchmark::State& state, const Links& links) {
  const Workload workload = bench::workload(state.range(0));
  for (auto _ : state)
    benchmark::DoNotOptimize(make_plan("auto", workload, links.cluster, {{"allow", kEverything}}));
}

// Every scheme planned and simulated, as `gradweave compare` does.
void BM_Compare(benchmark::State& state, const Links& links) {
  const std::filesystem::path source = GRADWEAVE_SOURCE_DIR;
  const Workload workload = read_workload(source / "examples/workloads/bert-large.json");
  for (auto _ : state) {
    for (const SchemeInfo& scheme : schemes()) {
      const PlanResult planned = make_plan(scheme.name, workload, links.cluster);
      if (const Plan* plan = std::get_if<Plan>(&planned))
        benchmark::DoNotOptimize(simulate(*plan, workload, links.cluster).cycle_ns);
    }
  }
}

// Every scheme of the registry, so that a new one is measured without a line here.
const int registered = [] {
  for (const SchemeInfo& scheme : schemes()) {
    const std::string name(scheme.name);
    if (!scheme.chooses && name != "optimal") register_plans(name, name, {});
  }
  register_plans("dear", "dear fixed", {{"buffer_bytes", "26214400"}});
  register_plans("bytescheduler", "bytescheduler fixed",
                 {{"partition_bytes", "4194304"}, {"credit_bytes", "16777216"}});
  for (const Links& links : all_links()) {
    benchmark::RegisterBenchmark(("choose/auto/" + links.name).c_str(),
                                 [&links](benchmark::State& state) { BM_Auto(state, links); })
        ->Arg(kSizeOfChoice)
        ->Unit(benchmark::kMicrosecond);
    benchmark::RegisterBenchmark(("compare/bert-large/" + links.name).c_str(), [&links](
                                                                                   benchmark::State& state) {
      BM_Compare(state, links);
    })->Unit(benchmark::kMicrosecond);
  }
  return 0;
}();

}  // namespace
}  // namespace gradweave
