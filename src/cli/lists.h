// Options that are lists: items separated by ',', or words that hold one or several.
#pragma once

#include <fmt/format.h>

#include <charconv>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/quoted.h"
#include "gradweave/error.h"

namespace gradweave::cli {

// Returns the items of a list option. Errors: InvalidInput naming `option` for an empty item.
std::vector<std::string> items_of(const std::vector<std::string>& words, std::string_view option);

// Returns the items as numbers. Errors: InvalidInput naming `option` for what is no number from `low` to
// `high`.
template <typename Number>
std::vector<Number> numbers_of(const std::vector<std::string>& words, std::string_view option, Number low,
                               Number high) {
  std::vector<Number> numbers;
  for (const std::string& item : items_of(words, option)) {
    Number number{};
    const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), number);
    if (error != std::errc{} || end != item.data() + item.size() || !(number >= low && number <= high)) {
      throw InvalidInput(in_quotes(item) + " is no number in range", option,
                         fmt::format("give numbers from {} to {}", low, high));
    }
    numbers.push_back(number);
  }
  return numbers;
}

// Returns the names of the schemes chosen, all where none is. Errors: InvalidInput listing the valid names.
std::vector<std::string_view> chosen_schemes(const std::vector<std::string>& words);

// Errors: InvalidInput for an option that none of the schemes `names` has.
void require_known(const std::map<std::string, std::string>& options,
                   const std::vector<std::string_view>& names);

}  // namespace gradweave::cli
