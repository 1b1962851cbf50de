#include "cli/completion.h"

#include <algorithm>

#include "gradweave/schemes.h"

namespace gradweave::cli {
namespace {

void add_schemes_to(std::vector<std::string>& words) {
  for (const SchemeInfo& scheme : schemes()) words.emplace_back(scheme.name);
}

bool names_a_scheme(const CLI::Option& option) { return option.get_type_name().starts_with("SCHEME"); }

}  // namespace

std::vector<std::string> options_of(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  }
  return names;
}

std::vector<std::string> commands_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  return names;
}

std::vector<std::string> completions(const CLI::App& app, const std::vector<std::string>& words) {
  std::vector<std::string> found;
  std::size_t named = 0;  // words that are commands
  const CLI::App* innermost = &app;
  for (; named + 1 < words.size(); ++named) {
    const auto commands = innermost->get_subcommands(
        [&](const CLI::App* command) { return command->check_name(words[named]); });
    if (commands.empty()) break;
    innermost = commands.front();
  }
  const CLI::App& command = *innermost;
  if (!commands_of(command).empty()) {
    if (named + 1 < words.size()) return found;
    found = commands_of(command);
    std::ranges::move(options_of(command), std::back_inserter(found));
    return found;
  }
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_type_size() == 0 || !option->check_name(words[words.size() - 2])) continue;
    if (names_a_scheme(*option)) add_schemes_to(found);
    return found;
  }
  found = options_of(command);
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_positional() && names_a_scheme(*option)) add_schemes_to(found);
  }
  return found;
}

}  // namespace gradweave::cli
