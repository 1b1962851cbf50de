// The command line: exit 0 success, 1 a failed check, 2 bad usage or input. Results go to stdout, the rest to
// stderr.
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <exception>
#include <iostream>
#include <vector>

#include "base/names.h"
#include "base/quoted.h"
#include "cli/commands.h"
#include "cli/completion.h"
#include "cli/output.h"

namespace {

using gradweave::choice_of;
using gradweave::in_quotes;
using gradweave::cli::commands_of;
using gradweave::cli::options_of;

// Output that can't be written counts as bad usage: 1 says only that a check has found something.
constexpr int kBadUsage = 2;

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

// What is wrong with a command line that CLI11 has refused: the first word that means nothing, or what CLI11
// says.
std::string fault_of(const CLI::App& app, const CLI::ParseError& error) {
  const std::vector<CLI::App*> chosen = app.get_subcommands();
  const CLI::App& command = chosen.empty() ? app : *chosen.front();
  const std::string where = chosen.empty() ? "" : command.get_name() + ": ";
  const std::vector<std::string> extra = command.remaining();
  if (!extra.empty() && extra.front().starts_with('-'))
    return where + unknown("option", extra.front().substr(0, extra.front().find('=')), options_of(command));
  if (!extra.empty() && chosen.empty()) return unknown("command", extra.front(), commands_of(app));
  if (chosen.empty()) return "a command is missing; run with --help for the list";
  if (!extra.empty())
    return where + in_quotes(extra.front()) + " belongs to no option; run with --help for the options";
  return where + error.what() + "; run with --help for the options";
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
      "Examples: gradweave compare --help");
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
  add_schemes(app, outcome);
  for (CLI::App* command : app.get_subcommands({})) {
    command->add_flag("--quiet", outcome.quiet, "Nothing on stderr but errors");
    command->add_flag("--wide", outcome.wide, "Tables with all their columns");
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
    report(fault_of(app, error));
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
  } catch (const std::exception& error) {
    report(error.what());
    return kBadUsage;
  }
}
