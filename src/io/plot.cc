#include "io/plot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>

namespace gradweave {
namespace {

constexpr double kWidth = 960, kHeight = 560;
constexpr double kLeft = 80, kRight = 720, kTop = 50, kBottom = 500;
constexpr std::array kColours = {"#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf",
                                 "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#003f5c", "#a05195"};
constexpr std::array kDashes = {"none", "6 3", "2 3"};

std::string format(const char* pattern, auto... values) {
  char text[512];
  std::snprintf(text, sizeof text, pattern, values...);
  return text;
}

// Maps a value of one axis to a place on the page.
struct Axis {
  double low, high, begin, end;
  bool log;

  double scaled(double value) const { return log ? std::log(value) : value; }
  double place(double value) const {
    const double span = scaled(high) - scaled(low);
    return span > 0 ? begin + (end - begin) * (scaled(value) - scaled(low)) / span : (begin + end) / 2;
  }
};

std::vector<double> linear_ticks(double low, double high) {
  const double raw = std::max((high - low) / 6, std::numeric_limits<double>::min());
  const double magnitude = std::pow(10, std::floor(std::log10(raw)));
  double step = magnitude * 10;
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (magnitude * factor >= raw) {
      step = magnitude * factor;
      break;
    }
  }
  std::vector<double> ticks;
  for (double tick = std::ceil(low / step) * step; tick <= high + step * 1e-9; tick += step)
    ticks.push_back(tick);
  return ticks;
}

std::vector<double> power_ticks(double low, double high, double base) {
  std::vector<double> ticks;
  for (double tick = std::pow(base, std::ceil(std::log(low) / std::log(base) - 1e-9));
       tick <= high * (1 + 1e-9); tick *= base) {
    ticks.push_back(tick);
  }
  return ticks;
}

std::string text_at(double x, double y, const char* anchor, const std::string& text, const char* extra = "") {
  return format("<text x='%.1f' y='%.1f' text-anchor='%s' %s>", x, y, anchor, extra) + xml_escaped(text) +
         "</text>\n";
}

std::string grid(const LineChart& chart, const Axis& x, const Axis& y) {
  std::string svg;
  const auto x_ticks = x.log ? power_ticks(x.low, x.high, 2) : linear_ticks(x.low, x.high);
  for (const double tick : x_ticks) {
    const double at = x.place(tick);
    svg += format("<line x1='%.1f' y1='%.1f' x2='%.1f' y2='%.1f' stroke='#ddd'/>\n", at, kTop, at, kBottom);
    svg += text_at(at, kBottom + 18, "middle", format("%g", tick));
  }
  const auto y_ticks = y.log ? power_ticks(y.low, y.high, 10) : linear_ticks(y.low, y.high);
  for (const double tick : y_ticks) {
    const double at = y.place(tick);
    svg += format("<line x1='%.1f' y1='%.1f' x2='%.1f' y2='%.1f' stroke='#ddd'/>\n", kLeft, at, kRight, at);
    svg += text_at(kLeft - 8, at + 4, "end", format("%g", tick));
  }
  svg += format("<rect x='%.1f' y='%.1f' width='%.1f' height='%.1f' fill='none' stroke='#333'/>\n", kLeft,
                kTop, kRight - kLeft, kBottom - kTop);
  svg += text_at((kLeft + kRight) / 2, kBottom + 42, "middle", chart.x_label);
  svg += text_at(20, (kTop + kBottom) / 2, "middle", chart.y_label,
                 format("transform='rotate(-90 20 %.1f)'", (kTop + kBottom) / 2).c_str());
  svg += text_at(kLeft, 28, "start", chart.title, "font-size='16' font-weight='bold'");
  return svg;
}

std::string curve(const Series& series, std::size_t style, std::size_t row, const Axis& x, const Axis& y) {
  const char* colour = kColours[style % kColours.size()];
  const char* dash = kDashes[style / kColours.size() % kDashes.size()];
  std::string svg =
      format("<g stroke='%s' fill='%s'><polyline fill='none' stroke-width='2' stroke-dasharray='%s' points='",
             colour, colour, dash);
  for (const auto& [at, value] : series.points) svg += format("%.1f,%.1f ", x.place(at), y.place(value));
  svg += "'/>\n";
  for (const auto& [at, value] : series.points) {
    svg += format("<circle cx='%.1f' cy='%.1f' r='2.5' stroke='none'><title>", x.place(at), y.place(value)) +
           xml_escaped(series.name) + format(": %g at %g</title></circle>\n", value, at);
  }
  const double legend = kTop + 10 + 19 * static_cast<double>(row);
  svg +=
      format("<line x1='%.1f' y1='%.1f' x2='%.1f' y2='%.1f' stroke-width='2' stroke-dasharray='%s'/></g>\n",
             kRight + 15, legend, kRight + 45, legend, dash);
  svg +=
      text_at(kRight + 52, legend + 4, "start", series.name + format(" (%.4g)", series.points.back().second));
  return svg;
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
  Axis x{std::numeric_limits<double>::infinity(), 0, kLeft, kRight, chart.log_x};
  Axis y{std::numeric_limits<double>::infinity(), 0, kBottom, kTop, chart.log_y};
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < chart.series.size(); ++i) {
    if (!chart.series[i].points.empty()) order.push_back(i);
    for (const auto& [at, value] : chart.series[i].points) {
      x.low = std::min(x.low, at), x.high = std::max(x.high, at);
      y.low = std::min(y.low, value), y.high = std::max(y.high, value);
    }
  }
  std::string svg = format(
      "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 %.0f %.0f' font-family='sans-serif' "
      "font-size='12'>\n<rect width='100%%' height='100%%' fill='white'/>\n",
      kWidth, kHeight);
  if (!order.empty()) {
    if (!chart.log_y) y.low = std::min(0.0, y.low);
    std::ranges::stable_sort(order, std::greater<>(),
                             [&](std::size_t i) { return chart.series[i].points.back().second; });
    svg += grid(chart, x, y);
    for (std::size_t row = 0; row < order.size(); ++row)
      svg += curve(chart.series[order[row]], order[row], row, x, y);
  }
  return svg + "</svg>\n";
}

}  // namespace gradweave
