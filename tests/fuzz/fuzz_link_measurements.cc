// Any bytes are measurements that can be fitted, or InvalidInput with a bounded message.
#include "reader.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gradweave;
  return check_input(data, size, [](std::string_view text) {
    const ClusterFit fit = fit_cluster(parse_link_measurements(text));
    if (fit.lines.size() < fit.cluster.links.size()) std::abort();
    check_round_trip(fit.cluster, parse_cluster);
  });
}
