#include "testing/plans.h"

namespace gradweave::testing {
namespace {

const std::vector<std::int32_t> kAll = {0, 1, 2, 3};

// The blocks of a layer.
std::vector<std::int32_t> of_layer(std::int32_t layer) {
  if (layer == 0) return {0, 1};
  return {layer + 1};
}

Plan empty_plan(std::size_t period) {
  Plan plan{.scheme = "hand", .workers = 2};
  plan.blocks = {{"a", 0, 4}, {"a", 4, 8}, {"b", 0, 6}, {"c", 0, 4}};
  plan.links = {{"net", 1}};
  plan.period.resize(period);
  return plan;
}

Op gradient(std::vector<std::int32_t> blocks, std::vector<std::int32_t> merges, Release release) {
  return {.link = "net", .blocks = std::move(blocks), .merges = std::move(merges), .release = release};
}

Op parameter(std::vector<std::int32_t> blocks, std::vector<std::int32_t> merges, Release release) {
  Op op = gradient(std::move(blocks), std::move(merges), release);
  op.payload = Payload::kParameter;
  return op;
}

Apply local_step(Point at, std::vector<std::int32_t> blocks) {
  return {.at = at, .blocks = std::move(blocks), .merges = {0}, .source = Source::kLocalGradient};
}

Apply average(Point at, std::vector<std::int32_t> blocks, std::vector<std::int32_t> merges) {
  return {.at = at,
          .blocks = std::move(blocks),
          .merges = std::move(merges),
          .source = Source::kAveragedParameter};
}

}  // namespace

Workload three_layers() {
  return {.name = "three",
          .layers = {{.name = "la", .forward_ns = 1000, .backward_ns = 2000, .tensors = {{"a", 8}}},
                     {.name = "lb", .forward_ns = 1000, .backward_ns = 2000, .tensors = {{"b", 6}}},
                     {.name = "lc", .forward_ns = 1000, .backward_ns = 2000, .tensors = {{"c", 4}}}}};
}

Release at_backward_end(std::int32_t layer, std::int32_t iteration) {
  return {{PointKind::kBackwardEnd, layer, iteration}};
}
Point iteration_end() { return {PointKind::kIterationEnd}; }
Point forward_start(std::int32_t layer) { return {PointKind::kForwardStart, layer}; }
Point backward_end(std::int32_t layer) { return {PointKind::kBackwardEnd, layer}; }

Plan synchronous() {
  Plan plan = empty_plan(1);
  for (const std::int32_t layer : {2, 1, 0}) {
    plan.period[0].ops.push_back(gradient(of_layer(layer), {0}, at_backward_end(layer)));
  }
  plan.period[0].applies = {{.at = iteration_end(), .blocks = kAll, .merges = {0}}};
  return plan;
}

Plan forward_overlap() {
  Plan plan = empty_plan(1);
  for (const std::int32_t layer : {0, 1, 2}) {
    plan.period[0].ops.push_back(gradient(of_layer(layer), {-1}, at_backward_end(layer, -1)));
    plan.period[0].applies.push_back({.at = forward_start(layer), .blocks = of_layer(layer), .merges = {-1}});
  }
  return plan;
}

Plan decoupled() {
  Plan plan = empty_plan(1);
  plan.links.push_back({"other", 1});
  Iteration& iteration = plan.period[0];
  for (const std::int32_t layer : {0, 1, 2}) {
    Op gather = gradient(of_layer(layer), {-1}, {{PointKind::kIterationEnd, 0, -1}});
    gather.collective = Collective::kAllGather;
    gather.link = "other";
    iteration.ops.push_back(gather);
    iteration.applies.push_back({.at = forward_start(layer), .blocks = of_layer(layer), .merges = {-1}});
  }
  for (const std::int32_t layer : {2, 1, 0}) {
    Op scatter = gradient(of_layer(layer), {0}, at_backward_end(layer));
    scatter.collective = Collective::kReduceScatter;
    iteration.ops.push_back(scatter);
  }
  return plan;
}

Plan delayed() {
  Plan plan = empty_plan(2);
  // Iterations 2k and 2k + 1 are one generation: c and b go in 2k + 2, a in 2k + 3, at whose end all is
  // applied.
  plan.period[0].ops = {gradient({3}, {-2, -1}, {{PointKind::kForwardStart, 0}}),
                        gradient({2}, {-2, -1}, {{PointKind::kForwardStart, 0}})};
  plan.period[1].ops = {gradient({0, 1}, {-3, -2}, {{PointKind::kForwardStart, 0}})};
  plan.period[1].applies = {{.at = iteration_end(), .blocks = kAll, .merges = {-3, -2}}};
  return plan;
}

Plan corrected() {
  Plan plan = delayed();
  plan.period[1].applies[0].correction = Correction::kLocal;
  for (Iteration& iteration : plan.period) iteration.applies.push_back(local_step(iteration_end(), kAll));
  return plan;
}

Plan filtered() {
  Plan plan = empty_plan(2);
  plan.residual = {.enabled = true, .initial = 0.5, .step = 0.1, .cap = 1, .every = 50};
  plan.period[0].ops = {gradient({0, 1}, {0}, at_backward_end(0))};
  plan.period[0].applies = {{.at = iteration_end(), .blocks = {0, 1}, .merges = {0}}};
  plan.period[0].dropped = {2, 3};
  plan.period[1].ops = {gradient({2, 3}, {0}, at_backward_end(1))};
  plan.period[1].applies = {{.at = iteration_end(), .blocks = {2, 3}, .merges = {0}}};
  plan.period[1].dropped = {0, 1};
  return plan;
}

Plan local_steps() {
  Plan plan = empty_plan(2);
  for (Iteration& iteration : plan.period) iteration.applies = {local_step(iteration_end(), kAll)};
  plan.period[1].ops = {parameter(kAll, {0}, at_backward_end(0))};
  plan.period[1].applies.push_back(average(iteration_end(), kAll, {0}));
  return plan;
}

Plan partial() {
  Plan plan = empty_plan(2);
  for (Iteration& iteration : plan.period) {
    for (const std::int32_t layer : {2, 1, 0})
      iteration.applies.push_back(local_step(backward_end(layer), of_layer(layer)));
  }
  plan.period[0].ops = {parameter({3}, {0}, at_backward_end(2)), parameter({2}, {0}, at_backward_end(1))};
  plan.period[1].applies.push_back(average(forward_start(1), {2}, {-1}));
  plan.period[1].applies.push_back(average(forward_start(2), {3}, {-1}));
  plan.period[1].ops = {parameter({0, 1}, {0}, at_backward_end(0))};
  plan.period[0].applies.push_back(average(forward_start(0), {0, 1}, {-1}));
  return plan;
}

Plan delayed_average() {
  Plan plan = empty_plan(2);
  for (std::size_t h = 0; h < 2; ++h) {
    Apply landed = average(iteration_end(),
                           h == 0 ? std::vector<std::int32_t>{2, 3} : std::vector<std::int32_t>{0, 1}, {-1});
    landed.mode = Mode::kCorrect;
    plan.period[h].applies = {landed, local_step(iteration_end(), kAll)};
    plan.period[h].ops = {parameter(
        h == 0 ? std::vector<std::int32_t>{0, 1} : std::vector<std::int32_t>{2, 3}, {0}, {iteration_end()})};
  }
  return plan;
}

Plan compressed_average() {
  Plan plan = delayed_average();
  plan.outer = {.momentum = 0.5, .learning_rate = 0.75};
  for (Iteration& iteration : plan.period) {
    for (Op& op : iteration.ops) {
      op.collective = Collective::kCompressed;
      op.compression = {"int4", {}};
    }
  }
  return plan;
}

std::vector<std::pair<std::string, Plan>> all_families() {
  return {{"synchronous", synchronous()},
          {"forward_overlap", forward_overlap()},
          {"decoupled", decoupled()},
          {"delayed", delayed()},
          {"corrected", corrected()},
          {"filtered", filtered()},
          {"local_steps", local_steps()},
          {"partial", partial()},
          {"delayed_average", delayed_average()},
          {"compressed_average", compressed_average()}};
}

}  // namespace gradweave::testing
