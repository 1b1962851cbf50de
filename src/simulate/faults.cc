// The simulations of gradweave/goodput.h. Deaths are exponential, so the next one of all who are there is too: it is drawn anew
// whenever their number changes.
#include "simulate/faults.h"

#include <cmath>
#include <cstddef>
#include <deque>
#include <limits>
#include <list>
#include <utility>
#include <vector>

#include "base/splitmix.h"
#include "base/statistics.h"
#include "gradweave/error.h"

namespace gradweave {
namespace {

constexpr double kNoTime = std::numeric_limits<double>::infinity();
constexpr std::int64_t kBatches = 20;  // whose means tell the uncertainty

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(splitmix64(seed)) {}
  double exponential(double mean) { return -mean * std::log(uniform()); }
  // Returns a number below `count`.
  std::size_t below(std::size_t count) {
    return std::min(static_cast<std::size_t>(uniform() * static_cast<double>(count)), count - 1);
  }

 private:
  // In (0, 1].
  double uniform() {
    state_ += kSplitmixStep;
    return static_cast<double>((splitmix64(state_) >> 11) + 1) * 0x1p-53;
  }
  std::uint64_t state_;
};

// Useful samples of batches of as many deaths, after some that don't count. `run(deaths)` goes on by so many deaths; `useful()`
// and `time()` count from the start.
template <typename Simulation>
Goodput measure(Simulation& simulation, double workers, const SimulatedFaults& options) {
  if (options.deaths < 100)
    throw InvalidInput("is " + std::to_string(options.deaths), "deaths", "give 100 or more");
  // Until it no longer matters that all were there at first: four lives of each.
  simulation.run(std::max(4 * static_cast<std::int64_t>(workers), options.deaths / kBatches));
  simulation.begin_to_count();
  const double useful = simulation.useful(), time = simulation.time();
  std::vector<double> shares;
  for (std::int64_t batch = 0; batch < kBatches; ++batch) {
    const double useful_before = simulation.useful(), before = simulation.time();
    simulation.run(options.deaths / kBatches);
    shares.push_back((simulation.useful() - useful_before) / (simulation.time() - before) / workers);
  }
  // What was trained before it counts may be lost after.
  return {.share = std::max(0.0, (simulation.useful() - useful) / (simulation.time() - time) / workers),
          .uncertainty = sample_of(shares).uncertainty()};
}

class Islands {
 public:
  Islands(const Faults& faults, const IslandTraining& training, std::uint64_t seed)
      : faults_(faults),
        training_(training),
        cycle_(cycle_s(training)),
        random_(seed),
        islands_(static_cast<std::size_t>(faults.workers)),
        trains_(islands_.size()),
        next_checkpoint_(training.checkpoint_every_s) {
    for (std::size_t i = 0; i < islands_.size(); ++i) {
      islands_[i] = {.stage = Stage::kTrains, .place = i};
      there_.push_back(i);
    }
    draw_death();
  }

  void run(std::int64_t deaths) {
    for (const std::int64_t until = deaths_ + deaths; deaths_ < until;) step();
  }
  void begin_to_count() {
    counted_from_ = now_;
    trained_before_ = trained_;
    lost_before_ = lost_;
    landed_ = dropped_ = 0;
    gone_ = 0;
  }
  double useful() const { return trained_ - lost_; }
  double time() const { return now_; }

  IslandGoodput result(const Goodput& goodput) const {
    const double time = now_ - counted_from_, trained = trained_ - trained_before_;
    IslandGoodput result{goodput};
    result.there = trained / time / static_cast<double>(faults_.workers);
    result.lost = trained > 0 ? std::min(1.0, (lost_ - lost_before_) / trained) : 0;
    result.landed_every_s = landed_ > 0 ? time / landed_ : kNoTime;
    result.landed = landed_ + dropped_ > 0 ? landed_ / (landed_ + dropped_) : 1;
    result.all_gone = static_cast<double>(gone_) / time * kDaySeconds;
    return result;
  }

 private:
  enum class Stage { kAway, kWaits, kTakes, kTrains };  // kWaits: until an epoch with it is in force
  struct Comer {
    std::size_t island = 0;
    double until = 0;  // kTakes: of the shared line's clock
  };
  struct Island {
    Stage stage = Stage::kAway;
    double since = 0;                    // it trains
    std::size_t place = 0;               // in there_
    std::list<Comer>::iterator comer{};  // kWaits, kTakes
  };

  void step() {
    const double back = away_.empty() ? kNoTime : away_.front().second;
    const double given = takers_.empty() || trains_ == 0
                             ? kNoTime
                             : now_ + (takers_.front().until - line_) * static_cast<double>(takers_.size());
    const double next = std::min({death_at_, back, epoch_at_, given, start_at_});
    advance(std::max(next, now_));
    if (next == death_at_) return die();
    if (next == back) return come_back();
    if (next == epoch_at_) return come_in_force();
    if (next == given) return train(takers_.front().island);
    train(starts_);
  }

