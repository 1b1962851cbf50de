#include "base/names.h"

#include <algorithm>
#include <cctype>
#include <tuple>
#include <vector>

namespace gradweave {
namespace {

// Insertions, deletions, replacements and swaps of neighbours that turn `a` into `b`.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> cost(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        cost[i][j] = i + j;
        continue;
      }
      const std::size_t replaced = cost[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      cost[i][j] = std::min({replaced, cost[i - 1][j] + 1, cost[i][j - 1] + 1});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
    }
  }
  return cost[a.size()][b.size()];
}

std::string in_lower_case(std::string_view text) {
  std::string lower(text);
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return std::tolower(c); });
  return lower;
}

// How far a name is from a word: by letters alone; then with their case; then the longer common beginning is nearer.
using Distance = std::tuple<std::size_t, std::size_t, std::size_t>;

// A word that begins the name lacks its end, however long that is: one edit.
Distance distance_of(std::string_view word, std::string_view name) {
  const std::string lower = in_lower_case(word), lower_name = in_lower_case(name);
  const std::size_t edits = edit_distance(lower, lower_name);
  const auto same = static_cast<std::size_t>(std::ranges::mismatch(lower, lower_name).in1 - lower.begin());
  const bool begins = !word.empty() && same == word.size();
  return {begins ? std::min<std::size_t>(edits, 1) : edits, edit_distance(word, name), word.size() - same};
}

bool is_near(std::size_t edits, std::string_view word, std::string_view name) {
  if (edits <= 1 && name.size() > 1 && in_lower_case(name).starts_with(in_lower_case(word))) return true;
  const std::size_t longer = std::max(word.size(), name.size());
  return edits <= std::max<std::size_t>(2, name.size() / 3) && longer > 2 && 2 * edits <= longer;
}

}  // namespace

std::optional<std::string_view> nearest(std::string_view word, std::span<const std::string_view> names) {
  constexpr std::size_t kLongest = 60;  // a name; what is longer is no slip of the finger
  if (word.empty() || word.size() > kLongest || names.empty()) return std::nullopt;
  const auto distance = [&](std::string_view name) { return distance_of(word, name); };
  const std::string_view best = *std::ranges::min_element(names, {}, distance);
  return is_near(std::get<0>(distance(best)), word, best) ? std::optional(best) : std::nullopt;
}

std::string listed(std::span<const std::string_view> names) {
  std::string text;
  for (std::string_view name : names) text.append(text.empty() ? "" : ", ").append(name);
  return text;
}

std::string choice_of(std::string_view word, std::span<const std::string_view> names, std::string lead) {
  std::string text;
  if (const auto meant = nearest(word, names)) {
    text = "did you mean '" + std::string(*meant) + "'? ";
    lead[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(lead[0])));
  }
  return text + lead + " " + listed(names);
}

}  // namespace gradweave
