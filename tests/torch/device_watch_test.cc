#include "runtime/device_watch.h"

#include <gtest/gtest.h>

#include <future>
#include <string>
#include <vector>

namespace gradweave::runtime {
namespace {

using namespace std::chrono_literals;
using Done = std::vector<std::string>;

const c10::Device kDevice{c10::DeviceType::PrivateUse1, 0};

// Notes what is done.
class Watched : public c10d::Backend {
 public:
  explicit Watched(Done& done) : Backend(0, 2), done_(done) {}
  const std::string getBackendName() const override { return "watched"; }
  c10d::ErrorType getError() override { return error; }
  void abort() override { done_.push_back("abort"); }

  std::atomic<c10d::ErrorType> error = c10d::ErrorType::SUCCESS;

 private:
  Done& done_;
};

// Of a backend that can't tell.
class Unwatched : public c10d::Backend {
 public:
  Unwatched() : Backend(0, 2) {}
  const std::string getBackendName() const override { return "unwatched"; }
};

LinkSpec link_on(std::string name, c10::intrusive_ptr<c10d::Backend> backend) {
  const auto group = c10::make_intrusive<c10d::ProcessGroup>(0, 2);
  group->setBackend(kDevice.type(), c10d::ProcessGroup::BackendType::CUSTOM, std::move(backend));
  return {.name = std::move(name), .group = group};
}

class Links : public testing::Test {
 protected:
  Done done_;
  c10::intrusive_ptr<Watched> backend_ = c10::make_intrusive<Watched>(done_);
  std::shared_ptr<DeviceBackends> backends_ = std::make_shared<DeviceBackends>(
      std::vector{link_on("first", c10::make_intrusive<Unwatched>()), link_on("second", backend_)}, kDevice);
};

TEST_F(Links, OfTheProcessorAreNotWatched) {
  EXPECT_TRUE(DeviceBackends({link_on("first", backend_), {.name = "alone"}}, c10::kCPU).empty());
  EXPECT_FALSE(backends_->empty());
}

TEST_F(Links, TellWhichHasFailedAndHow) {
  EXPECT_EQ(backends_->failure().link, "");
  backend_->error = c10d::ErrorType::TIMEOUT;
  EXPECT_EQ(backends_->failure().link, "second");
  EXPECT_EQ(backends_->failure().cause, "watched: an op has not ended within its timeout");
  backend_->error = c10d::ErrorType::COMM_ERROR;
  EXPECT_EQ(backends_->failure().cause, "watched has lost its connection");
}

TEST_F(Links, AreGivenUpOnceAndByTheWatch) {
  std::promise<std::string> given_up;
  DeviceWatch watch(backends_, 3s,
                    [&](const std::string& what, std::chrono::nanoseconds after, const std::string&) {
                      given_up.set_value(what + " after " + std::to_string(after / 1s));  // twice would throw
                    });
  backend_->error = c10d::ErrorType::TIMEOUT;
  EXPECT_EQ(given_up.get_future().get(), "communication on link second after 3");
}

TEST_F(Links, AreAbortedOnceTheTrainingThreadIsInterrupted) {
  backends_->set_interrupt([this](const std::string& verdict) { done_.push_back(verdict); });
  backends_->end("why", [] { return false; });
  EXPECT_EQ(done_, (Done{"why", "abort"}));
}

TEST_F(Links, AreAbortedWithoutAnInterruptWhereTheTrainingThreadKnows) {
  backends_->set_interrupt([this](const std::string& verdict) { done_.push_back(verdict); });
  backends_->end("why", [] { return true; });
  EXPECT_EQ(done_, (Done{"abort"}));
}

TEST_F(Links, AreNotAbortedWhereNobodyCanInterruptTheTrainingThread) {
  backends_->end("why", [] { return false; });
  EXPECT_EQ(done_, Done{});
}

}  // namespace
}  // namespace gradweave::runtime