  void advance(double to) {
    const auto grow = [&](double until) {
      trained_ += static_cast<double>(trains_) * (until - now_);
      if (trains_ > 0 && !takers_.empty()) line_ += (until - now_) / static_cast<double>(takers_.size());
      now_ = until;
    };
    if (next_checkpoint_ <= to) {  // the last of those that pass
      const double last =
          next_checkpoint_ +
          std::floor((to - next_checkpoint_) / training_.checkpoint_every_s) * training_.checkpoint_every_s;
      grow(std::clamp(last, now_, to));
      saved_ = useful();
      next_checkpoint_ = last + training_.checkpoint_every_s;
    }
    grow(to);
    if (trains_ < 2 || begins_at_ + training_.average_s > now_) return;
    const double landed = std::floor((now_ - training_.average_s - begins_at_) / cycle_) + 1;
    landed_ += landed;
    landed_from_ = begins_at_ + (landed - 1) * cycle_;
    begins_at_ += landed * cycle_;
  }

  void draw_death() {
    death_at_ = there_.empty()
                    ? kNoTime
                    : now_ + random_.exponential(faults_.mtbf_s / static_cast<double>(there_.size()));
  }

  void die() {
    ++deaths_;
    const std::size_t dies = there_[random_.below(there_.size())];
    Island& island = islands_[dies];
    const Stage was = std::exchange(island.stage, Stage::kAway);
    there_[island.place] = there_.back();
    islands_[there_.back()].place = island.place;
    there_.pop_back();
    draw_death();
    away_.emplace_back(dies, now_ + away_s(faults_));
    // All that was being agreed on is agreed on anew once the death is known.
    const double known = now_ + faults_.detection_s;
    epoch_at_ = known + faults_.epoch_s;
    if (was == Stage::kTrains) {
      lost_ += now_ - std::max(island.since, landed_from_);
      if (trains_ > 1 && begins_at_ < now_) ++dropped_;
      --trains_;
      if (trains_ == 0) lose_all();
      if (dies == giver_) choose_giver();
    } else if (was == Stage::kTakes) {
      takers_.erase(island.comer);
      if (dies == starts_) start_at_ = kNoTime;
    } else {
      waits_.erase(island.comer);
    }
    proposed_ = kAll;
    begins_at_ = std::max(begins_at_, epoch_at_);
    start_alone();
  }

  void lose_all() {
    ++gone_;
    lost_ += std::max(0.0, useful() - saved_);
    landed_from_ = now_;
  }

  // Of those with the state the one that has it longest gives it to all. Who takes from another begins anew.
  void choose_giver() {
    giver_ = kNobody;
    for (const std::size_t i : there_) {
      const Island& island = islands_[i];
      if (island.stage != Stage::kTrains) continue;
      if (giver_ == kNobody || island.since < islands_[giver_].since) giver_ = i;
    }
    for (Comer& taker : takers_) taker.until = line_ + training_.state_s;
    if (!takers_.empty()) gave_alone();
  }

  // What one that is alone has gained is in the state that it gives.
  void gave_alone() {
    if (trains_ == 1) landed_from_ = now_;
  }

  void come_back() {
    const std::size_t comes = away_.front().first;
    away_.pop_front();
    islands_[comes].stage = Stage::kWaits;
    islands_[comes].place = there_.size();
    there_.push_back(comes);
    islands_[comes].comer = waits_.insert(waits_.end(), {.island = comes});
    draw_death();
    if (epoch_at_ == kNoTime) propose();
  }

  void propose() {
    epoch_at_ = now_ + faults_.epoch_s;
    proposed_ = waits_.size();
  }

  // Who has come since it was proposed is in the next one.
  void come_in_force() {
    for (std::size_t left = std::min(proposed_, waits_.size()); left > 0; --left) {
      Comer& comer = waits_.front();
      comer.until = line_ + training_.state_s;
      islands_[comer.island].stage = Stage::kTakes;
      takers_.splice(takers_.end(), waits_, waits_.begin());
      gave_alone();
    }
    epoch_at_ = kNoTime;
    if (!waits_.empty()) propose();
    start_alone();
  }

  // Nobody has the state: the first that is there reads a checkpoint.
  void start_alone() {
    if (trains_ > 0 || takers_.empty() || start_at_ != kNoTime) return;
    starts_ = takers_.front().island;
    start_at_ = now_ + training_.restart_s;
  }

  void train(std::size_t island) {
    if (island == starts_) start_at_ = kNoTime;
    takers_.erase(islands_[island].comer);
    islands_[island].stage = Stage::kTrains;
    islands_[island].since = now_;
    ++trains_;
    if (trains_ == 1) choose_giver();
    if (trains_ == 2) begins_at_ = std::max(now_, begins_at_);
  }

