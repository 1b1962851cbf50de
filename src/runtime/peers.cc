#include "runtime/peers.h"

#include <ATen/ThreadLocalState.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <utility>

#include "base/mutex.h"
#include "gradweave/error.h"
#include "peers/member.h"
#include "runtime/fork.h"
#include "runtime/torch_store.h"

namespace gradweave::runtime {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using peers::Activity;
using peers::State;

constexpr auto kBeat = 400ms;
constexpr auto kHurry = 50ms;       // between rounds while somebody waits for a verdict
constexpr auto kMeetingBeat = 5ms;  // at first, while this rank waits in a meeting
constexpr auto kNoAnswer = 600ms;   // for a round
constexpr auto kLinger = 800ms;

// All that this rank takes to give up what was overdue, whatever becomes of the store: with what its links' threads and its
// session take to end, less than 2 s. What fails before its time leaves more.
constexpr auto kGivesUp = 1500ms;
constexpr auto kGivesUpEarly = 3000ms;
constexpr auto kTelling = 6;  // the last one in so many parts of it is for others to learn the verdict

constexpr auto kAgain = 500ms;  // between attempts to reach the store
constexpr auto kStoreGone =
    1500ms;  // without a connection: then who needs a verdict gets it without the store
// Meetings wait so long for a store to come back: a server that is started again takes seconds.
constexpr auto kStoreBack = 10s;

peers::Time now() { return Clock::now().time_since_epoch(); }

// What await() calls; after a verdict both threads' own.
struct Awaited {
  const std::function<void()> work;
  const at::ThreadLocalState caller;
  Mutex mutex;
  CondVar ended;
  bool done GUARDED_BY(mutex) = false;
  std::exception_ptr error GUARDED_BY(mutex);

  explicit Awaited(std::function<void()> of) : work(std::move(of)) {}
  void run();
};

void Awaited::run() {
  std::exception_ptr failed;
  try {
    const at::ThreadLocalStateGuard as_caller(caller);
    work();
  } catch (...) {
    failed = std::current_exception();
  }
  const MutexLock lock(mutex);
  error = failed;
  done = true;
  ended.notify_all();
}

// A call that throws the verdict, or returns.
class Telling {
 public:
  explicit Telling(std::atomic<int>& calls) : calls_(calls) { ++calls_; }
  Telling(const Telling&) = delete;
  Telling& operator=(const Telling&) = delete;
  ~Telling() {
    if (!told_) --calls_;
  }
  [[noreturn]] void tell(const std::string& verdict) {
    told_ = true;
    throw RuntimeFailure(verdict);
  }

 private:
  std::atomic<int>& calls_;
  bool told_ = false;
};

// Until the process ends: what a backend may still write to.
void keep(std::shared_ptr<Awaited> call) {
  static Mutex mutex;
  static auto* kept = new std::vector<std::shared_ptr<Awaited>>;
  const MutexLock lock(mutex);
  kept->push_back(std::move(call));
}

}  // namespace

// All jobs of this process.
struct Peers::Process {
  std::atomic<std::int64_t> begun_and_ended = 0, ops = 0;  // as in Sign::elsewhere
  Mutex mutex;
  std::vector<std::weak_ptr<Shared>> jobs GUARDED_BY(mutex);

  static Process& get() {
    static auto* process = new Process;
    return *process;
  }
  void add(const std::shared_ptr<Shared>& job) EXCLUDES(mutex);
  // The other jobs end too.
  void tell_others(const Shared* job, const std::string& verdict) EXCLUDES(mutex);
};

struct Peers::Shared {
  const int rank, world_size;
  const std::chrono::milliseconds timeout;
  const std::string store_name;
  std::atomic<std::int64_t> begun_and_ended = 0, ops = 0;
  std::atomic<Clock::time_point> moved = Clock::now();
  std::atomic<int> telling = 0;

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
  std::optional<Clock::time_point> broken_at
      GUARDED_BY(mutex);  // the connection to the store, until it is made again
  std::string broken_by GUARDED_BY(mutex);
  std::int64_t exchanges GUARDED_BY(mutex) = 0;  // outside the engine, that this rank has come to
  bool trains GUARDED_BY(mutex) = false;  // has an engine: its end is the end of the process's other jobs
  bool stop GUARDED_BY(mutex) = false, left GUARDED_BY(mutex) = false;
  bool all_know GUARDED_BY(mutex) = false, somebody_waits GUARDED_BY(mutex) = false;

