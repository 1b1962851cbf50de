#include "io/plot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <limits>
#include <ranges>
#include <set>

namespace gradweave {
namespace {

constexpr double kWidth = 960, kHeight = 560;
constexpr double kLeft = 80, kRight = 720, kTop = 66, kBottom = 500, kBetweenNames = 14;
// Of the groups, on light and on dark pages.
constexpr std::size_t kGroups = 5;
constexpr const char* kStyle =
    "<style>.paper{fill:#fff}.ink{fill:#1b1f24}.dim{fill:#5a6270}.grid{stroke:#d5d9e0}.frame{stroke:#5a6270}"
    ".g0{--c:#2463b0}.g1{--c:#c03a22}.g2{--c:#167a62}.g3{--c:#a93a83}.g4{--c:#8a5a16}"
    ".curve{stroke:var(--c)}.name,.dot{fill:var(--c)}"
    "@media(prefers-color-scheme:dark){.paper{fill:#14171b}.ink{fill:#e6e9ed}.dim{fill:#9aa4b1}.grid{stroke:#"
    "38404a}"
    ".g0{--c:#7db4f5}.g1{--c:#ff8f78}.g2{--c:#5fd0b3}.g3{--c:#ee8fce}.g4{--c:#ddb06a}}</style>\n";

std::string format(const char* pattern, auto... values) {
  char text[512];
  std::snprintf(text, sizeof text, pattern, values...);
  return text;
}

// Maps a value of one axis to a place on the page.
struct Axis {
  double low, high, begin, end;

  double place(double value) const {
    return high > low ? begin + (end - begin) * std::log(value / low) / std::log(high / low)
                      : (begin + end) / 2;
  }
};

// 1, 2 and 5 times the powers of ten, or the ends where there are not two.
std::vector<double> ticks_of(const Axis& axis) {
  std::vector<double> ticks;
  for (double power = std::pow(10, std::floor(std::log10(axis.low))); power <= axis.high; power *= 10) {
    for (const double tick : {power, 2 * power, 5 * power}) {
      if (tick >= axis.low * (1 - 1e-9) && tick <= axis.high * (1 + 1e-9)) ticks.push_back(tick);
    }
  }
  if (ticks.size() < 2) ticks = {axis.low, axis.high};
  return ticks;
}

std::string text_at(double x, double y, const char* anchor, const std::string& text, const char* extra = "") {
  return format("<text x='%.1f' y='%.1f' text-anchor='%s' %s>", x, y, anchor, extra) + xml_escaped(text) +
         "</text>\n";
}

std::string grid(const LineChart& chart, const Axis& x, const Axis& y) {
  std::string svg;
  // Where the curves have points.
  std::set<double> marks;
  for (const Series& series : chart.series) {
    for (const auto& point : series.points) marks.insert(point.first);
  }
  for (const double tick : marks) {
    const double at = x.place(tick);
    svg += format("<line x1='%.1f' y1='%.1f' x2='%.1f' y2='%.1f' class='grid'/>\n", at, kTop, at, kBottom);
    svg += text_at(at, kBottom + 18, "middle", format("%g", tick), "class='dim'");
  }
  for (const double tick : ticks_of(y)) {
    const double at = y.place(tick);
    svg += format("<line x1='%.1f' y1='%.1f' x2='%.1f' y2='%.1f' class='grid'/>\n", kLeft, at, kRight, at);
    svg += text_at(kLeft - 8, at + 4, "end", format("%.3g", tick), "class='dim'");
  }
  svg += format("<rect x='%.1f' y='%.1f' width='%.1f' height='%.1f' fill='none' class='frame'/>\n", kLeft,
                kTop, kRight - kLeft, kBottom - kTop);
  svg += text_at((kLeft + kRight) / 2, kBottom + 42, "middle", chart.x_label, "class='ink'");
  svg += text_at(20, (kTop + kBottom) / 2, "middle", chart.y_label,
                 format("class='ink' transform='rotate(-90 20 %.1f)'", (kTop + kBottom) / 2).c_str());
  svg += text_at(kLeft, 26, "start", chart.title, "class='ink' font-size='16' font-weight='bold'");
  svg += text_at(kLeft, 48, "start", chart.subtitle, "class='dim'");
  return svg;
}

std::string curve(const Series& series, double name_at, const Axis& x, const Axis& y) {
  const auto& [end_x, end_y] = series.points.back();
  std::string svg = format("<g class='g%zu'><polyline class='curve' fill='none' stroke-width='2' %spoints='",
                           series.group % kGroups, series.dashed ? "stroke-dasharray='6 3' " : "");
  for (const auto& [at, value] : series.points) svg += format("%.1f,%.1f ", x.place(at), y.place(value));
  svg += "'/>\n";
  for (const auto& [at, value] : series.points) {
    svg += format("<circle class='dot' cx='%.1f' cy='%.1f' r='2.5'><title>", x.place(at), y.place(value)) +
           xml_escaped(series.name) + format(": %g at %g</title></circle>\n", value, at);
  }
  svg += format("<line class='curve' x1='%.1f' y1='%.1f' x2='%.1f' y2='%.1f' stroke-width='0.7'/>\n",
                x.place(end_x), y.place(end_y), kRight + 16, name_at);
  return svg +
         text_at(kRight + 20, name_at + 4, "start", series.name + format(" (%.3g)", end_y), "class='name'") +
         "</g>\n";
}

// Where names stand whose curves end at `wanted`, ascending: none on another.
std::vector<double> spread(std::vector<double> wanted) {
  for (std::size_t i = 1; i < wanted.size(); ++i)
    wanted[i] = std::max(wanted[i], wanted[i - 1] + kBetweenNames);
  double limit = kHeight - 8;
  for (double& at : std::views::reverse(wanted)) {
    at = std::min(at, limit);
    limit = at - kBetweenNames;
  }
  return wanted;
}

}  // namespace

std::string xml_escaped(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '\'':
        escaped += "&#39;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      default:
        if (static_cast<unsigned char>(c) >= 0x20) escaped += c;
    }
  }
  return escaped;
}

std::string to_svg(const LineChart& chart) {
  Axis x{std::numeric_limits<double>::infinity(), 0, kLeft, kRight};
  Axis y{std::numeric_limits<double>::infinity(), 0, kBottom, kTop};
  std::vector<const Series*> order;
  for (const Series& series : chart.series) {
    if (!series.points.empty()) order.push_back(&series);
    for (const auto& [at, value] : series.points) {
      x.low = std::min(x.low, at), x.high = std::max(x.high, at);
      y.low = std::min(y.low, value), y.high = std::max(y.high, value);
    }
  }
  std::string svg =
      format(
          "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 %.0f %.0f' font-family='sans-serif' "
          "font-size='12'>\n",
          kWidth, kHeight) +
      kStyle + "<rect width='100%' height='100%' class='paper'/>\n";
  if (!order.empty()) {
    y.low /= 1.05, y.high *= 1.05;
    const auto end = [&](const Series* series) { return y.place(series->points.back().second); };
    std::ranges::stable_sort(order, {}, end);
    std::vector<double> ends;
    std::ranges::transform(order, std::back_inserter(ends), end);
    const std::vector<double> names = spread(std::move(ends));
    svg += grid(chart, x, y);
    for (std::size_t i = 0; i < order.size(); ++i) svg += curve(*order[i], names[i], x, y);
  }
  return svg + "</svg>\n";
}

}  // namespace gradweave
