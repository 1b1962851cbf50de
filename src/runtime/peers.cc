#include "runtime/peers.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <thread>
#include <vector>

namespace gradweave::runtime {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kBeat = 400ms;
constexpr auto kHurry = 50ms;     // between rounds while somebody waits for one
constexpr auto kSilent = 1200ms;  // three beats
constexpr auto kAnswer = 1700ms;
constexpr auto kNoAnswer = 600ms;  // for a round that somebody waits for
constexpr auto kLinger = 800ms;

const std::string kVerdict = "verdict";

enum class State : char { kRunning = 'r', kFailed = 'f', kEnded = 'e' };

struct Sign {
  std::string text;
  State state = State::kRunning;
  std::int64_t progress = -1;
  Clock::time_point heard = Clock::now();  // when `text` last changed
};

std::string key_of(int rank) { return "alive/" + std::to_string(rank); }

std::string seconds(Clock::duration time) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", std::chrono::duration<double>(time).count());
  return text;
}

// "<beat>:<progress>:<state>"
void take(Sign& sign, const std::vector<std::uint8_t>& bytes) {
  const std::string text(bytes.begin(), bytes.end());
  if (text == sign.text) return;
  sign.text = text;
  sign.heard = Clock::now();
  const std::size_t first = text.find(':'), second = text.rfind(':');
  if (first == second || second + 1 >= text.size()) return;
  std::from_chars(text.data() + first + 1, text.data() + second, sign.progress);
  sign.state = static_cast<State>(text[second + 1]);
}

}  // namespace

struct PeerWatch::Shared {
  c10::intrusive_ptr<c10d::Store> store;  // the thread's alone
  int rank = 0;
  int world_size = 1;
  std::function<void(const std::string&)> on_failure;
  std::atomic<std::int64_t> progress{0};

  std::mutex mutex;
  std::condition_variable wake;   // of the thread
  std::condition_variable round;  // a round is over, or the store is lost
  std::vector<Sign> peers;
  State state = State::kRunning;
  std::string failure;  // to be announced
  std::string verdict;  // another rank's
  std::int64_t rounds = 0;
  Clock::time_point read_at = Clock::now();
  int hurry = 0;  // callers that wait for a round
  bool stop = false, lost = false, left = false;

  void watch();
  void communicate(std::unique_lock<std::mutex>& lock, std::int64_t beat);
  void read_peers(std::vector<Sign>& signs);
  bool all_know() const;
  bool silent(const Sign& sign) const { return read_at - sign.heard > kSilent; }
  std::string accused() const;
  std::string furthest_behind() const;
};

void PeerWatch::Shared::read_peers(std::vector<Sign>& signs) {
  std::vector<std::string> keys;
  std::vector<std::size_t> ranks;
  for (std::size_t r = 0; r < signs.size(); ++r) {
    const std::string key = key_of(static_cast<int>(r));
    if (static_cast<int>(r) == rank || (signs[r].text.empty() && !store->check({key}))) continue;
    keys.push_back(key);
    ranks.push_back(r);
  }
  if (keys.empty()) return;
  const auto values = store->multiGet(keys);
  for (std::size_t i = 0; i < ranks.size(); ++i) take(signs[ranks[i]], values[i]);
}

// One round: tells, then listens. The lock is open meanwhile, since a stopped store never answers.
void PeerWatch::Shared::communicate(std::unique_lock<std::mutex>& lock, std::int64_t beat) {
  const std::string text =
      std::to_string(beat) + ':' + std::to_string(progress.load()) + ':' + static_cast<char>(state);
  const std::string telling = failure;
  std::vector<Sign> signs = peers;
  const bool know = !verdict.empty() || state != State::kRunning;
  lock.unlock();
  std::string found;
  try {
    if (!telling.empty()) store->compareSet(kVerdict, "", telling);
    store->set(key_of(rank), text);
    read_peers(signs);
    if (!know && store->check({kVerdict})) found = store->get_to_str(kVerdict);
  } catch (const std::exception&) {
    lock.lock();
    lost = true;
    return;
  }
  lock.lock();
  peers = std::move(signs);
  read_at = Clock::now();
  ++rounds;
  if (!found.empty()) {
    verdict = std::move(found);
    state = State::kFailed;
  }
}

void PeerWatch::Shared::watch() {
  std::unique_lock lock(mutex);
  Clock::time_point leave_at{};  // once a verdict is known
  bool told = false;
  for (std::int64_t beat = 0; !lost; ++beat) {
    const bool last = stop;
    communicate(lock, beat);
    round.notify_all();
    if (last) break;
    if (!verdict.empty() && !told) {
      if (leave_at == Clock::time_point{}) leave_at = Clock::now() + kLinger;
      told = lost || all_know() || Clock::now() >= leave_at;
      if (told && on_failure) {
        const auto tell = on_failure;
        const std::string what = verdict;
        lock.unlock();
        tell(what);
        lock.lock();
      }
    }
    const bool hurried = hurry > 0 || (!verdict.empty() && !told);
    const std::int64_t waiting = hurry;
    wake.wait_for(lock, hurried ? kHurry : kBeat, [&] { return stop || hurry > waiting; });
  }
  left = true;
  round.notify_all();
}

