// Line charts as self-contained SVG.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace gradweave {

struct Series {
  std::string name;
  std::size_t group = 0;  // series of one group have one colour
  bool dashed = false;
  std::vector<std::pair<double, double>> points;  // (x, y), x > 0 ascending; y > 0, finite
};

struct LineChart {
  std::string title, subtitle, x_label, y_label;
  std::vector<Series> series;  // at most a few dozen
};

// Returns the chart, 960 by 560, both axes logarithmic, each curve named at its end; readable on light and dark pages.
// Series without points are left out. Complexity: O(points).
std::string to_svg(const LineChart& chart);

// Returns `text` with the characters that XML reserves replaced and control characters removed.
std::string xml_escaped(const std::string& text);

}  // namespace gradweave
