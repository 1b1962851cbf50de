#include <span>

#include "gradweave/json.h"
#include "io/json_tree.h"
#include "io/json_write.h"
#include "io/kind.h"
#include "model/hash.h"
#include "plan/position.h"

namespace gradweave {
namespace {

constexpr std::string_view kPoints[] = {
    name_of(PointKind::kIterationStart), name_of(PointKind::kForwardStart),
    name_of(PointKind::kForwardEnd),     name_of(PointKind::kBackwardStart),
    name_of(PointKind::kBackwardEnd),    name_of(PointKind::kIterationEnd)};
constexpr std::string_view kCollectives[] = {
    name_of(Collective::kAllReduce), name_of(Collective::kReduceScatter), name_of(Collective::kAllGather),
    name_of(Collective::kCompressed)};
constexpr std::string_view kPayloads[] = {"gradient", "parameter"};
constexpr std::string_view kSources[] = {"reduced_gradient", "local_gradient", "averaged_parameter"};
constexpr std::string_view kModes[] = {"replace", "correct"};
constexpr std::string_view kCorrections[] = {"none", "local"};
constexpr std::string_view kMerges[] = {"sum", "mean"};
constexpr std::string_view kLevels[] = {"all", "inside", "between"};
constexpr std::string_view kEffects[] = {name_of(Effect::kExact), name_of(Effect::kDelayed),
                                         name_of(Effect::kLocal), name_of(Effect::kCorrected),
                                         name_of(Effect::kCompressed)};

template <typename Enum>
Enum enum_from(const JsonNode& node, std::span<const std::string_view> names) {
  return static_cast<Enum>(node.one_of(names));
}

template <typename Enum>
std::string text_of(Enum value, std::span<const std::string_view> names) {
  return "\"" + std::string(names[static_cast<std::size_t>(value)]) + "\"";
}

// ---- reading

std::vector<std::int32_t> integers_from(const JsonNode& node) {
  std::vector<std::int32_t> values;
  values.reserve(node.size());
  for (std::size_t i = 0; i < node.size(); ++i) values.push_back(node.item(i).integer32());
  return values;
}

Point point_from(const JsonNode& node) {
  Point point{.kind = enum_from<PointKind>(node.at("point"), kPoints)};
  if (const auto layer = node.find("layer")) {
    point.layer = layer->integer32();
  } else if (has_layer(point.kind)) {
    node.at("layer");  // is missing
  }
  if (const auto iteration = node.find("iteration")) point.iteration = iteration->integer32();
  return point;
}

Release release_from(const JsonNode& node) {
  node.require_keys({"point", "layer", "iteration", "delay_us"});
  Release release{.point = point_from(node)};
  if (const auto delay = node.find("delay_us")) release.delay_ns = delay->microseconds();
  return release;
}

Compression compression_from(const JsonNode& node) {
  node.require_keys({"name", "parameters"});
  Compression compression{.name = node.at("name").text()};
  if (const auto parameters = node.find("parameters")) {
    for (const JsonNode& parameter : parameters->members()) {
      compression.parameters.emplace(parameter.key(), parameter.number());
    }
  }
  return compression;
}

Op op_from(const JsonNode& node) {
  node.require_keys({"link", "collective", "payload", "blocks", "merges", "release", "compression"});
  Op op{.link = node.at("link").text(),
        .blocks = integers_from(node.at("blocks")),
        .merges = integers_from(node.at("merges")),
        .release = release_from(node.at("release"))};
  if (const auto collective = node.find("collective"))
    op.collective = enum_from<Collective>(*collective, kCollectives);
  if (const auto payload = node.find("payload")) op.payload = enum_from<Payload>(*payload, kPayloads);
  if (const auto compression = node.find("compression")) op.compression = compression_from(*compression);
  return op;
}

Apply apply_from(const JsonNode& node) {
  node.require_keys({"at", "blocks", "merges", "source", "mode", "correction", "slices"});
  const JsonNode at = node.at("at");
  at.require_keys({"point", "layer", "iteration"});
  Apply apply{.at = point_from(at),
              .blocks = integers_from(node.at("blocks")),
              .merges = integers_from(node.at("merges"))};
  if (const auto source = node.find("source")) apply.source = enum_from<Source>(*source, kSources);
  if (const auto mode = node.find("mode")) apply.mode = enum_from<Mode>(*mode, kModes);
  if (const auto correction = node.find("correction"))
    apply.correction = enum_from<Correction>(*correction, kCorrections);
  if (const auto slices = node.find("slices")) apply.slices = slices->boolean();
  return apply;
}

Iteration iteration_from(const JsonNode& node) {
  node.require_keys({"ops", "applies", "dropped"});
  Iteration iteration;
  const JsonNode ops = node.at("ops");
  for (std::size_t i = 0; i < ops.size(); ++i) iteration.ops.push_back(op_from(ops.item(i)));
  const JsonNode applies = node.at("applies");
  for (std::size_t i = 0; i < applies.size(); ++i) iteration.applies.push_back(apply_from(applies.item(i)));
  if (const auto dropped = node.find("dropped")) iteration.dropped = integers_from(*dropped);
  return iteration;
}

std::vector<Iteration> iterations_from(const JsonNode& node) {
  std::vector<Iteration> iterations;
  for (std::size_t i = 0; i < node.size(); ++i) iterations.push_back(iteration_from(node.item(i)));
  return iterations;
}

Block block_from(const JsonNode& node) {
  node.require_keys({"tensor", "begin", "end"});
  return {node.at("tensor").text(), node.at("begin").integer(INT64_MIN, INT64_MAX),
          node.at("end").integer(INT64_MIN, INT64_MAX)};
}

PlanLink link_from(const JsonNode& node) {
  node.require_keys({"name", "concurrency", "level"});
  PlanLink link{.name = node.at("name").text()};
  if (const auto level = node.find("level")) link.level = enum_from<Level>(*level, kLevels);
  if (const auto concurrency = node.find("concurrency")) link.concurrency = concurrency->integer32();
  return link;
}

Residual residual_from(const JsonNode& node) {
  if (node.is_null()) return {};
  node.require_keys({"initial", "step", "every", "cap"});
  return {.enabled = true,
          .initial = node.at("initial").number(),
          .step = node.at("step").number(),
          .cap = node.at("cap").number(),
          .every = node.at("every").integer(1, INT64_MAX)};
}

std::map<std::string, std::string> options_from(const JsonNode& node) {
  std::map<std::string, std::string> options;
  for (const JsonNode& option : node.members()) options.emplace(option.key(), option.text());
  return options;
}

PlanSummary summary_from(const JsonNode& node) {
  node.require_keys({"scheme", "options", "iteration_us", "effects"});
  PlanSummary summary{.scheme = node.at("scheme").text(),
                      .options = options_from(node.at("options")),
                      .iteration_us = node.at("iteration_us").number(),
                      .effects = {}};
  const JsonNode effects = node.at("effects");
  for (std::size_t i = 0; i < effects.size(); ++i)
    summary.effects.push_back(enum_from<Effect>(effects.item(i), kEffects));
  return summary;
}

SearchReport search_report_from(const JsonNode& node) {
  node.require_keys({"chosen", "lower_bound_us", "proof", "optimum", "reason", "runner_up", "if_corrected"});
  SearchReport report{.chosen = summary_from(node.at("chosen")),
                      .lower_bound_us = node.at("lower_bound_us").number(),
                      .proof = node.at("proof").text(),
                      .optimum = node.at("optimum").boolean(),
                      .reason = node.at("reason").text()};
  if (const auto runner_up = node.find("runner_up")) report.runner_up = summary_from(*runner_up);
  if (const auto corrected = node.find("if_corrected")) report.if_corrected = summary_from(*corrected);
  return report;
}

Outer outer_from(const JsonNode& node) {
  node.require_keys({"momentum", "learning_rate"});
  return {.momentum = node.at("momentum").number(), .learning_rate = node.at("learning_rate").number()};
}

void read_origin(const JsonNode& root, Plan& plan) {
  if (const auto scheme = root.find("scheme")) plan.scheme = scheme->text();
  if (const auto options = root.find("options")) plan.options = options_from(*options);
  if (const auto search_report = root.find("finding"))
    plan.search_report = search_report_from(*search_report);
  if (const auto hash = root.find("workload_hash")) plan.workload_hash = hash->text();
  if (const auto hash = root.find("cluster_hash")) plan.cluster_hash = hash->text();
  if (const auto workers = root.find("workers")) plan.workers = workers->integer(1, 10'000'000);
  if (const auto per_node = root.find("workers_per_node"))
    plan.workers_per_node = per_node->integer(1, 10'000'000);
}

// ---- writing

std::string text_of_point(const Point& point) {
  std::string text = "\"point\": " + text_of(point.kind, kPoints);
  if (has_layer(point.kind) || point.layer != 0) text += ", \"layer\": " + std::to_string(point.layer);
  if (point.iteration != 0) text += ", \"iteration\": " + std::to_string(point.iteration);
  return text;
}

std::string text_of(const Release& release) {
  std::string text = "{" + text_of_point(release.point);
  if (release.delay_ns != 0) text += ", \"delay_us\": " + microseconds(release.delay_ns);
  return text + "}";
}

std::string text_of(const Compression& compression) {
  std::string text = "{\"name\": " + json_string(compression.name) + ", \"parameters\": {";
  bool first = true;
  for (const auto& [name, value] : compression.parameters) {
    text += (first ? "" : ", ") + json_string(name) + ": " + json_number(value);
    first = false;
  }
  return text + "}}";
}

std::string text_of(const std::map<std::string, std::string>& options) {
  std::string text = "{";
  for (const auto& [name, value] : options)
    text += (text.size() > 1 ? ", " : "") + json_string(name) + ": " + json_string(value);
  return text + "}";
}

std::string text_of(const PlanSummary& summary) {
  std::vector<std::string> effects;
  for (const Effect effect : summary.effects) effects.emplace_back(name_of(effect));
  return "{\"scheme\": " + json_string(summary.scheme) + ", \"options\": " + text_of(summary.options) +
         ", \"iteration_us\": " + json_number(summary.iteration_us) +
         ", \"effects\": " + json_array(effects) + "}";
}

std::string text_of(const SearchReport& report) {
  std::string text = "{\n    \"chosen\": " + text_of(report.chosen) +
                     ",\n    \"lower_bound_us\": " + json_number(report.lower_bound_us) +
                     ",\n    \"proof\": " + json_string(report.proof) +
                     ",\n    \"optimum\": " + (report.optimum ? "true" : "false") +
                     ",\n    \"reason\": " + json_string(report.reason);
  if (report.runner_up) text += ",\n    \"runner_up\": " + text_of(*report.runner_up);
  if (report.if_corrected) text += ",\n    \"if_corrected\": " + text_of(*report.if_corrected);
  return text + "\n  }";
}

std::string text_of(const Op& op) {
  std::string text =
      "{\"link\": " + json_string(op.link) + ", \"collective\": " + text_of(op.collective, kCollectives);
  if (op.payload != Payload::kGradient) text += ", \"payload\": " + text_of(op.payload, kPayloads);
  text += ", \"blocks\": " + json_array(op.blocks) + ", \"merges\": " + json_array(op.merges) +
          ", \"release\": " + text_of(op.release);
  if (op.compression != Compression{}) text += ", \"compression\": " + text_of(op.compression);
  return text + "}";
}

std::string text_of(const Apply& apply) {
  std::string text = "{\"at\": {" + text_of_point(apply.at) + "}, \"blocks\": " + json_array(apply.blocks) +
                     ", \"merges\": " + json_array(apply.merges) +
                     ", \"source\": " + text_of(apply.source, kSources);
  if (apply.mode != Mode::kReplace) text += ", \"mode\": " + text_of(apply.mode, kModes);
  if (apply.correction != Correction::kNone)
    text += ", \"correction\": " + text_of(apply.correction, kCorrections);
  if (apply.slices) text += ", \"slices\": true";
  return text + "}";
}

std::string text_of(const Block& block) {
  return "{\"tensor\": " + json_string(block.tensor) + ", \"begin\": " + std::to_string(block.begin) +
         ", \"end\": " + std::to_string(block.end) + "}";
}

std::string text_of(const PlanLink& link) {
  return "{\"name\": " + json_string(link.name) + ", \"concurrency\": " + std::to_string(link.concurrency) +
         (link.level == Level::kAll ? "" : ", \"level\": " + text_of(link.level, kLevels)) + "}";
}

std::string text_of(const Iteration& iteration);

// One item a line, `indent` spaces deep.
template <typename Item>
std::string lines_of(const std::vector<Item>& items, std::size_t indent) {
  if (items.empty()) return "[]";
  std::string text = "[";
  for (const Item& item : items) {
    text.append(text.size() > 1 ? ",\n" : "\n").append(indent, ' ').append(text_of(item));
  }
  return text.append("\n").append(indent - 2, ' ') + "]";
}

std::string text_of(const Iteration& iteration) {
  std::string text = "{\n      \"ops\": " + lines_of(iteration.ops, 8) +
                     ",\n      \"applies\": " + lines_of(iteration.applies, 8);
  if (!iteration.dropped.empty()) text += ",\n      \"dropped\": " + json_array(iteration.dropped);
  return text + "\n    }";
}

std::string text_of(const Residual& residual) {
  if (!residual.enabled) return "null";
  return "{\"initial\": " + json_number(residual.initial) + ", \"step\": " + json_number(residual.step) +
         ", \"every\": " + std::to_string(residual.every) + ", \"cap\": " + json_number(residual.cap) + "}";
}

}  // namespace

Plan parse_plan(std::string_view text) {
  const JsonValue tree = parse_json(text);
  const JsonNode root(tree);
  require_kind(root, "plan");
  root.require_keys({"version", "scheme", "options", "finding", "workload_hash", "cluster_hash", "workers",
                     "workers_per_node", "blocks", "links", "prologue", "period", "merge", "residual",
                     "outer"});
  Plan plan;
  read_origin(root, plan);
  const JsonNode blocks = root.at("blocks");
  for (std::size_t b = 0; b < blocks.size(); ++b) plan.blocks.push_back(block_from(blocks.item(b)));
  const JsonNode links = root.at("links");
  for (std::size_t k = 0; k < links.size(); ++k) plan.links.push_back(link_from(links.item(k)));
  if (const auto prologue = root.find("prologue")) plan.prologue = iterations_from(*prologue);
  plan.period = iterations_from(root.at("period"));
  if (const auto merge = root.find("merge")) plan.merge = enum_from<Merge>(*merge, kMerges);
  if (const auto residual = root.find("residual")) plan.residual = residual_from(*residual);
  if (const auto outer = root.find("outer")) plan.outer = outer_from(*outer);
  return plan;
}

std::string to_json(const Plan& plan) {
  std::string text = "{\n  \"version\": 1,\n  \"scheme\": " + json_string(plan.scheme) +
                     ",\n  \"options\": " + text_of(plan.options);
  if (plan.search_report) text += ",\n  \"finding\": " + text_of(*plan.search_report);
  text += ",\n  \"workload_hash\": " + json_string(plan.workload_hash) +
          ",\n  \"cluster_hash\": " + json_string(plan.cluster_hash) +
          ",\n  \"workers\": " + std::to_string(plan.workers);
  if (plan.workers_per_node != 1)
    text += ",\n  \"workers_per_node\": " + std::to_string(plan.workers_per_node);
  text += ",\n  \"blocks\": " + lines_of(plan.blocks, 4) + ",\n  \"links\": " + lines_of(plan.links, 4);
  text += ",\n  \"prologue\": " + lines_of(plan.prologue, 4) + ",\n  \"period\": " + lines_of(plan.period, 4);
  text += ",\n  \"merge\": " + text_of(plan.merge, kMerges) + ",\n  \"residual\": " + text_of(plan.residual);
  if (plan.outer) {
    text += ",\n  \"outer\": {\"momentum\": " + json_number(plan.outer->momentum) +
            ", \"learning_rate\": " + json_number(plan.outer->learning_rate) + "}";
  }
  return text + "\n}\n";
}

std::string hash_of(const Plan& plan) { return hash_hex(to_json(plan)); }

}  // namespace gradweave
