// Results as tables for people, and inputs as JSON objects.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "gradweave/cluster.h"
#include "gradweave/workload.h"
#include "report/result_json.h"

namespace gradweave::cli {

// Returns what identifies the input of a comparison.
Json summary_of(const Workload& workload);
Json summary_of(const Cluster& cluster);

// Prints with an indent of 1, and a newline.
void print(const Json& value);

// Where text for people goes.
struct Screen {
  std::size_t columns = std::numeric_limits<std::size_t>::max();  // no end: a pipe or a file
  bool colour = false;
  bool wide = false;  // show all columns of a table
};

// Each returns what the stream is now. Colours are for a terminal, unless the environment has NO_COLOR or TERM
// is dumb.
Screen standard_output(bool wide = false);
Screen standard_error();
// Whether the screen is a terminal.
inline bool is_terminal(const Screen& screen) {
  return screen.columns != std::numeric_limits<std::size_t>::max();
}

enum class Style : std::uint8_t { kPlain, kBold, kGreen, kRed };
// Returns `text` in that style where the screen has colours.
std::string styled(std::string_view text, Style style, const Screen& screen);

// A table with aligned columns: the first is left-aligned, the others right-aligned unless said otherwise.
struct Table {
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows;
  std::vector<bool> left = {};     // per column
  std::vector<bool> wide = {};     // per column: for wide tables only
  std::vector<Style> styles = {};  // per row

  // Lines of the columns that the screen is to show. On a terminal, a last column of text is wrapped to fit.
  std::string text(const Screen& screen = {}) const;
};

// Returns a time with a unit that suits its size, e.g. "247.990 ms".
std::string human_time(double nanoseconds);

}  // namespace gradweave::cli
