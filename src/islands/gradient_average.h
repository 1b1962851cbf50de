// Gradients of one step as islands average them: in buckets, each of which goes on its way once it is there, while the backward
// computes others. No torch. Ranks of the same number on all islands have the same buckets.
//
// Each bucket is an average of its own (part_average.h) in float32, without an anchor: the mean, by weight, of what members have
// supplied, summed in double precision in the order of members; the same bits on all. Those of an average are landed or dropped
// together. Bucket k uses channels 4 + 2k and 5 + 2k of each peer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "islands/part_average.h"

namespace gradweave::islands {

// Called by one thread; averages go on on a thread of its own. Errors: InvalidInput for what is called out of order.
class GradientAverage {
 public:
  // `counts`: elements of each bucket; none: the rank has no gradients.
  explicit GradientAverage(std::vector<std::int64_t> counts);
  ~GradientAverage();  // ends what is under way
  GradientAverage(const GradientAverage&) = delete;
  GradientAverage& operator=(const GradientAverage&) = delete;

  // `number` and `members` as in Average; a member may be alone. Nothing is sent before something is supplied.
  void begin(std::int64_t number, std::vector<std::optional<Peer>> members);
  // In the order of buckets, each once. `values` need not stay. `weight`: of all buckets of an average; 0: the values don't count.
  void supply(std::size_t bucket, double weight, std::span<const float> values);
  // Of the average that has begun last; kNone once it has landed or was dropped.
  Progress progress() const;
  std::string trouble() const;  // why it failed
  std::int64_t number() const;  // of the average that has begun last; 0: none
  // The means of all buckets, one after another; zeros if all weights are 0. Only of one that is complete.
  void land(std::span<float> means);
  // As if it had not begun. Ends what is under way, at once. Nothing if there is none.
  void drop();

  // Bytes of messages that others have got from here since the start.
  std::int64_t bytes_sent() const;

 private:
  class Core;
  std::unique_ptr<Core> core_;
};

}  // namespace gradweave::islands
