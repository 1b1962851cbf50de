#include "islands/meeting_client.h"

#include <thread>
#include <utility>

#include "base/mutex.h"
#include "base/thread.h"
#include "islands/endpoint.h"
#include "islands/mailbox.h"
#include "islands/random.h"

namespace gradweave::islands {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kLargestEpoch = 16 << 20;
constexpr auto kLook = 100ms;
constexpr const char* kAwaited =
    "the others have waited for it for a minute; give it less to do in each step, or leave it out "
    "(gradweave meet --leave-out-after)";

Island with_life(Island island) {
  island.life = random_name();
  return island;
}

}  // namespace

class MeetingClient::Core {
 public:
  explicit Core(MeetingClientOptions options)
      : options_(std::move(options)),
        attendee_(with_life(options_.island)),
        endpoint_({.key = options_.key, .name = options_.island.name, .lines = 1}),
        thread_([this] { run(); },
                [this](const std::string& why) {
                  const MutexLock lock(mutex_);
                  trouble_ = "the thread has failed: " + why;
                }) {}

  ~Core() {
    {
      const MutexLock lock(mutex_);
      stopping_ = true;
    }
    thread_.join();
  }

  mutable Mutex mutex_;
  mutable CondVar changed_;
  std::optional<Epoch> epoch_ GUARDED_BY(mutex_);  // as it was told
  std::string trouble_ GUARDED_BY(mutex_);

  bool heard_in_force(const std::string& line, std::int64_t number, const std::string& by) {
    bool heard = false;
    {
      const MutexLock lock(mutex_);
      heard = attendee_.heard_in_force(line, number, by);
    }
    tell();
    return heard;
  }

  void set_status(Status status) {
    const MutexLock lock(mutex_);
    say(attendee_.set_status(std::move(status), steady_now()));
  }

  std::string left_out() const {
    const MutexLock lock(mutex_);
    return attendee_.left_out();
  }

 private:
  void run();
  void attend();
  void take(std::string_view text);
  void say(const std::vector<ToMeeting>& messages) REQUIRES(mutex_);
  void tell() EXCLUDES(mutex_);
  bool stopping() const {
    const MutexLock lock(mutex_);
    return stopping_;
  }

  const MeetingClientOptions options_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  Attendee attendee_ GUARDED_BY(mutex_);
  std::shared_ptr<Mailbox> mailbox_ GUARDED_BY(mutex_);
  Endpoint endpoint_;
  Thread thread_;
};

void MeetingClient::Core::run() {
  while (!stopping()) attend();
}

// From the first attempt to connect until the connection is lost for good.
void MeetingClient::Core::attend() {
  Peer peer = endpoint_.peer("meeting", options_.meeting);
  bool here = false;
  for (Presence presence = peer.presence(); presence != Presence::kLost && presence != Presence::kLeft;) {
    {
      const MutexLock lock(mutex_);
      if (stopping_) {
        if (here) say({{.what = ToMeeting::What::kLeave}});
        break;
      }
      if (presence == Presence::kHere && !here) {
        here = true;
        mailbox_ = Mailbox::open(peer, kLargestEpoch, [this](std::string_view text) { take(text); });
        say(attendee_.connected(steady_now()));
      } else if (here) {
        say(attendee_.tick(steady_now()));
      }
      if (peer.refuses_connections() && presence != Presence::kHere) attendee_.saw_it_dead(steady_now());
      trouble_ = presence != Presence::kHere ? peer.trouble()
                 : attendee_.awaited()       ? kAwaited
                                             : attendee_.refused();
    }
    presence = peer.wait_while(presence, std::chrono::steady_clock::now() + kLook);
  }
  if (stopping()) std::this_thread::sleep_for(20ms);  // what was said last is on its way
  peer.leave();
  const MutexLock lock(mutex_);
  attendee_.lost();
  if (here && peer.refuses_connections()) attendee_.saw_it_dead(steady_now());
  mailbox_ = nullptr;
}

void MeetingClient::Core::take(std::string_view text) {
  const auto message = decode_from_meeting(text);
  {
    const MutexLock lock(mutex_);
    if (!message || !mailbox_) return;
    say(attendee_.take(*message, steady_now()));
  }
  tell();
}

void MeetingClient::Core::say(const std::vector<ToMeeting>& messages) {
  for (const ToMeeting& message : messages) {
    if (mailbox_) mailbox_->send(encode(message));
  }
}

void MeetingClient::Core::tell() {
  std::optional<Epoch> epoch;
  {
    const MutexLock lock(mutex_);
    if (attendee_.epoch() == epoch_) return;
    epoch_ = epoch = attendee_.epoch();
    changed_.notify_all();
  }
  if (options_.changed) options_.changed(*epoch);
}

MeetingClient::MeetingClient(MeetingClientOptions options)
    : core_(std::make_unique<Core>(std::move(options))) {}
MeetingClient::~MeetingClient() = default;

std::optional<Epoch> MeetingClient::epoch() const {
  const MutexLock lock(core_->mutex_);
  return core_->epoch_;
}

std::optional<Epoch> MeetingClient::wait_past(std::int64_t number,
                                              std::chrono::steady_clock::time_point until) const {
  const MutexLock lock(core_->mutex_);
  const auto is_past = [&]() REQUIRES(core_->mutex_) {
    return core_->epoch_ && core_->epoch_->number != number;
  };
  while (!is_past() && core_->changed_.wait_until(core_->mutex_, until)) {
  }
  return is_past() ? core_->epoch_ : std::nullopt;
}

std::string MeetingClient::trouble() const {
  const MutexLock lock(core_->mutex_);
  return core_->trouble_;
}

bool MeetingClient::heard_in_force(const std::string& line, std::int64_t number, const std::string& by) {
  return core_->heard_in_force(line, number, by);
}

void MeetingClient::set_status(Status status) { core_->set_status(std::move(status)); }
std::string MeetingClient::left_out() const { return core_->left_out(); }

}  // namespace gradweave::islands
