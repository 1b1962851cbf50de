// What is left of training where workers die: useful samples a second over those without faults. Three ways to go on: islands that
// average with each other and come and go (docs/islands.md), a job that starts again from checkpoints, and one that goes on
// without the lost worker at the next step. Each as a closed form and as a simulation of single events.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace gradweave {

// Who dies, and when it is noticed. Times in seconds.
struct Faults {
  std::int64_t workers = 2;  // islands, or workers of one job; at least 2
  double mtbf_s = 0;         // of one of them, from when it is there; exponential; > 0
  double recovery_s = 0;     // from its death until it is there again
  double detection_s = 0;    // from its death until the others know
  double epoch_s = 0;        // from then, or from when one comes, until all agree on who is there
};

// Islands that train on while an average is on its way.
struct IslandTraining {
  double step_s = 0;
  std::int64_t period = 1;        // steps between two averages, at least
  double average_s = 0;           // from when all want one until it has landed
  double state_s = 0;             // the state, from one island to one that comes; all that have it give it
  double checkpoint_every_s = 0;  // for when all are gone at once; > 0
  double restart_s = 0;           // the same: until the first that is back has read it
};

struct CheckpointTraining {
  double every_s = 0;    // between two checkpoints; > 0
  double write_s = 0;    // training stops for it
  double restart_s = 0;  // all start again and read it, once who died is back
};

struct Goodput {
  double share = 0;        // of the useful samples without faults
  double uncertainty = 0;  // of a simulation: half of the 95 % confidence interval
};

struct IslandGoodput : Goodput {
  double there = 0;  // mean share of the islands that train
  double lost = 0;   // share of what was trained
  // Mean time between the beginnings of two averages that landed, one after the other; infinite if none does.
  double landed_every_s = 0;
  double landed = 0;    // share of the averages that have begun; 1 where none has
  double all_gone = 0;  // times a day; of a simulation only
};

struct SimulatedFaults {
  std::uint64_t seed = 0;
  // That count, at least 100. Before them come a twentieth as many, or four for each worker.
  std::int64_t deaths = 20'000;
};

// Returns what islands reach. An average under way is dropped when one of them dies, and the next begins once that is known and
// all agree on who is left. An island that dies loses what it has gained since the last average that landed had begun. One that
// comes takes the state while the others train on, and is in the next average that begins. When all are gone, the first that is
// back goes on from a checkpoint. Errors: InvalidInput for values out of range. O((workers + deaths) log workers).
IslandGoodput simulate_islands(const Faults& faults, const IslandTraining& training,
                               const SimulatedFaults& options = {});
// Returns the expectation of that, where an average takes no less than `period` steps and the islands that are away are few; else it
// is near. Islands are never all gone in it. Errors: as above. O(1).
//
// With n islands that are there, rate L = n / mtbf of deaths, B = detection + epoch, A = average_s, C = max(A, period step),
// W = B + A: what is trained at a time counts if an average that begins later lands before its island dies. Just after another's
// death that is q = 1 / (1 + (e^{LW} - 1) / n); at any time s + (1 - s) (1 - 1/n) q, where s = L e^{-LW} (B + C / (e^{LC} - 1)) is
// the chance that the next average lands before any death. And no more counts than what an island does that lives to the end of the
// C in which it does it, (1 - e^{-x}) / x with x = C / mtbf.
IslandGoodput expected_islands(const Faults& faults, const IslandTraining& training);
// Returns the mtbf of one island below which, after a death, the next one comes more often than not before an average has landed:
// n W / ln 2.
double least_mtbf_s(const Faults& faults, const IslandTraining& training);

// Returns what a job reaches that starts again from its last checkpoint whenever one of its workers dies. O(deaths).
Goodput simulate_restarts(const Faults& faults, const CheckpointTraining& training,
                          const SimulatedFaults& options = {});
// Returns its expectation, tau / (e^{LR} (e^{L (tau + write)} - 1) / L), R being detection or recovery, whichever is longer, and
// restart (Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22, 2006, Eq. 13).
Goodput expected_restarts(const Faults& faults, const CheckpointTraining& training);
// Returns the interval for which that is largest, tau with e^{L (tau + write)} (1 - L tau) = 1: what Young's sqrt(2 write / L) and
// Daly's formula come near to. 0 where writing takes no time.
double best_checkpoint_s(const Faults& faults, double write_s);

// Returns what a job reaches that agrees on who is there at each step (as torchft's quorum): a death costs its step, and all wait
// until it is known and agreed. One that comes back takes the state while the others go on, which favours this way.
Goodput simulate_quorum(const Faults& faults, double step_s, double state_s,
                        const SimulatedFaults& options = {});
Goodput expected_quorum(const Faults& faults, double step_s, double state_s);

// What an average of a part of a model sends between islands (src/islands/part_round.h): each island sends each other one its gain
// of the block that the other sums, and the mean of its own.
struct AverageTraffic {
  std::int64_t bytes = 0;     // that one island sends, and receives
  std::int64_t messages = 0;  // the same
  std::int64_t peers = 0;
};
// `compressor`: int8, int4, int2, ef_signsgd or none. Errors: InvalidInput for another one. O(islands).
AverageTraffic average_traffic(std::int64_t elements, std::string_view compressor, std::int64_t islands);

}  // namespace gradweave
