#include "peers/judge.h"

#include <algorithm>
#include <map>
#include <utility>

namespace gradweave::peers {
namespace {

const std::string kEnd = "Training can't go on: restart from the last checkpoint.";

class Case {
 public:
  Case(std::span<const Seen> ranks, Time now, Time listening)
      : ranks_(ranks), now_(now), listening_(listening) {}

  std::string missed_meeting() const;
  std::string trained_past_the_end() const;
  std::string stuck() const;

 private:
  const Seen& of(int rank) const { return ranks_[static_cast<std::size_t>(rank)]; }
  int size() const { return static_cast<int>(ranks_.size()); }
  Time quiet(int rank) const { return now_ - of(rank).heard; }
  bool running(int rank) const { return of(rank).came && of(rank).sign.state == State::kRunning; }
  bool trains(int rank) const {
    const State state = of(rank).sign.state;
    return of(rank).came && (state == State::kRunning || state == State::kStuck);
  }
  // Whether the rank has begun something that another one, which has done `iterations`, will never join.
  bool past(int rank, std::int64_t iterations) const {
    const Sign& sign = of(rank).sign;
    return trains(rank) && (sign.activity == Activity::kTraining ? sign.iteration >= iterations
                                                                 : sign.iteration > iterations);
  }

  template <typename Condition>
  std::vector<int> those(Condition condition) const {
    std::vector<int> found;
    for (int r = 0; r < size(); ++r) {
      if (condition(r)) found.push_back(r);
    }
    return found;
  }
  // "rank 0 is in finish() after 9 iterations; ranks 1-3: training iteration 9"
  std::string everyone() const;
  // What the caller can do about ranks that are at different points.
  std::string remedy() const;
  // Whether a rank that is lost has shown by now.
  bool has_shown(int reporter) const;
  std::string suspects(int reporter) const;
  std::string behind_all(int reporter) const;

