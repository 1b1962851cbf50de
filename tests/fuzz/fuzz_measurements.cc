// Any bytes are measurements that can be judged, or InvalidInput with a bounded message.
#include "gradweave/preserve.h"
#include "reader.h"

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
  return check_input(data, size, [](std::string_view text) {
    if (judge(plan, workload, parse_measurements(text)).blocks.size() != 1) std::abort();
  });
}
