#include "jobs/engine_job.h"

#include <algorithm>
#include <cmath>

#include "gradweave/error.h"
#include "gradweave/ranked_plans.h"
#include "runtime/probe.h"
#include "runtime/rates.h"
#include "runtime/runnable.h"

namespace gradweave::runtime {

std::unique_ptr<control::Job::Exchange> EngineJob::begin_smallest(const std::string& what,
                                                                  const std::vector<double>& values) {
  struct Beside : Exchange {
    std::function<std::vector<double>()> ended;
    std::vector<double> wait() override { return ended(); }
  };
  auto exchange = std::make_unique<Beside>();
  exchange->ended = messages_->begin_smallest(values, what);
  return exchange;
}

void EngineJob::begin_profile(int iterations) {
  profiles(true);
  engine_.run(&run::Run::begin_profile, iterations);
}

run::LayerTimes EngineJob::end_profile() {
  profiles(false);
  return engine_.run(&run::Run::end_profile);
}

void EngineJob::echo_on(const std::vector<std::string>& links) {
  echoes_.clear();
  for (const std::string& link : links) echoes_.push_back(engine_.echo(link));
}

void EngineJob::start_echoes() {
  for (Echo& echo : echoes_) echo.start();
}

std::vector<double> EngineJob::echo_ns() {
  std::vector<double> taken;
  for (const Echo& echo : echoes_) taken.push_back(echo.taken_ns());
  return taken;
}

double EngineJob::learning_rate() { return std::ranges::max(learning_rates()); }

control::Costs EngineJob::measured(const Workload& workload, const std::string& scheme,
                                   const std::map<std::string, std::string>& options, double seconds) const {
  control::JobLinks names;
  for (const LinkSpec& link : engine_.links()) {
    if (link.level == Level::kAll) names.links.push_back(link.name);
    if (link.level == Level::kInside) names.inside.push_back(link.name);
    names.workers_per_node = std::max(names.workers_per_node, link.shards);
  }
  const bool gains = control::may_average_gains({scheme, options}, workload, names, size_);
  if (gains) engine_.open_controls();
  const auto found_of = [&](bool of_gains) {
    // The processor works on averages of gains.
    const c10::Device device = of_gains ? c10::Device(c10::kCPU) : engine_.device();
    ClusterFound found =
        measure_cluster(engine_.links(), size_, engine_.device(), of_gains, seconds, *peers_, *messages_);
    for (const auto& [name, rate] : compressor_rates(scheme, options, workload, size_, device)) {
      found.cluster.compressor_rates[name] = {
          decimal_from_double(rate.encode_us_per_byte, "encode_us_per_byte"),
          decimal_from_double(rate.decode_us_per_byte, "decode_us_per_byte")};
    }
    return found;
  };
  const bool by_auto = scheme == kAuto;
  auto [usual, contention, burst] = found_of(gains && !by_auto);
  control::Costs costs{.usual = std::move(usual)};
  if (gains && by_auto && !engine_.device().is_cpu()) {
    ClusterFound staged = found_of(true);
    costs.staged = std::move(staged.cluster);
    contention = std::max(contention, staged.contention);
    burst = std::min(burst, staged.burst);
  }
  costs.overheads.contention = decimal_from_double(std::round(1000 * contention) / 1000, "contention");
  costs.overheads.burst_ns = burst;
  return costs;
}

void EngineJob::backward_ended() {
  if (!comparison_.comparing()) return;
  if (comparison_.late()) {
    comparison_.backward_ended(learning_rates());
  } else if (engine_.run(&run::Run::reduced)) {
    comparison_.backward_ended({});
  }
}

void EngineJob::optimizer_stepped() {
  if (comparison_.wants_moments()) comparison_.iteration_ended(moments());
}

control::Unrunnable unrunnable_on(int size, c10::Device device) {
  return [size, device](const Plan& plan, const Workload& workload) -> std::string {
    try {
      runnable_plan(plan, workload, size, device);
      return "";
    } catch (const InvalidInput& error) {
      return error.what();
    }
  };
}

}  // namespace gradweave::runtime
