#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "base/statistics.h"
#include "gradweave/cost.h"
#include "gradweave/error.h"
#include "gradweave/observe.h"
#include "model/cluster_parts.h"
#include "plan/run_plan.h"

namespace gradweave {
namespace observed {

// What an op should take, by what of the link it depends on.
struct Expected {
  std::int32_t link = 0;
  double startup = 0, work = 0, rest = 0;  // ns; rest: encoding and decoding
  double total() const { return startup + work + rest; }
};

struct Timed {
  Expected expected;
  double measured = 0;
  double ratio() const { return measured / expected.total(); }
};

struct Factors {
  double startup = 1, rate = 1;
};

}  // namespace observed

namespace {

using observed::Expected;
using observed::Factors;
using observed::Timed;

constexpr double kOff = 0.1;        // by which what was planned for may be off, relative
constexpr double kOfAnother = 0.5;  // the same, where it was observed under another plan
constexpr std::size_t kFirst = 4;   // samples that say what is usual on an idle link
constexpr std::size_t kWait = 2;    // samples before that is asked; twice as many each next time
constexpr double kPrior = 0.001;    // weight of a link's common factor beside one op's error
// Of the start-up that was planned for, beside a shorter one: long ops are shorter than start-up and bytes together where a link has
// saved up, and would make it vanish.
constexpr double kPriorOfShorter = 0.03;
constexpr int kRounds = 8;  // of the fit

Cluster without_startup(Cluster cluster) {
  for (Link& link : cluster.links)
    for_each_line(link, [](Nanoseconds& startup, Decimal&, const char*) { startup = 0; });
  return cluster;
}

Cluster without_rate(Cluster cluster) {
  for (Link& link : cluster.links)
    for_each_line(link, [](Nanoseconds&, Decimal& rate, const char*) { rate = {}; });
  return cluster;
}

// The ratio below which half of the expected time lies.
double median_ratio(std::vector<Timed> ops) {
  std::ranges::sort(ops, {}, &Timed::ratio);
  double total = 0;
  for (const Timed& op : ops) total += op.expected.total();
  double below = 0;
  for (const Timed& op : ops) {
    below += op.expected.total();
    if (below >= total / 2) return op.ratio();
  }
  return 1;
}

// The factors that make the relative errors of ops smallest in square, `common` having the weight of some ops too: that
// alone decides where all messages are alike. It has less, the further the others are above it, as if it were a prior of
// the factors' logarithms.
Factors factors_of(const std::vector<Timed>& ops, double common) {
  double aa = 0, ab = 0, bb = 0, at = 0, bt = 0;
  for (const Timed& op : ops) {
    const double a = op.expected.startup / op.measured, b = op.expected.work / op.measured;
    const double t = std::max(0.0, 1 - op.expected.rest / op.measured);
    aa += a * a, ab += a * b, bb += b * b, at += a * t, bt += b * t;
  }
  const auto prior = [&](double weight, double factor) {
    const double scale = std::max(common, factor);
    return weight * static_cast<double>(ops.size()) / (scale * scale);
  };
  const double least = common / 20, planned = std::min(1.0, common);
  Factors by{common, common};
  for (int round = 0; round < kRounds; ++round) {
    const bool shorter = by.startup < planned;
    const double p = prior(shorter ? kPriorOfShorter : kPrior, by.startup), q = prior(kPrior, by.rate);
    const double ap = at + p * (shorter ? planned : common), bq = bt + q * common;
    const double determinant = (aa + p) * (bb + q) - ab * ab;
    by = {std::max(least, (ap * (bb + q) - bq * ab) / determinant),
          std::max(least, (bq * (aa + p) - ap * ab) / determinant)};
  }
  return by;
}

template <typename T>
void keep_last_two(std::vector<T>& values) {
  if (values.size() > 2) values.erase(values.begin(), values.end() - 2);
}

// To three digits, so that what ranks and files have is short.
Decimal times(Decimal rate, double factor) { return multiply_ratio(rate, std::llround(factor * 1000), 1000); }

Nanoseconds times(Nanoseconds ns, double factor) { return std::llround(static_cast<double>(ns) * factor); }

}  // namespace

struct Observer::State {
  Plan plan;
  Workload workload;
  Cluster cluster;
  SimulationOptions overheads;
  RunPlan run_plan;
  double forward_slowed = 1, backward_slowed = 1;  // by the plan's messages, as simulated
  std::vector<std::size_t> cluster_link;           // by the plan's link, then of those that it leaves idle
  std::vector<std::vector<Expected>> expected;     // by the run plan's iteration, by op
  // By link of the plan, then those that it leaves idle.
  struct OfLink {
    ChangeTest test;        // logarithms of measured over expected times, of an idle link's times
    double first = 0;       // of the first sample, where ops share the link; of the first few, if idle
    std::size_t usual = 0;  // samples that `first` is of, if idle
    double asked = 0;       // log_total() that was planned for
    std::vector<std::vector<Timed>> recent;  // ops of the last two samples that have some
  };
  std::vector<OfLink> links;
  ChangeTest compute;
  double compute_asked = 0;
  std::vector<IterationStatistics> recent;  // the last two
  double tolerated;
  std::size_t samples = 0, wait = kWait;  // since what was planned for was compared; until it is again

