#include "runtime/probe.h"

#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <torch/version.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "base/statistics.h"
#include "gradweave/decimal.h"
#include "runtime/device_stopwatch.h"
#include "runtime/transport/transport.h"

namespace gradweave::runtime {
namespace {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr int kTrains = 11;
constexpr double kAlone_s = 0.04;   // of computing, before each train that it is compared with, at most
constexpr std::size_t kFewest = 3;  // sizes that are measured on any link
// Of the measurement of bursts: the most pauses, how many for each second of the probe, how long they are, and what is sent after
// them at least and at most.
constexpr int kPauses = 9, kPausesInSecond = 6;
constexpr std::chrono::milliseconds kPause{20};
constexpr double kLeastSent_us = 10e3, kMostSent_us = 100e3;
constexpr const char* kComparison = "the comparison of links";

// Collectives on one buffer.
class Train {
 public:
  Train(const Group& group, c10::Device device, const Probe& probe, std::int64_t bytes, double least_s)
      : group_(group),
        collective_(probe.collective),
        steps_(probe.steps),
        least_s_(least_s),
        stopwatch_(stopwatch_of(device)),
        flat_(at::zeros({std::max<std::int64_t>(1, bytes / 4)},
                        at::TensorOptions(at::kFloat).device(device))) {}

  std::int64_t bytes() const { return static_cast<std::int64_t>(flat_.nbytes()); }

  // Returns the seconds of each of `count` ops, one after another, after a first one.
  double run(int count) {
    run();
    return go_on(count);
  }

  // Returns the seconds of each of `count` ops, one after another.
  double go_on(int count) {
    const std::int64_t begin = stopwatch_->now();
    Clock::time_point now = Clock::now();
    for (int i = 0; i < count; ++i) {
      run();
      if (least_s_ == 0) continue;
      std::this_thread::sleep_until(now + std::chrono::duration_cast<Clock::duration>(Seconds(least_s_)));
      now = Clock::now();
    }
    const std::int64_t end = stopwatch_->now();
    stopwatch_->await(end);
    const auto ns = static_cast<double>(stopwatch_->between(begin, end));
    stopwatch_->forget(begin);
    stopwatch_->forget(end);
    return ns / 1e9 / count;
  }

 private:
  void run() {
    start({.group = *group_,
           .flat = flat_,
           .collective = collective_,
           .sequence = sequence_++,
           .timeout = c10d::kUnsetTimeout})  // the group's own
        ->wait();
    if (steps_) ++*steps_;
  }

