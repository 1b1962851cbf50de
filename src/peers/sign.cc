#include "peers/sign.h"

#include <charconv>
#include <cstdio>

namespace gradweave::peers {
namespace {

std::int64_t number(std::string_view text) {
  std::int64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

}  // namespace

// Each field as "<length>:<bytes>".
std::string join(const std::vector<std::string>& fields) {
  std::string text = std::to_string(fields.size()) + ':';
  for (const std::string& field : fields) text += std::to_string(field.size()) + ':' + field;
  return text;
}

std::vector<std::string> split(std::string_view text) {
  std::vector<std::string> fields;
  std::size_t at = text.find(':');
  if (at == std::string_view::npos) return fields;
  ++at;
  while (at < text.size()) {
    const std::size_t colon = text.find(':', at);
    if (colon == std::string_view::npos) break;
    const auto length = static_cast<std::size_t>(number(text.substr(at, colon - at)));
    fields.emplace_back(text.substr(colon + 1, length));
    at = colon + 1 + length;
  }
  return fields;
}

std::string encode(const Sign& sign) {
  return join({std::to_string(sign.beat), std::string(1, static_cast<char>(sign.state)),
               std::string(1, static_cast<char>(sign.activity)), std::to_string(sign.iteration),
               std::to_string(sign.ops), std::to_string(sign.meetings), sign.what, sign.trouble, sign.cause});
}

Sign decode_sign(std::string_view text) {
  const std::vector<std::string> fields = split(text);
  if (fields.size() != 9 || fields[1].size() != 1 || fields[2].size() != 1) return {};
  return {.beat = number(fields[0]),
          .state = static_cast<State>(fields[1].front()),
          .activity = static_cast<Activity>(fields[2].front()),
          .iteration = number(fields[3]),
          .ops = number(fields[4]),
          .meetings = number(fields[5]),
          .what = fields[6],
          .trouble = fields[7],
          .cause = fields[8]};
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

std::string seconds(Time time) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", std::chrono::duration<double>(time).count());
  return text;
}

}  // namespace gradweave::peers