bool PeerWatch::Shared::all_know() const {
  for (int r = 0; r < world_size; ++r) {
    const Sign& sign = peers[static_cast<std::size_t>(r)];
    if (r != rank && sign.state == State::kRunning && !silent(sign)) return false;
  }
  return true;
}

// Ranks that are silent, or else that have ended; empty if there is none. One that failed and ended is a
// survivor like this one.
std::string PeerWatch::Shared::accused() const {
  std::string quiet, ended;
  for (int r = 0; r < world_size; ++r) {
    const Sign& sign = peers[static_cast<std::size_t>(r)];
    if (r == rank) continue;
    const std::string name = "rank " + std::to_string(r);
    if (sign.state == State::kEnded) {
      ended += (ended.empty() ? "" : ", ") + name + " (has ended its training)";
    } else if (sign.state == State::kRunning && silent(sign)) {
      quiet += (quiet.empty() ? "" : ", ") + name + " (no sign of life for " +
               seconds(Clock::now() - sign.heard) + ")";
    }
  }
  return quiet.empty() ? ended : quiet;
}

std::string PeerWatch::Shared::furthest_behind() const {
  int behind = -1;
  for (int r = 0; r < world_size; ++r) {
    if (r == rank) continue;
    const auto progress_of = [&](int peer) { return peers[static_cast<std::size_t>(peer)].progress; };
    if (behind < 0 || progress_of(r) < progress_of(behind)) behind = r;
  }
  return "rank " + std::to_string(behind) + " (alive, but furthest behind)";
}

PeerWatch::PeerWatch(c10::intrusive_ptr<c10d::Store> store, int rank, int world_size,
                     std::function<void(const std::string&)> on_failure)
    : shared_(std::make_shared<Shared>()) {
  shared_->rank = rank;
  shared_->world_size = world_size;
  if (!store || world_size < 2) return;
  // A connection of our own: the caller's may be held by a blocking wait.
  shared_->store = store->clone();
  shared_->on_failure = std::move(on_failure);
  shared_->peers.resize(static_cast<std::size_t>(world_size));
  std::thread([shared = shared_] { shared->watch(); }).detach();
}

PeerWatch::~PeerWatch() {
  if (!shared_->store) return;
  std::unique_lock lock(shared_->mutex);
  shared_->stop = true;
  shared_->on_failure = nullptr;
  if (shared_->state == State::kRunning) shared_->state = State::kEnded;
  shared_->wake.notify_all();
  shared_->round.wait_for(lock, kNoAnswer, [&] { return shared_->left; });
}

void PeerWatch::set_progress(std::int64_t ops_done) { shared_->progress = ops_done; }

std::string PeerWatch::suspects() {
  if (!shared_->store) return "no peer";
  static const std::string kHost = "the rank that hosts the store, rank 0 by default ";
  const auto begin = Clock::now();
  std::unique_lock lock(shared_->mutex);
  const std::int64_t before = shared_->rounds;
  std::string result;
  ++shared_->hurry;
  shared_->wake.notify_all();
  while (result.empty()) {
    shared_->round.wait_for(lock, kHurry);
    const auto waited = Clock::now() - begin;
    const bool answered = shared_->rounds > before;
    if (shared_->lost) {
      result = kHost + "(the store is gone)";
    } else if (!answered &&
               (waited > kAnswer || (waited > kNoAnswer && Clock::now() - shared_->read_at > kSilent))) {
      result = kHost + "(the store does not answer)";
    } else if (answered) {
      result = shared_->accused();
      if (result.empty() && waited > kSilent + kBeat) result = shared_->furthest_behind();
    }
  }
  --shared_->hurry;
  return result;
}

void PeerWatch::announce(const std::string& failure) {
  if (!shared_->store) return;
  const auto until = Clock::now() + kLinger;
  std::unique_lock lock(shared_->mutex);
  if (shared_->failure.empty()) {
    shared_->failure = "rank " + std::to_string(shared_->rank) + " reports: " + failure;
  }
  shared_->state = State::kFailed;
  const std::int64_t before = shared_->rounds;
  ++shared_->hurry;
  shared_->wake.notify_all();
  // Two rounds: the first may have begun before.
  shared_->round.wait_until(lock, until, [&] {
    return shared_->lost || shared_->left || (shared_->rounds >= before + 2 && shared_->all_know());
  });
  --shared_->hurry;
}

}  // namespace gradweave::runtime
