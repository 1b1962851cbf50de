// What nccl-tests print, as text (since version 2.0) and with -J (since 2.16).
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "base/quoted.h"
#include "gradweave/error.h"
#include "gradweave/import.h"
#include "io/files.h"
#include "io/json_tree.h"
#include "io/kind.h"

namespace gradweave {
namespace {

using Words = std::vector<std::string_view>;

constexpr std::string_view kProgramEnd = "_perf";
constexpr char kRuns[] = "give runs of all_reduce_perf, reduce_scatter_perf or all_gather_perf";

Words words_of(std::string_view line) {
  Words words;
  constexpr std::string_view kBlanks = " \t\r";
  for (std::size_t at = line.find_first_not_of(kBlanks); at != std::string_view::npos;) {
    const std::size_t end = std::min(line.find_first_of(kBlanks, at), line.size());
    words.push_back(line.substr(at, end - at));
    at = line.find_first_not_of(kBlanks, end);
  }
  return words;
}

template <typename Number>
std::optional<Number> number_from(std::string_view word) {
  Number number{};
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (error != std::errc{} || end != word.data() + word.size()) return std::nullopt;
  return number;
}

// A number, and by how much it may have been rounded.
struct Printed {
  double value = 0, rounded = 0;
};

std::optional<Printed> printed_from(std::string_view word) {
  const auto value = number_from<double>(word);
  if (!value) return std::nullopt;
  const std::size_t point = std::min(word.find('.'), word.size() - 1);
  return Printed{*value, 0.5 * std::pow(0.1, static_cast<double>(word.size() - 1 - point))};
}

// Returns the program named in `text`, "all_reduce_perf"; empty if none is.
std::string_view program_in(std::string_view text) {
  const std::size_t end = text.find(kProgramEnd);
  if (end == std::string_view::npos) return {};
  std::size_t begin = end;
  while (begin > 0 && (std::islower(static_cast<unsigned char>(text[begin - 1])) || text[begin - 1] == '_'))
    --begin;
  return text.substr(begin, end + kProgramEnd.size() - begin);
}

Collective collective_of(std::string_view program, const std::string& where) {
  for (const Collective known :
       {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather}) {
    if (program.substr(0, program.size() - kProgramEnd.size()) == name_of(known)) return known;
  }
  throw InvalidInput("is a run of " + shortened(program), where, kRuns);
}

// Ranks and the hosts that they ran on.
class Ranks {
 public:
  void add(std::int64_t rank, std::string_view host) {
    if (ranks_.insert(rank).second) ++hosts_[std::string(host)];
  }
  std::optional<std::int64_t> count() const {
    if (ranks_.empty()) return std::nullopt;
    return std::ssize(ranks_);
  }
  void tell(NcclTestsRun& run) const {
    run.workers = count();
    for (const auto& [host, count] : hosts_) run.workers_per_node = std::max(run.workers_per_node, count);
  }

