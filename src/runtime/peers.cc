#include "runtime/peers.h"

#include <algorithm>
#include <thread>

#include "base/mutex.h"
#include "gradweave/error.h"
#include "peers/member.h"

namespace gradweave::runtime {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using peers::Activity;
using peers::State;

constexpr auto kBeat = 400ms;
constexpr auto kHurry = 50ms;       // between rounds while somebody waits for a verdict
constexpr auto kMeetingBeat = 5ms;  // at first, while this rank waits in a meeting
constexpr auto kAnswer = 2500ms;    // for a verdict
constexpr auto kNoAnswer = 600ms;   // for a round
constexpr auto kLinger = 800ms;

const std::string kHost = "the rank that hosts the store, rank 0 by default ";

peers::Time now() { return Clock::now().time_since_epoch(); }

class TorchStore : public peers::Store {
 public:
  explicit TorchStore(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}

  void put(const std::string& key, const std::string& text) override { store_->set(key, text); }

  std::vector<std::string> get(const std::vector<std::string>& keys) override {
    // A get waits for a key that is not there.
    std::vector<std::string> there;
    const bool all = store_->check(keys);
    for (const std::string& key : keys) {
      if (all || store_->check({key})) there.push_back(key);
    }
    std::vector<std::string> texts(keys.size());
    if (there.empty()) return texts;
    const auto values = store_->multiGet(there);
    for (std::size_t k = 0, found = 0; k < keys.size() && found < there.size(); ++k) {
      if (keys[k] != there[found]) continue;
      texts[k].assign(values[found].begin(), values[found].end());
      ++found;
    }
    return texts;
  }

  std::string exchange(const std::string& key, const std::string& expected,
                       const std::string& text) override {
    return store_->compareSet(key, expected, text);
  }

  void erase(const std::string& key) override { store_->deleteKey(key); }

 private:
  c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace

struct Peers::Shared {
  const int rank, world_size;

  Mutex mutex;
  CondVar wake;   // of the thread
  CondVar round;  // a round is over, or the store is lost
  peers::Outgoing outgoing GUARDED_BY(mutex);
  std::string verdict GUARDED_BY(mutex);
  std::vector<std::string> posts GUARDED_BY(mutex);  // to the meeting that this rank waits in
  std::function<void(const std::string&)> tell GUARDED_BY(mutex);
  std::int64_t rounds GUARDED_BY(mutex) = 0;
  Clock::time_point round_at GUARDED_BY(mutex) = Clock::now();  // when the last one ended
  Clock::time_point met_at GUARDED_BY(mutex);                   // when this rank came to its meeting
  int hurry GUARDED_BY(mutex) = 0;                              // callers that wait for a round
  Clock::time_point leave_at GUARDED_BY(mutex);  // with a verdict: when the others have had time to learn it
  bool stop GUARDED_BY(mutex) = false, lost GUARDED_BY(mutex) = false, left GUARDED_BY(mutex) = false;
  bool all_know GUARDED_BY(mutex) = false, somebody_waits GUARDED_BY(mutex) = false;

  Shared(int rank, int world_size) : rank(rank), world_size(world_size) {}