  static constexpr std::size_t kNobody = std::numeric_limits<std::size_t>::max(), kAll = kNobody;

  const Faults faults_;
  const IslandTraining training_;
  const double cycle_;
  Random random_;
  std::vector<Island> islands_;
  std::vector<std::size_t> there_;
  std::deque<std::pair<std::size_t, double>> away_;  // and when it is back
  std::list<Comer> waits_;
  std::size_t proposed_ =
      0;  // how many of waits_ are in the epoch that is being agreed on; kAll: after a death
  std::list<Comer> takers_;  // the first is done first
  std::size_t trains_, giver_ = 0, starts_ = kNobody;

  double now_ = 0, line_ = 0;
  double death_at_ = kNoTime, epoch_at_ = kNoTime, start_at_ = kNoTime;
  double begins_at_ = 0;    // the average that is under way, or the next
  double landed_from_ = 0;  // the beginning of the last that landed
  double next_checkpoint_, saved_ = 0;

  std::int64_t deaths_ = 0, gone_ = 0;
  double trained_ = 0, lost_ = 0, landed_ = 0, dropped_ = 0;
  double counted_from_ = 0, trained_before_ = 0, lost_before_ = 0;
};

class Restarts {
 public:
  Restarts(const Faults& faults, const CheckpointTraining& training, std::uint64_t seed)
      : mean_(faults.mtbf_s / static_cast<double>(faults.workers)),
        restart_(away_s(faults) + training.restart_s),
        training_(training),
        random_(seed) {}

  void run(std::int64_t deaths) {
    for (std::int64_t i = 0; i < deaths; ++i) {
      const double lives = random_.exponential(mean_);
      time_ += lives;
      if (lives > restart_)
        useful_ +=
            std::floor((lives - restart_) / (training_.every_s + training_.write_s)) * training_.every_s;
    }
  }
  void begin_to_count() {}
  double useful() const { return useful_; }
  double time() const { return time_; }

 private:
  const double mean_, restart_;
  const CheckpointTraining training_;
  Random random_;
  double useful_ = 0, time_ = 0;
};

class Quorum {
 public:
  Quorum(const Faults& faults, double step_s, double state_s, std::uint64_t seed)
      : faults_(faults),
        step_(step_s),
        away_(away_s(faults) + faults.epoch_s + state_s),
        random_(seed),
        there_(faults.workers) {}

  void run(std::int64_t deaths) {
    for (std::int64_t i = 0; i < deaths; ++i) live();
  }
  void begin_to_count() {}
  double useful() const { return useful_; }
  double time() const { return now_; }

 private:
  // Until the next death.
  void live() {
    const double steps_from = paused_until_;
    std::vector<std::pair<double, double>> came{
        {now_, static_cast<double>(there_)}};  // when, and how many are there then
    for (;;) {
      const double death =
          there_ == 0 ? kNoTime : now_ + random_.exponential(faults_.mtbf_s / static_cast<double>(there_));
      const double back = back_.empty() ? kNoTime : back_.front();
      now_ = std::min(death, back);
      if (death <= back) break;
      back_.pop_front();
      came.emplace_back(now_, static_cast<double>(++there_));
    }
    const double steps_to = steps_from + std::max(0.0, std::floor((now_ - steps_from) / step_)) * step_;
    came.emplace_back(now_, 0);
    for (std::size_t i = 0; i + 1 < came.size(); ++i) {
      const double from = std::max(came[i].first, steps_from), to = std::min(came[i + 1].first, steps_to);
      if (to > from) useful_ += came[i].second * (to - from);
    }
    --there_;
    back_.push_back(now_ + away_);
    paused_until_ = now_ + faults_.detection_s + faults_.epoch_s;
  }

  const Faults faults_;
  const double step_, away_;
  Random random_;
  std::int64_t there_;
  std::deque<double> back_;
  double now_ = 0, paused_until_ = 0, useful_ = 0;
};

}  // namespace

IslandGoodput simulate_islands(const Faults& faults, const IslandTraining& training,
                               const SimulatedFaults& options) {
  check(faults);
  check(training);
  Islands islands(faults, training, options.seed);
  return islands.result(measure(islands, static_cast<double>(faults.workers), options));
}

Goodput simulate_restarts(const Faults& faults, const CheckpointTraining& training,
                          const SimulatedFaults& options) {
  check(faults);
  check(training);
  Restarts restarts(faults, training, options.seed);
  return measure(restarts, 1, options);
}

Goodput simulate_quorum(const Faults& faults, double step_s, double state_s, const SimulatedFaults& options) {
  expected_quorum(faults, step_s, state_s);  // refuses what is out of range
  Quorum quorum(faults, step_s, state_s, options.seed);
  return measure(quorum, static_cast<double>(faults.workers), options);
}

}  // namespace gradweave
