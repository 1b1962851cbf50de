#include "base/names.h"

#include <algorithm>
#include <cctype>
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

}  // namespace

std::string listed(std::span<const std::string_view> names) {
  std::string text;
  for (std::string_view name : names) text.append(text.empty() ? "" : ", ").append(name);
  return text;
}

std::string choice_of(std::string_view word, std::span<const std::string_view> names, std::string lead) {
  constexpr std::size_t kLongest = 60;  // a name; what is longer is no slip of the finger
  const auto distance = [&](std::string_view name) { return edit_distance(word, name); };
  const auto nearest = word.size() > kLongest ? names.end() : std::ranges::min_element(names, {}, distance);
  std::string text;
  if (nearest != names.end() && distance(*nearest) <= std::max<std::size_t>(2, nearest->size() / 3)) {
    text = "did you mean '" + std::string(*nearest) + "'? ";
    lead[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(lead[0])));
  }
  return text + lead + " " + listed(names);
}

}  // namespace gradweave
