// One rank among those that share a store.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "peers/judge.h"
#include "peers/sign.h"

namespace gradweave::peers {

// Texts by key, shared by all ranks; it belongs to them alone. No call waits for another rank. Errors: any
// std::exception once it is lost.
class Store {
 public:
  virtual ~Store() = default;
  virtual void put(const std::string& key, const std::string& text) = 0;
  // Returns the texts of `keys`, "" where there is none.
  virtual std::vector<std::string> get(const std::vector<std::string>& keys) = 0;
  // Puts `text` if the key has `expected`, "" if it has none; returns what it has then. Atomic.
  virtual std::string exchange(const std::string& key, const std::string& expected,
                               const std::string& text) = 0;
  virtual void erase(const std::string& key) = 0;
};

// What a rank has to say in a round.
struct Outgoing {
  Sign sign;
  std::string post;     // to the meeting that it waits in
  std::string verdict;  // that it gives by itself
};

// What it has learned.
struct Incoming {
  std::string verdict;
  std::vector<std::string> posts;  // by rank, once the meeting that it waits in is complete
  bool all_know = false;           // the verdict, but for ranks that are lost
  bool somebody_waits = false;     // for a verdict: the next round should be soon
};

// A rank takes part in rounds: it tells, then listens. One of the ranks is the judge: it alone reads the signs
// of all, gathers what they post to a meeting, and gives the verdict; the others read its news, so that a round
// of all ranks costs O(ranks). If the judge falls silent, another takes over. The first verdict in the store
// holds for all.
class Member {
 public:
  Member(int rank, int world_size, Time now);

  // One round. Call it about every 0.4 s, and more often while somebody waits.
  Incoming round(const Outgoing& outgoing, Store& store, Time now);

  // The store was out of reach and has perhaps lost its texts: what other ranks may still need is put there again.
  void reconnected(Store& store);

  bool judges() const { return judges_; }
  // What the judge knows, by rank; of no use on another rank.
  const std::vector<Seen>& seen() const { return seen_; }

 private:
  void take_over(Store& store, Time now);
  void read_signs(Store& store, Time now);
  void gather(Store& store);
  void give_verdict(const Outgoing& outgoing, Store& store, Time now, Incoming& incoming);
  bool all_know(Time now) const;

  int rank_, world_size_;
  std::int64_t beat_ = 0, posted_ = 0, gathered_ = 0;
  std::string judge_;  // who judges, as in the store; "" not known
  bool judges_ = false;
  Time judges_since_{};
  std::string news_;        // the judge's
  Time news_at_;            // when they last changed
  std::vector<Seen> seen_;  // the judge's
  struct {
    std::int64_t meeting = 0;
    std::string text;
  } last_posts_;  // that this rank has read or gathered: another one may not have them
};

}  // namespace gradweave::peers
