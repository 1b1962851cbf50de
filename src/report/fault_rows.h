// What workers that die leave of training: one row for each way to go on.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gradweave/goodput.h"
#include "report/rows.h"

namespace gradweave {

// What no file knows. Times in seconds; what is nothing comes from the workload and the cluster.
struct FaultOptions {
  double mtbf_s = 0;
  std::int64_t islands = 2;
  std::int64_t period = 8;          // as in wrap(between=)
  std::string compressor = "int4";  // the same
  double recovery_s = 300;
  double detection_s = 10;  // the lease of `gradweave meet`
  double epoch_s = 1;
  double message_s = 0;  // of a processor, for each message of an average that an island sends or receives
  double checkpoint_every_s = 600;
  std::optional<double> step_s;       // computation
  std::optional<double> average_s;    // messages of the link
  std::optional<double> state_bytes;  // three times the parameters, as with Adam
  std::optional<double> write_s;      // of a checkpoint; the state over the link
  std::optional<double> restart_s;    // the same
};

// One way to go on.
struct FaultRow {
  enum class Way : std::uint8_t { kIslands, kCheckpoints, kBestCheckpoints, kQuorum };
  Way way{};
  Goodput simulated, expected;
  double efficiency = 0;                     // goodput, times compute over iteration time without faults
  std::optional<double> samples_per_second;  // useful ones of all
  std::optional<IslandGoodput> islands;      // kIslands: simulated
  std::optional<double> every_s;             // kCheckpoints, kBestCheckpoints
  std::string infeasible;                    // kQuorum: there is no plan, and no figures
};

struct FaultReport {
  FaultOptions options;
  Faults faults;
  IslandTraining training;
  CheckpointTraining checkpoints;
  AverageTraffic traffic;
  double state_bytes = 0;
  double least_mtbf_s = 0;  // of the islands
  double epochs_a_day = 0;  // at most: each death and each return makes one
  double gives = 0;  // share of its time in which an island gives the state to others; 1: that is all it does
  std::vector<FaultRow> rows;
};

// Returns what islands over the setting's first link reach, each of the cluster's nodes or workers being one, a job of the same
// averages that restarts from checkpoints, and one of scheme `ddp` that agrees at each step. An island computes as the slowest
// class of workers; what is inside it communicates for nothing. Errors: InvalidInput for options out of range, for a workload
// without tensors and a cluster of one.
FaultReport under_faults(const Setting& setting, const FaultOptions& options,
                         std::optional<std::int64_t> batch_size);

}  // namespace gradweave