 private:
  std::set<std::int64_t> ranks_;
  std::map<std::string, std::int64_t> hosts_;
};

constexpr std::int64_t kMostBytes = std::int64_t{1} << 53;

// One size, and what it took.
struct Row {
  std::string where;
  std::int64_t bytes = 0;
  std::string redop;
  bool has_root = false;  // one rank sends or receives all
  std::optional<double> out_of_place, in_place;
  std::optional<Printed> algorithm_bandwidth, bus_bandwidth;
};

// A run while it is being read.
struct LogReading {
  std::string program, where;
  Ranks ranks;
  std::vector<Row> rows;
};

// Whether the bus bandwidth may be `share` of the other one, as far as their decimals tell.
bool may_share(const Row& row, double share) {
  const auto &algorithm = row.algorithm_bandwidth, &bus = row.bus_bandwidth;
  return algorithm && bus && algorithm->value > 0 &&
         std::abs(bus->value - share * algorithm->value) <=
             bus->rounded + share * algorithm->rounded + 1e-9 * bus->value;
}

// Versions before 2.16 don't name the program. Of P ranks, an all-reduce's bus bandwidth is 2 (P - 1) / P of the other one, that of a
// reduce-scatter (P - 1) / P; what doesn't reduce may be an all-gather or something else. `workers` is P where ranks aren't listed.
Collective guessed_collective(const LogReading& reading, std::optional<std::int64_t> workers) {
  if (std::ranges::any_of(reading.rows, &Row::has_root))
    throw InvalidInput("has a root, as runs of reduce_perf and broadcast_perf", reading.where, kRuns);
  const auto ranks = static_cast<double>(reading.ranks.count().value_or(workers.value_or(1)));
  const Row& largest = *std::ranges::max_element(reading.rows, {}, &Row::bytes);
  const auto reduces = [](const Row& row) { return row.redop != "none"; };
  const bool whole = may_share(largest, 2 * (ranks - 1) / ranks),
             half = may_share(largest, (ranks - 1) / ranks);
  if (std::ranges::all_of(reading.rows, reduces) && whole != half)
    return whole ? Collective::kAllReduce : Collective::kReduceScatter;
  throw InvalidInput("does not say which collective was run", reading.where,
                     "put the command, e.g. all_gather_perf, in a line above the table");
}

NcclTestsRun finished(const LogReading& reading, std::optional<std::int64_t> workers) {
  if (reading.rows.empty())
    throw InvalidInput("has no line with a size and a time", reading.where,
                       "give the output of a run that finished");
  NcclTestsRun run{.collective = reading.program.empty() ? guessed_collective(reading, workers)
                                                         : collective_of(reading.program, reading.where)};
  reading.ranks.tell(run);
  for (const Row& row : reading.rows) {
    const bool half = is_half(run.collective);
    const auto& first = half ? row.out_of_place : row.in_place;
    const auto& time = first ? first : half ? row.in_place : row.out_of_place;
    if (row.bytes == 0 || !time) continue;  // below an element for each rank, which tells nothing; or not run
    if (!std::isfinite(*time) || *time <= 0)
      throw InvalidInput("has no time above 0", row.where, "measure again, or delete this size");
    run.measurements.push_back({row.bytes, *time});
  }
  if (run.measurements.empty())
    throw InvalidInput("has no size above 0 with a time", reading.where,
                       "give the output of a run that finished");
  return run;
}

[[noreturn]] void fail_wrong(const std::string& where) {
  throw InvalidInput("the collective computed wrong results there", where,
                     "fix the machine, then measure again");
}

// The text form, line by line.
class TextReader {
 public:
  void read(std::string_view line) {
    where_ = "line " + std::to_string(++number_);
    // What launchers put before each line: "[1,0]<stdout>:" and "0: ".
    if (const std::size_t tag = line.find("<stdout>:"); tag < 40) line.remove_prefix(tag + 9);
    Words words = words_of(line);
    if (!words.empty() && words[0].size() > 1 && words[0].ends_with(':')) words.erase(words.begin());
    if (words.empty()) return;
    if (words[0].starts_with('#')) {
      comment(words, line);
    } else if (!times_.empty() &&
               std::ranges::all_of(words[0], [](unsigned char c) { return std::isdigit(c); })) {
      const auto bytes = number_from<std::int64_t>(words[0]);
      if (!bytes || *bytes > kMostBytes)
        throw InvalidInput("has a size above 2^53 bytes", where_, "measure smaller messages");
      row(words, *bytes);
    } else if (const std::string_view program = program_in(line); !program.empty()) {
      program_ = program;
    }
  }

  std::vector<NcclTestsRun> runs(std::optional<std::int64_t> workers) const {
    if (readings_.empty())
      throw InvalidInput("is not what nccl-tests print", "",
                         "give what all_reduce_perf writes to stdout, or the file that its option -J writes");
    std::vector<NcclTestsRun> runs;
    std::ranges::transform(readings_, std::back_inserter(runs),
                           [&](const LogReading& reading) { return finished(reading, workers); });
    return runs;
  }

 private:
  void comment(const Words& words, std::string_view line) {
    const auto has = [&](std::string_view word) { return std::ranges::find(words, word) != words.end(); };
    if (line.find("Collective test starting:") != std::string_view::npos) {
      program_ = program_in(line);
    } else if (has("nThread")) {
      readings_.push_back({.program = std::exchange(program_, {}), .where = where_});
      times_.clear();
    } else if (readings_.empty()) {
      return;
    } else if (has("Rank") && has("on")) {
      const auto rank = std::ranges::find(words, "Rank"), on = std::ranges::find(words, "on");
      const auto number = rank + 1 == words.end() ? std::nullopt : number_from<std::int64_t>(rank[1]);
      if (number && on + 1 != words.end()) readings_.back().ranks.add(*number, on[1]);
    } else if (has("size") && has("busbw")) {
      header(words);
    }
  }