  std::span<const Seen> ranks_;
  Time now_, listening_;
};

std::string Case::everyone() const {
  std::vector<std::pair<std::string, std::vector<int>>> groups;
  for (int r = 0; r < size(); ++r) {
    const std::string text = of(r).came ? doing(of(r).sign) : "has not arrived";
    auto group = std::ranges::find(groups, text, &std::pair<std::string, std::vector<int>>::first);
    if (group == groups.end()) group = groups.insert(groups.end(), {text, {}});
    group->second.push_back(r);
  }
  std::string text;
  for (const auto& [what, members] : groups) {
    text += (text.empty() ? "" : "; ") + name_of(members) + ": " + what;
  }
  return text;
}

std::string Case::remedy() const {
  const auto ended = those([&](int r) { return of(r).came && of(r).sign.state == State::kEnded; });
  const bool begun = !those([&](int r) {
                        const Sign& sign = of(r).sign;
                        return of(r).came && (sign.iteration > 0 || sign.activity == Activity::kTraining);
                      }).empty();
  std::string text = begun ? "Give all ranks the same number of batches, or stop all at the shortest. " : "";
  if (!ended.empty())
    text += (begun ? "If " : "The output of ") + name_of(ended) +
            (begun ? " should not have ended there, its own output says why. " : " says why it ended. ");
  return text;
}

std::string Case::missed_meeting() const {
  int first = -1;
  for (int r = 0; r < size(); ++r) {
    if (running(r) && of(r).sign.waits() && (first < 0 || of(r).sign.meetings > of(first).sign.meetings))
      first = r;
  }
  if (first < 0) return "";
  const Sign& meeting = of(first).sign;
  const auto apart = those([&](int r) {
    const Sign& sign = of(r).sign;
    if (!of(r).came || sign.state == State::kLeaving) return false;
    if (sign.waits() && sign.meetings == meeting.meetings)
      return sign.what != meeting.what || sign.iteration != meeting.iteration;
    if (sign.meetings >= meeting.meetings) return false;  // has been there
    return sign.state == State::kEnded || past(r, meeting.iteration);
  });
  if (apart.empty()) return "";
  for (int r : apart) {
    if (of(r).sign.state != State::kEnded) continue;
    return "rank " + std::to_string(r) + ' ' + doing(of(r).sign) + " and can't reach " + meeting.what +
           ". Where ranks are: " + everyone() + ". " + remedy() + kEnd;
  }
  return "ranks are at different points of their training: " + everyone() + ". Every rank has to be in " +
         meeting.what + " after the same iteration. " + remedy() + kEnd;
}

std::string Case::trained_past_the_end() const {
  for (int e = 0; e < size(); ++e) {
    const Sign& end = of(e).sign;
    if (!of(e).came || end.state != State::kEnded) continue;
    const std::int64_t joined = end.iteration + (end.activity == Activity::kTraining);
    const auto beyond = [&](int r) {
      return trains(r) && of(r).sign.activity == Activity::kTraining && of(r).sign.iteration >= joined;
    };
    if (those(beyond).empty()) continue;
    return "rank " + std::to_string(e) + ' ' + doing(end) +
           ", and others train on. Where ranks are: " + everyone() + ". " + remedy() + kEnd;
  }
  return "";
}

// The one rank that is behind all others; nobody on a tie.
std::string Case::behind_all(int reporter) const {
  const auto position = [&](int r) {
    const Sign& sign = of(r).sign;
    return std::pair(2 * sign.iteration + (sign.activity != Activity::kOutside) + sign.elsewhere,
                     sign.ops + sign.ops_elsewhere);
  };
  for (int r = 0; r < size(); ++r) {
    const auto as_far = [&](int other) { return other != r && position(other) <= position(r); };
    if (running(r) && r != reporter && those(as_far).empty())
      return "rank " + std::to_string(r) + " (alive, but behind all others: " + doing(of(r).sign) + ")";
  }
  return "nobody: all ranks are alive and none is behind all others";
}

bool Case::has_shown(int reporter) const {
  if (now_ - of(reporter).since >= kPatience) return true;
  const auto overdue = [&](const Seen& rank) {
    return rank.came && rank.sign.state == State::kStuck && rank.sign.overdue;
  };
  return listening_ >= kPatience && std::ranges::any_of(ranks_, overdue);
}

// Returns "" if it is too early to tell.
std::string Case::suspects(int reporter) const {
  const auto silent =
      those([&](int r) { return (of(r).came ? running(r) : true) && r != reporter && quiet(r) > kSilent; });
  std::string text;
  for (int r : silent) {
    text += (text.empty() ? "rank " : ", rank ") + std::to_string(r) + " (" +
            (of(r).came ? "no sign of life for " + seconds(quiet(r)) + "; " + doing(of(r).sign)
                        : "has not arrived") +
            ')';
  }
  if (!text.empty()) return text;
  const auto ended = those([&](int r) { return of(r).came && of(r).sign.state == State::kEnded; });
  for (int r : ended)
    text += (text.empty() ? "rank " : ", rank ") + std::to_string(r) + " (" + doing(of(r).sign) + ')';
  if (!text.empty()) return text;
  if (!has_shown(reporter)) return "";
  const Sign& sign = of(reporter).sign;
  if (!sign.waits()) return behind_all(reporter);
  const auto absent = those([&](int r) { return running(r) && of(r).sign.meetings < sign.meetings; });
  for (int r : absent)
    text += (text.empty() ? "rank " : ", rank ") + std::to_string(r) + " (alive, " + doing(of(r).sign) + ')';
  return text.empty() ? "nobody: all ranks have arrived" : text;
}

std::string Case::stuck() const {
  const auto waiting = those([&](int r) { return of(r).came && of(r).sign.state == State::kStuck; });
  if (waiting.empty()) return "";
  const int reporter =
      *std::ranges::min_element(waiting, {}, [&](int r) { return std::pair(of(r).since, r); });
  const std::string who = suspects(reporter);
  if (who.empty()) return "";
  const Sign& sign = of(reporter).sign;
  return "rank " + std::to_string(reporter) + " reports: " + sign.trouble + "; suspect: " + who + ". " +
         kEnd + " Where ranks are: " + everyone() + ". Cause: " + sign.cause;
}

}  // namespace

std::string judge(std::span<const Seen> ranks, Time now, Time listening) {
  const Case at_hand(ranks, now, listening);
  std::string verdict = at_hand.missed_meeting();
  if (verdict.empty()) verdict = at_hand.trained_past_the_end();
  if (verdict.empty()) verdict = at_hand.stuck();
  return verdict;
}

}  // namespace gradweave::peers
