// Timelines as one picture: under each other on one time axis, compute above the links, waits hatched.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <map>
#include <string_view>

#include "base/text.h"
#include "gradweave/timeline.h"
#include "io/lanes.h"
#include "io/plot.h"

namespace gradweave {
namespace {

constexpr double kWidth = 1200, kLeft = 110, kRight = 1180;
constexpr double kRow = 26, kGap = 4, kTitle = 40, kBetween = 18, kTop = 12, kFoot = 64;
constexpr double kCharacter = 5.6;  // width of a letter at font size 10

struct Look {
  const char* name;
  std::array<const char*, 2> fill;  // of even and odd iterations
};
constexpr std::array<Look, 9> kLooks = {{{"forward", {"#8ec1ee", "#b9d9f5"}},
                                         {"backward", {"#f7b679", "#fbd3ab"}},
                                         {"optimizer", {"#b9aee6", "#d5cff0"}},
                                         {"wait", {"url(#wait)", "url(#wait)"}},
                                         {"all_reduce", {"#93d29b", "#bfe5c4"}},
                                         {"reduce_scatter", {"#7fd3cf", "#b3e5e2"}},
                                         {"all_gather", {"#cfdd7a", "#e3ebb0"}},
                                         {"average", {"#eba3cf", "#f4c9e2"}},
                                         {"compressed", {"#d3b48c", "#e6d3bb"}}}};
constexpr std::size_t kFirstOp = 4;
constexpr const char* kStyle =
    "<style>.paper{fill:#fff}.ink{fill:#1b1f24}.dim{fill:#5a6270}.grid{stroke:#d5d9e0}.mark{stroke:#1b1f24}"
    ".span{stroke:#14171b;stroke-opacity:.55}.in{fill:#14171b}"
    "@media(prefers-color-scheme:dark){.paper{fill:#14171b}.ink{fill:#e6e9ed}.dim{fill:#9aa4b1}.grid{stroke:#"
    "38404a}"
    ".mark{stroke:#e6e9ed}}</style>\n";

// An op's label begins with what it is.
std::size_t look_of(const Span& span) {
  if (span.kind != SpanKind::kOp) return static_cast<std::size_t>(span.kind);
  const std::string_view name = std::string_view(span.label).substr(0, span.label.find(' '));
  for (std::size_t look = kFirstOp; look < kLooks.size(); ++look) {
    if (name == kLooks[look].name) return look;
  }
  return kFirstOp;
}

std::string format(const char* pattern, auto... values) {
  char text[512];
  std::snprintf(text, sizeof text, pattern, values...);
  return text;
}

std::string text_at(double x, double y, const char* extra, const std::string& text) {
  return format("<text x='%.1f' y='%.1f' %s>", x, y, extra) + xml_escaped(text) + "</text>\n";
}

double tick_step(double span) {
  const double magnitude = std::pow(10, std::floor(std::log10(std::max(span, 1.0) / 8)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (magnitude * factor >= span / 8) return magnitude * factor;
  }
  return magnitude * 10;
}

class Picture {
 public:
  Picture(const std::vector<Timeline>& timelines, const PictureOptions& options) : options_(options) {
    for (const Timeline& timeline : timelines) {
      for (const Span& span : timeline.spans) {
        begin_ = std::min(begin_, span.begin_ns);
        end_ = std::max(end_, span.end_ns);
      }
    }
    if (options.width_ns > 0) end_ = begin_ + options.width_ns;
    double y = kTop;
    std::string body;
    for (const Timeline& timeline : timelines) body += draw(timeline, y);
    const double height = y + kFoot;
    svg_ =
        format(
            "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 %.0f %.0f' font-family='sans-serif' "
            "font-size='12'>\n",
            kWidth, height) +
        kStyle +
        "<defs><pattern id='wait' width='6' height='6' patternUnits='userSpaceOnUse' "
        "patternTransform='rotate(45)'><rect width='6' height='6' fill='#fbd5d6'/><rect width='2' height='6' "
        "fill='#e5484d'/></pattern></defs>\n<rect width='100%' height='100%' class='paper'/>\n";
    svg_ += axis(y) + body + legend(y + 44) + "</svg>\n";
  }

  std::string take() { return std::move(svg_); }

 private:
  double place(Nanoseconds time) const {
    const auto span = static_cast<double>(std::max<Nanoseconds>(end_ - begin_, 1));
    return kLeft + (kRight - kLeft) * static_cast<double>(time - begin_) / span;
  }

  std::string axis(double bottom) const {
    std::string svg;
    const auto span = static_cast<double>(end_ - begin_);
    const double step = tick_step(span);
    for (double tick = 0; tick <= span; tick += step) {
      const double x = place(begin_ + static_cast<Nanoseconds>(tick));
      svg += format("<line x1='%.1f' y1='%.1f' x2='%.1f' y2='%.1f' class='grid'/>\n", x, kTop, x, bottom);
      svg += text_at(x, bottom + 14, "class='dim' text-anchor='middle' font-size='11'", time_text(tick));
    }
    return svg;
  }

  std::string legend(double y) const {
    std::string svg;
    double x = kLeft;
    for (std::size_t look = 0; look < kLooks.size(); ++look) {
      if (!drawn_[look]) continue;
      svg += format("<rect x='%.1f' y='%.1f' width='18' height='12' fill='%s' class='span'/>\n", x, y - 10,
                    kLooks[look].fill[0]);
      svg += text_at(x + 24, y, "class='ink'", kLooks[look].name);
      x += 130;
    }
    return svg + text_at(x, y, "class='dim'", "pale: every other iteration");
  }

  std::string title(const Timeline& timeline) const {
    const TimelineFigures figures = figures_of(timeline);
    std::string text = timeline.name + (timeline.origin.empty() ? "" : " (" + timeline.origin + ")");
    if (figures.iterations == 0) return text;
    return text + ": " + time_text(options_.iteration_ns.value_or(figures.iteration_ns)) + " per iteration";
  }

  // Draws one timeline below `y`, which moves to its end.
  std::string draw(const Timeline& timeline, double& y) {
    const Lanes lanes = assign_lanes(timeline);
    std::string svg = text_at(8, y + 15, "class='ink' font-weight='bold' font-size='13'", title(timeline));
    const double top = y + kTitle;
    std::vector<double> row_of_track;
    y = top;
    for (std::size_t track = 0; track < lanes.count.size(); ++track) {
      row_of_track.push_back(y);
      svg += text_at(kLeft - 8, y + 17, "class='ink' text-anchor='end'",
                     short_name(track == 0 ? "compute" : timeline.links[track - 1]));
      y += (kRow + kGap) * lanes.count[track];
    }
    for (std::size_t i = 0; i < timeline.spans.size(); ++i) {
      if (lanes.lane[i] < 0 || timeline.spans[i].begin_ns >= end_) continue;
      const double at =
          row_of_track[static_cast<std::size_t>(timeline.spans[i].track)] + (kRow + kGap) * lanes.lane[i];
      svg += rectangle(timeline.spans[i], at);
    }
    svg += iteration_marks(timeline, top, y);
    y += kBetween;
    return svg;
  }

  static std::string short_name(const std::string& name) {
    return name.size() <= 15 ? name : name.substr(0, 14) + "...";
  }

  std::string rectangle(const Span& span, double y) {
    const std::size_t look = look_of(span);
    drawn_[look] = true;
    const double x = place(span.begin_ns);
    const double width = std::max(place(std::min(span.end_ns, end_)) - x, 0.2);
    std::string tip = span.label + ", iteration " + std::to_string(span.iteration) + ": " +
                      time_text(static_cast<double>(span.end_ns - span.begin_ns));
    if (!span.reason.empty()) tip += "; " + span.reason;
    if (span.bytes > 0) tip += "; " + std::to_string(span.bytes) + " bytes";
    std::string svg = format(
                          "<rect x='%.2f' y='%.1f' width='%.2f' height='%.0f' fill='%s' class='span' "
                          "stroke-width='%s'><title>",
                          x, y, width, kRow, kLooks[look].fill[static_cast<std::size_t>(span.iteration & 1)],
                          width > 3 ? "0.7" : "0.1") +
                      xml_escaped(tip) + "</title></rect>\n";
    const std::string inside = caption(span, width);
    if (!inside.empty()) {
      svg += text_at(x + width / 2, y + kRow / 2 + 4,
                     "class='in' text-anchor='middle' font-size='10' pointer-events='none'", inside);
    }
    return svg;
  }

  // What fits into the rectangle: the layer, or the op without the name of its collective.
  static std::string caption(const Span& span, double width) {
    if (span.kind == SpanKind::kWait) return "";
    const auto fits = static_cast<std::size_t>(std::max(0.0, (width - 4) / kCharacter));
    if (span.label.size() <= fits) return span.label;
    const std::string tail = span.label.substr(span.label.find(' ') + 1);
    return span.kind == SpanKind::kOp && tail.size() <= fits ? tail : "";
  }

  // A line where compute begins an iteration, numbered where there is room.
  std::string iteration_marks(const Timeline& timeline, double top, double bottom) const {
    std::map<std::int64_t, Nanoseconds> begins;
    for (const Span& span : timeline.spans) {
      if (span.track != 0) continue;
      const auto [entry, added] = begins.emplace(span.iteration, span.begin_ns);
      if (!added) entry->second = std::min(entry->second, span.begin_ns);
    }
    std::string svg;
    double last = -1e9;
    for (const auto& [iteration, begin] : begins) {
      const double x = place(begin);
      if (x - last < 60 || x > kRight - 40) continue;
      last = x;
      svg += format("<line x1='%.1f' y1='%.1f' x2='%.1f' y2='%.1f' class='mark' stroke-dasharray='3 3'/>\n",
                    x, top - 12, x, bottom);
      svg += text_at(x + 3, top - 4, "class='ink' font-size='10'", "iteration " + std::to_string(iteration));
    }
    return svg;
  }

  const PictureOptions& options_;
  Nanoseconds begin_ = 0, end_ = 0;
  std::array<bool, kLooks.size()> drawn_ = {};
  std::string svg_;
};

}  // namespace

std::string to_svg(const std::vector<Timeline>& timelines, const PictureOptions& options) {
  return Picture(timelines, options).take();
}

}  // namespace gradweave
