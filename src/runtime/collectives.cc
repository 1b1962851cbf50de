#include "runtime/collectives.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <functional>

#include "gradweave/error.h"

namespace gradweave::runtime {

std::unique_ptr<Pending> start_collective(c10d::ProcessGroup& group, OpRun& run, std::size_t sequence,
                                          const LinkOptions& options) {
  return start({.group = group,
                .flat = run.flat,
                .collective = run.op->collective,
                .sequence = sequence,
                .timeout = options.timeout});
}

void check_before(c10d::ProcessGroup& group, const OpRun& run, std::size_t sequence, const std::string& hash,
                  const LinkOptions& options) {
  const auto plan = static_cast<std::int64_t>(std::hash<std::string>{}(hash));
  const std::array<std::int64_t, 3> mine{plan, static_cast<std::int64_t>(sequence), run.op->bytes};
  at::Tensor sent = at::empty({3}, at::kLong);
  std::copy(mine.begin(), mine.end(), sent.mutable_data_ptr<std::int64_t>());
  std::vector<std::vector<at::Tensor>> received(1);
  for (int r = 0; r < group.getSize(); ++r) received[0].push_back(at::empty({3}, at::kLong));
  std::vector<at::Tensor> inputs{sent};
  c10d::AllgatherOptions how;
  how.timeout = options.timeout;
  group.allgather(received, inputs, how)->wait();
  static constexpr std::array kNames{"plan", "sequence number", "size in bytes"};
  for (int r = 0; r < group.getSize(); ++r) {
    const auto* theirs = received[0][static_cast<std::size_t>(r)].const_data_ptr<std::int64_t>();
    for (std::size_t i = 0; i < mine.size(); ++i) {
      if (theirs[i] == mine[i]) continue;
      throw RuntimeFailure("rank " + std::to_string(r) + " is about to start another op: its " + kNames[i] +
                           " is " + std::to_string(theirs[i]) + ", here it is " + std::to_string(mine[i]));
    }
  }
}

}  // namespace gradweave::runtime