  void watch(c10::intrusive_ptr<c10d::Store> store) EXCLUDES(mutex);
  void lose() EXCLUDES(mutex);  // there is no store
  // What a round in which this rank waited in `meeting` has brought.
  void take(const peers::Incoming& incoming, std::int64_t meeting) REQUIRES(mutex);
  void adopt(const std::string& text) REQUIRES(mutex);
  Clock::duration pause() const REQUIRES(mutex);
  // The others know the verdict, or have had time to: this process may host the store.
  bool may_leave() const REQUIRES(mutex) {
    return verdict.empty() || all_know || lost || left || Clock::now() >= leave_at;
  }
  bool store_is_silent(Clock::duration waited, std::int64_t rounds_before) const REQUIRES(mutex);
  std::string await_verdict() REQUIRES(mutex);
};

void Peers::Shared::adopt(const std::string& text) {
  if (!verdict.empty() || text.empty()) return;
  verdict = text;
  leave_at = Clock::now() + kLinger;
  if (outgoing.sign.state != State::kEnded) outgoing.sign.state = State::kLeaving;
}

void Peers::Shared::lose() {
  const MutexLock lock(mutex);
  lost = left = true;
  round.notify_all();
}

void Peers::Shared::take(const peers::Incoming& incoming, std::int64_t meeting) {
  ++rounds;
  round_at = Clock::now();
  adopt(incoming.verdict);
  if (!incoming.posts.empty() && outgoing.sign.meetings == meeting) posts = incoming.posts;
  all_know = incoming.all_know;
  somebody_waits = incoming.somebody_waits;
}

Clock::duration Peers::Shared::pause() const {
  if (hurry > 0 || somebody_waits || (!verdict.empty() && !all_know)) return kHurry;
  if (!outgoing.sign.waits()) return kBeat;
  return std::clamp<Clock::duration>((Clock::now() - met_at) / 8, kMeetingBeat, kBeat);
}

void Peers::Shared::watch(c10::intrusive_ptr<c10d::Store> torch_store) {
  TorchStore store(std::move(torch_store));
  peers::Member member(rank, world_size, now());
  MutexLock lock(mutex);
  for (bool last = false; !last && !lost;) {
    const peers::Outgoing saying = outgoing;
    last = stop && may_leave();
    lock.unlock();
    peers::Incoming incoming;
    bool failed = false;
    try {
      incoming = member.round(saying, store, now());
    } catch (const std::exception&) {
      failed = true;
    }
    lock.lock();
    lost = failed;
    if (!failed) take(incoming, saying.sign.meetings);
    round.notify_all();
    if (!verdict.empty() && tell && may_leave()) {
      const auto told = std::exchange(tell, nullptr);
      const std::string text = verdict;
      lock.unlock();
      told(text);
      lock.lock();
    }
    const auto until = Clock::now() + pause();
    const std::int64_t said_by = outgoing.sign.meetings;
    const int waiting = hurry;
    const bool stopping = stop;
    while (!last && !lost && stop == stopping && hurry <= waiting && outgoing.sign.meetings == said_by) {
      if (!wake.wait_until(mutex, until)) break;
    }
  }
  left = true;
  round.notify_all();
}

Peers::Peers(c10::intrusive_ptr<c10d::Store> store, int rank, int world_size)
    : shared_(std::make_shared<Shared>(rank, world_size)) {
  if (!store || world_size < 2) {
    const MutexLock lock(shared_->mutex);
    shared_->left = true;
    return;
  }
  // A connection of our own: the caller's may be held by a blocking wait. Made by the thread, since a store whose host is
  // lost lets a new connection wait for minutes.
  std::thread([shared = shared_, store = std::move(store)] {
    try {
      shared->watch(store->clone());
    } catch (const std::exception&) {
      shared->lose();
    }
  }).detach();
}

Peers::~Peers() { close(); }

void Peers::end() {
  const MutexLock lock(shared_->mutex);
  if (shared_->outgoing.sign.state == State::kRunning) shared_->outgoing.sign.state = State::kEnded;
}

void Peers::close() {
  const MutexLock lock(shared_->mutex);
  if (shared_->stop) return;
  shared_->stop = true;
  shared_->tell = nullptr;
  if (shared_->outgoing.sign.state == State::kRunning) shared_->outgoing.sign.state = State::kEnded;
  shared_->wake.notify_all();
  const auto until = Clock::now() + (shared_->verdict.empty() ? kNoAnswer : kLinger + kHurry);
  while (!shared_->left && shared_->round.wait_until(shared_->mutex, until)) {
  }
}

void Peers::outside(std::int64_t iteration) {
  const MutexLock lock(shared_->mutex);
  shared_->outgoing.sign.activity = Activity::kOutside;
  shared_->outgoing.sign.iteration = iteration;
}

void Peers::training(std::int64_t iteration) {
  const MutexLock lock(shared_->mutex);
  shared_->outgoing.sign.activity = Activity::kTraining;
  shared_->outgoing.sign.iteration = iteration;
}

void Peers::set_progress(std::int64_t ops_done) {
  const MutexLock lock(shared_->mutex);
  shared_->outgoing.sign.ops = ops_done;
}

void Peers::on_verdict(std::function<void(const std::string&)> tell) {
  const MutexLock lock(shared_->mutex);
  shared_->tell = std::move(tell);
}

std::vector<std::string> Peers::agree(const std::string& what, const std::string& post,
                                      std::chrono::milliseconds timeout, const std::string& remedy) {
  if (shared_->world_size < 2) return {post};
  const auto begin = Clock::now();
  Shared& s = *shared_;
  {
    const MutexLock lock(s.mutex);
    const peers::Sign before = s.outgoing.sign;
    s.outgoing.sign.activity = Activity::kMeeting;
    s.outgoing.sign.what = what;
    ++s.outgoing.sign.meetings;
    s.outgoing.post = post;
    s.met_at = begin;
    s.posts.clear();
    s.wake.notify_all();
    while (s.posts.empty() && s.verdict.empty() && !s.left && s.round.wait_until(s.mutex, begin + timeout)) {
    }
    if (!s.posts.empty()) {
      s.outgoing.sign.activity = before.activity;
      s.outgoing.sign.what.clear();
      return std::exchange(s.posts, {});
    }
  }
  throw RuntimeFailure(give_up(what, Clock::now() - begin, "not all ranks have come in time" + remedy));
}

bool Peers::Shared::store_is_silent(Clock::duration waited, std::int64_t rounds_before) const {
  if (rounds > rounds_before) return false;
  return waited > kAnswer || (waited > kNoAnswer && Clock::now() - round_at > peers::kSilent);
}

// Returns whom to suspect if there is no verdict.
std::string Peers::Shared::await_verdict() {
  const auto begin = Clock::now();
  const std::int64_t before = rounds;
  ++hurry;
  wake.notify_all();
  std::string suspect;
  while (verdict.empty() && suspect.empty()) {
    round.wait_until(mutex, Clock::now() + kHurry);
    const auto waited = Clock::now() - begin;
    if (lost) {
      suspect = kHost + "(the store is gone)";
    } else if (store_is_silent(waited, before)) {
      suspect = kHost + "(the store does not answer)";
    } else if (waited > kAnswer || left) {
      suspect = "nobody: no rank has given a verdict";
    }
  }
  --hurry;
  return suspect;
}

std::string Peers::give_up(const std::string& what, std::chrono::nanoseconds after,
                           const std::string& cause) {
  Shared& s = *shared_;
  const MutexLock lock(s.mutex);
  const std::string trouble = what + " failed after " + peers::seconds(after);
  std::string suspect = "no peer";
  if (s.world_size > 1 && s.verdict.empty()) {
    if (s.outgoing.sign.state == State::kRunning) {
      s.outgoing.sign.state = State::kStuck;
      s.outgoing.sign.trouble = trouble;
      s.outgoing.sign.cause = cause;
    }
    suspect = s.await_verdict();
  }
  if (s.verdict.empty()) {
    s.adopt(trouble + "; suspect: " + suspect +
            ". Training can't go on: restart from the last checkpoint. Cause: " + cause);
    s.outgoing.verdict = s.verdict;
  }
  while (!s.may_leave()) s.round.wait_until(s.mutex, s.leave_at);
  return s.verdict;
}

void Peers::report(const std::string& error) {
  Shared& s = *shared_;
  const MutexLock lock(s.mutex);
  if (!s.verdict.empty() || s.left) return;
  s.outgoing.verdict = "rank " + std::to_string(s.rank) + " ended with " + error + " (" +
                   peers::doing(s.outgoing.sign) + "). Training can't go on without it";
  s.adopt(s.outgoing.verdict);
  const std::int64_t before = s.rounds;
  const auto until = Clock::now() + kNoAnswer;
  ++s.hurry;
  s.wake.notify_all();
  // Two rounds: the first may have begun before.
  while (!s.left && s.rounds < before + 2 && s.round.wait_until(s.mutex, until)) {
  }
  --s.hurry;
}

}  // namespace gradweave::runtime
