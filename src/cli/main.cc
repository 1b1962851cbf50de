// The command line: exit 0 success, 1 a failed check, 2 bad usage or input. Results go to stdout, the rest to
// stderr.
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <exception>
#include <iostream>

#include "cli/commands.h"

namespace {

// Output that can't be written counts as bad usage: 1 says only that a check has found something.
constexpr int kBadUsage = 2;

// A path or argument of any length stays readable.
void report(const std::string& message) {
  constexpr std::size_t kMost = 10'000;
  std::cerr << "gradweave: " << message.substr(0, kMost) << (message.size() > kMost ? "..." : "") << '\n';
}

int run(int argc, char** argv) {
  using namespace gradweave::cli;
  CLI::App app{
      "Plans when gradients and parameters are communicated, so that communication hides behind "
      "computation."};
  app.name("gradweave");
  app.require_subcommand(1);
  app.set_version_flag("--version", GRADWEAVE_VERSION);
  app.footer("Examples: gradweave compare --help");
  Outcome outcome;
  add_plan(app, outcome);
  add_simulate(app, outcome);
  add_compare(app, outcome);
  add_validate(app, outcome);
  add_preserve(app, outcome);
  add_report(app, outcome);
  add_diff(app, outcome);
  add_schemes(app, outcome);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& wanted) {  // --help, --version
    app.exit(wanted);
  } catch (const CLI::ParseError& error) {
    report(error.what() + std::string("; run with --help for the options"));
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
