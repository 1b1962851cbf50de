#include "control/fake.h"

#include <algorithm>
#include <limits>
#include <new>
#include <stdexcept>
#include <thread>

#include "gradweave/error.h"
#include "gradweave/json.h"
#include "gradweave/simulate.h"
#include "peers/sign.h"
#include "testing/measures.h"

namespace gradweave::testing {
namespace {

std::string text_of(const std::vector<double>& values) {
  std::vector<std::string> fields{"numbers"};
  for (const double value : values) {
    char text[64];
    std::snprintf(text, sizeof text, "%.17g", value);
    fields.emplace_back(text);
  }
  return peers::join(fields);
}

// Element by element over all ranks' texts.
template <typename Fold>
std::vector<double> folded(const std::vector<std::string>& texts, Fold fold) {
  std::vector<double> result;
  for (const std::string& text : texts) {
    const std::vector<std::string> fields = peers::split(text);
    if (!result.empty() && fields.size() != result.size() + 1) throw std::logic_error("lengths differ");
    for (std::size_t n = 1; n < fields.size(); ++n) {
      const double value = std::stod(fields[n]);
      if (result.size() < n)
        result.push_back(value);
      else
        result[n - 1] = fold(result[n - 1], value);
    }
  }
  return result;
}

}  // namespace

// ---- the world

void World::run(const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int r = 0; r < size(); ++r) {
    threads.emplace_back([this, r, &body] {
      {
        std::unique_lock lock(mutex_);
        turn_changed_.wait(lock, [&] { return turn_ == r; });
      }
      std::string error;
      try {
        body(r);
      } catch (const Unwound&) {
        error = "hung";
      } catch (const std::exception& thrown) {
        error = *thrown.what() == 0 ? "an exception" : thrown.what();
      }
      const std::lock_guard lock(mutex_);
      Rank& rank = at(r);
      rank.state = State::kEnded;
      rank.error = error;
      // Its face tells the others.
      if (!error.empty() && verdict_.empty()) verdict_ = "rank " + std::to_string(r) + " ended with " + error;
      choose();
    });
  }
  {
    const std::lock_guard lock(mutex_);
    choose();
  }
  for (std::thread& thread : threads) thread.join();
}

bool World::complete(std::size_t number) const {
  return std::ranges::all_of(ranks_, [&](const Rank& rank) { return rank.posts.size() > number; });
}

void World::pass_time() {
  const auto next = std::ranges::min_element(ranks_, {}, [](const Rank& rank) {
    return rank.state == State::kSleeps || rank.state == State::kWaits ? rank.until : Time::max();
  });
  if (next->state == State::kSleeps) {
    now_ = std::max(now_, next->until);
    next->state = State::kReady;
  } else if (next->state == State::kWaits) {
    now_ = std::max(now_, next->until);
    std::vector<int> missing;
    for (int r = 0; r < size(); ++r) {
      if (at(r).posts.size() <= next->waits) missing.push_back(r);
    }
    if (verdict_.empty()) verdict_ = "suspect: " + peers::name_of(missing);
    next->state = State::kReady;
  } else {  // all that are left hang
    for (Rank& rank : ranks_) {
      if (rank.state != State::kHangs) continue;
      rank.unwound = true;
      rank.state = State::kReady;
    }
  }
}

void World::choose() {
  if (std::ranges::all_of(ranks_, [](const Rank& rank) { return rank.state == State::kEnded; })) return;
  for (;;) {
    std::vector<int> ready;
    for (int r = 0; r < size(); ++r) {
      Rank& rank = at(r);
      if (rank.state == State::kWaits && (complete(rank.waits) || !verdict_.empty()))
        rank.state = State::kReady;
      if (rank.state == State::kReady) ready.push_back(r);
    }
    if (!ready.empty()) {
      turn_ = ready[std::uniform_int_distribution<std::size_t>(0, ready.size() - 1)(random_)];
      turn_changed_.notify_all();
      return;
    }
    pass_time();
  }
}

