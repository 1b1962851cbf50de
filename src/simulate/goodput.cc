// The closed forms of gradweave/goodput.h.
#include "gradweave/goodput.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <string>

#include "base/quoted.h"
#include "codec/groups.h"
#include "gradweave/error.h"
#include "simulate/faults.h"

namespace gradweave {
namespace {

constexpr std::int64_t kMostWorkers = 10'000'000;
constexpr std::int64_t kHeadBytes = 16;  // of a gain: its weight, and a checksum of the anchor

void require(bool holds, const char* where, double value, const char* range) {
  if (holds) return;
  throw InvalidInput("is " + std::to_string(value), where, std::string("give ") + range);
}

void check_time(double seconds, const char* where) {
  require(std::isfinite(seconds) && seconds >= 0, where, seconds, "a time that is finite and not negative");
}

void check_positive(double seconds, const char* where) {
  require(std::isfinite(seconds) && seconds > 0, where, seconds, "a time that is finite and above 0");
}

// x / (e^x - 1), which is 1 at 0.
double over_expm1(double x) { return x == 0 ? 1 : x / std::expm1(x); }

}  // namespace

void check(const Faults& faults) {
  require(faults.workers >= 2 && faults.workers <= kMostWorkers, "workers",
          static_cast<double>(faults.workers), "2 to 10,000,000");
  check_positive(faults.mtbf_s, "mtbf");
  check_time(faults.recovery_s, "recovery");
  check_time(faults.detection_s, "detection");
  check_time(faults.epoch_s, "epoch");
}

void check(const IslandTraining& training) {
  check_positive(training.step_s, "step");
  require(training.period >= 1, "period", static_cast<double>(training.period), "1 step or more");
  check_time(training.average_s, "average");
  check_time(training.state_s, "state");
  check_positive(training.checkpoint_every_s, "checkpoint_every");
  check_time(training.restart_s, "restart");
}

void check(const CheckpointTraining& training) {
  check_positive(training.every_s, "checkpoint_every");
  check_time(training.write_s, "checkpoint_write");
  check_time(training.restart_s, "restart");
}

IslandGoodput expected_islands(const Faults& faults, const IslandTraining& training) {
  check(faults);
  check(training);
  const auto all = static_cast<double>(faults.workers);
  const double mtbf = faults.mtbf_s, away = away_s(faults);
  const double n = all * mtbf / (mtbf + away);  // there, with the state or not
  const double rate = n / mtbf;                 // L
  const double B = faults.detection_s + faults.epoch_s, A = training.average_s, W = A + B;
  const double C = cycle_s(training);

  // One that comes is let in once an epoch has come in force, and takes the state from one that may die.
  const double in_force =
      (std::expm1(rate * B) - rate * faults.detection_s) / rate;  // from when it comes, in the mean
  const double takes = mtbf * std::expm1(training.state_s / mtbf);
  const double there = mtbf * std::exp(-(in_force + takes) / mtbf) / (mtbf + away);

  const double q = 1 / (1 + std::expm1(rate * W) / n);
  const double s = std::exp(-rate * W) * (rate * B + over_expm1(rate * C));
  const double kept = -std::expm1(-C / mtbf) * mtbf / C;
  const double useful = std::min(s + (1 - s) * (1 - 1 / n) * q, kept);

  IslandGoodput goodput;
  goodput.share = there * useful;
  goodput.there = there;
  goodput.lost = 1 - useful;
  // For each death.
  const double each = -std::expm1(-rate * C);
  const double landed = std::exp(-rate * W) / each;
  const double dropped = std::exp(-rate * B) * -std::expm1(-rate * A) / each;
  goodput.landed_every_s = 1 / (rate * landed);
  goodput.landed = landed + dropped > 0 ? landed / (landed + dropped) : 1;
  return goodput;
}

double least_mtbf_s(const Faults& faults, const IslandTraining& training) {
  check(faults);
  check(training);
  const double window = faults.detection_s + faults.epoch_s + training.average_s;
  return static_cast<double>(faults.workers) * window / std::numbers::ln2;
}

Goodput expected_restarts(const Faults& faults, const CheckpointTraining& training) {
  check(faults);
  check(training);
  const double rate = static_cast<double>(faults.workers) / faults.mtbf_s;
  const double restart = away_s(faults) + training.restart_s;
  const double segment = training.every_s + training.write_s;
  return {.share = training.every_s / segment * over_expm1(rate * segment) * std::exp(-rate * restart)};
}

double best_checkpoint_s(const Faults& faults, double write_s) {
  check(faults);
  check_time(write_s, "checkpoint_write");
  const double rate = static_cast<double>(faults.workers) / faults.mtbf_s;
  // L (tau + write) + ln(1 - L tau) falls from L write to below 0 as L tau goes from 0 to 1.
  double low = 0, high = 1;
  for (int i = 0; i < 100; ++i) {
    const double middle = std::midpoint(low, high);
    (rate * write_s + middle + std::log1p(-middle) > 0 ? low : high) = middle;
  }
  return low / rate;
}

Goodput expected_quorum(const Faults& faults, double step_s, double state_s) {
  check(faults);
  check_positive(step_s, "step");
  check_time(state_s, "state");
  const double away = away_s(faults) + faults.epoch_s + state_s;
  const double there = faults.mtbf_s / (faults.mtbf_s + away);
  const double rate = there * static_cast<double>(faults.workers) / faults.mtbf_s;
  const double pause = faults.detection_s + faults.epoch_s;
  return {.share = there * std::exp(-rate * pause) * over_expm1(rate * step_s)};
}

AverageTraffic average_traffic(std::int64_t elements, std::string_view compressor, std::int64_t islands) {
  const auto format = codec::format_of(compressor);
  if (!format && compressor != "none")
    throw InvalidInput(in_quotes(std::string(compressor)) + " is not a compressor for islands", "compressor",
                       "give int8, int4, int2, ef_signsgd or none");
  require(elements >= 0 && elements <= std::int64_t{1} << 50, "elements", static_cast<double>(elements),
          "0 to 2^50");
  require(islands >= 1 && islands <= kMostWorkers, "islands", static_cast<double>(islands),
          "1 to 10,000,000");
  std::int64_t largest = 0, all = 0, blocks = 0;  // blocks that are not empty, and their bytes
  for (std::int64_t i = 0; i < islands; ++i) {
    const std::int64_t count =
        codec::begin_of_part(elements, i + 1, islands) - codec::begin_of_part(elements, i, islands);
    if (count == 0) continue;
    const std::int64_t size = codec::bytes_of(format, count);
    ++blocks;
    all += size;
    largest = std::max(largest, size);
  }
  if (blocks == 0 || islands == 1) return {.peers = islands - 1};
  // Of the one whose block is the largest.
  return {.bytes = (blocks - 1) * kHeadBytes + all - largest + (islands - 1) * largest,
          .messages = blocks - 1 + islands - 1,
          .peers = islands - 1};
}

}  // namespace gradweave