  bool idle(std::size_t link) const { return link >= run_plan.links.size(); }
  void expect();
  void expect_simulated();
  void expect_ops(const Timeline& timeline);
  void expect_contention(const Timeline& timeline);
  double alone(const IterationStatistics& sample) const;
  std::vector<std::vector<Timed>> timed(const IterationStatistics& sample) const;
  double log_factor(std::size_t link) const;
  double log_total(std::size_t link) const;
  bool off() const;
  void ask();
  double planned_compute() const;
  std::optional<Factors> factors(std::size_t link) const;
};

void Observer::State::expect() {
  const auto model_of = [&](const Cluster& costs) {
    return CostModel(workload, costs, {}, Payload::kGradient, run_plan.outer.has_value());
  };
  const CostModel whole = model_of(cluster), rate = model_of(without_startup(cluster)),
                  startup = model_of(without_rate(cluster));
  for (const RunIteration& iteration : run_plan.iterations) {
    std::vector<Expected>& row = expected.emplace_back();
    for (const RunOp& op : iteration.ops) {
      std::vector<Slice> slices;
      for (const std::int32_t b : op.blocks) {
        const auto block = static_cast<std::size_t>(b);
        slices.push_back({static_cast<std::size_t>(run_plan.block_tensor[block]),
                          run_plan.blocks[block].begin, run_plan.blocks[block].end});
      }
      const auto cost = [&](const CostModel& model) {
        const std::size_t link = cluster_link[static_cast<std::size_t>(op.link)];
        return static_cast<double>(
            model.cost(link, op.collective, slices, op.compression, op.payload).total());
      };
      const double total = cost(whole), work = total - cost(startup), start = total - cost(rate);
      row.push_back({op.link, start, work, std::max(0.0, total - work - start)});
    }
  }
}

// What depends on what else happens, by the simulation of the steady state.
void Observer::State::expect_simulated() {
  SimulationOptions options = overheads;
  options.timeline_iterations = 2 * std::ssize(run_plan.iterations);
  const Timeline timeline = simulate(plan, workload, cluster, options).timeline;
  expect_ops(timeline);
  expect_contention(timeline);
}

// Ops that share a link take longer than each alone, but for their start-ups; a token bucket makes an op shorter.
void Observer::State::expect_ops(const Timeline& timeline) {
  std::vector<std::vector<double>> longest(expected.size());
  for (std::size_t row = 0; row < expected.size(); ++row) longest[row].resize(expected[row].size());
  for (const Span& span : timeline.spans) {
    if (span.kind != SpanKind::kOp) continue;
    double& ns = longest[run_plan.at(span.iteration)][static_cast<std::size_t>(span.op)];
    ns = std::max(ns, static_cast<double>(span.end_ns - span.begin_ns));
  }
  for (std::size_t row = 0; row < expected.size(); ++row) {
    for (std::size_t o = 0; o < expected[row].size(); ++o) {
      Expected& op = expected[row][o];
      const bool shared = run_plan.concurrency[static_cast<std::size_t>(op.link)] != 1;
      if ((shared || overheads.burst_ns > 0) && longest[row][o] > 0)
        op.work = std::max(0.0, longest[row][o] - op.startup - op.rest);
    }
  }
}

// Beside messages compute takes longer, the forward and the backward each by a factor.
void Observer::State::expect_contention(const Timeline& timeline) {
  struct Sum {
    double simulated = 0, planned = 0;
    double factor() const { return planned > 0 ? simulated / planned : 1; }
  };
  Sum forward, backward;
  for (const Span& span : timeline.spans) {
    if (span.kind != SpanKind::kForward && span.kind != SpanKind::kBackward) continue;
    const bool goes_forward = span.kind == SpanKind::kForward;
    const Layer& layer = workload.layers[static_cast<std::size_t>(span.layer)];
    Sum& sum = goes_forward ? forward : backward;
    sum.simulated += static_cast<double>(span.end_ns - span.begin_ns);
    sum.planned += static_cast<double>(goes_forward ? layer.forward_ns : layer.backward_ns);
  }
  forward_slowed = forward.factor();
  backward_slowed = backward.factor();
}

// What forward and backward would have taken without messages.
double Observer::State::alone(const IterationStatistics& sample) const {
  return sample.forward_ns / forward_slowed +
         std::accumulate(sample.backward_ns.begin(), sample.backward_ns.end(), 0.0) / backward_slowed;
}

// By link: the ops that were run.
std::vector<std::vector<Timed>> Observer::State::timed(const IterationStatistics& sample) const {
  std::vector<std::vector<Timed>> ops(links.size());
  std::size_t next = 0;
  for (std::int64_t n = sample.first; n < sample.first + sample.iterations; ++n) {
    for (const Expected& op : expected[run_plan.at(n)]) {
      const double measured = sample.op_ns[next++];
      if (measured > 0 && op.total() > 0) ops[static_cast<std::size_t>(op.link)].push_back({op, measured});
    }
  }
  return ops;
}

// Of measured over expected times. How ops share a link is known roughly: then a first difference that is not large
// is that of the simulation, and only changes count.
double Observer::State::log_factor(std::size_t link) const {
  const double mean = links[link].test.mean();
  if (!idle(link)) return run_plan.concurrency[link] == 1 ? mean : mean - links[link].first;
  const double since = mean - links[link].first;  // single messages scatter
  return std::abs(since) > std::log1p(kOfAnother) ? since : 0;
}

// Whether something is not as it was planned for.
bool Observer::State::off() const {
  const auto differs = [&](double a, double b) { return std::abs(a - b) > std::log1p(tolerated); };
  for (std::size_t k = 0; k < links.size(); ++k)
    if (links[k].test.size() > 0 && differs(log_total(k), links[k].asked)) return true;
  return compute.size() > 0 && differs(compute.mean(), compute_asked);
}

// What is seen now is planned for.
void Observer::State::ask() {
  for (std::size_t k = 0; k < links.size(); ++k) {
    links[k].test.keep_last();
    if (links[k].test.size() > 0) links[k].asked = log_total(k);
  }
  compute.keep_last();
  compute_asked = compute.mean();
  tolerated = kOff;
}

double Observer::State::planned_compute() const {
  double sum = 0;
  for (const Layer& layer : workload.layers) sum += static_cast<double>(layer.forward_ns + layer.backward_ns);
  return sum;
}

std::optional<Factors> Observer::State::factors(std::size_t link) const {
  if (links[link].test.size() == 0) return std::nullopt;
  const double common = std::exp(log_factor(link));
  const bool shared = !idle(link) && run_plan.concurrency[link] != 1;
  // Single ops of a shared link are as simulated only roughly, which a large change outweighs.
  if (idle(link) || (shared && std::abs(std::log(common)) < std::log1p(kOfAnother)))
    return Factors{common, common};
  std::vector<Timed> ops;
  for (const std::vector<Timed>& some : links[link].recent) ops.insert(ops.end(), some.begin(), some.end());
  if (shared)
    for (Timed& op : ops) op.measured *= std::exp(-links[link].first);
  return factors_of(ops, common);
}

// As log_factor(), of all ops together: few that take most of the time may be as planned, and many small ones not.
double Observer::State::log_total(std::size_t link) const {
  if (idle(link)) return log_factor(link);
  const Factors by = *factors(link);
  double found = 0, planned = 0;
  for (const std::vector<Timed>& some : links[link].recent) {
    for (const Timed& op : some) {
      found += op.expected.startup * by.startup + op.expected.work * by.rate + op.expected.rest;
      planned += op.expected.total();
    }
  }
  return std::log(found / planned);
}

Observer::Observer(const Plan& plan, const Workload& workload, const Cluster& cluster, double false_alarms,
                   bool of_this_run, const EchoTimes& usual, const SimulationOptions& overheads)
    : state_(new State{.plan = plan,
                       .workload = workload,
                       .cluster = cluster,
                       .overheads = overheads,
                       .run_plan = run_plan_of(plan, workload),
                       .compute = ChangeTest(0),
                       .tolerated = of_this_run ? kOfAnother : kOff}) {
  State& state = *state_;
  for (const std::string& name : state.run_plan.links) {
    const auto link = find_link(cluster, name);
    if (!link)
      throw InvalidInput("there is no such link in the cluster", "link '" + name + "'",
                         "name the plan's links");
    state.cluster_link.push_back(*link);
  }
  state.expect();
  std::vector<bool> used(cluster.links.size());
  for (const std::vector<Expected>& row : state.expected)
    for (const Expected& op : row) used[state.cluster_link[static_cast<std::size_t>(op.link)]] = true;
  for (std::size_t link = 0; link < used.size(); ++link)
    if (!used[link]) state.cluster_link.push_back(link);
  const double each = false_alarms / static_cast<double>(state.cluster_link.size() + 1);
  state.links.assign(state.cluster_link.size(), {ChangeTest(each)});
  state.compute = ChangeTest(each);
  const std::vector<std::string> names = idle();
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto known = usual.find(names[i]);
    if (known == usual.end()) continue;
    State::OfLink& link = state.links[state.run_plan.links.size() + i];
    link.first = std::log(known->second), link.usual = kFirst;
  }
  if (overheads.contention != Decimal{1, 0} || overheads.burst_ns > 0 ||
      std::ranges::any_of(state.run_plan.concurrency, [](std::int32_t ops) { return ops != 1; }))
    state.expect_simulated();
}

