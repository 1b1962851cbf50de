// One rank's part of a model as islands average it: the anchor, which is the same on all islands, and what has been gained since.
// Ranks of the same number on all islands hold the same part. No torch.
//
// An average of number r: each member sends what it has gained since the anchor, x - a, times its weight; each block of the part
// is summed by one member, in the order of members, and sent to all as the mean. What is sent is encoded (codec/groups.h) or
// float32; q is what this rank's own message decodes to, m what the mean decodes to, the same bits on all. Landing it moves the
// parameters by m - q and the anchor by m; an outer optimizer makes its step of m first. What encodings drop stays: in the
// parameters, or, of a mean, in `rest` with its summer, who adds it to the next mean. Elements whose summer is another one then
// get it back: it goes into what this rank sends, times the number of members, and into its parameters when that lands.
//
// Of each peer it uses channel 1 for what members send, 2 for means, both numbered as averages are, and 3 for the state; gradients
// have those above (gradient_average.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "codec/groups.h"
#include "islands/endpoint.h"

namespace gradweave::islands {

// From one to the other, but for that.
struct Elements {
  std::int64_t begin = 0, end = 0;
  std::int64_t count() const { return end - begin; }
};

struct PartOptions {
  std::int64_t count = 0;  // elements
  // Elements of each fragment, from the first element on: averages are of one fragment each, in turn, and an exact one of the whole
  // part. Elements behind the fragments only exact ones move, and without the outer optimizer: a variance that it steps on may
  // become negative. Empty: the whole part is one.
  std::vector<std::int64_t> fragments = {};
  std::optional<codec::Format> format;  // nothing: float32
  std::optional<codec::Outer> outer;
  std::uint64_t seed = 0;
};

// One average, as a rank takes part in it.
struct Average {
  std::int64_t number = 0;                   // higher than that of any before, from 1 on
  std::vector<std::optional<Peer>> members;  // in the order of the sum; nothing: this rank
  double weight =
      1;  // samples since the last one of these elements that landed; 0 if none: what encodings have dropped
          // before stays. In an exact average of parameters where all have 0 they count alike.
  bool exact = false;              // of all elements, in float32, whatever the options say; no rest stays
  std::uint32_t channel = 1;       // of what members send; means have the next one
  std::vector<float> sample = {};  // of this member's gradient, sent along; as long as that of all others
};

// Of the samples of an average's members, but for those without weight and those that are zero.
struct SampleSquares {
  double of_mean = 0;  // sum over elements of the square of the members' mean
  double of_each = 0;  // the mean over members of the sum of squares
  int members = 0;
};

enum class Progress { kNone, kUnderWay, kComplete, kFailed };

// What a giver adds: bytes that stay as they are while somebody keeps them.
struct Extra {
  std::shared_ptr<const void> keeps;
  std::span<const std::byte> bytes;
};

// Called by one thread; an average goes on on a thread of its own. Errors: InvalidInput for what is called out of order.
class PartAverage {
 public:
  // `values`: the first anchor. Errors: InvalidInput for fragments that are larger than the part.
  PartAverage(const PartOptions& options, std::span<const float> values);
  ~PartAverage();  // ends what is under way
  PartAverage(const PartAverage&) = delete;
  PartAverage& operator=(const PartAverage&) = delete;

  // The fragment that the next average is of, unless that is exact: the one after that which has landed last. The same for all that
  // have the same anchor.
  std::size_t turn() const;
  // Of one that has taken no state, though others of its island have. Errors: InvalidInput if there is no such fragment.
  void set_turn(std::size_t fragment);
  // Starts an average of `values`: what it is of, as that is now. They need not stay. Errors: InvalidInput if one is under way or
  // complete, or its members, number or weight make no sense.
  void begin(const Average& average, std::span<const float> values);
  // Of the average that has begun last; kNone once it has landed or was dropped. kComplete: this rank has the whole result;
  // others may still wait for their part of it, and get it after it has landed here, too.
  Progress progress() const;
  std::string trouble() const;  // why it failed
  // Whether it failed since members have gained since other anchors, which are not equal any more as they should be.
  bool unlike() const;
  std::int64_t number() const;  // of the average that has begun last; 0: none
  // What the average moves parameters by, to be added to each that it is of; anchor and momentum move too. Only of one that is
  // complete.
  void land(std::span<float> delta);
  // Of the average that has landed last; nothing of fewer than two samples. The same on all of its members.
  std::optional<SampleSquares> sampled() const;
  // As if it had not begun. Ends what is under way, at once. Nothing if there is none.
  void drop();

  std::span<const float> anchor() const;
  std::span<const float> momentum() const;  // of the outer optimizer; empty without one
  // The anchor becomes this: of an island that is alone, or in lockstep. Takers get it too. `landed`: the last average that is in
  // it, if that is another one than landed here. Not while an average is under way or complete.
  void set_anchor(std::span<const float> values, std::optional<std::int64_t> landed = std::nullopt);
  bool has_rest() const;

  // ---- the state, from a rank to one that comes

  // Sends anchor and momentum as they are now, copied, and `extra`; and then each result as it lands, until give_no_more().
  // `name` tells takers apart; one that is given to already begins anew. A taker that goes disturbs nothing. The take of the same
  // `transfer` gets it, and no other; transfers to a peer are numbered upwards.
  void give(const std::string& name, Peer to, std::int64_t transfer, const Extra& extra);
  // Nothing if none of that name is given to.
  void give_no_more(const std::string& name);

  // Takes the state. What was this rank's own is gone: the average under way, what is given to others, the rest.
  void take(Peer from, std::int64_t transfer);
  // Puts in force what has come, the state first and then results, each moving the anchor. Returns the number of the last average
  // that is in it; nothing before the state is there. Errors: RuntimeFailure if the other is lost, or gives no more before all of
  // it has come, or has another part or other options: take() anew.
  std::optional<std::int64_t> catch_up();
  std::span<const std::byte> extra() const;  // once the state is there
  // No more is taken: the rank takes part in averages from the next one on. Before the state was there, with its own anchor.
  void taken();
  // The same, where not all ranks of the island have got the state: what this one has of it counts for nothing. `values` are the
  // anchor, and what each rank has besides is what it began with.
  void begin_anew(std::span<const float> values);

  // Bytes of messages that others have got from here since the start; and what they would be if all were float32.
  std::int64_t bytes_sent() const;
  std::int64_t float_bytes_sent() const;

 private:
  class Core;
  std::unique_ptr<Core> core_;
};

}  // namespace gradweave::islands
