#include "control/follower.h"

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "control/fake.h"
#include "gradweave/schemes.h"

namespace gradweave::testing {
namespace {

using control::Follower;

// Holds whoever passes back while it is shut.
class Gate {
 public:
  void set(bool shut) {
    const std::lock_guard lock(mutex_);
    shut_ = shut;
    changed_.notify_all();
  }
  void pass() {
    std::unique_lock lock(mutex_);
    reached_ = true;
    changed_.notify_all();
    changed_.wait(lock, [&] { return !shut_; });
  }
  void wait_until_reached() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return reached_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool shut_ = true, reached_ = false;
};

Cluster link_of(Nanoseconds startup_ns) {
  return {.workers = 2, .links = {{.name = "net", .startup_ns = startup_ns, .us_per_byte = {1, 1000}}}};
}

Plan best_for(const Cluster& cluster) { return std::get<Plan>(make_plan("mg_wfbp", four_layers(), cluster)); }

// One rank's follower under a plan for a link that has become slow since.
class Following : public ::testing::Test {
 protected:
  static constexpr Nanoseconds kFast = 1000, kSlow = 20'000'000;

  // Returns in how many of so many iterations a plan was announced.
  int announced(int iterations) {
    int count = 0;
    for (int n = 0; n < iterations && count == 0; ++n) {
      job.iterate();
      count += follower.iteration_ended() ? 1 : 0;
    }
    return count;
  }
  void install(const Plan& plan, Nanoseconds startup_ns) {
    job.install(plan, four_layers());
    follower.plan_installed(plan, four_layers(), {link_of(startup_ns)}, 30e6, /*of_this_run=*/false);
  }
  void begin() {
    install(best_for(link_of(kFast)), kFast);
    EXPECT_EQ(announced(40), 0);
    setting.cluster = link_of(kSlow);
    while (!follower.planning()) announced(1);
    gate.wait_until_reached();
  }
  void let_plan() {
    gate.set(false);
    while (follower.planning()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  World world{1, 1};
  Setting setting{.workload = four_layers(), .cluster = link_of(kFast)};
  FakeJob job{world, setting, 0};
  Gate gate;
  Follower follower{job, true, [this] {
                      return control::Grounds{.request = {"mg_wfbp", {}},
                                              .unrunnable = [this](const Plan&, const Workload&) {
                                                gate.pass();
                                                return "";
                                              }};
                    }};
};

TEST_F(Following, AProposalIsAnnouncedOnceItIsMade) {
  world.run([this](int) {
    begin();
    EXPECT_EQ(announced(100), 0);  // still being made
    let_plan();
    EXPECT_EQ(announced(100), 1);
    EXPECT_EQ(follower.proposal().candidates.size(), 2u);
  });
}

TEST_F(Following, AProposalForAPlanThatIsNoLongerInForceIsDropped) {
  world.run([this](int) {
    begin();
    follower.end_exchange();
    install(best_for(link_of(kSlow)), kSlow);
    let_plan();
    EXPECT_EQ(announced(200), 0);
  });
}

TEST_F(Following, TheEndWaitsForAPlanThatIsBeingMade) {
  world.run([this](int) {
    begin();
    std::thread opener([this] { gate.set(false); });
    follower.close();
    EXPECT_FALSE(follower.planning());
    opener.join();
  });
}

}  // namespace
}  // namespace gradweave::testing
