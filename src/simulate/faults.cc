// The simulations of gradweave/goodput.h. Deaths are exponential, so the next one of all who are there is too: it is drawn anew
// whenever their number changes.
#include "simulate/faults.h"

#include <cmath>
#include <cstddef>
#include <deque>
#include <limits>
#include <list>
#include <set>
#include <tuple>
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
      islands_[i].stage = Stage::kTrains;
      islands_[i].place = i;
      there_.push_back(i);
      givers_.emplace(0, 0.0, i);
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
    std::size_t giver = 0;  // kTakes
    double until = 0;       // kTakes: by the clock of the giver's line
  };
  struct Island {
    Stage stage = Stage::kAway;
    double since = 0;                    // it trains
    std::size_t place = 0;               // in there_
    std::list<Comer>::iterator comer{};  // kWaits, kTakes
    // To whom it gives the state. They share its line, whose clock runs as much slower; the first is done first.
    std::list<Comer> takers{};
    double clock = 0, looked_at = 0;
    double done_at = 0;  // the first of them is
  };

  void step() {
    const double back = away_.empty() ? kNoTime : away_.front().second;
    const double given = done_.empty() ? kNoTime : done_.begin()->first;
    const double next = std::min({death_at_, back, epoch_at_, given, start_at_});
    advance(std::max(next, now_));
    if (next == death_at_) return die();
    if (next == back) return come_back();
    if (next == epoch_at_) return come_in_force();
    if (next == given) return train(islands_[done_.begin()->second].takers.front().island);
    train(starts_);
  }

  void advance(double to) {
    const auto grow = [&](double until) {
      trained_ += static_cast<double>(trains_) * (until - now_);
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
      stop_giving(dies);
    } else if (was == Stage::kTakes) {
      stop_taking(dies);
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

  // Of those with the state the one that gives it to the fewest, and of these the one that has it longest.
  void take(std::list<Comer>& from, std::list<Comer>::iterator comer) {
    if (trains_ == 0) return orphans_.splice(orphans_.end(), from, comer);
    if (trains_ == 1) landed_from_ = now_;  // what one that is alone has gained is in the state that it gives
    comer->giver = std::get<2>(*givers_.begin());
    change_line(comer->giver, [&](Island& giver) {
      comer->until = giver.clock + training_.state_s;
      giver.takers.splice(giver.takers.end(), from, comer);
    });
  }

  void stop_taking(std::size_t island) {
    const auto comer = islands_[island].comer;
    if (trains_ == 0) {
      orphans_.erase(comer);
    } else {
      change_line(comer->giver, [&](Island& giver) { giver.takers.erase(comer); });
    }
  }

  // Who takes from it begins anew.
  void stop_giving(std::size_t island) {
    std::list<Comer> left;
    change_line(island, [&](Island& giver) { left.swap(giver.takers); });
    givers_.erase({0, islands_[island].since, island});
    while (!left.empty()) take(left, left.begin());
  }

  // `change(giver)` changes its takers.
  template <typename Change>
  void change_line(std::size_t at, const Change& change) {
    Island& giver = islands_[at];
    if (!giver.takers.empty()) {
      giver.clock += (now_ - giver.looked_at) / static_cast<double>(giver.takers.size());
      done_.erase({giver.done_at, at});
    }
    giver.looked_at = now_;
    givers_.erase({giver.takers.size(), giver.since, at});
    change(giver);
    givers_.emplace(giver.takers.size(), giver.since, at);
    if (giver.takers.empty()) return;
    giver.done_at =
        now_ + (giver.takers.front().until - giver.clock) * static_cast<double>(giver.takers.size());
    done_.emplace(giver.done_at, at);
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
      islands_[waits_.front().island].stage = Stage::kTakes;
      take(waits_, waits_.begin());
    }
    epoch_at_ = kNoTime;
    if (!waits_.empty()) propose();
    start_alone();
  }

  // Nobody has the state: the first that is there reads a checkpoint.
  void start_alone() {
    if (orphans_.empty() || start_at_ != kNoTime) return;
    starts_ = orphans_.front().island;
    start_at_ = now_ + training_.restart_s;
  }

  void train(std::size_t island) {
    if (island == starts_) start_at_ = kNoTime;
    stop_taking(island);
    islands_[island].stage = Stage::kTrains;
    islands_[island].since = now_;
    givers_.emplace(0, now_, island);
    ++trains_;
    while (!orphans_.empty()) take(orphans_, orphans_.begin());
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
  std::list<Comer> orphans_;  // they would take the state, and nobody has it
  std::size_t trains_, starts_ = kNobody;
  std::set<std::tuple<std::size_t, double, std::size_t>> givers_;  // takers, since when it trains, who
  std::set<std::pair<double, std::size_t>> done_;                  // when, and who has given it

  double now_ = 0;
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
