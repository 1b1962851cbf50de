#include "cli/lists.h"

#include <algorithm>

#include "base/names.h"
#include "gradweave/schemes.h"

namespace gradweave::cli {

std::vector<std::string> items_of(const std::vector<std::string>& words, std::string_view option) {
  std::vector<std::string> items;
  for (const std::string& word : words) {
    for (std::size_t begin = 0; begin <= word.size();) {
      const std::size_t end = std::min(word.find(',', begin), word.size());
      if (end == begin)
        throw InvalidInput(in_quotes(word) + " has an empty item", option, "put one ',' between two items");
      items.push_back(word.substr(begin, end - begin));
      begin = end + 1;
    }
  }
  return items;
}

std::vector<std::string_view> chosen_schemes(const std::vector<std::string>& words) {
  std::vector<std::string_view> names;
  for (const std::string& name : items_of(words, "--schemes")) names.push_back(find_scheme(name).name);
  if (names.empty()) std::ranges::transform(schemes(), std::back_inserter(names), &SchemeInfo::name);
  return names;
}

void require_known(const std::map<std::string, std::string>& options,
                   const std::vector<std::string_view>& names) {
  std::vector<std::string_view> known;
  for (std::string_view name : names) {
    for (const OptionSpec& spec : find_scheme(name).options) {
      if (std::ranges::find(known, spec.name) == known.end()) known.push_back(spec.name);
    }
  }
  for (const auto& [option, value] : options) {
    if (std::ranges::find(known, option) == known.end()) {
      throw InvalidInput("none of the schemes compared has an option " + in_quotes(option),
                         "option " + shortened(option), choice_of(option, known, "they have"));
    }
  }
}

}  // namespace gradweave::cli
