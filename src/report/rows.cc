#include "report/rows.h"

#include <algorithm>
#include <cstdint>
#include <ranges>

#include "gradweave/cost.h"
#include "gradweave/error.h"

namespace gradweave {
namespace {

// What a row of scheme `optimal` says of its family.
Optimum optimum_of(const Row& optimal, const Setting& setting) {
  Optimum optimum{.iteration_ns = optimal.iteration_ns()};
  // The proof is for workers that all are as slow as the slowest, and for links without token buckets.
  if (setting.classes.size() != 1 || !optimal.search_report || setting.simulation.burst_ns > 0)
    return optimum;
  optimum.bound_ns = optimal.search_report->lower_bound_us * 1000;
  optimum.proof = (optimal.search_report->optimum ? "optimum: " : "") + optimal.search_report->proof;
  return optimum;
}

Optimum optimum_of(Effect effect, const Row& optimal, const Setting& setting, const CommonOptions& options) {
  if (effect == optimal.effect) return optimum_of(optimal, setting);
  if (effect != Effect::kExact && effect != Effect::kLocal) {
    return {.bound_ns = static_cast<double>(optimal.result->compute_ns), .proof = "compute"};
  }
  auto other = std::get<SchemeOptions>(options.without_compressor().of("optimal"));
  other.set("family", std::string(name_of(effect)));
  return optimum_of(compare_one(other, setting), setting);
}

// What the cluster's costs are asked for: the bytes of layers without times of their own.
std::int64_t modelled_bytes(const Op& op, const Plan& plan, const Workload& workload,
                            const WorkloadIndex& index) {
  std::int64_t bytes = 0;
  for (const std::int32_t b : op.blocks) {
    const Block& block = plan.blocks[static_cast<std::size_t>(b)];
    const TensorPlace& tensor = index.tensors[*index.find_tensor(block.tensor)];
    if (!workload.layers[tensor.layer].communication_ns)
      bytes += (block.end - block.begin) * size_of(tensor.dtype);
  }
  return bytes;
}

// The compressor of the plan's ops, empty if there is none.
std::string compressor_of(const Plan& plan) {
  for (const auto* iterations : {&plan.prologue, &plan.period}) {
    for (const Op& op : *iterations | std::views::transform(&Iteration::ops) | std::views::join) {
      if (!op.compression.name.empty()) return op.compression.name;
    }
  }
  return {};
}

Row row_without_figures(std::string_view scheme, const Setting& setting) {
  return {.name = std::string(scheme),
          .scheme = std::string(scheme),
          .workers = setting.cluster.workers,
          .gigabits = setting.gigabits,
          .effect = find_scheme(scheme).effect};
}

}  // namespace

double model_communication_ns(const Workload& workload, const Cluster& cluster) {
  const CostModel model(workload, has_levels(cluster) ? flattened(cluster) : cluster);
  std::map<DType, std::vector<Slice>> messages;
  for (std::size_t t = 0; t < model.index().tensors.size(); ++t)
    messages[model.index().tensors[t].dtype].push_back({t, 0, model.index().tensors[t].numel});
  double time = 0;
  for (const auto& [dtype, slices] : messages) time += static_cast<double>(model.all_reduce(0, slices));
  return time;
}

std::optional<double> coverage_rate(const Workload& workload, const Cluster& cluster) {
  const auto compute = static_cast<double>(WorkloadIndex(workload).compute_total);
  if (compute == 0) return std::nullopt;
  return model_communication_ns(workload, cluster) / compute;
}

std::optional<double> scaling_efficiency(const SimulationResult& result) {
  if (result.compute_ns == 0) return std::nullopt;
  return static_cast<double>(result.compute_ns) / result.iteration_ns();
}

std::optional<double> samples_per_second(const SimulationResult& result, std::int64_t workers,
                                         std::optional<std::int64_t> batch_size) {
  if (!batch_size || !(result.iteration_ns() > 0)) return std::nullopt;
  return static_cast<double>(workers) * static_cast<double>(*batch_size) * 1e9 / result.iteration_ns();
}

std::vector<Extrapolation> extrapolations(const Plan& plan, const Workload& workload,
                                          const Cluster& cluster) {
  std::vector<Extrapolation> found;
  const WorkloadIndex index(workload);
  std::vector<Link> links = cluster.links;
  if (has_levels(plan)) links.insert(links.end(), cluster.inside->links.begin(), cluster.inside->links.end());
  for (const Link& link : links) {
    if (!link.measured) continue;
    const std::int64_t shards = link.each_worker && has_levels(cluster) ? cluster.workers_per_node : 1;
    MeasuredBytes sent{.smallest = INT64_MAX};
    for (const auto* iterations : {&plan.prologue, &plan.period}) {
      for (const Op& op : *iterations | std::views::transform(&Iteration::ops) | std::views::join) {
        if (op.link != link.name || op.collective == Collective::kCompressed || !op.compression.name.empty())
          continue;
        const std::int64_t bytes = (modelled_bytes(op, plan, workload, index) + shards - 1) / shards;
        if (bytes == 0) continue;
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

Row compare_one(std::string_view scheme, const Setting& setting, const CommonOptions& options) {
  const std::variant<SchemeOptions, Infeasible> own = options.of(scheme);
  if (const auto* set = std::get_if<SchemeOptions>(&own)) return compare_one(*set, setting);
  Row row = row_without_figures(scheme, setting);
  row.infeasible = std::get<Infeasible>(own).reason;
  return row;
}

Row compare_one(const Method& method, const Setting& setting, const CommonOptions& options) {
  Row row = compare_one(method.scheme, setting, options.with(method));
  row.name = method.name;
  if (row.result) row.result->name = row.result->timeline.name = row.name;
  return row;
}

Row compare_one(const SchemeOptions& options, const Setting& setting) {
  Row row = row_without_figures(options.scheme(), setting);
  PlanResult planned;
  try {
    planned = make_plan(setting.slowest, setting.cluster, options);
  } catch (const InvalidInput& error) {
    planned = Infeasible{error.what()};
  }
  if (const Infeasible* infeasible = std::get_if<Infeasible>(&planned)) {
    row.infeasible = infeasible->reason;
    return row;
  }
  const Plan& plan = std::get<Plan>(planned);
  row.effect = effects_of(plan).front();
  row.options = plan.options;
  row.compressor = compressor_of(plan);
  row.search_report = plan.search_report;
  row.result = simulate(plan, setting.classes, setting.cluster, setting.simulation);
  row.result->name = row.name;
  row.extrapolated = extrapolations(plan, setting.slowest, setting.cluster);
  add_proved_optimum(plan, setting.classes, setting.cluster, *row.result);
  return row;
}

void add_times_ddp(std::vector<Row>& rows, const Setting& setting, const CommonOptions& options) {
  const auto found = std::ranges::find_if(
      rows, [](const Row& row) { return row.name == "ddp" && row.result && row.compressor.empty(); });
  const Row ddp = found != rows.end() ? *found : compare_one("ddp", setting, options.without_compressor());
  if (!ddp.result) return;
  for (Row& row : rows) {
    if (row.result && row.iteration_ns() > 0) row.times_ddp = ddp.iteration_ns() / row.iteration_ns();
  }
}

void add_optima(std::vector<Row>& rows, const Setting& setting, const CommonOptions& options) {
  const auto searched = [](const Row& row) { return row.scheme == "optimal" && row.result; };
  const auto any = std::ranges::find_if(rows, searched);
  if (any == rows.end()) return;
  std::map<Effect, Optimum> optima;
  for (const Row& row : rows) {
    if (!row.result) continue;
    if (!optima.contains(row.effect)) {
      const auto own = std::ranges::find_if(
          rows, [&](const Row& other) { return searched(other) && other.effect == row.effect; });
      optima[row.effect] = optimum_of(row.effect, own == rows.end() ? *any : *own, setting, options);
    }
    Optimum& optimum = optima[row.effect];
    optimum.iteration_ns = std::min(optimum.iteration_ns, row.iteration_ns());
    // A search over whole tensors does not speak of a row that cuts them.
    if (optimum.bound_ns > optimum.iteration_ns) optimum.bound_ns.reset();
  }
  for (Row& row : rows) {
    if (row.result) row.optimum = optima[row.effect];
  }
}

}  // namespace gradweave
