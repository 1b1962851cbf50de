// The other ranks: signs of life, meetings and verdicts, over the store that the process group was made with.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "base/thread.h"
#include "run/peers.h"
#include "runtime/dump.h"

namespace gradweave::runtime {

// Tells the other ranks what this one does, and learns from a thread of its own whether training can go on.
// It needs no process group, so that nothing that ranks do differently can meet in a collective. What it
// decides is in src/peers/. Every call is safe from any thread.
//
// All objects of a process whose jobs train have one verdict: what ends one ends the others, here and so on the other ranks.
// If the connection to the store breaks, it is made again, and a warning says so.
class Peers : public run::Peers {
 public:
  // `store` may be null (one rank): then there is nobody to wait for. It must belong to these ranks and this
  // object alone: signs of an earlier one would be taken for signs of life. `timeout`: of an op, and of each wait that has no other.
  Peers(c10::intrusive_ptr<c10d::Store> store, int rank, int world_size, std::chrono::milliseconds timeout);
  ~Peers() override;
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  // Where this rank is: before the backward of an iteration, or from that backward on. Cheap.
  void outside(std::int64_t iteration) override;
  void training(std::int64_t iteration) override;
  void set_progress(std::int64_t ops_done) override;

  // Calls `tell` with the verdict, once the other ranks know it: from another thread, at most once, perhaps when
  // this object is gone: it must own what it uses. Null: nothing.
  void on_verdict(std::function<void(const std::string&)> tell);
  // Returns the verdict, "" while there is none.
  std::string verdict() const;
  std::chrono::milliseconds timeout() const;

  // What is written once training can't go on, before this rank's calls return or `on_verdict` is called; until close().
  Dump& dump();

  // Waits until every rank has come to the same meeting (`what`: "finish()") after the same iteration, and
  // returns what each has posted, by rank. Errors: RuntimeFailure with the verdict, on every rank, if some
  // rank is elsewhere and can't come, or does not come within `timeout`; soon in the first case. `remedy`: for
  // the second.
  std::vector<std::string> agree(const std::string& what, const std::string& post,
                                 std::chrono::milliseconds timeout, const std::string& remedy);
  std::vector<std::string> agree(const std::string& what, const std::string& post,
                                 std::chrono::milliseconds timeout) override {
    return agree(what, post, timeout, "");
  }

  // How long a wait may last: `limit`, by default the timeout; if work of several parts counts them in `steps`, for each.
  struct Patience {
    std::optional<std::chrono::milliseconds> limit;
    std::shared_ptr<const std::atomic<std::int64_t>> steps;
  };
  // Calls `work`, which waits for other ranks by other means, on a thread of its own. Returns when it has ended. Errors: what
  // it throws; RuntimeFailure with the verdict as soon as there is one, or when patience is over: no backend can abort a
  // collective, so the thread is left behind, and `work` with all that it owns is kept until the process ends.
  void await(std::function<void()> work, const Patience& patience = {});
  // The same for a collective outside the engine: when it fails, this rank gives up `what`, and RuntimeFailure has the verdict.
  void together(const std::string& what, std::function<void()> work, const Patience& patience = {});

  // This rank can't go on because `what` failed for `cause`, `after` it began. Returns the verdict: what
  // failed, whom to suspect, where all ranks are, what to do; once the other ranks know it, since this process
  // may host the store. Takes at most 1.5 s where `what` was waited for as long as it may, whether or not the store answers; 3 s
  // where more of the timeout was left. Without an answer the verdict is what this rank knows.
  std::string give_up(const std::string& what, std::chrono::nanoseconds after,
                      const std::string& cause) override;

  // Whether some caller waits in a call of this object, and so will have the verdict, or has had it.
  bool tells() const;

  // When this rank last got on: an op or another wait ended, a backward or an iteration began.
  std::chrono::steady_clock::time_point moved() const;

  // This rank ends by an error of its own ("ValueError: ..."): the others end too, with that. Takes at most
  // 0.6 s.
  void report(const std::string& error);

  // This rank has ended its training: others that still need it learn so.
  void end();

  // Ends the thread, and the training as end() does. Idempotent. Takes at most 0.9 s.
  void close();

 private:
  struct Shared;
  struct Process;
  // `limit`: how long it may be waited for.
  std::string give_up(const std::string& what, std::chrono::nanoseconds after, const std::string& cause,
                      std::chrono::milliseconds limit);
  void keep_forever_if_forked();

  int generation_;
  std::shared_ptr<Shared> shared_;  // also of the thread, which a store that does not answer holds for ever
  Thread thread_;
};

}  // namespace gradweave::runtime
