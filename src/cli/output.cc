#include "cli/output.h"

#include <fmt/color.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iostream>

#include "base/quoted.h"

namespace gradweave::cli {
namespace {

constexpr std::size_t kGap = 2;  // between columns of a table

bool may_colour() {
  const char* const no_colour = std::getenv("NO_COLOR");  // no-color.org
  const char* const terminal = std::getenv("TERM");
  return (no_colour == nullptr || *no_colour == '\0') &&
         (terminal == nullptr || std::string_view(terminal) != "dumb");
}

Screen screen_of(int fd) {
  constexpr std::size_t kUsual = 100;  // of a terminal that doesn't say
  if (isatty(fd) == 0) return {};
  winsize size{};
  const bool told = ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return {.columns = told ? size.ws_col : kUsual, .colour = may_colour()};
}

// How many columns of a screen UTF-8 text takes: one for each character.
std::size_t columns_of(std::string_view text) {
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

// `text` in lines of at most `room` columns where its words allow it, those after the first indented.
std::string wrapped(std::string_view text, std::size_t room, std::size_t indent) {
  if (columns_of(text) <= room) return std::string(text);
  std::string lines;
  std::size_t used = 0;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(text.size(), word.size() + 1));
    if (used > 0 && used + 1 + columns_of(word) > room) {
      lines += '\n' + std::string(indent, ' ');
      used = 0;
    }
    lines.append(used > 0 ? " " : "").append(word);
    used += (used > 0 ? 1 : 0) + columns_of(word);
  }
  return lines;
}

}  // namespace

Json summary_of(const Workload& workload) {
  const WorkloadIndex index(workload);
  return {{"name", workload.name},
          {"hash", hash_of(workload)},
          {"layers", index.layer_count},
          {"tensors", index.tensors.size()},
          {"bytes", index.total_bytes},
          {"forward_us", microseconds_of(index.forward_total)},
          {"backward_us", microseconds_of(index.backward_total)}};
}

Json summary_of(const Cluster& cluster) {
  const auto summary = [](const std::vector<Link>& of_level) {
    Json links = Json::array();
    for (const Link& link : of_level) {
      links.push_back({{"name", link.name},
                       {"startup_us", microseconds_of(link.startup_ns)},
                       {"us_per_byte", to_double(link.us_per_byte)},
                       {"concurrency", link.concurrency}});
    }
    return links;
  };
  Json object{{"hash", hash_of(cluster)}, {"workers", cluster.workers}, {"links", summary(cluster.links)}};
  if (has_levels(cluster)) {
    object["workers_per_node"] = cluster.workers_per_node;
    object["inside"] = summary(cluster.inside->links);
  }
  return object;
}

void print(const Json& value) { std::cout << dump(value, 1) << '\n'; }

Screen standard_output(bool wide) {
  Screen screen = screen_of(STDOUT_FILENO);
  screen.wide = wide;
  return screen;
}

Screen standard_error() { return screen_of(STDERR_FILENO); }

std::string styled(std::string_view text, Style style, const Screen& screen) {
  if (!screen.colour || style == Style::kPlain || text.empty()) return std::string(text);
  if (style == Style::kBold) return fmt::format(fmt::emphasis::bold, "{}", text);
  const auto colour = style == Style::kGreen ? fmt::terminal_color::green : fmt::terminal_color::red;
  return fmt::format(fmt::fg(colour), "{}", text);
}

std::string Table::text(const Screen& screen) const {
  std::vector<std::vector<std::string>> cells = rows;
  for (std::vector<std::string>& row : cells) std::ranges::transform(row, row.begin(), printable);
  std::vector<std::size_t> shown;
  for (std::size_t i = 0; i < header.size(); ++i) {
    if (screen.wide || i >= wide.size() || !wide[i]) shown.push_back(i);
  }
  std::vector<std::size_t> widths(header.size());
  for (const std::size_t i : shown) {
    widths[i] = columns_of(header[i]);
    for (const auto& row : cells) widths[i] = std::max(widths[i], columns_of(row[i]));
  }
  const auto to_left = [&](std::size_t i) { return i < left.size() ? left[i] : i == 0; };
  std::size_t before = 0;  // columns of the screen before the last of the table
  for (std::size_t i : shown) before += widths[i] + kGap;
  before -= widths[shown.back()] + kGap;
  constexpr std::size_t kNarrowest = 20;  // wrapping into less helps nobody
  const std::size_t room = screen.columns > before + kNarrowest ? screen.columns - before : SIZE_MAX;

  std::string text;
  const auto append = [&](const std::vector<std::string>& row, Style style) {
    std::string line;
    for (const std::size_t i : shown) {
      const std::string padding(widths[i] - columns_of(row[i]), ' ');
      if (i != shown.back()) line += to_left(i) ? row[i] + padding + "  " : padding + row[i] + "  ";
    }
    const std::string& last = row[shown.back()];
    line += to_left(shown.back()) ? wrapped(last, room, before)
                                  : std::string(widths[shown.back()] - columns_of(last), ' ') + last;
    line.erase(line.find_last_not_of(' ') + 1);
    text += styled(line, style, screen) + '\n';
  };
  append(header, Style::kBold);
  for (std::size_t r = 0; r < cells.size(); ++r)
    append(cells[r], r < styles.size() ? styles[r] : Style::kPlain);
  return text;
}

std::string human_time(double nanoseconds) {
  if (std::abs(nanoseconds) < 1e6) return fmt::format("{:.3f} us", nanoseconds / 1e3);
  if (std::abs(nanoseconds) < 1e10) return fmt::format("{:.3f} ms", nanoseconds / 1e6);
  return fmt::format("{:.3f} s", nanoseconds / 1e9);
}

}  // namespace gradweave::cli
