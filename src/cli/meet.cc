// gradweave meet: the point where islands meet.
#include <fmt/format.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): sigwait

#include <algorithm>
#include <chrono>
#include <iostream>
#include <memory>

#include "base/mutex.h"
#include "base/quoted.h"
#include "cli/commands.h"
#include "cli/inputs.h"
#include "gradweave/error.h"
#include "islands/meeting_server.h"

namespace gradweave::cli {
namespace {

constexpr double kShortestLeaseUs = 1e6, kLongestLeaseUs = 3.6e9;
constexpr double kShortestPatienceUs = 1e6, kLongestPatienceUs = 8.64e10;

std::chrono::nanoseconds nanoseconds_of(double us) {
  return std::chrono::nanoseconds(static_cast<std::int64_t>(1e3 * us));
}

struct MeetArguments {
  std::string listen, key, make_key;
  double lease_us = 1e7;
  double leave_out_after_us = 0;  // 0: never
  std::vector<std::string> without;
};

void run_meet(const MeetArguments& arguments, const Outcome& outcome) {
  if (!arguments.make_key.empty()) {
    if (!arguments.listen.empty() || !arguments.key.empty())
      throw InvalidInput("can't be combined with other options", "--make-key",
                         "make the key first, then start the meeting point with it");
    if (arguments.make_key == "-")
      throw InvalidInput("writes no key to standard output", "--make-key", "give the name of a file");
    islands::make_key_file(arguments.make_key);
    return;
  }
  if (arguments.listen.empty() || arguments.key.empty()) {
    throw InvalidInput("is missing", arguments.listen.empty() ? "--listen" : "--key",
                       "give --listen HOST:PORT and --key FILE; --make-key FILE makes a key");
  }
  // Threads that are made from here on leave these signals to this one.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  Mutex mutex;
  const auto tell = [&](const std::string& line) {
    const MutexLock lock(mutex);
    if (!outcome.quiet) std::cerr << printable(line) << std::endl;
  };
  const islands::Address address = islands::parse_address(arguments.listen, "--listen");
  islands::Patience patience;
  if (arguments.leave_out_after_us > 0) {
    patience.slow = nanoseconds_of(arguments.leave_out_after_us);
    patience.unconnected = std::min(patience.unconnected, *patience.slow);
  }
  const islands::MeetingServer server({.key = islands::read_key_file(arguments.key),
                                       .listen = address,
                                       .lease = nanoseconds_of(arguments.lease_us),
                                       .patience = patience,
                                       .without = arguments.without,
                                       .tell = tell});
  std::cout << fmt::format("listening on {}\n", to_text(islands::Address{address.host, server.port()}))
            << std::flush;
  int signal = 0;
  sigwait(&signals, &signal);
}

}  // namespace

void add_meet(CLI::App& app, Outcome& outcome) {
  auto arguments = std::make_shared<MeetArguments>();
  CLI::App* command = app.add_subcommand("meet", "Run the meeting point of a job's islands");
  command->add_option("--listen", arguments->listen, "Address that islands connect to; port 0: any free port")
      ->type_name("HOST:PORT");
  add_file_option(*command, "--key", arguments->key, "The job's key file", false);
  add_file_option(*command, "--make-key", arguments->make_key, "Write a new key to this file, and exit",
                  false);
  add_time_option(*command, "--lease", arguments->lease_us,
                  "Leave out an island that is silent for this long (default 10s)", kShortestLeaseUs,
                  kLongestLeaseUs);
  add_time_option(*command, "--leave-out-after", arguments->leave_out_after_us,
                  "Leave out an island that others wait for this long at an average (default: never)",
                  kShortestPatienceUs, kLongestPatienceUs);
  command
      ->add_option("--without", arguments->without, "Don't wait for this island, which has ended; repeatable")
      ->type_name("NAME");
  command->footer(
      "Example:\n  gradweave meet --make-key job.key\n  gradweave meet --listen 0.0.0.0:29600 --key job.key\n"
      "Ends with Ctrl-C or SIGTERM. It holds no data of the training: without it islands train on, and "
      "nobody comes or\n"
      "goes.");
  command->callback([arguments, &outcome] { run_meet(*arguments, outcome); });
}

}  // namespace gradweave::cli
