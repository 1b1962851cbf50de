// Who is there: what the meeting point decides. It has no clock, socket or thread; its owner brings messages and the time.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gradweave::islands {

using Time = std::chrono::nanoseconds;  // of a steady clock

// What an island is, as it says itself.
struct Island {
  std::string name;
  std::string life;  // random; another one under the same name is another process
  std::int64_t ranks = 1;
  std::vector<std::string> addresses;  // of its ranks, where it can be connected to
  std::vector<std::string> trains;     // what must be alike on all islands: the parameters' hash, options
  std::int64_t since =
      0;  // the epoch in which it came; the meeting point sets it. The lowest have the training's state
  friend bool operator==(const Island&, const Island&) = default;
};

// Which islands train together. Epochs of one `line` follow each other, each with at least one island of the one before it;
// an average of an epoch needs all of its islands.
struct Epoch {
  std::string line;  // random, of the job's first epoch
  std::int64_t number = 0;
  std::string
      by;  // random, of the meeting point that proposed it: number and `by` together name an epoch of a line
  std::vector<Island> islands;  // by name
  friend bool operator==(const Epoch&, const Epoch&) = default;
};

// What keeps an island from the next average.
struct Wait {
  std::string island;      // another one of its epoch
  Time time{};             // how long it has been so, at least
  bool connected = false;  // else that is what lacks
  friend bool operator==(const Wait&, const Wait&) = default;
};

// How an island gets on.
struct Status {
  std::int64_t epoch = 0;  // its number; 0: none yet
  bool has_state = false;  // the training's
  std::vector<Wait> waits;
};

// What an island says when it comes, and when it comes again to a meeting point that knows nothing.
struct Report {
  Island island;
  std::optional<Epoch> epoch;  // the last that it has agreed to
  bool has_trained = false;    // an epoch of that line was in force here
  Status status;
  // How long ago it saw that the meeting point was dead: its host refused a connection, while this island had an epoch in force,
  // and less than a tenth of a lease after it had sent the last renewal that was answered. Nothing: it did not. Nobody can have
  // left it out before that.
  std::optional<Time> saw_dead;
};

struct ToMeeting {
  enum class What : char { kJoin = 'j', kRenew = 'r', kAgree = 'a', kLeave = 'l' };
  What what{};
  Report report;            // kJoin
  std::int64_t beat = 0;    // kRenew: it comes back in kRenewed
  Status status;            // kRenew
  std::int64_t number = 0;  // kAgree
};
struct FromMeeting {
  enum class What : char {
    kRefused = 'x',
    kProposed = 'p',
    kInForce = 'f',
    kRenewed = 'r',
    kUnknown = 'u',  // the island is out; it may join again
    kLeftOut = 'o'   // it must leave
  };
  What what{};
  std::string why;                // kRefused, kLeftOut
  Epoch epoch;                    // kProposed: without islands that the epoch `base` had
  std::int64_t base = 0;          // kProposed: 0 where the epoch is whole
  std::vector<std::string> left;  // kProposed: names of those of `base` that are no more
  std::int64_t beat = 0;          // kRenewed
  Time lease{};                   // kRenewed: how long it is
  bool awaited = false;           // kRenewed: others have waited for this island for kLongWait
  std::int64_t number = 0;        // kInForce
};

// As texts, and back; nothing for a text of any other form.
std::string encode(const ToMeeting& message);
std::string encode(const FromMeeting& message);
std::optional<ToMeeting> decode_to_meeting(std::string_view text);
std::optional<FromMeeting> decode_from_meeting(std::string_view text);

struct Outgoing {
  std::string to;  // an island's name
  std::string life;
  std::shared_ptr<const FromMeeting> message;  // to many it is the same one
};

inline constexpr Time kLongWait = std::chrono::minutes(1);

// How long islands wait for others.
struct Patience {
  Time unconnected = kLongWait;   // for a connection
  std::optional<Time> slow = {};  // at an average; nothing: as long as it takes
};

// Rules:
// - An island is in once it has joined, and out when its lease has run out, its connection is lost or it leaves.
// - Each change makes a proposal. It is in force once all of its islands have agreed. There is one proposal at a time; the next
//   comes when it is in force or one of its islands is out.
// - An epoch follows another one only with an island of that one in it that has the training's state: the others take it from
//   there. While there is none, and one of that epoch may go on somewhere, nothing changes. Once all that are away have ended
//   (they have left, or came again as other processes), those that are here go on with what they have; if none is, who is there
//   begins another line.
// - A meeting point that begins knows nothing. It waits one lease for reports, and goes on from the highest epoch reported
//   once all of its islands have reported or ended; or if one of them that has the state saw the meeting point before this one
//   die, at most half a lease before this one began: none between the two can have lived for a lease, which is what leaving that
//   island out takes.
// - An island that has trained in another line, or with a later epoch of this line than the meeting point has made, is refused: two
//   halves never become one in silence.
// - Of two islands that can't connect to each other one is left out, and on request each for which others wait too long: one that
//   waits for nobody itself. Never most of them, nor the last that has the state. It is told, and leaves; it isn't left out before
//   it has, since it might then go on with its epoch.
class Meeting {
 public:
  // `random`: a name that no other meeting point has.
  Meeting(std::string random, Time now, Time lease, Patience patience = {});