  std::vector<peers::Seen> seen GUARDED_BY(mutex);  // by rank, where this one judges
  Dump dump;

  Shared(int rank, int world_size, std::chrono::milliseconds timeout, std::string store_name)
      : rank(rank), world_size(world_size), timeout(timeout), store_name(std::move(store_name)) {}

  void watch(TorchStore store) EXCLUDES(mutex);
  // What a round in which this rank waited in `meeting` has brought.
  void take(const peers::Incoming& incoming, std::int64_t meeting) REQUIRES(mutex);
  void lose(const std::string& why) REQUIRES(mutex);   // the connection
  void leave(const std::string& why) EXCLUDES(mutex);  // the thread has failed
  void warn(bool was_broken) EXCLUDES(mutex);
  void adopt(const std::string& text) REQUIRES(mutex);
  // Gives a verdict that this rank has from elsewhere.
  void learn(const std::string& text) EXCLUDES(mutex);
  // Returns what lets the engine and the process's other jobs know the verdict: once there is one, and once. To be called
  // without the lock; may be empty.
  std::function<void()> passing_on() REQUIRES(mutex);
  void move(Activity activity, std::int64_t iteration) EXCLUDES(mutex);
  Clock::duration pause() const REQUIRES(mutex);
  // The others know the verdict, or have had time to: this process may host the store.
  bool may_leave() const REQUIRES(mutex) {
    return verdict.empty() || all_know || broken_at || left || Clock::now() >= leave_at;
  }
  // Until when a meeting waits that may last until `timeout`.
  Clock::time_point patience(Clock::time_point timeout) const REQUIRES(mutex) {
    return broken_at ? std::min(timeout, *broken_at + kStoreBack) : timeout;
  }
  bool store_is_silent(Clock::duration waited, std::int64_t rounds_before) const REQUIRES(mutex);
  // Returns whom to suspect if there is no verdict by then.
  std::string await_verdict(Clock::time_point until) REQUIRES(mutex);
  std::string who_is_out_of_reach(std::int64_t rounds_before) const REQUIRES(mutex);
  void write_dump() EXCLUDES(mutex);
};

void Peers::Process::add(const std::shared_ptr<Shared>& job) {
  const MutexLock lock(mutex);
  std::erase_if(jobs, [](const std::weak_ptr<Shared>& each) { return each.expired(); });
  jobs.push_back(job);
}

void Peers::Process::tell_others(const Shared* job, const std::string& verdict) {
  std::vector<std::shared_ptr<Shared>> others;
  {
    const MutexLock lock(mutex);
    for (const std::weak_ptr<Shared>& each : jobs) {
      if (auto other = each.lock(); other && other.get() != job) others.push_back(std::move(other));
    }
  }
  for (const auto& other : others)
    other->learn("the job of another model in this process has ended: " + verdict);
}

void Peers::Shared::adopt(const std::string& text) {
  if (!verdict.empty() || text.empty()) return;
  verdict = text;
  leave_at = Clock::now() + kLinger;
  if (outgoing.sign.state != State::kEnded) outgoing.sign.state = State::kLeaving;
}

void Peers::Shared::write_dump() {
  Stop stop{.rank = rank, .ranks = world_size};
  {
    const MutexLock lock(mutex);
    stop.doing = peers::doing(outgoing.sign);
    stop.verdict = verdict;
    for (std::size_t r = 0; r < seen.size(); ++r) {
      if (static_cast<int>(r) == rank || !seen[r].came) continue;
      stop.heard.push_back({.rank = static_cast<std::int64_t>(r),
                            .doing = peers::doing(seen[r].sign),
                            .ops = seen[r].sign.ops,
                            .ago_ns = (now() - seen[r].heard).count()});
    }
  }
  dump.write(stop);
}

void Peers::Shared::learn(const std::string& text) {
  const MutexLock lock(mutex);
  if (!verdict.empty() || stop) return;
  outgoing.verdict = text;
  adopt(text);
  wake.notify_all();
}

std::function<void()> Peers::Shared::passing_on() {
  if (verdict.empty() || !may_leave() || !trains) return {};
  trains = false;
  return [this, told = std::exchange(tell, nullptr), text = verdict] {
    write_dump();
    if (told) told(text);
    Process::get().tell_others(this, text);
  };
}

