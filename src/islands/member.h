// One rank of an island among the islands: it holds connections to the ranks of its number on the others, averages its part of the
// model with theirs, and gives or takes the training's state. Rank 0 speaks for its island: it goes to the meeting point, and
// agrees with the other islands (council.h). What it agrees on, all ranks of the island do at the same step.
//
// The owner, on each rank after each step:
//   reports = all ranks' report(), gathered; text = rank 0's text(), if its report announces one
//   for (const Command& command : member.proceed(reports, text)) carry it out
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "islands/address.h"
#include "islands/council.h"
#include "islands/key.h"
#include "islands/part_average.h"

namespace gradweave::islands {

struct MemberOptions {
  Key key{};
  Address meeting;
  std::string island;               // name
  std::vector<std::string> trains;  // as in Island
  int rank = 0, ranks = 1;
  int exchanging =
      1;  // so many of its ranks, the first ones, exchange with other islands; the others' parts are empty
  Address listen;  // port 0: any that is free
  std::chrono::nanoseconds silence = std::chrono::seconds(10);
  PartOptions part;
  // Elements of each bucket of gradients, of islands that average these: in lockstep (council.h). Nothing: they average parameters,
  // and only the last average of a training is of these in lockstep.
  std::optional<std::vector<std::int64_t>> gradients;
};

// What a rank tells the others of its island at a step.
struct StepReport {
  enum Wants : std::int64_t { kNothing, kAverage, kFinish };
  std::int64_t wants = kNothing;    // the next average
  std::int64_t epoch = 0;           // to all of whose islands it is connected
  std::int64_t complete = 0;        // the average whose result it has
  std::int64_t failed = 0;          // the average that it can't go on with
  std::int64_t takes = 0;           // the transfer by which it takes the state
  std::int64_t caught_up = -1;      // up to this average; -1: the state is not there yet
  std::int64_t failed_to_take = 0;  // the transfer
  std::int64_t unconnected = 0;     // an island of its epoch that it has no connection to, from 1 on; 0: none
  std::int64_t left_out = 0;        // rank 0: whether its text() is why this island has been left out
  std::int64_t agreed = 0;          // rank 0: whether all islands have heard what it has told them
  std::int64_t text_bytes = 0;      // rank 0: of its text()

  static constexpr std::size_t kNumbers = 11;
};

class Member {
 public:
  // `values`: the part's, the first anchor. Errors: InvalidInput if it can't listen there.
  Member(MemberOptions options, std::span<const float> values);
  // Leaves the other islands.
  ~Member();

  // Where it listens; 0 of one that doesn't exchange.
  std::uint16_t port() const;
  // Rank 0: goes to the meeting point. `addresses`: where each rank that exchanges can be connected to.
  void join(const std::vector<std::string>& addresses);

  // ---- at each step

  // Errors: RuntimeFailure if islands that should be equal are not.
  std::vector<std::int64_t> report(StepReport::Wants wants);
  const std::string& text() const;
  // `reports`: of all ranks, one after another. Errors: RuntimeFailure if they or the text make no sense, or the island has been
  // left out.
  std::vector<Command> proceed(std::span<const std::int64_t> reports, const std::string& text);

  // ---- to carry out a command

  // kBegin: `values` is what the average is of, as it is now (PartAverage::turn(), or all if it is the last), `weight` the samples
  // since the last one of this that landed; `sample` as Average's.
  void begin(const Command& command, double weight, std::span<const float> values, std::vector<float> sample);
  // kLand: what that moves by.
  void land(std::span<float> delta);
  void drop();
  // kBegin and kLand in lockstep, of an average that is not the last; in between this rank's buckets are supplied (gradient_average.h).
  void begin_gradients(const Command& command);
  void supply(std::size_t bucket, double weight, std::span<const float> values);
  void land_gradients(std::span<float> means);
  // The anchor is this from now on, on all islands: of a part whose last average begins, in lockstep.
  void set_anchor(std::span<const float> values);
  // kGive, kGiven. `values`: the part now, in lockstep or of an island that is alone_with() the one that takes: it is the state, and
  // nothing has been gained since.
  void give(const Command& command, std::optional<std::span<const float>> values, const Extra& extra);
  void give_no_more(const std::string& island);
  // kTake.
  void take(const Command& command);
  // kTrain. Returns whether it has taken the state: then the anchor is what the part is, and PartAverage::extra() what the giver
  // added. Else `values`, the part now, is the anchor.
  bool train(std::span<const float> values);

  // Where the island has taken the state, and this rank, which exchanges nothing, has none of it: as rank 0's part has it.
  void set_turn(std::size_t fragment);

  const PartAverage& part() const;
  // As PartAverage::bytes_sent(), of parameters and gradients.
  std::int64_t bytes_sent() const;

  // ---- what is known

  // Whether all islands have heard what this one's first rank had told them when it last reported.
  bool agreed() const;
  // Whether all other islands of the epoch have left, though no other epoch is in force, as the meeting point is away.
  bool deserted() const;
  // Whether no other island has the state, before it is given to that one: there is none but these two, or this one was alone and
  // has given it to none since.
  bool alone_with(const std::string& island) const;
  // The islands of the epoch in force here, as this rank was told; empty before the first.
  std::vector<Island> islands() const;
  std::int64_t epoch() const;
  // Why this island is not in, or can't be averaged with; "" if all is well. Whole on rank 0.
  std::string trouble() const;

 private:
  class Core;
  std::unique_ptr<Core> core_;
};

}  // namespace gradweave::islands