  void take(const std::string& from, const std::string& life, const ToMeeting& message, Time now);
  // Its connection is lost, and has been for a tenth of a lease.
  void lost(const std::string& name, const std::string& life, Time now);
  // Judges leases. Call it at least eight times in a lease.
  void tick(Time now);

  // Returns what is to be sent since the last call, in order.
  std::vector<Outgoing> take_outgoing();
  const Epoch& epoch() const { return in_force_; }
  // Returns the names of islands that may go on somewhere, and without which nothing changes here; usually none.
  std::vector<std::string> waits_for() const;
  // The operator knows that an island of this name has ended: it is not waited for.
  void go_on_without(const std::string& name) { without_.insert(name); }
  std::size_t members() const { return members_.size(); }
  // Returns the names of islands for which others have waited for kLongWait.
  const std::vector<std::string>& awaited() const { return awaited_; }

 private:
  struct Member {
    Island island;
    std::optional<Epoch> reported = {};
    bool has_trained = false;
    Status status = {};
    bool sure = false;      // there is no later epoch than the one it has reported
    bool left_out = false;  // it has been told
    Time lease_until{};
    std::int64_t knows = 0;  // the number of the epoch in force that it has
  };

  void join(const Report& report, Time now);
  std::string refusal_of(const Report& report, Time now) const;
  void agree(Member& member, std::int64_t number);
  void judge();
  std::vector<std::pair<std::string, Wait>> waits() const;
  std::vector<std::string> awaited_for(Time time) const;
  std::optional<std::string> least_connected() const;
  void tell_to_leave(const std::string& name, std::string why);
  bool is_here(const Island& island) const;
  bool has_state(const Island& island) const;
  bool all_here(const Epoch& epoch) const;
  const Epoch* highest_reported() const;
  bool recover(Time now);
  void change(Epoch next);
  void propose(Time now);
  void send(const Member& member, std::shared_ptr<const FromMeeting> message);
  void send(const Member& member, FromMeeting message);

  const std::string random_;
  const Time began_, lease_;
  const Patience patience_;
  std::map<std::string, Member> members_;  // alive, by name
  std::set<std::string> without_;          // names
  std::set<std::string> ended_;            // lives of islands that have left, or came again as others
  bool recovering_ = true;                 // has made no epoch yet
  Epoch in_force_;                         // number 0: none
  std::optional<Epoch> proposed_;
  std::int64_t last_number_ = 0;
  std::set<std::string> missing_;  // islands of proposed_ that have not agreed
  bool settled_ = false;           // nothing is to be proposed until who is there changes
  std::vector<std::string> awaited_;
  std::vector<Outgoing> outgoing_;
};

// One island at the meeting point. Its owner brings messages in the order in which they were sent, and the time.
class Attendee {
 public:
  explicit Attendee(Island island) : island_(std::move(island)) {}

  // There is a connection to a meeting point; what was said on an earlier one may be lost. Returns what to send.
  std::vector<ToMeeting> connected(Time now);
  std::vector<ToMeeting> take(const FromMeeting& message, Time now);
  // Returns what to send: a renewal eight times in a lease.
  std::vector<ToMeeting> tick(Time now);
  // How this island gets on. Returns what to send.
  std::vector<ToMeeting> set_status(Status status, Time now);
  // The meeting point's host says that nobody listens there.
  void saw_it_dead(Time now);
  void lost() { connected_ = false; }

  // An island of the epoch that this one has agreed to says that it is in force: what the meeting point may have died over.
  // Returns whether it is.
  bool heard_in_force(const std::string& line, std::int64_t number, const std::string& by);

  // The epoch that this island acts on; nothing before the first.
  const std::optional<Epoch>& epoch() const { return in_force_; }
  // Why it was refused when it last asked, or "". It asks again eight times in a lease.
  const std::string& refused() const { return refused_; }
  // Why it has been left out, and must end, or "".
  const std::string& left_out() const { return left_out_; }
  // Whether others have waited for it for kLongWait.
  bool awaited() const { return awaited_; }

 private:
  std::vector<ToMeeting> renew(Time now);

  Island island_;
  Time lease_ = std::chrono::seconds(2);  // until it is told
  std::optional<Epoch> in_force_, agreed_;
  std::map<std::int64_t, Time> beats_;  // renewals that were not answered, and when they were sent
  std::int64_t beat_ = 0;
  Status status_;
  std::optional<Time> answered_;  // when the last renewal was sent that has been answered
  Time renewed_at_{};
  bool connected_ = false, out_ = false, awaited_ = false;
  std::optional<Time> saw_dead_;
  std::string refused_, left_out_;
};

}  // namespace gradweave::islands
