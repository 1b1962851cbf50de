#include "report/fault_rows.h"

#include <algorithm>
#include <cmath>

#include "gradweave/error.h"
#include "simulate/faults.h"

namespace gradweave {
namespace {

// A step of each side, and one to begin or to land; and four messages (src/islands/council.h).
constexpr double kAgreeSteps = 3, kAgreeMessages = 4;

// How islands use the first link: each sends to all others at once.
struct IslandLine {
  double bytes_per_s = 0;
  double message_s = 0;  // until an empty message has come
};

IslandLine line_of(const Cluster& cluster) {
  const auto workers = static_cast<double>(participants(cluster));
  const Link& link = cluster.links.front();
  if (workers < 2) {
    throw InvalidInput("has one worker, and no rate between two", "the cluster",
                       "give one of two workers or more");
  }
  // A ring moves 2 (P-1)/P bytes for each byte, in 2 (P-1) messages one after another; a tree in 2 log2 P.
  const double us_per_byte = to_double(link.us_per_byte) * workers / (2 * (workers - 1));
  double messages = 2;
  if (cluster.startup_growth == StartupGrowth::kLinear) messages = 2 * (workers - 1);
  if (cluster.startup_growth == StartupGrowth::kLog) messages = 2 * std::log2(workers);
  const double lines =
      has_levels(cluster) && link.each_worker ? static_cast<double>(cluster.workers_per_node) : 1;
  return {.bytes_per_s = lines * 1e6 / us_per_byte,
          .message_s = static_cast<double>(link.startup_ns) / 1e9 / messages};
}

}  // namespace

FaultReport under_faults(const Setting& setting, const FaultOptions& options,
                         std::optional<std::int64_t> batch_size) {
  const WorkloadIndex index(setting.slowest);
  std::int64_t elements = 0;
  for (const TensorPlace& tensor : index.tensors) elements += tensor.numel;
  if (elements == 0)
    throw InvalidInput("has no tensors, and nothing to average", "the workload",
                       "give one that lists its tensors");
  const IslandLine line = line_of(setting.cluster);

  FaultReport report{.options = options};
  report.faults = {.workers = options.islands,
                   .mtbf_s = options.mtbf_s,
                   .recovery_s = options.recovery_s,
                   .detection_s = options.detection_s,
                   .epoch_s = options.epoch_s};
  report.traffic = average_traffic(elements, options.compressor, options.islands);
  report.state_bytes = options.state_bytes.value_or(3 * static_cast<double>(index.total_bytes));
  const double state_s = report.state_bytes / line.bytes_per_s + 2 * line.message_s;
  const double step_s = options.step_s.value_or(
      static_cast<double>(index.compute_total + setting.simulation.optimizer_ns) / 1e9);
  if (!(step_s > 0))
    throw InvalidInput("computes in no time, and a step takes some", "the workload",
                       "give one with times, or --step");
  const double average_s =
      options.average_s.value_or((2 + kAgreeMessages) * line.message_s + kAgreeSteps * step_s +
                                 static_cast<double>(report.traffic.bytes) / line.bytes_per_s +
                                 2 * static_cast<double>(report.traffic.messages) * options.message_s);
  report.training = {.step_s = step_s,
                     .period = options.period,
                     .average_s = average_s,
                     .state_s = state_s,
                     .checkpoint_every_s = options.checkpoint_every_s,
                     .restart_s = options.restart_s.value_or(state_s)};
  report.checkpoints = {
      .every_s = std::max(options.checkpoint_every_s, step_s),  // one is written after a step
      .write_s = options.write_s.value_or(state_s),
      .restart_s = options.restart_s.value_or(state_s)};
  report.least_mtbf_s = least_mtbf_s(report.faults, report.training);
  const auto islands = static_cast<double>(options.islands);
  report.epochs_a_day = 2 * islands / (options.mtbf_s + away_s(report.faults)) * kDaySeconds;
  report.gives = state_s / options.mtbf_s;

  const auto add = [&](FaultRow row, double iteration_s) {
    row.efficiency = row.simulated.share * step_s / iteration_s;
    if (batch_size) {
      row.samples_per_second = row.simulated.share * islands * static_cast<double>(*batch_size) / iteration_s;
    }
    report.rows.push_back(std::move(row));
  };
  const IslandGoodput simulated = simulate_islands(report.faults, report.training);
  add({.way = FaultRow::Way::kIslands,
       .simulated = simulated,
       .expected = expected_islands(report.faults, report.training),
       .islands = simulated},
      step_s);
  CheckpointTraining training = report.checkpoints;
  add({.way = FaultRow::Way::kCheckpoints,
       .simulated = simulate_restarts(report.faults, training),
       .expected = expected_restarts(report.faults, training),
       .every_s = training.every_s},
      step_s);
  training.every_s = std::max(best_checkpoint_s(report.faults, training.write_s), step_s);
  add({.way = FaultRow::Way::kBestCheckpoints,
       .simulated = simulate_restarts(report.faults, training),
       .expected = expected_restarts(report.faults, training),
       .every_s = training.every_s},
      step_s);

  Setting each = setting;
  const std::int64_t per_node = has_levels(setting.cluster) ? setting.cluster.workers_per_node : 1;
  each.cluster = scaled_to(setting.cluster, options.islands * per_node);
  const Row ddp = compare_one("ddp", each, CommonOptions());
  if (!ddp.result) {
    report.rows.push_back({.way = FaultRow::Way::kQuorum, .infeasible = ddp.infeasible});
    return report;
  }
  // What a step takes more than computation, it takes more than a step that was measured.
  const double iteration_s = step_s + ddp.result->exposed_ns / 1e9;
  add({.way = FaultRow::Way::kQuorum,
       .simulated = simulate_quorum(report.faults, iteration_s, state_s),
       .expected = expected_quorum(report.faults, iteration_s, state_s)},
      iteration_s);
  return report;
}

}  // namespace gradweave
