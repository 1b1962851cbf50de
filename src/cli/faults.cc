#include "cli/faults.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <iostream>

#include "base/text.h"
#include "cli/inputs.h"
#include "cli/lists.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "gradweave/error.h"

namespace gradweave::cli {
namespace {

constexpr double kLongestUs = 1e15;  // 30 years
constexpr std::int64_t kMostIslands = 1'000'000;
constexpr std::array<std::string_view, 5> kCompressors = {"int4", "int8", "int2", "ef_signsgd", "none"};

// "12.35 ms", "6.5 h".
std::string long_time(double seconds) {
  if (!std::isfinite(seconds)) return "never";
  constexpr double kMinute = 60, kHour = 3600, kDay = 86400;
  if (seconds >= 2 * kDay) return number_text(seconds / kDay, 3) + " d";
  if (seconds >= 2 * kHour) return number_text(seconds / kHour, 3) + " h";
  if (seconds >= 2 * kMinute) return number_text(seconds / kMinute, 3) + " min";
  return time_text(seconds * 1e9);
}

std::string percent(double share) {
  // Near to all, what is missing is what counts.
  return fixed_text(100 * share, share > 0.99 && share < 1 ? 2 : 1) + " %";
}

std::string name_of(const FaultRow& row) {
  switch (row.way) {
    case FaultRow::Way::kIslands:
      return "islands";
    case FaultRow::Way::kCheckpoints:
      return "checkpoints every " + long_time(*row.every_s);
    case FaultRow::Way::kBestCheckpoints:
      return "checkpoints, best: every " + long_time(*row.every_s);
    case FaultRow::Way::kQuorum:
      return "quorum at each step";
  }
  return {};
}

const char* key_of(FaultRow::Way way) {
  constexpr std::array kKeys = {"islands", "checkpoints", "best_checkpoints", "quorum"};
  return kKeys[static_cast<std::size_t>(way)];
}

std::vector<FaultOptions> options_of(const FaultFlags& flags, const Setting& setting) {
  const auto given = [](double us) { return us < 0 ? std::nullopt : std::optional(us / 1e6); };
  FaultOptions options{.period = flags.period,
                       .compressor = flags.compressor,
                       .recovery_s = flags.recovery_us / 1e6,
                       .detection_s = flags.detection_us / 1e6,
                       .epoch_s = flags.epoch_us / 1e6,
                       .message_s = flags.message_us / 1e6,
                       .checkpoint_every_s = flags.checkpoint_every_us / 1e6,
                       .step_s = given(flags.step_us),
                       .average_s = given(flags.average_us),
                       .write_s = given(flags.write_us),
                       .restart_s = given(flags.restart_us)};
  if (!flags.state_bytes.empty()) {
    options.state_bytes =
        numbers_of<double>({flags.state_bytes}, "--state-bytes", 0.0, 1e18, Measure::kBytes).at(0);
  }
  auto islands = numbers_of<std::int64_t>(flags.islands, "--islands", 2, kMostIslands);
  if (islands.empty()) islands.push_back(participants(setting.cluster));
  std::vector<FaultOptions> all;
  for (const std::int64_t count : islands) {
    for (const double mtbf_us :
         numbers_of<double>(flags.mtbf, "--mtbf", 1e3, kLongestUs, Measure::kMicroseconds)) {
      options.islands = count;
      options.mtbf_s = mtbf_us / 1e6;
      all.push_back(options);
    }
  }
  return all;
}

Json object_of(const FaultRow& row) {
  Json object{{"way", key_of(row.way)}};
  if (!row.infeasible.empty()) {
    object["starves"] = row.infeasible;
    return object;
  }
  if (row.every_s) object["every_us"] = microseconds_rounded(1e9 * *row.every_s);
  object["goodput"] = row.simulated.share;
  object["uncertainty"] = row.simulated.uncertainty;
  object["expected"] = row.expected.share;
  object["efficiency"] = row.efficiency;
  if (row.samples_per_second) object["samples_per_second"] = *row.samples_per_second;
  if (row.islands) {
    object["there"] = row.islands->there;
    object["lost"] = row.islands->lost;
    object["landed"] = row.islands->landed;
    if (std::isfinite(row.islands->landed_every_s))
      object["landed_every_us"] = microseconds_rounded(1e9 * row.islands->landed_every_s);
    object["all_gone_a_day"] = row.islands->all_gone;
  }
  return object;
}

Json object_of(const FaultReport& report, const Setting& setting) {
  const auto us = [](double seconds) { return microseconds_rounded(1e9 * seconds); };
  const FaultOptions& options = report.options;
  Json object{{"islands", options.islands}, {"mtbf_us", us(options.mtbf_s)}};
  if (setting.gigabits) object["gigabits"] = *setting.gigabits;
  object["recovery_us"] = us(options.recovery_s);
  object["detection_us"] = us(options.detection_s);
  object["epoch_us"] = us(options.epoch_s);
  object["step_us"] = us(report.training.step_s);
  object["period"] = options.period;
  object["compressor"] = options.compressor;
  object["average_us"] = us(report.training.average_s);
  object["average_bytes"] = report.traffic.bytes;
  object["average_messages"] = report.traffic.messages;
  object["state_bytes"] = report.state_bytes;
  object["state_us"] = us(report.training.state_s);
  object["checkpoint_us"] = us(report.checkpoints.write_s);
  object["restart_us"] = us(report.checkpoints.restart_s);
  object["epochs_a_day"] = report.epochs_a_day;
  object["least_mtbf_us"] = us(report.least_mtbf_s);
  object["gives"] = report.gives;
  object["ways"] = Json::array();
  for (const FaultRow& row : report.rows) object["ways"].push_back(object_of(row));
  return object;
}

Table table_of(const FaultReport& report) {
  Table table{.header = {"", "goodput", "+-", "expected", "efficiency", "samples/s", "train", "lost",
                         "average lands every"},
              .rows = {}};
  const bool samples = report.rows.front().samples_per_second.has_value();
  table.wide = {false, false, true, true, false, !samples, false, false, false};
  double most = 0;
  for (const FaultRow& row : report.rows) most = std::max(most, row.efficiency);
  for (const FaultRow& row : report.rows) {
    std::vector<std::string> cells = {name_of(row)};
    if (!row.infeasible.empty()) {
      cells.emplace_back("infeasible");
    } else {
      cells.insert(cells.end(), {percent(row.simulated.share), percent(row.simulated.uncertainty),
                                 percent(row.expected.share), percent(row.efficiency),
                                 row.samples_per_second ? number_text(*row.samples_per_second, 4) : "-"});
    }
    if (row.islands) {
      const double steps = row.islands->landed_every_s / report.training.step_s;
      cells.insert(cells.end(), {percent(row.islands->there), percent(row.islands->lost),
                                 std::isfinite(steps) ? number_text(steps, 3) + " steps" : "never"});
    }
    cells.resize(table.header.size(), "");
    table.rows.push_back(std::move(cells));
    table.styles.push_back(row.efficiency == most ? Style::kGreen : Style::kPlain);
  }
  return table;
}

void print_for_people(const FaultReport& report, const Setting& setting, const Screen& screen) {
  const FaultOptions& options = report.options;
  const IslandTraining& training = report.training;
  std::cout << fmt::format("\n{} islands{}, each dies every {} on average and is back after {}\n",
                           options.islands,
                           setting.gigabits ? fmt::format(", {} Gb/s", *setting.gigabits) : "",
                           long_time(options.mtbf_s), long_time(options.recovery_s));
  std::cout << fmt::format(
      "a step takes {}; an average takes {} ({} in {} messages from each island to {} others, {}); "
      "taking the state takes {} ({})\n",
      long_time(training.step_s), long_time(training.average_s),
      bytes_text(static_cast<double>(report.traffic.bytes)), report.traffic.messages, report.traffic.peers,
      options.compressor, long_time(training.state_s), bytes_text(report.state_bytes));
  std::cout << table_of(report).text(screen);
  for (const FaultRow& row : report.rows) {
    if (!row.infeasible.empty()) std::cout << name_of(row) << " is infeasible: " << row.infeasible << '\n';
  }
  std::cout << fmt::format("islands come or go up to {} times a day\n", number_text(report.epochs_a_day, 3));
  if (options.mtbf_s < report.least_mtbf_s) {
    std::cout << fmt::format(
        "averages rarely land: below an mtbf of {} another island usually dies before an average lands\n",
        long_time(report.least_mtbf_s));
  }
  if (report.gives >= 1) std::cout << "a new island usually dies before it has the state\n";
  if (const auto& islands = report.rows.front().islands; islands && islands->all_gone > 0)
    std::cout << fmt::format("all islands are gone at once {} times a day, and go on from a checkpoint\n",
                             number_text(islands->all_gone, 3));
}

}  // namespace

void add_fault_options(CLI::App& command, FaultFlags& flags, const std::vector<std::string>& others) {
  CLI::Option* mtbf =
      command
          .add_option("--mtbf", flags.mtbf,
                      "Predict how much training is kept if each worker dies once in this time on "
                      "average: with islands, checkpoints, a quorum")
          ->type_name("TIME,...");
  for (const std::string& other : others) mtbf->excludes(command.get_option(other));
  command
      .add_option("--islands", flags.islands,
                  "With --mtbf: for these numbers of islands (default: as in the cluster)")
      ->type_name("N,...");
  const auto add_time = [&](const std::string& name, double& us, const std::string& what, double low = 0) {
    add_time_option(command, name, us, "With --mtbf: " + what, low, kLongestUs);
  };
  add_time("--recovery", flags.recovery_us, "time until an island that died is back (default 5min)");
  add_time("--detection", flags.detection_us, "time until the others know that it died (default 10s)");
  add_time("--epoch-change", flags.epoch_us, "time until all then agree on who is there (default 1s)");
  add_time("--step", flags.step_us, "time of a step (default: the workload's plus --optimizer-us)", 1e-3);
  add_time("--average", flags.average_us,
           "time of an average between islands (default: what the link takes)");
  add_time("--message-us", flags.message_us, "processor time for each message of an average (default 0)");
  command.add_option("--period", flags.period, "With --mtbf: steps between two averages, at least")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 40))
      ->type_name("K")
      ->capture_default_str();
  add_choice_option(command, "--compressor", flags.compressor,
                    "With --mtbf: compressor of averages between islands", kCompressors);
  command
      .add_option(
          "--state-bytes", flags.state_bytes,
          "With --mtbf: state that an island takes when it comes (default: three times the parameters)")
      ->type_name("SIZE");
  add_time("--checkpoint-every", flags.checkpoint_every_us, "time between two checkpoints (default 10min)",
           1e3);
  add_time("--checkpoint-time", flags.write_us, "time to write one (default: the state over the link)");
  add_time("--restart", flags.restart_us,
           "time until all have read a checkpoint and train (default: the state over the link)");
  for (const char* name :
       {"--islands", "--recovery", "--detection", "--epoch-change", "--step", "--average", "--message-us",
        "--period", "--compressor", "--state-bytes", "--checkpoint-every", "--checkpoint-time", "--restart"})
    command.get_option(name)->needs(mtbf);
}