void World::give_up_turn(std::unique_lock<std::mutex>& lock, int rank) {
  choose();
  turn_changed_.wait(lock, [&] { return turn_ == rank; });
}

void World::pause(int rank) {
  std::unique_lock lock(mutex_);
  give_up_turn(lock, rank);
}

void World::sleep(int rank, Time time) {
  std::unique_lock lock(mutex_);
  at(rank).state = State::kSleeps;
  at(rank).until = now_ + time;
  give_up_turn(lock, rank);
}

void World::hang(int rank) {
  std::unique_lock lock(mutex_);
  at(rank).state = State::kHangs;
  give_up_turn(lock, rank);
  throw Unwound();
}

void World::check_alike(std::size_t number) {
  const std::string* first = nullptr;
  for (const Rank& rank : ranks_) {
    if (rank.posts.size() <= number) continue;
    const std::string& what = rank.posts[number].first;
    if (first == nullptr) first = &what;
    if (what != *first) throw std::logic_error("ranks meet in '" + what + "' and '" + *first + "'");
  }
}

std::size_t World::post(int rank, const std::string& what, const std::string& text) {
  std::unique_lock lock(mutex_);
  at(rank).posts.emplace_back(what, text);
  const std::size_t number = at(rank).posts.size() - 1;
  check_alike(number);
  give_up_turn(lock, rank);
  return number;
}

std::vector<std::string> World::wait(int rank, std::size_t number) {
  std::unique_lock lock(mutex_);
  at(rank).state = State::kWaits;
  at(rank).waits = number;
  at(rank).until = now_ + kTimeout;
  give_up_turn(lock, rank);
  if (!complete(number)) throw RuntimeFailure(verdict_);
  std::vector<std::string> texts;
  for (const Rank& each : ranks_) texts.push_back(each.posts[number].second);
  return texts;
}

Time World::now(int rank) {
  (void)rank;
  const std::lock_guard lock(mutex_);
  return now_;
}

// ---- the job

