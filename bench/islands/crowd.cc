#include "crowd.h"

#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "islands/endpoint.h"
#include "islands/mailbox.h"
#include "islands/meeting.h"
#include "islands/random.h"

namespace {

using namespace gradweave;
using namespace gradweave::islands;
using namespace std::chrono_literals;

constexpr std::size_t kLargestText = 4 << 20;
constexpr int kLookMs = 50;

// Says what a MeetingClient says, and of an epoch remembers how many islands it has: a machine can't have thousands of threads
// that look after them, nor hold each epoch thousands of times.
class Member {
 public:
  Member(const Key& key, const Address& meeting, const std::string& name)
      : island_({.name = name,
                 .life = random_name(),
                 .ranks = 4,
                 .addresses = std::vector<std::string>(4, "198.51.100.100:29600"),
                 .trains = "model"}),
        endpoint_({.key = key, .name = name, .lines = 1, .silence = 60s, .return_within = 60s}),
        peer_(endpoint_.peer("meeting", meeting)) {}

  // Says what is due. It has the training's state in each epoch. Returns how many islands its epoch has.
  std::size_t look() {
    const MutexLock lock(mutex_);
    if (!mailbox_ && peer_.presence() == Presence::kHere) {
      mailbox_ = Mailbox::open(peer_, kLargestText, [this](std::string_view text) { take(text); });
      join();
    }
    if (mailbox_ && steady_now() - renewed_at_ >= lease_ / 8) renew();
    return in_force_.islands;
  }

 private:
  struct Agreed {
    std::int64_t number = 0;
    std::size_t islands = 0;
  };

  void take(std::string_view text) {
    const auto message = decode_from_meeting(text);
    const MutexLock lock(mutex_);
    if (!message) return;
    switch (message->what) {
      case FromMeeting::What::kProposed: {
        if (message->base != 0 && message->base != in_force_.number) return join();  // asks for all of it
        agreed_ = {.number = message->epoch.number, .islands = message->epoch.islands.size()};
        if (message->base != 0) agreed_.islands += in_force_.islands - message->left.size();
        return say({.what = ToMeeting::What::kAgree, .number = agreed_.number});
      }
      case FromMeeting::What::kInForce:
        if (message->number != agreed_.number) return;
        in_force_ = agreed_;
        return renew();
      case FromMeeting::What::kRenewed:
        lease_ = message->lease;
        return;
      case FromMeeting::What::kUnknown:
        return join();
      case FromMeeting::What::kRefused:
      case FromMeeting::What::kLeftOut:
        return;
    }
  }
  void join() REQUIRES(mutex_) {
    renewed_at_ = steady_now();
    say({.what = ToMeeting::What::kJoin, .report = {.island = island_, .status = status()}});
  }
  void renew() REQUIRES(mutex_) {
    renewed_at_ = steady_now();
    say({.what = ToMeeting::What::kRenew, .beat = ++beat_, .status = status()});
  }
  Status status() const REQUIRES(mutex_) {
    return {.epoch = in_force_.number, .has_state = in_force_.number > 0, .waits = {}};
  }
  void say(const ToMeeting& message) REQUIRES(mutex_) { mailbox_->send(encode(message)); }

  const Island island_;
  Mutex mutex_;
  Agreed agreed_ GUARDED_BY(mutex_), in_force_ GUARDED_BY(mutex_);
  Time lease_ GUARDED_BY(mutex_) = 2s, renewed_at_ GUARDED_BY(mutex_){};
  std::int64_t beat_ GUARDED_BY(mutex_) = 0;
  std::shared_ptr<Mailbox> mailbox_ GUARDED_BY(mutex_);
  Endpoint endpoint_;
  Peer peer_;
};

}  // namespace

int run_crowd(const std::string& key, const std::string& meeting, const std::string& name, int count) {
  std::vector<std::unique_ptr<Member>> members;
  for (int i = 0; i < count; ++i) {
    members.push_back(std::make_unique<Member>(read_key_file(key), parse_address(meeting, "address"),
                                               name + std::to_string(i)));
  }
  std::size_t wanted = 0;
  for (pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};;) {
    bool all = wanted > 0;
    for (const auto& member : members) all &= member->look() == wanted;
    if (all) {
      std::printf("%zu\n", std::exchange(wanted, 0));
      std::fflush(stdout);
    }
    if (poll(&input, 1, kLookMs) <= 0) continue;
    std::string line;
    if (!std::getline(std::cin, line)) return 0;
    wanted = std::stoul(line);
  }
}
