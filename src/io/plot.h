// Line charts as self-contained SVG.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace gradweave {

struct Series {
  std::string name;
  std::vector<std::pair<double, double>> points;  // (x, y), x > 0 ascending; y finite
};

struct LineChart {
  std::string title, x_label, y_label;
  std::vector<Series> series;  // at most a few dozen
  bool log_x = true;           // powers of two are marked
  bool log_y = false;
};

// Returns the chart, 960 by 560, legend sorted by the last value of each series. Series without points are
// left out. Complexity: O(points).
std::string to_svg(const LineChart& chart);

// Returns `text` with the characters that XML reserves replaced and control characters removed.
std::string xml_escaped(const std::string& text);

}  // namespace gradweave