Observer::~Observer() = default;

double Observer::iteration_ns() const {
  double sum = 0;
  for (const IterationStatistics& sample : state_->recent) sum += sample.iteration_ns;
  return sum / static_cast<double>(state_->recent.size());
}

bool Observer::sampled() const { return !state_->recent.empty(); }

std::vector<std::string> Observer::idle() const {
  std::vector<std::string> names;
  for (std::size_t k = state_->run_plan.links.size(); k < state_->links.size(); ++k)
    names.push_back(state_->cluster.links[state_->cluster_link[k]].name);
  return names;
}

EchoTimes Observer::usual() const {
  EchoTimes times;
  const std::vector<std::string> names = idle();
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::size_t k = state_->run_plan.links.size() + i;
    if (state_->links[k].usual > 0)
      times[names[i]] = std::exp(state_->links[k].first + state_->log_factor(k));
  }
  return times;
}

bool Observer::add(const IterationStatistics& sample, const std::vector<double>& echo_ns) {
  State& state = *state_;
  const std::vector<std::vector<Timed>> ops = state.timed(sample);
  bool changed = false;
  for (std::size_t k = 0; k < ops.size(); ++k) {
    if (ops[k].empty()) continue;
    State::OfLink& link = state.links[k];
    const double value = std::log(median_ratio(ops[k]));
    if (link.test.size() == 0 && std::abs(value) < std::log1p(kOfAnother)) link.first = value;
    changed |= link.test.add(value);
    link.recent.push_back(ops[k]);
    keep_last_two(link.recent);
  }
  for (std::size_t i = 0; i < echo_ns.size(); ++i) {
    if (!(echo_ns[i] > 0 && std::isfinite(echo_ns[i]))) continue;
    State::OfLink& link = state.links[state.run_plan.links.size() + i];
    const bool moved = link.test.add(std::log(echo_ns[i]));
    if (moved) link.usual = kFirst;
    if (link.usual < kFirst) link.first = link.test.mean(), ++link.usual;
    changed |= moved;
  }
  const double compute = state.alone(sample);
  if (compute > 0 && state.planned_compute() > 0)
    changed |= state.compute.add(std::log(compute / state.planned_compute()));
  state.recent.push_back(sample);
  keep_last_two(state.recent);
  if (!changed && ++state.samples < state.wait) return false;
  state.samples = 0;
  state.wait = changed ? kWait : 2 * state.wait;
  if (!changed && !state.off()) return false;
  state.ask();
  return true;
}