void Peers::Shared::move(Activity activity, std::int64_t iteration) {
  const std::int64_t now_at = 2 * iteration + (activity == Activity::kTraining);
  moved = Clock::now();
  Process::get().begun_and_ended += now_at - begun_and_ended.exchange(now_at);
  const MutexLock lock(mutex);
  outgoing.sign.activity = activity;
  outgoing.sign.iteration = iteration;
}

void Peers::Shared::lose(const std::string& why) {
  broken_by = why;
  if (!broken_at) broken_at = Clock::now();
}

void Peers::Shared::leave(const std::string& why) {
  const MutexLock lock(mutex);
  lose(why);
  left = true;
  round.notify_all();
}

void Peers::Shared::warn(bool was_broken) {
  std::string why;
  {
    const MutexLock lock(mutex);
    if (stop || outgoing.sign.state != State::kRunning || was_broken == broken_at.has_value()) return;
    why = broken_by;
  }
  if (was_broken) {
    TORCH_WARN("gradweave: rank ", rank, " reaches ", store_name, " again");
  } else {
    TORCH_WARN("gradweave: rank ", rank, " has lost its connection to ", store_name, " (", why,
               "); it connects again");
  }
}

void Peers::Shared::take(const peers::Incoming& incoming, std::int64_t meeting) {
  broken_at.reset();
  ++rounds;
  round_at = Clock::now();
  adopt(incoming.verdict);
  if (!incoming.posts.empty() && outgoing.sign.meetings == meeting) posts = incoming.posts;
  all_know = incoming.all_know;
  somebody_waits = incoming.somebody_waits;
}

Clock::duration Peers::Shared::pause() const {
  if (broken_at) return kAgain;
  if (hurry > 0 || somebody_waits || (!verdict.empty() && !all_know)) return kHurry;
  if (!outgoing.sign.waits()) return kBeat;
  return std::clamp<Clock::duration>((Clock::now() - met_at) / 8, kMeetingBeat, kBeat);
}

void Peers::Shared::watch(TorchStore store) {
  peers::Member member(rank, world_size, now());
  bool connected = false;
  MutexLock lock(mutex);
  for (bool last = false; !last;) {
    outgoing.sign.elsewhere = std::max<std::int64_t>(0, Process::get().begun_and_ended - begun_and_ended);
    outgoing.sign.ops_elsewhere = std::max<std::int64_t>(0, Process::get().ops - ops);
    const peers::Outgoing saying = outgoing;
    const bool was_broken = broken_at.has_value();
    last = stop && may_leave();
    lock.unlock();
    peers::Incoming incoming;
    std::string failure;
    bool waited = false;
    try {
      if (!connected) store.connect();
      if (was_broken && !connected) member.reconnected(store);
      connected = true;
      incoming = member.round(saying, store, now());
    } catch (
        const c10::DistStoreError&) {  // not in time: the store's host stands still, or a text went meanwhile
      waited = true;
    } catch (const std::exception& error) {
      const std::string text = error.what();
      failure = text.substr(0, std::min<std::size_t>(text.find('\n'), 120));
      connected = false;
    }
    lock.lock();
    if (!waited) failure.empty() ? take(incoming, saying.sign.meetings) : lose(failure);
    if (member.judges()) seen = member.seen();
    round.notify_all();
    const std::function<void()> pass_on = passing_on();
    lock.unlock();
    if (pass_on) pass_on();
    warn(was_broken);
    lock.lock();
    const auto until = Clock::now() + pause();
    const std::int64_t meetings = outgoing.sign.meetings;
    const int waiting = hurry;
    const bool stopping = stop, knows = !verdict.empty();
    while (!last && stop == stopping && hurry <= waiting && outgoing.sign.meetings == meetings &&
           knows == !verdict.empty()) {
      if (!wake.wait_until(mutex, until)) break;
    }
  }
  left = true;
  round.notify_all();
}

Peers::Peers(c10::intrusive_ptr<c10d::Store> store, int rank, int world_size,
             std::chrono::milliseconds timeout)
    : generation_(fork_generation()),
      shared_(std::make_shared<Shared>(rank, world_size, timeout, store ? describe(*store) : "")) {
  if (!store || world_size < 2) {
    const MutexLock lock(shared_->mutex);
    shared_->left = true;
    return;
  }
  Process::get().add(shared_);
  // Connections are made by the thread: a store whose host is lost lets one wait for minutes.
  thread_ = Thread([shared = shared_, store = std::move(store)] { shared->watch(TorchStore(store)); },
                   [shared = shared_](const std::string& why) { shared->leave(why); });
}