void compare_faults(const std::vector<Setting>& settings, const FaultFlags& flags, const Cluster& measured,
                    std::optional<std::int64_t> batch_size, bool json, const Outcome& outcome) {
  std::vector<std::pair<const Setting*, FaultReport>> reports;
  {
    Progress progress(outcome, "comparing");
    for (const Setting& setting : settings) {
      for (const FaultOptions& options : options_of(flags, setting)) {
        progress.say(fmt::format("{} islands", options.islands));
        reports.emplace_back(&setting, under_faults(setting, options, batch_size));
      }
    }
  }
  if (json) {
    Json objects = Json::array();
    for (const auto& [setting, report] : reports) objects.push_back(object_of(report, *setting));
    return print({{"workload", summary_of(settings[0].slowest)},
                  {"cluster", summary_of(measured)},
                  {"goodput", std::move(objects)}});
  }
  const Screen screen = standard_output(outcome.wide);
  for (const auto& [setting, report] : reports) print_for_people(report, *setting, screen);
  std::cout << "\ngoodput: samples trained and kept, as a share of those without faults; efficiency: goodput "
               "times\n"
               "compute time / iteration time; train: share of the islands that are training; lost: share of "
               "what\n"
               "was trained.\n"
               "Goodput says nothing about accuracy: where averages land rarely, their period is longer."
            << (screen.wide ? "\n" : " --wide shows all columns.\n");
}

}  // namespace gradweave::cli
