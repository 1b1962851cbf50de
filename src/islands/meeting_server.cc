#include "islands/meeting_server.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "base/mutex.h"
#include "base/quoted.h"
#include "base/thread.h"
#include "gradweave/error.h"
#include "islands/endpoint.h"
#include "islands/mailbox.h"
#include "islands/random.h"

namespace gradweave::islands {
namespace {

using namespace std::chrono_literals;

// Of an epoch of thousands of islands, with the address of each rank: pages that are not used cost nothing.
constexpr std::size_t kLargestReport = 16 << 20;

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + in_quotes(name);
  return text;
}

}  // namespace

class MeetingServer::Core {
 public:
  explicit Core(MeetingServerOptions options);
  ~Core();
  std::uint16_t port() const { return endpoint_->port(); }

 private:
  struct Visitor {
    std::shared_ptr<Mailbox> mailbox;
    std::string life;  // as it has said; "" nothing yet
  };

  void arrive(const Peer& peer);
  void take(const std::string& name, std::string_view text);
  void leave(const Peer& peer);
  void run();
  void answer() REQUIRES(mutex_);
  void tell() REQUIRES(mutex_);

  const MeetingServerOptions options_;
  Mutex mutex_;
  CondVar stopped_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  Meeting meeting_ GUARDED_BY(mutex_);
  std::map<std::string, Visitor> visitors_ GUARDED_BY(mutex_);
  std::string told_ GUARDED_BY(mutex_), told_awaited_ GUARDED_BY(mutex_);
  std::unique_ptr<Endpoint> endpoint_;
  Thread thread_;
};

MeetingServer::Core::Core(MeetingServerOptions options)
    : options_(std::move(options)), meeting_(random_name(), steady_now(), options_.lease, options_.patience) {
  {
    const MutexLock lock(mutex_);
    for (const std::string& name : options_.without) meeting_.go_on_without(name);
  }
  endpoint_ =
      std::make_unique<Endpoint>(EndpointOptions{.key = options_.key,
                                                 .name = "meeting",
                                                 .listen = options_.listen,
                                                 .lines = 1,
                                                 .silence = options_.lease,
                                                 .return_within = options_.lease / 10,
                                                 .arrived = [this](const Peer& peer) { arrive(peer); },
                                                 .ended = [this](const Peer& peer) { leave(peer); }});
  thread_ = Thread([this] { run(); },
                   [this](const std::string& why) { options_.tell("the meeting point has failed: " + why); });
}

MeetingServer::Core::~Core() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    stopped_.notify_all();
  }
  thread_.join();
  endpoint_.reset();
}

void MeetingServer::Core::run() {
  const MutexLock lock(mutex_);
  while (!stopping_) {
    meeting_.tick(steady_now());
    answer();
    tell();
    stopped_.wait_until(mutex_, std::chrono::steady_clock::now() + std::min<Time>(options_.lease / 8, 1s));
  }
}

void MeetingServer::Core::arrive(const Peer& peer) {
  const MutexLock lock(mutex_);
  visitors_[peer.name()] = {
      .mailbox = Mailbox::open(peer, kLargestReport,
                               [this, name = peer.name()](std::string_view text) { take(name, text); })};
}

void MeetingServer::Core::take(const std::string& name, std::string_view text) {
  const auto message = decode_to_meeting(text);
  const MutexLock lock(mutex_);
  const auto found = visitors_.find(name);
  if (found == visitors_.end()) return;
  Visitor& visitor = found->second;
  if (!message || (message->what == ToMeeting::What::kJoin && message->report.island.name != name)) {
    options_.tell("island " + in_quotes(name) + " speaks another protocol: run the same release everywhere");
    visitor.mailbox->leave();
    return;
  }
  if (message->what == ToMeeting::What::kJoin) visitor.life = message->report.island.life;
  meeting_.take(name, visitor.life, *message, steady_now());
  answer();
}

void MeetingServer::Core::leave(const Peer& peer) {
  const MutexLock lock(mutex_);
  const auto found = visitors_.find(peer.name());
  if (found == visitors_.end() || !(found->second.mailbox->peer() == peer)) return;
  meeting_.lost(peer.name(), found->second.life, steady_now());
  visitors_.erase(found);
  answer();
}

// Sends what the meeting point has to say.
void MeetingServer::Core::answer() {
  std::map<std::shared_ptr<const FromMeeting>, std::shared_ptr<const std::string>> texts;
  for (const Outgoing& outgoing : meeting_.take_outgoing()) {
    const auto found = visitors_.find(outgoing.to);
    if (found == visitors_.end() || found->second.life != outgoing.life) continue;
    const FromMeeting& message = *outgoing.message;
    if (message.what == FromMeeting::What::kRefused)
      options_.tell("refused island " + in_quotes(outgoing.to) + ": " + message.why);
    if (message.what == FromMeeting::What::kLeftOut)
      options_.tell("leaves out island " + in_quotes(outgoing.to) + ": " + message.why);
    auto& text = texts[outgoing.message];
    if (!text) text = std::make_shared<const std::string>(encode(message));
    found->second.mailbox->send(text);
  }
}

// Tells the operator of changes.
void MeetingServer::Core::tell() {
  if (std::string awaited = listed(meeting_.awaited()); awaited != told_awaited_) {
    told_awaited_ = std::move(awaited);
    if (!told_awaited_.empty())
      options_.tell("the others have waited for " + told_awaited_ + " for a minute");
  }
  const std::vector<std::string> waits_for = meeting_.waits_for();
  std::string now;
  if (!waits_for.empty()) {
    now = "waiting for " + listed(waits_for) +
          ", which may still train. Nobody can join or leave until they come. If some have ended, start "
          "again with --without NAME for each";
  } else if (meeting_.epoch().number > 0) {
    std::vector<std::string> names;
    for (const Island& island : meeting_.epoch().islands) names.push_back(island.name);
    const std::size_t many = names.size();
    if (many > 8) names.resize(8);
    now = "epoch " + std::to_string(meeting_.epoch().number) + ": " + std::to_string(many) + " island" +
          (many == 1 ? "" : "s") + ": " + listed(names) + (many > 8 ? ", ..." : "");
  }
  if (now.empty() || now == told_) return;
  told_ = now;
  options_.tell(now);
}

MeetingServer::MeetingServer(MeetingServerOptions options)
    : core_(std::make_unique<Core>(std::move(options))) {}
MeetingServer::~MeetingServer() = default;
std::uint16_t MeetingServer::port() const { return core_->port(); }

}  // namespace gradweave::islands
