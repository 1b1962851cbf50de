// One average under way, from what a member has gained to the mean of all (part_average.h).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "islands/job_queue.h"
#include "islands/part_average.h"

namespace gradweave::islands {

// Aligned for any number.
using Bytes = std::shared_ptr<std::byte[]>;
inline Bytes room_for(std::int64_t size) { return Bytes(new std::byte[static_cast<std::size_t>(size)]); }

using codec::bytes_of;

// What all that a part sends and receives shares.
struct Workshop {
  JobQueue queue;
  std::atomic<std::int64_t> bytes_sent = 0, float_bytes_sent = 0;
};

// The elements of each fragment; of the whole part, if it has none.
std::vector<Elements> fragments_of(const PartOptions& options);

// What encodings of means have dropped: of elements [begin, begin + values.size()) of what the average is of.
struct Rest {
  std::int64_t begin = 0;
  std::vector<float> values;
};

// Errors: InvalidInput for a number that is not higher than `last`, members without this rank, or a weight that makes no sense.
void check_average(const Average& average, std::int64_t last);
// Errors: InvalidInput, at `where`, if it is not the expected one.
void check_count(std::size_t count, std::int64_t expected, const std::string& where);

// What lands of a mean that is not encoded (codec/groups.h). Elements from `behind` on are behind the fragments: they land without
// the outer optimizer.
void land_floats(const float* mean, const float* own, std::int64_t count, std::int64_t behind,
                 codec::Outer outer, float* values, float* anchor, float* momentum);

// Begun, landed and ended by the part's thread; the workshop's does the work in between.
class Round : public std::enable_shared_from_this<Round> {
 public:
  // `values` and `anchor`: of the elements that it is of; they need not stay. An empty anchor is zero.
  Round(std::shared_ptr<Workshop> workshop, const PartOptions& options, const Average& average,
        std::shared_ptr<const Rest> rest, std::span<const float> values, std::span<const float> anchor);
  ~Round() { end(); }
  Round(const Round&) = delete;
  Round& operator=(const Round&) = delete;

  void start();
  Progress progress() const;
  std::string trouble() const;
  // Whether it failed since members have other anchors.
  bool unlike() const { return unlike_; }
  // At once; nobody touches its buffers any more but the workshop's thread.
  void end();

  // Of one that is complete. `behind`: as of land_floats(). `momentum`: null without an outer optimizer.
  void land(codec::Outer outer, std::int64_t behind, float* delta, float* anchor, float* momentum) const;
  std::shared_ptr<const Rest> rest_after() const;
  const Bytes& result() const { return result_; }  // encoded as format() says
  // The same, of one in float32.
  std::span<const float> mean() const {
    return {reinterpret_cast<const float*>(result_.get()), static_cast<std::size_t>(blocks_.back().end)};
  }
  std::optional<codec::Format> format() const { return format_; }
  std::optional<SampleSquares> sampled() const;
  // It has landed: what is left is to send to others what they still need.
  void retire();
  bool is_over() const;

 private:
  struct Entry {
    bool sends = false, mean = false;
    std::size_t member = 0;
    std::int64_t size = 0, count = 0;  // in bytes, and of elements
    std::byte* bytes = nullptr;
    std::optional<Message> message;  // once it is posted
    bool over = false;
  };

  std::size_t members() const { return average_.members.size(); }
  bool moves_rest() const { return rest_ && average_.weight > 0; }
  // Where in the whole result, and in what this rank sends, a block begins.
  std::byte* result_at(std::size_t block) const {
    return result_.get() + bytes_of(format_, blocks_[block].begin);
  }
  std::byte* own_at(std::size_t block) const;
  // Of what members send: the weight, a checksum of the anchor, and the sample.
  std::int64_t head_bytes() const;
  // Whether members send anything to the one of that block.
  bool takes_messages(std::size_t block) const {
    return blocks_[block].count() > 0 || !average_.sample.empty();
  }
  std::uint64_t key_of(std::size_t block, std::uint64_t stage) const;

  void run();
  void encode(std::size_t block);
  void plan() REQUIRES(mutex_);
  void post(std::size_t index) EXCLUDES(mutex_);
  Message posted(const Entry& entry, std::span<std::byte> bytes, std::function<void()> over) const;
  void over(std::size_t index) EXCLUDES(mutex_);
  void take_contribution(const Entry& entry);
  void sum();
  void square_samples();
  void complete_if_all_is_there() EXCLUDES(mutex_);
  void fail(const std::string& why) EXCLUDES(mutex_);
  void stop(Progress progress, const std::string& why) EXCLUDES(mutex_);
  void release_if_over() REQUIRES(mutex_);
  template <typename Step>
  void guard(Step step);

  const std::shared_ptr<Workshop> workshop_;
  const std::optional<codec::Format> format_;
  const std::uint64_t seed_;
  const Average average_;
  const std::shared_ptr<const Rest> rest_;
  const bool of_parameters_;    // which have an anchor; else of gradients
  const std::uint64_t anchor_;  // checksum
  std::atomic<bool> unlike_ = false;
  std::vector<Elements> blocks_;  // each of the member of the same place
  std::size_t place_ = 0;
  std::size_t first_contribution_ = 0, first_mean_ = 0;  // of the entries that are sent
  std::unique_ptr<float[]> gain_;                        // until it is encoded
  Bytes own_;                                            // for each member: a head, and its block
  Bytes result_;

  // Of the workshop's thread, and of the part's once it is complete.
  std::vector<Bytes> contributions_;  // by member
  std::vector<double> weights_;
  std::vector<float> fresh_;  // the new rest of this rank's block
  std::size_t missing_contributions_ = 0, missing_means_ = 0;
  SampleSquares sampled_;
  bool summed_ = false;

  mutable Mutex mutex_;
  Progress progress_ GUARDED_BY(mutex_) = Progress::kUnderWay;
  std::string trouble_ GUARDED_BY(mutex_);
  std::vector<Entry> entries_ GUARDED_BY(mutex_);  // all that this rank will send and receive
  std::size_t under_way_ GUARDED_BY(mutex_) = 0;   // of them, or not posted yet
  bool retired_ GUARDED_BY(mutex_) = false;
};

}  // namespace gradweave::islands