// In a process that was forked the thread does not exist, and may have held the mutex.
void Peers::keep_forever_if_forked() {
  if (!shared_ || fork_generation() == generation_) return;
  new std::shared_ptr<Shared>(std::exchange(shared_, nullptr));
  new Thread(std::move(thread_));
}

Peers::~Peers() {
  close();
  if (!thread_.join_for(kHurry)) thread_.give_up();
}

std::string Peers::verdict() const {
  const MutexLock lock(shared_->mutex);
  return shared_->verdict;
}

bool Peers::tells() const { return shared_->telling > 0; }

std::chrono::milliseconds Peers::timeout() const { return shared_->timeout; }

void Peers::end() {
  const MutexLock lock(shared_->mutex);
  if (shared_->outgoing.sign.state == State::kRunning) shared_->outgoing.sign.state = State::kEnded;
}

void Peers::close() {
  keep_forever_if_forked();
  if (!shared_) return;
  {
    const MutexLock lock(shared_->mutex);
    if (shared_->stop) return;
    shared_->stop = true;
    shared_->tell = nullptr;
    if (shared_->outgoing.sign.state == State::kRunning) shared_->outgoing.sign.state = State::kEnded;
    shared_->wake.notify_all();
    const auto until = shared_->verdict.empty() ? Clock::now() + kNoAnswer : shared_->leave_at + kHurry;
    while (!shared_->left && shared_->round.wait_until(shared_->mutex, until)) {
    }
  }
  shared_->dump.close();
}

void Peers::outside(std::int64_t iteration) { shared_->move(Activity::kOutside, iteration); }

void Peers::training(std::int64_t iteration) { shared_->move(Activity::kTraining, iteration); }

void Peers::set_progress(std::int64_t ops_done) {
  Process::get().ops += ops_done - shared_->ops.exchange(ops_done);
  shared_->moved = Clock::now();
  const MutexLock lock(shared_->mutex);
  shared_->outgoing.sign.ops = ops_done + shared_->exchanges;
}

void Peers::on_verdict(std::function<void(const std::string&)> tell) {
  const MutexLock lock(shared_->mutex);
  shared_->trains = true;
  shared_->tell = std::move(tell);
  shared_->wake.notify_all();
}

std::chrono::steady_clock::time_point Peers::moved() const { return shared_->moved; }

void Peers::await(std::function<void()> work, const Patience& patience) {
  if (shared_->world_size < 2) return work();
  Telling telling(shared_->telling);
  if (const std::string text = verdict(); !text.empty()) telling.tell(text);
  const auto call = std::make_shared<Awaited>(std::move(work));
  Thread thread([call] { call->run(); }, [](const std::string&) {});  // what fails is the call's
  const std::chrono::milliseconds limit = patience.limit.value_or(shared_->timeout);
  auto moved = Clock::now();
  std::int64_t steps = 0;
  bool late = false;
  std::string text;
  while (text.empty() && !late) {
    {
      const MutexLock lock(call->mutex);
      if (!call->done) call->ended.wait_until(call->mutex, Clock::now() + kHurry);
      if (call->done) break;
    }
    text = verdict();
    if (patience.steps && std::exchange(steps, *patience.steps) != *patience.steps) moved = Clock::now();
    late = Clock::now() - moved > limit + kHurry;  // the backend's own error says more
  }
  if (text.empty() && !late) {
    thread.join();
    shared_->moved = Clock::now();
    const MutexLock lock(call->mutex);
    if (call->error) std::rethrow_exception(call->error);
    return;
  }
  keep(call);
  thread.give_up();
  telling.tell(late && text.empty() ? "not all ranks have arrived in time" : text);
}

void Peers::together(const std::string& what, std::function<void()> work, const Patience& patience) {
  const auto begin = Clock::now();
  Telling telling(shared_->telling);
  {
    const MutexLock lock(shared_->mutex);
    shared_->outgoing.sign.ops = shared_->ops + ++shared_->exchanges;
  }
  std::string cause;
  try {
    return await(std::move(work), patience);
  } catch (const InvalidInput&) {
    throw;
  } catch (const std::exception& error) {
    cause = error.what();
  }
  const auto limit = patience.limit.value_or(shared_->timeout);
  telling.tell(give_up(what, Clock::now() - begin, cause, limit));
}