  void header(const Words& words) {
    columns_.assign(words.begin() + (words[0] == "#" ? 1 : 0), words.end());
    times_.clear();
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      if (columns_[c] == "time") times_.push_back(c);
    }
    if (times_.empty())
      throw InvalidInput("the column time is missing", where_,
                         "measure without -C, whose times are the host's");
  }

  void row(const Words& words, std::int64_t bytes) {
    const auto place = [this](std::string_view column) {
      return static_cast<std::size_t>(std::ranges::find(columns_, column) - columns_.begin());
    };
    const std::size_t redop = place("redop"), root = place("root");
    if (words.size() <= times_[0] + 2 || redop >= times_[0]) return;
    if (words.size() < columns_.size()) {
      throw InvalidInput(
          "has " + std::to_string(words.size()) + " of " + std::to_string(columns_.size()) + " columns",
          where_, "give the whole output, or delete a line that was cut off");
    }
    Row row{.where = where_, .bytes = bytes, .redop = std::string(words[redop])};
    row.has_root = root < times_[0] && number_from<std::int64_t>(words[root]).value_or(-1) >= 0;
    row.out_of_place = time_at(words, times_[0]);
    if (times_.size() > 1) row.in_place = time_at(words, times_[1]);
    row.algorithm_bandwidth = printed_from(words[times_[0] + 1]);
    row.bus_bandwidth = printed_from(words[times_[0] + 2]);
    readings_.back().rows.push_back(std::move(row));
  }

  std::optional<double> time_at(const Words& words, std::size_t column) const {
    if (words.size() <= column) return std::nullopt;
    const std::size_t wrong = column + 3;
    if (words.size() > wrong && columns_.size() > wrong && columns_[wrong] == "#wrong" &&
        number_from<double>(words[wrong]).value_or(0) != 0)
      fail_wrong(where_);
    return number_from<double>(words[column]);
  }

  std::vector<LogReading> readings_;
  std::string program_;               // named since the last run began
  std::vector<std::string> columns_;  // of the table
  std::vector<std::size_t> times_;    // which of them are times: out of place, in place
  std::string where_;
  std::int64_t number_ = 0;
};

std::optional<double> time_from(const JsonNode& row, std::string_view key) {
  const auto place = row.find(key);
  if (!place || place->is_null()) return std::nullopt;
  if (const auto wrong = place->find("nwrong"); wrong && !wrong->is_null() && wrong->number() != 0)
    fail_wrong(wrong->path());
  const auto time = place->find("time");
  if (!time) place->fail("has no time", "measure without -C, whose times are the host's");
  return time->number();
}

NcclTestsRun run_from(std::string_view text) {
  const JsonValue tree = parse_json(text);
  const JsonNode root(tree);
  require_kind(kind_of(root), "nccl-tests");
  LogReading reading{.where = "results"};
  const JsonNode arguments = root.at("args");
  if (arguments.size() > 0) reading.program = program_in(arguments.item(0).text(kMaxTextBytes));
  if (reading.program.empty())
    arguments.fail("does not begin with a program of nccl-tests", "give the file of its option -J");
  const JsonNode config = root.at("config");
  if (const auto devices = config.find("devices")) {
    for (std::size_t i = 0; i < devices->size(); ++i) {
      const JsonNode device = devices->item(i);
      reading.ranks.add(device.at("rank").integer(0, INT32_MAX), device.at("hostname").text());
    }
  }
  const JsonNode results = root.at("results");
  for (std::size_t i = 0; i < results.size(); ++i) {
    const JsonNode row = results.item(i);
    reading.rows.push_back({.where = row.path(),
                            .bytes = row.at("size").integer(0, kMostBytes),
                            .out_of_place = time_from(row, "out_of_place"),
                            .in_place = time_from(row, "in_place")});
  }
  return finished(reading, std::nullopt);
}

}  // namespace

std::vector<NcclTestsRun> parse_nccl_tests(std::string_view text, std::optional<std::int64_t> workers) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first != std::string_view::npos && text[first] == '{') return {run_from(text)};
  TextReader reader;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    reader.read(text.substr(at, end - at));
    at = end + 1;
  }
  return reader.runs(workers);
}

std::vector<NcclTestsRun> read_nccl_tests(const std::filesystem::path& path,
                                          std::optional<std::int64_t> workers) try {
  return parse_nccl_tests(read_file(path), workers);
} catch (const InvalidInput& error) {
  if (error.where().starts_with(path.string())) throw;
  throw error.within(path.string());
}

}  // namespace gradweave
