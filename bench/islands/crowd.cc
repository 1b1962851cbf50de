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

// As MeetingClient, without a thread that looks after it: a machine can't have thousands of them.
class Member {
 public:
  Member(const Key& key, const Address& meeting, const std::string& name)
      : attendee_({.name = name,
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
      say(attendee_.connected(steady_now()));
    }
    say(attendee_.tick(steady_now()));
    const auto& epoch = attendee_.epoch();
    if (!epoch) return 0;
    say(attendee_.set_status({.epoch = epoch->number, .has_state = true, .waits = {}}, steady_now()));
    return epoch->islands.size();
  }

 private:
  void take(std::string_view text) {
    const auto message = decode_from_meeting(text);
    const MutexLock lock(mutex_);
    if (message) say(attendee_.take(*message, steady_now()));
  }
  void say(const std::vector<ToMeeting>& messages) REQUIRES(mutex_) {
    for (const ToMeeting& message : messages) {
      if (mailbox_) mailbox_->send(encode(message));
    }
  }

  Mutex mutex_;
  Attendee attendee_ GUARDED_BY(mutex_);
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