Workload Observer::workload() const {
  const State& state = *state_;
  Workload workload = state.workload;
  if (state.compute.size() == 0) return workload;
  double planned_forward = 0, forward = 0, total = 0;
  std::vector<double> backward(workload.layers.size());
  for (const IterationStatistics& sample : state.recent) {
    forward += sample.forward_ns / state.forward_slowed;
    for (std::size_t l = 0; l < backward.size(); ++l)
      backward[l] += sample.backward_ns[l] / state.backward_slowed;
  }
  total = std::accumulate(backward.begin(), backward.end(), forward);
  for (const Layer& layer : workload.layers) planned_forward += static_cast<double>(layer.forward_ns);
  // The layers' shares are those of the last samples, their sum that of all.
  const double scale = state.planned_compute() * std::exp(state.compute.mean()) / total;
  for (std::size_t l = 0; l < backward.size(); ++l) {
    workload.layers[l].backward_ns = std::llround(scale * backward[l]);
    if (planned_forward > 0)
      workload.layers[l].forward_ns = times(workload.layers[l].forward_ns, scale * forward / planned_forward);
  }
  return workload;
}

Cluster Observer::cluster() const {
  const State& state = *state_;
  Cluster cluster = state.cluster;
  for (std::size_t k = 0; k < state.links.size(); ++k) {
    const std::optional<Factors> by = state.factors(k);
    if (!by) continue;
    for_each_line(cluster.links[state.cluster_link[k]],
                  [&](Nanoseconds& startup, Decimal& rate, const char*) {
                    startup = times(startup, by->startup);
                    rate = times(rate, by->rate);
                  });
  }
  return cluster;
}

