// Options that are lists: items separated by ',', or words that hold one or several.
#pragma once

#include <fmt/format.h>

#include <charconv>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/quantity.h"
#include "base/quoted.h"
#include "gradweave/error.h"
#include "gradweave/schemes.h"

namespace gradweave::cli {

// Returns the items of a list option. Errors: InvalidInput naming `option` for an empty item.
std::vector<std::string> items_of(const std::vector<std::string>& words, std::string_view option);

// Returns the items as numbers; `measure`: of what they may have a unit. Errors: InvalidInput naming `option` for
// what is no number from `low` to `high`.
template <typename Number>
std::vector<Number> numbers_of(const std::vector<std::string>& words, std::string_view option, Number low,
                               Number high, std::optional<Measure> measure = std::nullopt) {
  std::vector<Number> numbers;
  for (const std::string& item : items_of(words, option)) {
    const std::string remedy = measure ? unit_remedy(item, *measure) : "";
    if (!remedy.empty()) throw InvalidInput(in_quotes(item) + " has an unknown unit", option, remedy);
    const std::string text = measure ? without_unit(item, *measure) : item;
    Number number{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc{} || end != text.data() + text.size() || !(number >= low && number <= high)) {
      throw InvalidInput(in_quotes(item) + " is not a number in range", option,
                         fmt::format("give numbers from {} to {}", low, high) +
                             (measure ? ", or with a unit of " + units_of(*measure) : ""));
    }
    numbers.push_back(number);
  }
  return numbers;
}

// Returns the methods chosen, all schemes where none is. Errors: as parse_method().
std::vector<Method> chosen_methods(const std::vector<std::string>& words);

// Errors: InvalidInput for an option that none of the methods' schemes has.
void require_known(const std::map<std::string, std::string>& options, const std::vector<Method>& methods);

}  // namespace gradweave::cli
