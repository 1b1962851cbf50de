// What the islands of an epoch agree on: when an average begins and with whom, whether what came of it is everyone's or nobody's,
// and who gets the training's state from whom. Each island has one Council, of its first rank. It has no clock, socket or thread;
// its owner brings what happens, and carries out what it says.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "islands/meeting.h"

namespace gradweave::islands {

// What all ranks of an island do next, in this order.
struct Command {
  enum class What : char {
    kBegin = 'b',  // average `number`: send what was gained to `members`, and receive theirs
    kLand = 'l',   // average `number` is everyone's: move the parameters
    kDrop = 'd',   // average `number` is nobody's: as if it had not begun
    // Transfer `number`: send the state to island `other` now, and each result from then on as it lands.
    kGive = 'g',
    kGiven = 'h',  // transfer `number`: island `other` needs no more of it, or has gone
    kTake = 't',   // transfer `number`: stop training, and take the state from island `other`
    // It has the state: what it took from island `other`; or, if that is "", the last that it had whole, since nobody has a later
    // one.
    kTrain = 'a'
  };
  What what{};
  std::int64_t number = 0;           // averages and transfers are numbered together; numbers rise
  std::vector<std::string> members;  // kBegin: islands by name, in the order of their sum
  std::string other;
  // kGive, kTrain: what counts as the last average that is in the state; 0: none.
  std::int64_t landed = 0;
  // kBegin, kLand: of islands that all finish. It is exact, and parameters are afterwards what the average is.
  bool last = false;
  friend bool operator==(const Command&, const Command&) = default;
};

// As texts, and back; nothing for a text of any other form.
std::string encode(const std::vector<Command>& commands);
std::optional<std::vector<Command>> decode_commands(std::string_view text);

// An epoch without its islands.
struct EpochName {
  std::string line;
  std::int64_t number = 0;
  std::string by;
  friend bool operator==(const EpochName&, const EpochName&) = default;
};

// The epoch that a council's text is of. It is in force, which its receiver may not hear from a meeting point that died
// (MeetingClient::heard_in_force()). Nothing for any other text.
std::optional<EpochName> epoch_of(std::string_view text);

// How far an island is. It tells the chair, and the chair keeps what follows from its commands.
struct Standing {
  struct Average {
    std::int64_t number = 0;
    std::vector<std::string> members;
    bool last = false;
    friend bool operator==(const Average&, const Average&) = default;
  };
  bool has_state = false;
  std::int64_t highest = 0;             // of all numbers that it knows, those in its state too
  std::int64_t landed = 0, before = 0;  // the last averages that are in its state; 0: none, or not known
  std::optional<Average> under_way;
  bool complete = false, failed = false;  // what is under way
  std::optional<bool> wants;              // an average; whether it finishes
  // The transfer by which it takes the state; 0: none.
  std::int64_t takes = 0;
  std::string from;
  std::optional<std::int64_t> caught_up;  // with all results up to this number
  bool failed_to_take = false;
  std::map<std::string, std::int64_t> gives;  // transfers, by who takes
  std::int64_t missed =
      0;  // in lockstep: averages that have landed since it finishes; others have made steps by them

  // The last average that is in the last state that all of its ranks had.
  std::int64_t whole() const { return caught_up.value_or(landed); }
  // Whether the command makes sense here, and what follows from it.
  bool can(const Command& command) const;
  void follow(const Command& command, bool lockstep);
  friend bool operator==(const Standing&, const Standing&) = default;
};
std::string encode(const Standing& standing);
std::optional<Standing> decode_standing(std::string_view text);

// Rules. The *chair* is the epoch's first island, by `since` and then by name; it leads:
// - An island has the state if it has trained with it and has been in each epoch since: `since` is no later than the last epoch
//   that it knew. What another one has trained is stale.
// - In each epoch, and again when it has a new connection to an island, the chair asks all islands how far they are, and settles
//   what was under way. An average goes on if all of its members are still there and have begun it. It lands if one of them was
//   told to land it: then all have its result. Else it is dropped. Islands that come with this epoch are not waited for.
// - An average begins once all islands that have the state want one. Alone, an island has none.
// - Once all members have the whole result, the chair tells all to land it. So one that lands anywhere lands on all that live, and
//   nothing is sent again.
// - Islands without the state get it from one that has it, and each result that lands meanwhile: from the one that gives it to the
//   fewest, and of several from the first. They take part once they have all of them; the next average is held for one that lacks no
//   more than the last, and doesn't wait until it has trained.
//   If no island has the state, the one in whose own most has landed has it from then on; of several, the first.
// - It is the last if all of its members finish and none is without the state.
// In lockstep what is averaged are gradients of one step, which all islands make together. Then
// - an average may have one member, so each step is one;
// - the next one begins as one lands: each island that trains wants it;
// - who takes the state can't catch up with what lands meanwhile: it is given between two averages, and the next one waits;
// - an island that finishes takes part on, without a gradient, and makes no steps: where others do, it takes the state again once all
//   finish. An average in which nobody has a gradient is dropped.
class Council {
 public:
  explicit Council(std::string name, bool lockstep = false) : name_(std::move(name)), lockstep_(lockstep) {}

