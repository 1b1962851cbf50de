#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "gradweave/error.h"
#include "gradweave/json.h"
#include "testing/generators.h"

namespace gradweave {
namespace {

RC_GTEST_PROP(JsonProperty, WorkloadsRoundTrip, ()) {
  const Workload workload = *testing::workloads();
  const std::string text = to_json(workload);
  RC_ASSERT(parse_workload(text) == workload);
  RC_ASSERT(to_json(parse_workload(text)) == text);
}

RC_GTEST_PROP(JsonProperty, ClustersRoundTrip, ()) {
  Cluster cluster = *testing::clusters({.halves = true});
  cluster.compressor_rates["fp16"] = {*testing::decimals(999'999'999), *testing::decimals(999'999'999)};
  const std::string text = to_json(cluster);
  RC_ASSERT(parse_cluster(text) == cluster);
  RC_ASSERT(to_json(parse_cluster(text)) == text);
}

RC_GTEST_PROP(JsonProperty, TextsRoundTrip, ()) {
  Workload workload = *testing::workloads({.max_layers = 1});
  workload.name = *rc::gen::container<std::string>(rc::gen::inRange<char>(0, 127));
  workload.description = *rc::gen::container<std::string>(rc::gen::inRange<char>(1, 127));
  RC_ASSERT(parse_workload(to_json(workload)) == workload);
}

// Damages a valid file: the reader accepts it or says what is wrong, and never anything else.
RC_GTEST_PROP(JsonProperty, DamagedFilesAreRefusedOrRead, ()) {
  std::string text = to_json(*testing::workloads());
  const int damages = *rc::gen::inRange(1, 4);
  for (int i = 0; i < damages; ++i) {
    const std::size_t at = *rc::gen::inRange<std::size_t>(0, text.size());
    switch (*rc::gen::inRange(0, 3)) {
      case 0:
        text[at] = static_cast<char>(*rc::gen::inRange(0, 256));
        break;
      case 1:
        text.erase(at, *rc::gen::inRange<std::size_t>(1, 20));
        break;
      default:
        text.insert(at, text.substr(*rc::gen::inRange<std::size_t>(0, text.size()), 10));
    }
    RC_PRE(!text.empty());
  }
  try {
    const Workload workload = parse_workload(text);
    RC_ASSERT(parse_workload(to_json(workload)) == workload);
  } catch (const InvalidInput& error) {
    RC_ASSERT(!error.fault().empty());
    RC_ASSERT(std::string_view(error.what()).size() < 20'000U);
  }
}

}  // namespace
}  // namespace gradweave
