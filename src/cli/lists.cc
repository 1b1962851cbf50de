#include "cli/lists.h"

#include <algorithm>

#include "base/names.h"

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

std::vector<Method> chosen_methods(const std::vector<std::string>& words) {
  std::vector<Method> methods;
  for (const std::string& item : items_of(words, "--schemes")) methods.push_back(parse_method(item));
  if (methods.empty()) {
    std::ranges::transform(schemes(), std::back_inserter(methods),
                           [](const SchemeInfo& scheme) { return parse_method(scheme.name); });
  }
  return methods;
}

void require_known(const std::map<std::string, std::string>& options, const std::vector<Method>& methods) {
  std::vector<std::string_view> known;
  for (const Method& method : methods) {
    for (const OptionSpec& spec : find_scheme(method.scheme).options) {
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
