// What ranks tell each other through a store: signs of life, and texts about them.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gradweave::peers {

using Time = std::chrono::nanoseconds;  // of a steady clock; this folder reads none

enum class State : char {
  kRunning = 'r',
  kStuck = 's',    // something has failed here; the rank waits for a verdict
  kLeaving = 'l',  // knows the verdict
  kEnded = 'e'     // has ended its training
};

enum class Activity : char {
  kOutside = 'o',   // before the backward of `iteration`: forward, data, evaluation, anything
  kTraining = 't',  // from the backward of `iteration` on
  kMeeting = 'm'    // waits in `what` for the other ranks; `iteration` iterations are done
};

// One rank's sign of life.
struct Sign {
  std::int64_t beat = 0;
  State state = State::kRunning;
  Activity activity = Activity::kOutside;
  std::int64_t iteration = 0;
  std::int64_t ops = 0;       // that have ended, and exchanges of the control that the rank has come to
  std::int64_t meetings = 0;  // that the rank has come to, with the one it waits in
  // In the process's other jobs: two for each iteration that has ended and one for each that has begun; ops.
  std::int64_t elsewhere = 0, ops_elsewhere = 0;
  bool overdue = false;  // kStuck: what failed had been waited for as long as it may
  std::string what;      // kMeeting: "finish()"
  std::string trouble;   // kStuck: what failed, after how long
  std::string cause;     // kStuck

  bool waits() const { return activity == Activity::kMeeting; }
  friend bool operator==(const Sign&, const Sign&) = default;
};

// Texts in a store may be anybody's: what is read is checked for form, and text of another form is as good as none.
inline constexpr std::int64_t kLargestNumber = std::int64_t{1} << 53;

// Returns the number that is all of `text`, in [0, kLargestNumber]; nothing for any other text.
std::optional<std::int64_t> number_of(std::string_view text);

// Returns the sign as a text for a store, and back; its numbers are in [0, kLargestNumber]. Nothing for a text that was
// not made by encode().
std::string encode(const Sign& sign);
std::optional<Sign> decode_sign(std::string_view text);

// Any texts as one, and back. The result of join() is never empty; split() of a text that was not made by join() is.
std::string join(const std::vector<std::string>& fields);
std::vector<std::string> split(std::string_view text);

// Returns the fields of a text that another rank of the job sent. Errors: InvalidInput if there are fewer than `least`.
std::vector<std::string> fields_of(std::string_view text, std::size_t least);

// Returns "training iteration 7", "in finish() after 7 iterations".
std::string doing(const Sign& sign);

// Returns "rank 2", "ranks 0-3, 7".
std::string name_of(const std::vector<int>& ranks);

std::string seconds(Time time);  // "1.2 s"

}  // namespace gradweave::peers
