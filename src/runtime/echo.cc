#include "runtime/echo.h"

#include <ATen/core/ivalue.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "gradweave/collective.h"
#include "runtime/fence.h"
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
      message_(at::zeros({kBytes / 4}, at::TensorOptions(at::kFloat).device(options_.device))),
      taken_ns_(std::make_shared<std::atomic<double>>(std::numeric_limits<double>::infinity())) {
  if (!returns_at_once(spec_, options_)) return;
  stream_ = OwnStream::new_stream(options_.device);
  message_.record_stream(*stream_);  // this may end while it is on its way
  stopwatch_ = std::make_unique<DeviceStopwatch>(options_.device);
}

void Echo::start() { stream_ ? start_on_device() : start_on_host(); }

double Echo::taken_ns() const {
  if (last_.end == 0) return *taken_ns_;
  if (!stopwatch_->passed(last_.end)) return 0;
  return static_cast<double>(stopwatch_->between(last_.begin, last_.end));
}

void Echo::start_on_device() {
  const OwnStream own(*stream_);
  stopwatch_->forget(last_.begin);
  stopwatch_->forget(last_.end);
  last_.begin = stopwatch_->now();
  runtime::start({.group = *spec_.group, .flat = message_, .timeout = options_.timeout})->wait();
  last_.end = stopwatch_->now();
}

void Echo::start_on_host() {
  if (spec_.group && backend_of(*spec_.group, options_.device).name != "gloo")
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
