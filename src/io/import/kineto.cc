// Workloads from the PyTorch profiler's traces: medians over iterations, the slowest of the ranks.
#include <algorithm>
#include <cmath>
#include <map>

#include "base/statistics.h"
#include "gradweave/error.h"
#include "gradweave/import.h"
#include "io/import/rank_trace.h"

namespace gradweave {
namespace {

// What tells iterations of different models or inputs apart: everything but the times.
bool same_form(const std::vector<Layer>& a, const std::vector<Layer>& b) {
  return std::ranges::equal(
      a, b, [](const Layer& x, const Layer& y) { return x.name == y.name && x.tensors == y.tensors; });
}

// The iterations of one rank.
struct RankIterations {
  std::string file;  // the first that it is in
  std::vector<std::vector<Layer>> iterations;
};

// Returns what is typical of the iterations of the form that most have, and how many those are.
std::pair<std::vector<Layer>, std::size_t> typical_layers(const std::vector<std::vector<Layer>>& iterations) {
  std::vector<std::vector<std::size_t>> forms;  // iterations of one form
  for (std::size_t i = 0; i < iterations.size(); ++i) {
    const auto form = std::ranges::find_if(
        forms, [&](const auto& members) { return same_form(iterations[members.front()], iterations[i]); });
    (form == forms.end() ? forms.emplace_back() : *form).push_back(i);
  }
  const auto& most = *std::ranges::max_element(forms, {}, [](const auto& members) { return members.size(); });
  std::vector<Layer> layers = iterations[most.front()];
  std::vector<std::vector<double>> times;
  for (const std::size_t i : most) {
    std::vector<double>& row = times.emplace_back();
    for (const Layer& layer : iterations[i]) {
      row.push_back(static_cast<double>(layer.forward_ns));
      row.push_back(static_cast<double>(layer.backward_ns));
    }
  }
  const std::vector<double> typical = typical_row(times);
  for (std::size_t l = 0; l < layers.size(); ++l) {
    layers[l].forward_ns = std::llround(typical[2 * l]);
    layers[l].backward_ns = std::llround(typical[2 * l + 1]);
  }
  return {std::move(layers), most.size()};
}

// Returns the iterations of a trace that has been read. Where it shows none because its data were cut, that is the error.
RankTrace::Result layers_of(RankTrace& trace, const TraceSummary& summary) {
  try {
    RankTrace::Result result = trace.layers();
    if (!summary.packed_short || !result.iterations.empty()) return result;
  } catch (const InvalidInput&) {
    if (!summary.packed_short) throw;
  }
  throw InvalidInput("is gzipped and ends in the middle, before a whole iteration", "",
                     "copy the trace again");
}

}  // namespace

ImportedWorkload import_kineto(const std::vector<std::filesystem::path>& files, const std::string& name,
                               const ImportProgress& progress) {
  ImportedWorkload imported;
  std::map<std::pair<bool, std::int64_t>, RankIterations>
      ranks;  // by rank, or by file where that is not told
  bool modules = true;
  for (std::size_t f = 0; f < files.size(); ++f) {
    RankTrace trace;
    const auto on_bytes = [&](std::int64_t bytes) {
      if (progress) progress(f, bytes);
    };
    const auto on_event = [&](const TraceEvent& event) { trace.add(event); };
    const std::string file = files[f] == "-" ? "stdin" : files[f].string();
    try {
      const TraceSummary summary = read_trace_events(files[f], on_event, on_bytes);
      RankTrace::Result result = layers_of(trace, summary);
      imported.damaged += summary.damaged;
      imported.left_out += result.incomplete;
      if (summary.truncated) {
        imported.notes.push_back(file + (summary.packed_short ? " is gzipped and" : "") +
                                 " ends in the middle; the part before that is used");
      }
      modules = modules && result.modules;
      const auto key =
          std::pair(summary.rank.has_value(), summary.rank.value_or(static_cast<std::int64_t>(f)));
      RankIterations& rank = ranks.try_emplace(key, RankIterations{.file = file}).first->second;
      std::ranges::move(result.iterations, std::back_inserter(rank.iterations));
    } catch (const InvalidInput& error) {
      if (error.where().starts_with(file)) throw;
      throw error.within(file);
    }
  }

  std::vector<Workload> classes;
  for (const auto& [key, rank] : ranks) {
    if (rank.iterations.empty()) {
      throw InvalidInput(
          "shows no whole iteration, forward and backward", rank.file,
          "record at least one from its start to its optimizer's step, with with_stack=True if layers are "
          "checkpointed");
    }
    auto [layers, count] = typical_layers(rank.iterations);
    imported.iterations += static_cast<std::int64_t>(count);
    imported.left_out += static_cast<std::int64_t>(rank.iterations.size() - count);
    classes.push_back({.name = name, .layers = std::move(layers)});
    try {
      check(classes.back());
      imported.workload = slowest_of({classes.front(), classes.back()});
    } catch (const InvalidInput& error) {
      throw error.within(rank.file);
    }
  }
  imported.workload = slowest_of(classes);
  imported.ranks = static_cast<std::int64_t>(classes.size());
  imported.workload.source = "PyTorch profiler, " + std::to_string(imported.iterations) + " iterations of " +
                             std::to_string(imported.ranks) + (imported.ranks == 1 ? " rank" : " ranks");
  if (!modules)
    imported.notes.emplace_back(
        "layers are named after operators; record with with_stack=True to have modules");
  return imported;
}

}  // namespace gradweave
