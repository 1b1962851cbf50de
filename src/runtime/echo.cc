#include "runtime/echo.h"

#include <ATen/core/ivalue.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "gradweave/collective.h"
#include "runtime/transport/transport.h"

namespace gradweave::runtime {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kBytes =
    65'536;  // between a start-up and a tenth of a second on all but the slowest links

}  // namespace

Echo::Echo(LinkSpec spec, LinkOptions options)
    : spec_(std::move(spec)),
      options_(std::move(options)),
      message_(at::zeros({kBytes / 4}, at::kFloat)),
      taken_ns_(std::make_shared<std::atomic<double>>(std::numeric_limits<double>::infinity())) {}

void Echo::start() {
  if (spec_.group && backend_of(*spec_.group, c10::kCPU).name != "gloo")
    return;  // others need not say when they end
  const Clock::time_point begin = Clock::now();
  Clock::duration least{};
  if (spec_.emulation)
    least = EmulatedLink(spec_.emulation).end_of(Collective::kAllReduce, kBytes, 2, begin) - begin;
  const auto ns = [](Clock::duration time) {
    return static_cast<double>(std::chrono::nanoseconds(time).count());
  };
  if (!spec_.group) {
    *taken_ns_ = ns(least);
    return;
  }
  *taken_ns_ = 0;
  std::vector<at::Tensor> tensors{message_};
  c10d::AllreduceOptions how;
  how.timeout = options_.timeout;
  const auto ended = [taken = taken_ns_, begin, least, ns](c10::ivalue::Future& future) {
    if (!future.hasError()) *taken = ns(std::max(least, Clock::now() - begin));
  };
  spec_.group->allreduce(tensors, how)->getFuture()->addCallback(ended);
}

}  // namespace gradweave::runtime
