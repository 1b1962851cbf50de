#include "peers/sign.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "base/text.h"
#include "gradweave/error.h"

namespace gradweave::peers {
namespace {

constexpr std::array kStates{State::kRunning, State::kStuck, State::kLeaving, State::kEnded};
constexpr std::array kActivities{Activity::kOutside, Activity::kTraining, Activity::kMeeting};

}  // namespace

std::optional<std::int64_t> number_of(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0 || value > kLargestNumber)
    return std::nullopt;
  return value;
}

// "<count>:", then each field as "<length>:<bytes>".
std::string join(const std::vector<std::string>& fields) {
  std::string text = std::to_string(fields.size()) + ':';
  for (const std::string& field : fields) text += std::to_string(field.size()) + ':' + field;
  return text;
}

std::vector<std::string> split(std::string_view text) {
  const auto take_number = [&text]() -> std::optional<std::int64_t> {
    const std::size_t colon = text.find(':');
    if (colon == std::string_view::npos) return std::nullopt;
    const auto number = number_of(text.substr(0, colon));
    text.remove_prefix(colon + 1);
    return number;
  };
  const auto count = take_number();
  if (!count) return {};
  std::vector<std::string> fields;
  while (!text.empty()) {
    const auto length = take_number();
    if (!length || static_cast<std::size_t>(*length) > text.size()) return {};
    fields.emplace_back(text.substr(0, static_cast<std::size_t>(*length)));
    text.remove_prefix(static_cast<std::size_t>(*length));
  }
  if (static_cast<std::size_t>(*count) != fields.size()) return {};
  return fields;
}

std::vector<std::string> fields_of(std::string_view text, std::size_t least) {
  std::vector<std::string> fields = split(text);
  if (fields.size() < least) {
    throw InvalidInput("can't be read", "message of another rank",
                       "run the same release of gradweave on every rank");
  }
  return fields;
}

std::string encode(const Sign& sign) {
  return join({std::to_string(sign.beat), std::string(1, static_cast<char>(sign.state)),
               std::string(1, static_cast<char>(sign.activity)), std::to_string(sign.iteration),
               std::to_string(sign.ops), std::to_string(sign.meetings), std::to_string(sign.elsewhere),
               std::to_string(sign.ops_elsewhere), sign.overdue ? "1" : "0", sign.what, sign.trouble,
               sign.cause});
}

std::optional<Sign> decode_sign(std::string_view text) {
  const std::vector<std::string> fields = split(text);
  if (fields.size() != 12 || fields[1].size() != 1 || fields[2].size() != 1) return std::nullopt;
  Sign sign{.state = static_cast<State>(fields[1].front()),
            .activity = static_cast<Activity>(fields[2].front()),
            .overdue = fields[8] == "1",
            .what = fields[9],
            .trouble = fields[10],
            .cause = fields[11]};
  if ((fields[8] != "0" && fields[8] != "1") || std::ranges::find(kStates, sign.state) == kStates.end() ||
      std::ranges::find(kActivities, sign.activity) == kActivities.end())
    return std::nullopt;
  const std::array<std::pair<std::size_t, std::int64_t*>, 6> numbers{{{0, &sign.beat},
                                                                      {3, &sign.iteration},
                                                                      {4, &sign.ops},
                                                                      {5, &sign.meetings},
                                                                      {6, &sign.elsewhere},
                                                                      {7, &sign.ops_elsewhere}}};
  for (const auto& [place, number] : numbers) {
    const auto read = number_of(fields[place]);
    if (!read) return std::nullopt;
    *number = *read;
  }
  return sign;
}

std::string doing(const Sign& sign) {
  const std::string n = std::to_string(sign.iteration);
  const std::string after = sign.iteration == 0
                                ? "before its first iteration"
                                : "after " + n + (sign.iteration == 1 ? " iteration" : " iterations");
  if (sign.state == State::kEnded) return "has ended its training " + after;
  switch (sign.activity) {
    case Activity::kTraining:
      return "training iteration " + n;
    case Activity::kMeeting:
      return "in " + sign.what + ' ' + after;
    case Activity::kOutside:
      break;
  }
  return "before the backward of iteration " + n;
}

std::string name_of(const std::vector<int>& ranks) {
  std::string text;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (!text.empty()) text += ", ";
    text += std::to_string(ranks[i]);
    if (last > i) text += (last == i + 1 ? ", " : "-") + std::to_string(ranks[last]);
    i = last + 1;
  }
  return (ranks.size() == 1 ? "rank " : "ranks ") + text;
}

std::string seconds(Time time) { return fixed_text(std::chrono::duration<double>(time).count(), 1) + " s"; }

}  // namespace gradweave::peers
