// The command line: exit 0 success, 1 a failed check, 2 bad usage or input. Results go to stdout, the rest to
// stderr.
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <array>
#include <exception>
#include <iostream>
#include <vector>

#include "base/names.h"
#include "base/quoted.h"
#include "cli/commands.h"
#include "cli/completion.h"
#include "cli/inputs.h"
#include "cli/output.h"
#include "gradweave/error.h"
#include "gradweave/schemes.h"

namespace {

using gradweave::choice_of;
using gradweave::in_quotes;
using gradweave::listed;
using gradweave::cli::commands_of;
using gradweave::cli::options_of;

// Output that can't be written counts as bad usage: 1 says only that a check has found something.
constexpr int kFailedCheck = 1, kBadUsage = 2;

// A path or argument of any length stays readable.
void report(const std::string& message) {
  using namespace gradweave::cli;
  constexpr std::size_t kMost = 10'000;
  std::cerr << styled("gradweave:", Style::kRed, standard_error()) << ' ' << message.substr(0, kMost)
            << (message.size() > kMost ? "..." : "") << '\n';
}

std::string unknown(const std::string& kind, const std::string& word, const std::vector<std::string>& names) {
  const std::vector<std::string_view> known(names.begin(), names.end());
  return "unknown " + kind + " " + in_quotes(word) + "; " + choice_of(word, known, "the " + kind + "s are");
}

// The name of the option in `word`, "--links=10" or "--links".
std::string option_in(const std::string& word) { return word.substr(0, word.find('=')); }

bool has_option(const CLI::App& command, const std::string& name) {
  const std::vector<std::string> names = options_of(command);
  return std::ranges::find(names, name) != names.end();
}

// An option that was given another option's name for a value: its own was forgotten.
std::string without_value(const CLI::App& command) {
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& value : option->results()) {
      if (value.starts_with("--") && has_option(command, option_in(value)))
        return option->get_name() + " has no value: " + in_quotes(value) + " follows";
    }
  }
  return {};
}

// An option of schemes that stands as one of the command's, as it is to be written; empty if `option` is none.
std::string meant_for_set(const CLI::App& command, std::string option) {
  option.erase(0, option.find_first_not_of('-'));
  std::ranges::replace(option, '-', '_');
  const auto has = [&](const gradweave::SchemeInfo& scheme) {
    return std::ranges::find(scheme.options, option, &gradweave::OptionSpec::name) != scheme.options.end();
  };
  if (!has_option(command, "--set") || std::ranges::none_of(gradweave::schemes(), has)) return {};
  return "'--" + option + "' is an option of schemes; write it as --set " + option + "=VALUE";
}

// What CLI11 says, in words for who has read nothing of it.
std::string words_of(const CLI::ParseError& error) {
  std::string text = error.what();
  const std::string option = text.substr(0, text.find(':'));
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) == nullptr) return text;
  return option + (text.ends_with("missing") ? " has no value" : " is given more than once");
}

constexpr std::array<std::string_view, 4> kCommandsOfPython = {"probe", "profile", "train", "doctor"};

// What is wrong with a command line that CLI11 has refused: the first word that means nothing, or what CLI11
// says. `app` is the innermost command that was named, `path` its name and those before it.
std::string fault_of(const CLI::App& app, const std::string& path, const CLI::ParseError& error) {
  const std::vector<CLI::App*> chosen = app.get_subcommands();
  const std::string where = path.empty() ? "" : path + ": ";
  const std::vector<std::string> extra = app.remaining();
  const std::vector<std::string> commands = commands_of(app);
  if (!extra.empty() && extra.front().starts_with('-')) {
    const std::string option = option_in(extra.front());
    if (!chosen.empty() && has_option(*chosen.front(), option))
      return where + in_quotes(option) + " comes before its command; put it after " +
             in_quotes(chosen.front()->get_name());
    const std::string meant = meant_for_set(app, option);
    return where + (meant.empty() ? unknown("option", option, options_of(app)) : meant);
  }
  if (!extra.empty() && !commands.empty()) {
    const bool of_python =
        path.empty() && std::ranges::find(kCommandsOfPython, extra.front()) != kCommandsOfPython.end();
    return of_python ? in_quotes(extra.front()) + " needs PyTorch; run: python -m gradweave " + extra.front()
                     : where + unknown("command", extra.front(), commands);
  }
  if (!chosen.empty())
    return fault_of(*chosen.front(), (path.empty() ? "" : path + " ") + chosen.front()->get_name(), error);
  if (!commands.empty()) {
    const std::vector<std::string_view> names(commands.begin(), commands.end());
    return where + "a command is missing; give one of " + listed(names) + ", or --help";
  }
  if (!extra.empty())
    return where + in_quotes(extra.front()) + " is not expected here; run with --help for the options";
  const std::string forgotten = without_value(app);
  return where + (forgotten.empty() ? words_of(error) : forgotten) + "; run with --help for the options";
}

void add_common_flags(CLI::App& command, gradweave::cli::Outcome& outcome) {
  command.add_flag("--quiet", outcome.quiet, "Print only errors to stderr");
  command.add_flag("--wide", outcome.wide, "Show all columns of tables");
}

int run(int argc, char** argv) {
  using namespace gradweave::cli;
  CLI::App app{
      "Plans when gradients and parameters are communicated, so that communication hides behind "
      "computation."};
  app.name("gradweave");
  app.require_subcommand(1);
  app.set_version_flag("--version", GRADWEAVE_VERSION);
  app.footer(
      "Files may be '-': standard input or output. Sizes and times may have units: 25MB, 100us.\n"
      "Each command's --help has examples: gradweave compare --help\n"
      "Commands that need PyTorch: python -m gradweave --help");
  Outcome outcome;
  add_plan(app, outcome);
  add_simulate(app, outcome);
  add_compare(app, outcome);
  add_validate(app, outcome);
  add_preserve(app, outcome);
  add_import(app, outcome);
  add_fit(app, outcome);
  add_report(app, outcome);
  add_diff(app, outcome);
  add_meet(app, outcome);
  add_schemes(app, outcome);
  const auto prepare = [&](CLI::App* command) {
    add_common_flags(*command, outcome);
    command->parse_complete_callback([command] { check_outputs(*command); });
  };
  for (CLI::App* command : app.get_subcommands({})) {
    prepare(command);
    for (CLI::App* inner : command->get_subcommands({})) prepare(inner);
  }
  if (argc > 1 && argv[1] == std::string_view("complete")) {  // from the scripts of completions/
    for (const std::string& word : completions(app, {argv + 2, argv + argc})) std::cout << word << '\n';
    return 0;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& wanted) {  // --help, --version
    app.exit(wanted);
  } catch (const CLI::ParseError& error) {
    report(fault_of(app, "", error));
    return kBadUsage;
  }
  std::cout.flush();
  if (!std::cout) {
    report("stdout: could not be written; free space or check where it goes");
    return kBadUsage;
  }
  return outcome.exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  std::ios::sync_with_stdio(false);
  try {
    return run(argc, argv);
  } catch (const std::bad_alloc&) {
    report("out of memory; give a smaller workload");
    return kBadUsage;
  } catch (const gradweave::InternalError& error) {
    report(error.what());
    return kFailedCheck;
  } catch (const std::exception& error) {
    report(error.what());
    return kBadUsage;
  }
}
