// Any bytes are measurements that can be judged, or InvalidInput with a bounded message.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "gradweave/error.h"
#include "gradweave/json.h"
#include "gradweave/preserve.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gradweave;
  static const Workload workload{
      .layers = {{.name = "a", .forward_ns = 1, .backward_ns = 1, .tensors = {{.name = "a", .numel = 2}}}}};
  static const Plan plan{
      .blocks = {{"a", 0, 2}},
      .links = {{.name = "n"}},
      .period = {
          {},
          {.ops = {{.link = "n", .blocks = {0}, .merges = {-1, 0}}},
           .applies = {{.at = {.kind = PointKind::kIterationEnd}, .blocks = {0}, .merges = {-1, 0}}}}}};
  try {
    const Judgement judgement = judge(
        plan, workload, parse_measurements(std::string_view(reinterpret_cast<const char*>(data), size)));
    if (judgement.blocks.size() != 1) std::abort();
  } catch (const InvalidInput& error) {
    if (std::string_view(error.what()).size() >= 20'000) std::abort();
  }
  return 0;
}