Workload four_layers() {
  Workload workload{.name = "four"};
  for (const char* name : {"a", "b", "c", "d"}) {
    workload.layers.push_back({.name = name,
                               .forward_ns = 1'000'000,
                               .backward_ns = 2'000'000,
                               .tensors = {{.name = std::string(name) + ".w", .numel = 20'000}}});
  }
  return workload;
}

bool FakeJob::command() {
  world_.pause(rank_);
  const bool strikes = rank_ == setting_.faulty_rank && commands_ == setting_.faulty_command;
  ++commands_;
  if (!strikes) return false;
  switch (setting_.fault) {
    case Fault::kNone:
      break;
    case Fault::kRefuses:
      return true;
    case Fault::kThrows:
      throw std::bad_alloc();
    case Fault::kHangs:
      world_.hang(rank_);
    case Fault::kIsLate:
      world_.sleep(rank_, kTimeout / 2);
      break;
  }
  return false;
}

std::vector<std::string> FakeJob::gather(const std::string& what, const std::string& text) {
  command();
  return world_.wait(rank_, world_.post(rank_, what, text));
}

std::vector<double> FakeJob::largest(const std::string& what, const std::vector<double>& values) {
  return folded(gather(what, text_of(values)), [](double a, double b) { return std::max(a, b); });
}

std::vector<double> FakeJob::means(const std::string& what, const std::vector<double>& values) {
  std::vector<double> sums = folded(gather(what, text_of(values)), [](double a, double b) { return a + b; });
  for (double& each : sums) each /= size();
  return sums;
}

std::unique_ptr<control::Job::Exchange> FakeJob::begin_smallest(const std::string& what,
                                                                const std::vector<double>& values) {
  struct Beside : Exchange {
    World& world;
    int rank;
    std::size_t number;
    Beside(World& the_world, int the_rank, std::size_t the_number)
        : world(the_world), rank(the_rank), number(the_number) {}
    std::vector<double> wait() override {
      return folded(world.wait(rank, number), [](double a, double b) { return std::min(a, b); });
    }
  };
  command();
  return std::make_unique<Beside>(world_, rank_, world_.post(rank_, what, text_of(values)));
}

void FakeJob::drain(const std::string& what) { gather(what, ""); }

std::string FakeJob::install(const Plan& plan, const Workload& workload) {
  const std::string scheme = made_by(plan).scheme;
  bool refuses = command();
  refuses |= rank_ == setting_.faulty_rank && scheme == setting_.plan_to_refuse;
  const std::vector<std::string> posts =
      world_.wait(rank_, world_.post(rank_, "the comparison of plans", refuses ? "" : hash_of(plan)));
  for (int r = 0; r < size(); ++r) {
    const std::string& post = posts[static_cast<std::size_t>(r)];
    if (post.empty()) return peers::name_of({r}) + " refuses it";
    if (!refuses && post != hash_of(plan)) throw std::logic_error("ranks have different plans");
  }
  if (workload.layers.size() != setting_.workload.layers.size())
    throw std::logic_error("not the job's layers");
  if (command()) return "no memory";  // too late for the others
  plan_ = plan;
  installed.push_back(scheme);
  installed_at_ = iterations_;
  iteration_ns_.reset();
  return "";
}

run::LayerTimes FakeJob::end_profile() {
  command();
  run::LayerTimes mine{.rest_ns = static_cast<double>(setting_.overheads.optimizer_ns - 10 * rank_),
                       .every_layer = true,
                       .iterations = setting_.unprofiled ? 0 : 2};
  for (const Layer& layer : setting_.workload.layers) {
    mine.forward_ns.push_back(static_cast<double>(layer.forward_ns));
    mine.backward_ns.push_back(static_cast<double>(layer.backward_ns - 10 * rank_));  // rank 0 is the slowest
  }
  return mine;
}

control::Costs FakeJob::measure(const Workload& workload) {
  largest("the probe", {static_cast<double>(workload.layers.size())});
  SimulationOptions overheads = setting_.overheads;
  overheads.optimizer_ns = 0;  // the profile shows it
  return {.usual = setting_.cluster, .overheads = overheads};
}

double FakeJob::simulated_ns() {
  if (!iteration_ns_ || !(timed_ == setting_.cluster)) {
    timed_ = setting_.cluster;
    iteration_ns_ = simulate(*plan_, setting_.workload, timed_, setting_.takes).iteration_ns();
  }
  return *iteration_ns_;
}

void FakeJob::iterate() {
  world_.sleep(rank_, Time(static_cast<std::int64_t>(plan_ ? simulated_ns() : 1e6)));
  ++iterations_;
}

IterationStatistics FakeJob::statistics(std::int64_t iterations, bool /*wait*/) {
  if (iterations_ - installed_at_ < iterations) return {};
  IterationStatistics sample = statistics_of(*plan_, setting_.workload, setting_.cluster, 1, iterations);
  sample.iteration_ns = simulated_ns();
  sample.compute_ns.assign(static_cast<std::size_t>(size()), std::numeric_limits<double>::infinity());
  sample.compute_ns[static_cast<std::size_t>(rank_)] = 1;
  return sample;
}

void FakeJob::compare_gradients(const std::vector<std::string>&) {
  command();
  compared_from_ = iterations_;
}

std::vector<GradientSums> FakeJob::compared_gradients() {
  command();
  std::vector<GradientSums> seen;
  for (std::int64_t n = compared_from_; n < iterations_; ++n) {
    GradientSums& sums = seen.emplace_back(setting_.gradients);
    if (n == setting_.not_finite && rank_ == 1) sums.own = std::numeric_limits<double>::quiet_NaN();
  }
  return seen;
}

}  // namespace gradweave::testing