  const Group& group_;
  Collective collective_;
  std::shared_ptr<std::atomic<std::int64_t>> steps_;
  double least_s_;
  std::unique_ptr<run::Stopwatch> stopwatch_;
  at::Tensor flat_;
  std::size_t sequence_ = 0;
};

double agreed(const Group& group, c10::Device device, double value, const c10d::ReduceOp& op) {
  std::vector<at::Tensor> box{at::full({1}, value, at::TensorOptions(at::kDouble).device(device))};
  c10d::AllreduceOptions options;
  options.reduceOp = op;
  group->allreduce(box, options)->wait();
  return box.front().item<double>();
}

// Returns the mean of the middle half.
double middle_mean(std::vector<double> values) {
  std::ranges::sort(values);
  const auto cut = static_cast<std::ptrdiff_t>(values.size() / 4);
  const auto rest = static_cast<double>(values.size()) - 2 * static_cast<double>(cut);
  return std::accumulate(values.begin() + cut, values.end() - cut, 0.0) / rest;
}

// Returns the seconds of an op, the slowest rank's, by trains of 2, 4, 8, ... until one takes `least_s`.
double seconds_of_one(Train& train, const Group& group, c10::Device device, double least_s) {
  for (int ops = 2;; ops *= 2) {
    const double once = agreed(group, device, train.run(ops), c10d::ReduceOp::MAX);
    if (ops * once >= least_s) return once;
  }
}

// Returns burst_of() by messages of the first size that takes long enough, or of the largest; 0 where they take too long. `times`: of
// messages, by size, one or more; the same on all ranks.
double burst_after_pauses(const Group& group, c10::Device device, const Probe& probe,
                          const std::vector<Measurement>& times) {
  const auto enough =
      std::ranges::find_if(times, [](const Measurement& each) { return each.us >= kLeastSent_us; });
  const Measurement& sent = enough == times.end() ? times.back() : *enough;
  if (sent.us > kMostSent_us) return 0;
  Train train(group, device, probe, sent.bytes, 0);
  const double pause_us = std::chrono::duration<double, std::micro>(kPause).count();
  const int emptying = static_cast<int>(std::ceil(pause_us / sent.us));
  const int pauses = std::clamp(static_cast<int>(kPausesInSecond * probe.seconds), 1, kPauses);
  std::vector<double> rested, following;
  for (int n = 0; n < pauses; ++n) {
    std::this_thread::sleep_for(kPause);
    agreed(group, device, 0, c10d::ReduceOp::MAX);  // they begin together
    rested.push_back(1e6 * train.go_on(1));
    train.go_on(emptying);
    for (int i = 0; i < 2; ++i) following.push_back(1e6 * train.go_on(1));
  }
  return agreed(group, device, burst_of(std::move(rested), std::move(following)), c10d::ReduceOp::MIN);
}

// Returns the pieces of work a second that are done during `part`.
template <typename Part>
double pace_of(const Computing& computing, const Part& part) {
  const std::int64_t before = computing.pieces();
  const Clock::time_point begin = Clock::now();
  part();
  return static_cast<double>(computing.pieces() - before) / Seconds(Clock::now() - begin).count();
}

// Makes each cost the largest of all ranks'.
void take_largest(Cluster& cluster, const ControlGroup& ranks) {
  std::vector<std::pair<Nanoseconds*, Decimal*>> lines;
  const auto add = [&](Link& link) {
    lines.emplace_back(&link.startup_ns, &link.us_per_byte);
    if (!link.halves) return;
    for (Line* half : {&link.halves->reduce_scatter, &link.halves->all_gather})
      lines.emplace_back(&half->startup_ns, &half->us_per_byte);
  };
  std::ranges::for_each(cluster.links, add);
  if (cluster.inside) std::ranges::for_each(cluster.inside->links, add);
  std::vector<double> costs;
  for (const auto& [startup_ns, us_per_byte] : lines) {
    costs.push_back(static_cast<double>(*startup_ns));
    costs.push_back(to_double(*us_per_byte));
  }
  costs = ranks.largest(costs, kComparison);
  for (std::size_t n = 0; n < lines.size(); ++n) {
    *lines[n].first = std::llround(costs[2 * n]);
    *lines[n].second = decimal_from_double(costs[2 * n + 1], "us_per_byte");
  }
}

}  // namespace

Computing::Computing()
    : thread_(
          [this, threads = at::get_num_threads()] {
            at::set_num_threads(threads);  // OpenMP has a number for each thread
            constexpr std::int64_t kWidth = 256;
            const at::Tensor left = at::ones({kWidth, kWidth}), right = at::ones({kWidth, kWidth});
            at::Tensor product = at::ones({kWidth, kWidth});
            for (; !done_; ++pieces_) at::mm_out(product, left, right);
          },
          [](const std::string& why) { TORCH_WARN("links are measured on idle processors: ", why); }) {}

Computing::~Computing() {
  done_ = true;
  thread_.join();
}

Found measure(const Group& group, c10::Device device, const Probe& probe) {
  std::optional<Computing> computing;
  if (device.is_cpu() && probe.beside_compute) computing.emplace();
  const bool emulated = probe.startup_us > 0 || probe.us_per_byte > 0;
  struct Size {
    Train train;
    int trains, ops;  // ops of a train
    std::vector<double> times;
  };
  std::vector<Size> sizes;
  const double share = probe.seconds / static_cast<double>(probe.bytes.size());
  for (const std::int64_t bytes : probe.bytes) {
    const double whole_s = (probe.startup_us + static_cast<double>(bytes) * probe.us_per_byte) / 1e6;
    const double least_s = !emulated ? 0 : probe.collective == Collective::kAllReduce ? whole_s : whole_s / 2;
    Train train(group, device, probe, bytes, least_s);
    const double once = seconds_of_one(train, group, device, share / 8);
    const int total = static_cast<int>(std::clamp<double>(share / once, 2, std::max(2, probe.repeats)));
    const int trains = std::min(kTrains, total / 2);
    sizes.push_back({std::move(train), trains, total / trains, {}});
    // On a link so slow, larger ones would take minutes.
    if (share < once && sizes.size() >= std::max(kFewest, probe.bytes.size() / 2)) break;
  }
  std::vector<double> slower;  // by large messages
  for (int round = 0; round < kTrains; ++round) {
    for (std::size_t n = 0; n < sizes.size(); ++n) {
      Size& size = sizes[n];
      if (round >= size.trains) continue;
      const auto run = [&] { size.times.push_back(size.train.run(size.ops)); };
      if (!computing || probe.collective != Collective::kAllReduce || 2 * n < sizes.size()) {
        run();
        continue;
      }
      agreed(group, device, 0, c10d::ReduceOp::MAX);  // no rank sends any more
      const double alone =
          pace_of(*computing, [&] { std::this_thread::sleep_for(Seconds(std::min(kAlone_s, share / 4))); });
      const double beside = pace_of(*computing, run);
      if (beside > 0) slower.push_back(alone / beside);
    }
  }
  Found found;
  for (Size& size : sizes) {
    const double slowest = agreed(group, device, middle_mean(std::move(size.times)), c10d::ReduceOp::MAX);
    found.times.push_back({size.train.bytes(), 1e6 * slowest});
  }
  if (!slower.empty()) found.contention = std::max(1.0, median_of(std::move(slower)));
  computing.reset();
  if (probe.burst) found.burst_us = burst_after_pauses(group, device, probe, found.times);
  return found;
}

LinkFound measure_link(const std::string& name, const Group& group, c10::Device device, const Probe& probe,
                       Peers* peers) {
  LinkFound result{.link = {.name = name}};
  const auto times = [&](Collective collective, std::size_t every, double share) {
    Probe one = probe;
    one.collective = collective;
    one.seconds *= share;
    one.bytes.clear();
    one.burst = probe.burst && collective == Collective::kAllReduce;
    for (std::size_t i = 0; i < kProbeBytes.size(); i += every) one.bytes.push_back(kProbeBytes[i]);
    const auto found = std::make_shared<Found>();  // of a thread that may outlive this call
    if (peers == nullptr) {
      *found = measure(group, device, one);
    } else {
      one.steps = std::make_shared<std::atomic<std::int64_t>>(0);
      peers->together("the probe of a link", [=] { *found = measure(group, device, one); },
                      {.steps = one.steps});
    }
    if (collective == Collective::kAllReduce) {
      result.contention = found->contention;
      result.burst_us = found->burst_us;
    }
    return found->times;
  };
  result.link.all_reduce = times(Collective::kAllReduce, 1, 0.5);
  result.link.reduce_scatter = times(Collective::kReduceScatter, 2, 0.25);
  result.link.all_gather = times(Collective::kAllGather, 2, 0.25);
  return result;
}

ClusterMeasurements nothing_measured(int workers, const std::string& description) {
  return {.workers = workers, .description = description, .source = "measured with torch " TORCH_VERSION};
}

ClusterFound measure_cluster(const std::vector<LinkSpec>& links, int workers, c10::Device device, bool gains,
                             double seconds, Peers& peers, const ControlGroup& planners) {
  struct Used {
    const LinkSpec& spec;
    std::optional<LinkFound> found;  // nothing where the costs are given
  };
  std::vector<Used> used;
  const auto in_levels = [](const LinkSpec& link) { return link.level != Level::kAll; };
  const bool levels = std::ranges::any_of(links, in_levels);
  double contention = 1, burst_us = std::numeric_limits<double>::infinity();
  for (const LinkSpec& link : links) {
    if (in_levels(link) != levels) continue;
    Used& each = used.emplace_back(Used{link, std::nullopt});
    if (workers > 1 && !link.emulation) {
      const bool on_host = gains && link.control;
      const Probe probe{.seconds = seconds, .beside_compute = !on_host, .burst = true};
      each.found = measure_link(link.name, on_host ? link.control : link.group,
                                on_host ? c10::Device(c10::kCPU) : device, probe, &peers);
      contention = std::max(contention, each.found->contention);
    }
    burst_us = std::min(burst_us, each.found ? each.found->burst_us : 0);
  }
  if (used.empty()) burst_us = 0;
  const std::vector<double> agreed = planners.largest({contention, -burst_us}, kComparison);
  contention = agreed[0], burst_us = -agreed[1];

  ClusterMeasurements measured = nothing_measured(workers, std::to_string(workers) + " workers");
  Cluster cluster{
      .workers = measured.workers, .description = measured.description, .source = measured.source};
  if (levels) cluster.inside.emplace();
  for (Used& each : used) {
    const LinkSpec& spec = each.spec;
    Link cost{.name = spec.name, .startup_ns = 1000};
    if (spec.emulation) {
      cost.startup_ns = spec.emulation->startup_ns;
      cost.us_per_byte = decimal_from_double(spec.emulation->us_per_byte, spec.name);
    } else if (each.found) {
      measured.links = {without_burst(std::move(each.found->link), burst_us)};
      cost = fit_cluster(measured).cluster.links.front();
      cost.each_worker = spec.level == Level::kBetween;
    }
    cluster.workers_per_node = std::max<std::int64_t>(cluster.workers_per_node, spec.shards);
    (spec.level == Level::kInside ? cluster.inside->links : cluster.links).push_back(std::move(cost));
  }
  take_largest(cluster, planners);
  return {std::move(cluster), contention, std::llround(1e3 * burst_us)};
}

}  // namespace gradweave::runtime