std::vector<std::string> Peers::agree(const std::string& what, const std::string& post,
                                      std::chrono::milliseconds timeout, const std::string& remedy) {
  if (shared_->world_size < 2) return {post};
  const auto begin = Clock::now();
  Shared& s = *shared_;
  Telling telling(s.telling);
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
    const auto end = begin + timeout;
    while (s.posts.empty() && s.verdict.empty() && !s.left && Clock::now() < s.patience(end))
      s.round.wait_until(s.mutex, s.patience(end));
    if (!s.posts.empty()) {
      s.outgoing.sign.activity = before.activity;
      s.outgoing.sign.what.clear();
      s.moved = Clock::now();
      return std::exchange(s.posts, {});
    }
  }
  telling.tell(give_up(what, Clock::now() - begin, "not all ranks have arrived in time" + remedy, timeout));
}

bool Peers::Shared::store_is_silent(Clock::duration waited, std::int64_t rounds_before) const {
  return rounds == rounds_before && waited > kNoAnswer && Clock::now() - round_at > peers::kSilent;
}

std::string Peers::Shared::await_verdict(Clock::time_point until) {
  const auto begin = Clock::now();
  const std::int64_t before = rounds;
  ++hurry;
  wake.notify_all();
  const auto ends = [&]() REQUIRES(mutex) {
    const auto at = Clock::now();
    return !verdict.empty() || left || at >= until || (broken_at && at - *broken_at > kStoreGone) ||
           store_is_silent(at - begin, before);
  };
  while (!ends()) round.wait_until(mutex, std::min<Clock::time_point>(until, Clock::now() + kHurry));
  --hurry;
  return verdict.empty() ? who_is_out_of_reach(before) : "";
}

std::string Peers::Shared::who_is_out_of_reach(std::int64_t rounds_before) const {
  if (broken_at) {
    return store_name + " (no connection for " + peers::seconds(Clock::now() - *broken_at) + ": " +
           broken_by + ")";
  }
  if (rounds == rounds_before) return store_name + " (it does not answer)";
  return "nobody: the rank that judges could not be reached in time";
}

std::string Peers::give_up(const std::string& what, std::chrono::nanoseconds after,
                           const std::string& cause) {
  return give_up(what, after, cause, shared_->timeout);
}

std::string Peers::give_up(const std::string& what, std::chrono::nanoseconds after, const std::string& cause,
                           std::chrono::milliseconds limit) {
  Shared& s = *shared_;
  const auto begin = Clock::now();
  const auto mine =
      std::min<Clock::duration>(kGivesUpEarly, kGivesUp + std::max<Clock::duration>(limit - after, {}));
  MutexLock lock(s.mutex);
  const std::string trouble = what + " failed after " + peers::seconds(after);
  std::string suspect = "no peer";
  if (s.world_size > 1 && s.verdict.empty()) {
    if (s.outgoing.sign.state == State::kRunning) {
      s.outgoing.sign.state = State::kStuck;
      s.outgoing.sign.trouble = trouble;
      s.outgoing.sign.cause = cause;
      s.outgoing.sign.overdue = after >= std::max<peers::Time>(limit, peers::kPatience);
    }
    suspect = s.await_verdict(begin + mine - mine / kTelling);
  }
  if (s.verdict.empty()) {
    s.adopt("rank " + std::to_string(s.rank) + " reports: " + trouble + "; suspect: " + suspect +
            ". Training can't go on: restart from the last checkpoint. Where ranks are: rank " +
            std::to_string(s.rank) + ": " + peers::doing(s.outgoing.sign) + ". Cause: " + cause);
    s.outgoing.verdict = s.verdict;
  }
  s.leave_at = std::min<Clock::time_point>(s.leave_at, begin + mine);
  s.wake.notify_all();
  lock.unlock();
  s.write_dump();
  lock.lock();
  while (!s.may_leave()) s.round.wait_until(s.mutex, s.leave_at);
  std::string verdict = s.verdict;
  const std::function<void()> pass_on = s.passing_on();
  lock.unlock();
  if (pass_on) pass_on();
  return verdict;
}

void Peers::report(const std::string& error) {
  Shared& s = *shared_;
  {
    const MutexLock lock(s.mutex);
    if (s.verdict.empty()) {
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
  }
  s.write_dump();
}

Dump& Peers::dump() { return shared_->dump; }

}  // namespace gradweave::runtime
