// The state of a part on its way from a rank to one that comes: anchor, momentum and what the giver adds, and then what lands
// (part_average.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "islands/part_round.h"

namespace gradweave::islands {

struct Snapshot {
  std::vector<float> anchor, momentum;
  std::size_t turn = 0;  // the fragment that the next average is of
};

// What changes anchor and momentum after the snapshot.
struct Change {
  enum class What : std::uint64_t { kMean = 1, kExactMean, kAnchor };
  What what{};
  std::int64_t number = 0;   // of the last average that has landed then
  std::size_t fragment = 0;  // of kMean
  Bytes bytes;
};

// Applies means as landing them does, but for parameters.
void apply(const Change& change, const PartOptions& options, Snapshot& to);

// Called by the part's thread.
class Giver : public std::enable_shared_from_this<Giver> {
 public:
  // `transfer`: which stream of messages to the taker.
  Giver(std::shared_ptr<Workshop> workshop, const PartOptions& options, Peer to, std::int64_t transfer);
  ~Giver() { end(); }
  Giver(const Giver&) = delete;
  Giver& operator=(const Giver&) = delete;

  void start(const std::shared_ptr<const Snapshot>& snapshot, std::int64_t number, const Extra& extra);
  void add(const Change& change);
  void end();

 private:
  struct Piece {
    std::shared_ptr<const void> keeps;
    std::span<const std::byte> bytes;
  };
  void push(std::vector<std::byte> bytes) REQUIRES(mutex_);
  void push(std::shared_ptr<const void> keeps, const void* bytes, std::size_t size) REQUIRES(mutex_);
  void send_next() REQUIRES(mutex_);
  void over(std::uint64_t sequence) EXCLUDES(mutex_);

  const std::shared_ptr<Workshop> workshop_;
  const PartOptions options_;
  Mutex mutex_;
  Peer to_ GUARDED_BY(mutex_);
  std::deque<Piece> pieces_ GUARDED_BY(mutex_);  // the first is under way
  std::uint64_t sequence_ GUARDED_BY(mutex_);
  std::optional<Message> message_ GUARDED_BY(mutex_);
  bool ended_ GUARDED_BY(mutex_) = false;  // here, or the taker has gone
};

// Called by the part's thread.
class Taker : public std::enable_shared_from_this<Taker> {
 public:
  struct State {
    Snapshot snapshot;
    Extra extra;
    std::int64_t number = 0;
  };

  Taker(std::shared_ptr<Workshop> workshop, const PartOptions& options, Peer from, std::int64_t transfer);
  ~Taker() { end(); }
  Taker(const Taker&) = delete;
  Taker& operator=(const Taker&) = delete;

  void start();
  void end();
  // Why no more comes, or "".
  std::string trouble() const;
  // Returns what has come, once.
  std::optional<State> take_state();
  std::optional<Change> take_change();

 private:
  enum class Expected { kHeader, kAnchor, kMomentum, kExtra, kNote, kChange, kNothing };

  void expect(Expected expected, std::byte* room, std::size_t size) REQUIRES(mutex_);
  void expect_note() REQUIRES(mutex_);
  void over(std::uint64_t sequence) EXCLUDES(mutex_);
  void came(std::size_t size) REQUIRES(mutex_);
  void read_header() REQUIRES(mutex_);
  void read_note() REQUIRES(mutex_);
  void refuse() REQUIRES(mutex_);
  void fail(const std::string& why) REQUIRES(mutex_);

  const std::shared_ptr<Workshop> workshop_;
  const PartOptions options_;
  mutable Mutex mutex_;
  Peer from_ GUARDED_BY(mutex_);
  std::uint64_t sequence_ GUARDED_BY(mutex_);
  Expected expected_ GUARDED_BY(mutex_) = Expected::kNothing;
  std::size_t size_ GUARDED_BY(mutex_) = 0;  // of what is expected
  std::vector<std::byte> head_ GUARDED_BY(mutex_);
  Bytes extra_ GUARDED_BY(mutex_);  // not touched before bytes come: the peer says how many
  std::size_t extra_bytes_ GUARDED_BY(mutex_) = 0;
  State state_ GUARDED_BY(mutex_);
  bool has_state_ GUARDED_BY(mutex_) = false;
  Change change_ GUARDED_BY(mutex_);  // that comes
  std::deque<Change> changes_ GUARDED_BY(mutex_);
  std::optional<Message> message_ GUARDED_BY(mutex_);
  bool ended_ GUARDED_BY(mutex_) = false;  // here, or there, or it has failed
  std::string trouble_ GUARDED_BY(mutex_);
};

}  // namespace gradweave::islands
