#include "report/rows.h"

#include <algorithm>
#include <cstdint>
#include <ranges>

#include "gradweave/error.h"

namespace gradweave {
namespace {

// Returns those of `options` that the scheme has.
std::map<std::string, std::string> options_of(const SchemeInfo& scheme,
                                              const std::map<std::string, std::string>& options) {
  std::map<std::string, std::string> own;
  for (const auto& [name, value] : options) {
    if (std::ranges::find(scheme.options, name, &OptionSpec::name) != scheme.options.end())
      own.emplace(name, value);
  }
  return own;
}

// Returns whether some of the options has a value that is none of the scheme's choices, but one of another's.
bool others_serve(const SchemeInfo& scheme, const std::map<std::string, std::string>& options) {
  const auto offers = [](const SchemeInfo& some, const auto& option) {
    const auto spec = std::ranges::find(some.options, option.first, &OptionSpec::name);
    return spec != some.options.end() &&
           std::ranges::find(spec->choices, option.second) != spec->choices.end();
  };
  return std::ranges::any_of(options, [&](const auto& option) {
    return !offers(scheme, option) &&
           std::ranges::any_of(schemes(), [&](const SchemeInfo& other) { return offers(other, option); });
  });
}

// What a row of scheme `optimal` says of its family.
Optimum optimum_of(const Row& optimal, const Setting& setting) {
  Optimum optimum{.iteration_ns = optimal.iteration_ns()};
  // The proof is for workers that all are as slow as the slowest.
  if (setting.classes.size() != 1 || !optimal.search_report) return optimum;
  optimum.bound_ns = optimal.search_report->lower_bound_us * 1000;
  optimum.proof = (optimal.search_report->optimum ? "optimum: " : "") + optimal.search_report->proof;
  return optimum;
}

Optimum optimum_of(Effect effect, const Row& optimal, const Setting& setting,
                   const std::map<std::string, std::string>& options) {
  if (effect == optimal.effect) return optimum_of(optimal, setting);
  if (effect != Effect::kExact && effect != Effect::kLocal) {
    const auto compute = static_cast<double>(optimal.result->compute_ns);
    return {.iteration_ns = compute, .bound_ns = compute, .proof = "compute"};
  }
  std::map<std::string, std::string> other = options;
  std::erase_if(other, [](const auto& option) { return option.first.starts_with("compressor"); });
  other["family"] = name_of(effect);
  return optimum_of(compare_one("optimal", setting, other), setting);
}

std::int64_t message_bytes(const Op& op, const Plan& plan, const WorkloadIndex& index) {
  std::int64_t bytes = 0;
  for (const std::int32_t b : op.blocks) {
    const Block& block = plan.blocks[static_cast<std::size_t>(b)];
    bytes += (block.end - block.begin) * size_of(index.tensors[*index.find_tensor(block.tensor)].dtype);
  }
  return bytes;
}

}  // namespace

std::vector<Extrapolation> extrapolations(const Plan& plan, const Workload& workload,
                                          const Cluster& cluster) {
  std::vector<Extrapolation> found;
  const WorkloadIndex index(workload);
  if (std::ranges::any_of(workload.layers,
                          [](const Layer& layer) { return layer.communication_ns.has_value(); }))
    return found;
  for (const Link& link : cluster.links) {
    if (!link.measured) continue;
    MeasuredBytes sent{.smallest = INT64_MAX};
    for (const auto* iterations : {&plan.prologue, &plan.period}) {
      for (const Op& op : *iterations | std::views::transform(&Iteration::ops) | std::views::join) {
        if (op.link != link.name || op.collective == Collective::kCompressed || !op.compression.name.empty())
          continue;
        const std::int64_t bytes = message_bytes(op, plan, index);
        sent = {std::min(sent.smallest, bytes), std::max(sent.largest, bytes)};
      }
    }
    if (sent.largest > link.measured->largest || sent.smallest < link.measured->smallest)
      found.push_back({link.name, *link.measured, sent});
  }
  return found;
}

void add_proved_optimum(const Plan& plan, const std::vector<Workload>& classes, const Cluster& cluster,
                        SimulationResult& result) {
  if (!plan.search_report || !plan.search_report->optimum) return;
  if (classes.size() != 1 || plan.workload_hash != hash_of(classes[0]) ||
      plan.cluster_hash != hash_of(cluster))
    return;
  const double bound = plan.search_report->lower_bound_us * 1000;
  // A plan file may have been edited: a claim that its own time refutes is not passed on.
  if (bound <= result.iteration_ns()) add_bound(result, {"optimum", bound});
}

Row compare_one(std::string_view name, const Setting& setting,
                const std::map<std::string, std::string>& options) {
  const SchemeInfo& scheme = find_scheme(name);
  Row row{.name = std::string(name),
          .workers = setting.cluster.workers,
          .gigabits = setting.gigabits,
          .effect = scheme.effect};
  const std::map<std::string, std::string> own = options_of(scheme, options);
  try {
    check_options(name, own);
  } catch (const InvalidInput& error) {
    if (!others_serve(scheme, own)) throw;  // options that nobody can serve end all
    row.infeasible = error.what();
    return row;
  }
  PlanResult planned;
  try {
    planned = make_plan(name, setting.slowest, setting.cluster, own);
  } catch (const InvalidInput& error) {
    planned = Infeasible{error.what()};
  }
  if (const Infeasible* infeasible = std::get_if<Infeasible>(&planned)) {
    row.infeasible = infeasible->reason;
    return row;
  }
  const Plan& plan = std::get<Plan>(planned);
  row.effect = effects_of(plan).front();
  row.search_report = plan.search_report;
  row.result = simulate(plan, setting.classes, setting.cluster, setting.simulation);
  row.result->name = row.name;
  row.extrapolated = extrapolations(plan, setting.slowest, setting.cluster);
  add_proved_optimum(plan, setting.classes, setting.cluster, *row.result);
  return row;
}

void add_times_ddp(std::vector<Row>& rows, const Setting& setting,
                   const std::map<std::string, std::string>& options) {
  const auto found = std::ranges::find(rows, "ddp", &Row::name);
  const Row ddp = found != rows.end() ? *found : compare_one("ddp", setting, options);
  if (!ddp.result) return;
  for (Row& row : rows) {
    if (row.result && row.iteration_ns() > 0) row.times_ddp = ddp.iteration_ns() / row.iteration_ns();
  }
}

void add_optima(std::vector<Row>& rows, const Setting& setting,
                const std::map<std::string, std::string>& options) {
  const auto optimal = std::ranges::find(rows, "optimal", &Row::name);
  if (optimal == rows.end() || !optimal->result) return;
  std::map<Effect, Optimum> optima;
  for (const Row& row : rows) {
    if (!row.result) continue;
    if (!optima.contains(row.effect)) optima[row.effect] = optimum_of(row.effect, *optimal, setting, options);
    Optimum& optimum = optima[row.effect];
    optimum.iteration_ns = std::min(optimum.iteration_ns, row.iteration_ns());
    // A search over whole tensors does not speak of a row that cuts them.
    if (optimum.bound_ns) optimum.bound_ns = std::min(*optimum.bound_ns, optimum.iteration_ns);
  }
  for (Row& row : rows) {
    if (row.result) row.optimum = optima[row.effect];
  }
}

}  // namespace gradweave