Observer::Report Observer::report() const {
  const State& state = *state_;
  const IterationStatistics& sample = state.recent.back();
  Report report{.predicted = simulate(state.plan, state.workload, state.cluster, state.overheads),
                .iteration_ns = sample.iteration_ns,
                .exposed_ns = sample.exposed_ns,
                .forward_ns = sample.forward_ns,
                .backward_ns = std::accumulate(sample.backward_ns.begin(), sample.backward_ns.end(), 0.0)};
  std::vector<Difference>& differences = report.differences;
  double forward = 0;
  for (std::size_t l = 0; l < state.workload.layers.size(); ++l) {
    const Layer& layer = state.workload.layers[l];
    forward += static_cast<double>(layer.forward_ns);
    differences.push_back({"backward of layer '" + layer.name + "'",
                           state.backward_slowed * static_cast<double>(layer.backward_ns),
                           sample.backward_ns[l]});
  }
  const double backward = state.planned_compute() - forward;
  const double rest = static_cast<double>(report.predicted.compute_ns) - state.planned_compute();
  // What messages take of compute is no wait.
  const double slowed = (state.forward_slowed - 1) * forward + (state.backward_slowed - 1) * backward;
  report.predicted.compute_ns += std::llround(slowed);
  report.predicted.exposed_ns -= slowed;
  differences.push_back({"forward", state.forward_slowed * forward, sample.forward_ns});
  differences.push_back({"exposed communication", report.predicted.exposed_ns, sample.exposed_ns});
  differences.push_back(
      {"the rest: optimizer, data, the loop", rest,
       std::max(0.0, sample.iteration_ns - sample.exposed_ns - sample.forward_ns - report.backward_ns)});
  const auto off = [](const Difference& each) { return std::abs(each.measured_ns - each.predicted_ns); };
  std::ranges::stable_sort(differences, std::ranges::greater(), off);

  // Ops: which is off by most in the mean, and how much they take in each iteration.
  struct Sum {
    double ns = 0, times = 0;
  };
  std::map<std::pair<std::size_t, std::size_t>, Sum> sums;  // by the run plan's iteration and place
  std::vector<double> communication;
  std::size_t next = 0;
  for (std::int64_t n = sample.first; n < sample.first + sample.iterations; ++n) {
    const std::size_t slot = state.run_plan.at(n);
    double& sum = communication.emplace_back();
    for (std::size_t o = 0; o < state.expected[slot].size(); ++o) {
      const double measured = sample.op_ns[next++];
      if (measured == 0) continue;
      sum += measured;
      Sum& of = sums[{slot, o}];
      of.ns += measured, of.times += 1;
    }
  }
  for (const auto& [place, sum] : sums) {
    const auto [slot, o] = place;
    const RunOp& op = state.run_plan.iterations[slot].ops[o];
    const Difference each{
        "op '" + op.label + "' on link " + state.run_plan.links[static_cast<std::size_t>(op.link)],
        state.expected[slot][o].total(), sum.ns / sum.times};
    if (off(each) > off(report.op)) report.op = each;
  }
  if (report.backward_ns > 0) {
    const Sample sample = sample_of(communication);
    report.ccr = sample.mean / report.backward_ns;
    report.ccr_uncertainty = sample.uncertainty() / report.backward_ns;
  }
  for (std::size_t k = 0; k < state.run_plan.links.size(); ++k) {
    const ChangeTest& test = state.links[k].test;
    if (test.size() == 0) continue;
    report.links.push_back({state.run_plan.links[k], std::exp(test.mean()), std::expm1(test.uncertainty())});
  }
  const double usual = median_of(sample.compute_ns);
  for (std::size_t r = 0; r < sample.compute_ns.size(); ++r) {
    const double factor = sample.compute_ns[r] / usual;
    if (factor > 1 + kOff) report.stragglers.push_back({r, factor});
  }
  std::ranges::stable_sort(report.stragglers, std::ranges::greater(), &Report::Straggler::factor);
  return report;
}

}  // namespace gradweave