  // ---- what happens

  // This epoch is in force, with this island in it.
  void epoch(const Epoch& epoch);
  // There is a new connection to the island of that name: what was sent on the one before may be lost.
  void connected(const std::string& other);
  // A text of that island's council. One that makes no sense is left out.
  void take(const std::string& from, std::string_view text);
  // This island has trained enough for the next average, or finishes. It counts until that begins. While one is under way here,
  // or without the state, it does nothing, but for that it finishes in lockstep: say it again.
  void wants(bool finishing);
  // It no longer finishes: it trains on, and has not trained enough for the next average.
  void trains_on();
  // All of its ranks have the whole result of the average.
  void complete(std::int64_t number);
  // A rank can't go on with the average, as its connection to another island is lost.
  void failed(std::int64_t number);
  // It takes the state by this transfer: all of its ranks have it, with all results up to `number`; that of kGive's `landed` at
  // first.
  void caught_up(std::int64_t transfer, std::int64_t number);
  // It can't go on taking: the connection to the island that gives is lost. It takes anew.
  void failed_to_take(std::int64_t transfer);

  // ---- what follows

  std::vector<Command> take_commands() { return std::exchange(commands_, {}); }
  // Returns (island, text) in order. One that there is no connection to need not be sent.
  std::vector<std::pair<std::string, std::string>> take_outgoing() { return std::exchange(outgoing_, {}); }
  bool has_state() const { return own_.has_state; }
  // Returns the islands for which this one waits, though it has done its share, each with what is another number once it has done
  // something. One that only leads waits for those that have not done what all must, where others have.
  std::vector<std::pair<std::string, std::int64_t>> waits_for() const;
  // What is new once an average has begun or landed.
  std::pair<std::int64_t, std::int64_t> progress() const { return {own_.landed, under_way()}; }
  // The average under way here; 0: none.
  std::int64_t under_way() const { return own_.under_way ? own_.under_way->number : 0; }
  // Whether all islands have heard what this one has told them, as the chair; elsewhere there is nothing to hear.
  bool agreed() const;
  // "" before the first epoch.
  const std::string& chair() const { return chair_; }

 private:
  // What the chair knows of another island: how far it is, once it has said so since the chair has last asked.
  struct Seat {
    Standing standing;
    std::int64_t sent = 0;          // lists of commands, since the chair has last asked
    bool heard = true;              // it has answered since
    std::vector<Command> commands;  // to be sent
  };
  struct Asked {
    EpochName epoch;
    std::int64_t settling = 0;
  };

  EpochName now() const { return {epoch_.line, epoch_.number, epoch_.by}; }
  bool is_here(const std::string& name) const;
  bool leads() const { return !chair_.empty() && chair_ == name_; }
  void lose_state();
  void carry_out(const Command& command);
  void say(const std::string& to, const char* kind, const std::vector<std::string>& rest = {});
  void answer();
  void changed();

  // The chair's.
  void ask(const std::string& name);
  void settle();
  void hear(const std::string& from, std::int64_t lists, Standing standing);
  void lead();
  void order(const std::string& to, const Command& command);
  void end_average();
  std::pair<std::string, std::int64_t> next_giver() const;
  void supply();
  void begin();
  std::map<std::string, Standing> standings() const;

  const std::string name_;
  const bool lockstep_;
  Epoch epoch_;
  std::string chair_;
  Standing own_;
  std::int64_t settling_ =
      0;  // which time the chair has asked in this epoch; elsewhere, which it has answered. 0: none
  std::int64_t lists_ = 0;  // of commands that have come since
  std::map<std::string, Asked>
      asked_;  // by epochs that this island does not know yet: the last of each island
  std::map<std::string, Seat> seats_;  // of those that have answered
  std::set<std::string> needed_;       // islands without whose answer nothing is settled
  std::vector<Command> commands_;
  std::vector<std::pair<std::string, std::string>> outgoing_;
};

}  // namespace gradweave::islands
