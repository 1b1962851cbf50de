// What to do next, in words.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <ranges>

#include "base/text.h"
#include "report/contents.h"

namespace gradweave {
namespace {

constexpr double kWorthSaying = 1.02;    // a gain below is not worth a change
constexpr double kWorthChanging = 1.05;  // nor one below this a change of what is computed
constexpr double kTrusted = 0.1;         // error of a prediction

std::string times_text(double factor) { return number_text(factor) + " times"; }
std::string percent_text(double share) { return number_text(100 * share, 2) + " %"; }

bool is_exact(const Row& row) { return row.effect == Effect::kExact; }

// The fastest row, one that plans by itself before one that searches.
const Row* fastest(const std::vector<Row>& rows, auto admissible) {
  const Row* best = nullptr;
  for (const Row& row : rows) {
    if (row.result && admissible(row) && (best == nullptr || row.iteration_ns() < best->iteration_ns()))
      best = &row;
  }
  return best;
}

std::string layer_text(const std::vector<std::string>& layers, std::int32_t layer) {
  if (layer < 0) return "at the end of the iteration";
  return "before layer " + (static_cast<std::size_t>(layer) < layers.size()
                                ? layers[static_cast<std::size_t>(layer)]
                                : std::to_string(layer));
}

std::string longest_wait(const std::vector<ExposedLayer>& waits, const std::vector<std::string>& layers) {
  if (waits.empty()) return {};
  const auto longest = std::ranges::max_element(waits, {}, &ExposedLayer::exposed_ns);
  std::string text =
      "It waits longest " + layer_text(layers, longest->layer) + ": " + time_text(longest->exposed_ns);
  return longest->reason.empty() ? text + "." : text + " (" + longest->reason + ").";
}

// What holds `row` back and what would help.
std::string limit_text(const Row& row, const std::vector<std::string>& layers) {
  const Bound& bound = row.result->lower_bound;
  const double compute = static_cast<double>(row.result->compute_ns);
  if (row.iteration_ns() <= compute * kWorthSaying)
    return row.name + " hides nearly all communication: only faster computation helps.";
  std::string text = row.name + " takes " + time_text(row.iteration_ns()) + "; its bound is " +
                     time_text(bound.iteration_ns) + " (" + bound.name + "). ";
  if (bound.name.starts_with("link") || bound.name == "all links") {
    text +=
        "At that bound the links are full: only a faster link, a compressor or less frequent averages help. ";
  } else if (bound.name == "critical path") {
    text +=
        "At that bound no computation is left to hide the last messages: a faster link or smaller last "
        "messages help. ";
  }
  return text + longest_wait(row.result->exposed_layers, layers);
}

// What the best plan that computes the same gains. A scheme is used by its name.
std::string gain_text(const Row& exact, const Row& baseline, bool scheme) {
  const double gain = baseline.iteration_ns() / exact.iteration_ns();
  if (gain < kWorthSaying) return "No exact plan gains more than " + percent_text(kWorthSaying - 1) + ".";
  std::string text = "Without changing what is computed, " + exact.name + " is " + times_text(gain) +
                     " as fast: " + time_text(exact.iteration_ns()) + ".";
  if (scheme) text += " In training: gradweave.wrap(model, optimizer, scheme=\"" + exact.name + "\").";
  return text;
}

// What twice the bandwidth and lower start-up would bring to row `index`.
std::string hardware_text(const Contents& contents, std::size_t index) {
  const Grid& grid = contents.grid;
  const auto& times = grid.iteration_ns[index];
  const auto now = times[grid.point(grid.here)];
  if (!now) return {};
  std::string text;
  const auto add = [&](const Grid::Place& place, const std::string& change) {
    const auto then = times[grid.point(place)];
    if (!then || *then <= 0) return;
    text += (text.empty() ? "With " : "; with ") + change + " " + contents.rows[index].name + " would take " +
            time_text(*then) + " (" + times_text(*now / *then) + " faster)";
  };
  Grid::Place place = grid.here;
  if (++place.gigabit < grid.gigabits.size()) add(place, number_text(grid.gigabits[place.gigabit]) + " Gb/s");
  place = grid.here;
  if (place.startup-- > 0) add(place, "a start-up of " + time_text(grid.startup_us[place.startup] * 1000));
  return text.empty() ? text : text + ".";
}

// The best row of each effect but exact, in one sentence.
std::string other_effects(const std::vector<Row>& rows, double exact_ns) {
  std::map<Effect, const Row*> best;
  for (const Row& row : rows) {
    if (is_exact(row) || !row.result || row.iteration_ns() * kWorthChanging > exact_ns) continue;
    const Row*& known = best[row.effect];
    if (known == nullptr || row.iteration_ns() < known->iteration_ns()) known = &row;
  }
  if (best.empty()) return {};
  std::vector<const Row*> order;
  // What changes training least first.
  for (const Effect effect : {Effect::kCorrected, Effect::kLocal, Effect::kCompressed, Effect::kDelayed})
    if (best.contains(effect)) order.push_back(best[effect]);
  std::string text = "If what is computed may change: ";
  for (const Row* row : order) {
    if (row != order.front()) text += ", ";
    text += row->name + " (" + std::string(name_of(row->effect)) + ") " + time_text(row->iteration_ns());
  }
  return text +
         ". Speed says nothing about accuracy: read docs/schemes.md, check delayed plans with 'gradweave "
         "preserve', and try them.";
}

std::vector<std::string> layer_names(const Workload& workload) {
  std::vector<std::string> names;
  for (const Layer& layer : workload.layers) names.push_back(layer.name);
  return names;
}

void add(std::vector<std::string>& advice, std::string text) {
  if (!text.empty()) advice.push_back(std::move(text));
}

std::string of_measured(const Timeline& timeline, const std::vector<Row>& rows,
                        const std::vector<std::string>& layers) {
  if (timeline.stop)
    return timeline.name + " stopped " + timeline.stop->doing + ": " + timeline.stop->verdict + ".";
  const TimelineFigures figures = figures_of(timeline);
  if (figures.iterations == 0) return timeline.name + " has no compute: record whole iterations.";
  std::string text = timeline.name + " (" + timeline.origin + ") takes " + time_text(figures.iteration_ns) +
                     " and waits " + time_text(figures.exposed_ns) + " of it. ";
  const auto row = std::ranges::find_if(
      rows, [&](const Row& candidate) { return candidate.result && candidate.name == timeline.name; });
  if (row == rows.end()) return text + longest_wait(figures.exposed_layers, layers);
  const double error = row->iteration_ns() / figures.iteration_ns - 1;
  text += "The prediction is " + time_text(row->iteration_ns()) + ", " + percent_text(std::abs(error)) +
          (error < 0 ? " less" : " more") + ". ";
  if (std::abs(error) > kTrusted) {
    text +=
        "The workload, the cluster or the overheads (--optimizer-us, --contention, --burst-us) may not be "
        "this run's: measure again. 'gradweave diff' shows where the timelines differ.";
  }
  return text;
}

}  // namespace

std::vector<std::string> advice_of(const ReportInput& input, const Contents& contents) {
  const std::vector<Row>& rows = contents.rows;
  const std::vector<std::string> layers = layer_names(contents.slowest);
  const auto row_index = [&](const Row& row) { return static_cast<std::size_t>(&row - rows.data()); };
  std::vector<std::string> advice;
  const Row* baseline = fastest(rows, [&](const Row& row) { return row.name == input.baseline; });
  const Row* exact = fastest(rows, is_exact);
  const auto compute = static_cast<double>(WorkloadIndex(contents.slowest).compute_total);
  const double communication = model_communication_ns(contents.slowest, *input.cluster);
  std::string need = "One iteration computes for " + time_text(compute) +
                     "; sending the whole model once over link " + input.cluster->links[0].name + " takes " +
                     time_text(communication);
  if (compute > 0) need += ": coverage rate " + number_text(communication / compute);
  add(advice, need + ".");
  if (baseline != nullptr) {
    const double exposed =
        baseline->iteration_ns() > 0 ? baseline->result->exposed_ns / baseline->iteration_ns() : 0;
    add(advice, baseline->name + " takes " + time_text(baseline->iteration_ns()) + " and waits " +
                    percent_text(exposed) + " of it.");
  }
  if (exact != nullptr && baseline != nullptr && exact != baseline)
    add(advice, gain_text(*exact, *baseline, row_index(*exact) < contents.planned));
  if (exact != nullptr) add(advice, limit_text(*exact, layers));
  const double exact_ns = exact != nullptr ? exact->iteration_ns() : std::numeric_limits<double>::infinity();
  add(advice, other_effects(rows, exact_ns));
  const Row* varied = fastest(rows, [&](const Row& row) {
    return is_exact(row) &&
           contents.grid.iteration_ns[row_index(row)][contents.grid.point(contents.grid.here)];
  });
  if (varied != nullptr && varied->iteration_ns() > compute * kWorthSaying)
    add(advice, hardware_text(contents, row_index(*varied)));
  for (const Timeline& timeline : input.timelines) add(advice, of_measured(timeline, rows, layers));
  return advice;
}

std::vector<std::string> advice_of(const std::vector<Timeline>& timelines,
                                   const std::vector<std::string>& layers) {
  std::vector<std::string> advice;
  for (const Timeline& timeline : timelines) add(advice, of_measured(timeline, {}, layers));
  add(advice,
      "Give --workload and --cluster too (made by 'python -m gradweave profile' and 'probe'), and the page "
      "also "
      "shows other schemes.");
  return advice;
}

}  // namespace gradweave
