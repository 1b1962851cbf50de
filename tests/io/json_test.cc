#include "gradweave/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gradweave/error.h"

namespace gradweave {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Returns the message of the InvalidInput that `parse` throws on `text`.
template <typename Parse>
std::string message_of(Parse parse, std::string_view text) {
  try {
    parse(text);
  } catch (const InvalidInput& error) {
    EXPECT_LT(std::string_view(error.what()).size(), 20'000U);
    return error.what();
  }
  return "accepted";
}

std::string workload_fault(std::string_view text) { return message_of(parse_workload, text); }
std::string cluster_fault(std::string_view text) { return message_of(parse_cluster, text); }
std::string plan_fault(std::string_view text) { return message_of(parse_plan, text); }

std::string with_layers(const std::string& layers) {
  return R"({"version": 1, "name": "w", "layers": [)" + layers + "]}";
}
std::string with_numel(const std::string& numel) {
  return with_layers(
      R"({"name": "a", "forward_us": 1, "backward_us": 2, "tensors": [{"name": "t", "numel": )" + numel +
      "}]}");
}
std::string with_forward(const std::string& time) {
  return with_layers(R"({"name": "a", "backward_us": 2, "tensors": [], "forward_us": )" + time + "}");
}
std::string with_rate(const std::string& rate) {
  return R"({"version": 1, "workers": 2, "links": [{"name": "n", "startup_us": 1, "us_per_byte": )" + rate +
         "}]}";
}

TEST(WorkloadJson, ReadsTimesTensorsAndDefaults) {
  const Workload workload = parse_workload(with_layers(
      R"({"name": "a", "forward_us": 1.5, "backward_us": 0, "tensors": [{"name": "t", "numel": 7}]},
                     {"name": "b", "forward_us": 0, "backward_us": 2, "communication_us": 1.25})"));
  ASSERT_EQ(workload.layers.size(), 2U);
  EXPECT_EQ(workload.layers[0],
            (Layer{.name = "a", .forward_ns = 1500, .backward_ns = 0, .tensors = {{"t", 7}}}));
  // Without tensors, the layer is one tensor with an element for each nanosecond of its communication.
  EXPECT_EQ(workload.layers[1].tensors, (std::vector<Tensor>{{"b", 1250, DType::kFloat32}}));
  EXPECT_EQ(parse_workload(to_json(workload)), workload);
}

TEST(WorkloadJson, ShapesMultiplyToTheNumberOfElements) {
  const auto with_shape = [](const std::string& shape) { return with_numel("6, \"shape\": " + shape); };
  EXPECT_EQ(parse_workload(with_shape("[2, 3]")).layers[0].tensors[0].shape,
            (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(parse_workload(with_shape("[]")), parse_workload(with_numel("6")));
  for (const char* wrong : {"[2, 2]", "[12]", "[4, 3]", "[9007199254740992, 9007199254740992]"})
    EXPECT_THAT(workload_fault(with_shape(wrong)),
                HasSubstr("layers[0].tensors[0].shape: does not multiply to numel, 6"));
  EXPECT_THAT(workload_fault(with_shape("[0]")), HasSubstr("shape[0]"));
  EXPECT_THAT(workload_fault(with_shape("6")), HasSubstr("shape"));
  const Workload known = parse_workload(with_shape("[2, 3]")), other = parse_workload(with_shape("[3, 2]"));
  EXPECT_NE(hash_of(known), hash_of(other));
  EXPECT_NE(hash_of(known), hash_of(parse_workload(with_numel("6"))));
}

TEST(WorkloadJson, LayerWithoutCommunicationTimeHasNoTensor) {
  const auto text = with_layers(R"({"name": "b", "forward_us": 0, "backward_us": 2, "communication_us": 0})");
  EXPECT_TRUE(parse_workload(text).layers[0].tensors.empty());
  EXPECT_THAT(workload_fault(with_layers(R"({"name": "b", "forward_us": 0, "backward_us": 2})")),
              HasSubstr("layers[0].tensors: is missing"));
}

TEST(WorkloadJson, RoundsTimesToTheNearestNanosecond) {
  const auto forward = [](const std::string& time) {
    return parse_workload(with_forward(time)).layers[0].forward_ns;
  };
  EXPECT_EQ(forward("0.0004"), 0);
  EXPECT_EQ(forward("0.0005"), 1);
  EXPECT_EQ(forward("1e-400"), 0);
  EXPECT_EQ(forward("0e99999999999999999999"), 0);
  EXPECT_EQ(forward("-0.0"), 0);
  EXPECT_EQ(forward("12.3454999999999999999999999"), 12345);
  EXPECT_EQ(forward("0.00123e3"), 1230);
  EXPECT_EQ(forward("9e12"), 9'000'000'000'000'000);
}

TEST(WorkloadJson, KeepsMoreDigitsThanADouble) {
  EXPECT_EQ(parse_workload(with_forward("9007199254.740991")).layers[0].forward_ns, 9'007'199'254'741);
  EXPECT_EQ(parse_timeline(
                R"({"version": 1, "name": "", "origin": "", "links": [], "spans": [{"kind": "op", "track": 0,
                               "iteration": 0, "begin_us": -2305843009213693.951, "end_us": 2305843009213693.951}]})")
                .spans[0]
                .begin_ns,
            1 - (std::int64_t{1} << 61));
}

TEST(WorkloadJson, AnIntegerMayBeWrittenWithFractionOrExponent) {
  for (const char* text : {"5000", "5000.0", "5e3", "5E+3", "0.5e4", "500000e-2", "5000.000e0"})
    EXPECT_EQ(parse_workload(with_numel(text)).layers[0].tensors[0].numel, 5000) << text;
  EXPECT_EQ(parse_workload(with_numel("2251799813685248.0")).layers[0].tensors[0].numel, 2251799813685248);
  for (const char* text : {"5000.5", "5e-1", "1e30", "9223372036854775808.0", "1e-99999999999999999999"})
    EXPECT_THAT(workload_fault(with_numel(text)), HasSubstr("numel: is a number; give an integer")) << text;
  for (const char* text : {"0.0", "0e5", "-0.0", "9007199254740993.0"})
    EXPECT_THAT(workload_fault(with_numel(text)), HasSubstr("numel: is out of range")) << text;
}

TEST(WorkloadJson, NamesTheKeyOfEveryFault) {
  EXPECT_THAT(workload_fault("{}"), HasSubstr("version: is missing"));
  EXPECT_THAT(workload_fault(R"({"version": 2, "name": "w", "layers": []})"),
              HasSubstr("version: is unknown"));
  EXPECT_THAT(workload_fault(R"({"version": "1", "name": "w", "layers": []})"),
              HasSubstr("version: is a string"));
  EXPECT_THAT(workload_fault(with_layers("")), HasSubstr("layers: must have at least one layer"));
  EXPECT_THAT(workload_fault(with_layers("7")), HasSubstr("layers[0]: is an integer; give an object"));
  EXPECT_THAT(workload_fault(with_numel("0")), HasSubstr("layers[0].tensors[0].numel: is out of range"));
  EXPECT_THAT(workload_fault(with_numel("1.5")),
              HasSubstr("layers[0].tensors[0].numel: is a number; give an integer"));
  EXPECT_THAT(workload_fault(with_numel("9223372036854775808")), HasSubstr("layers[0].tensors[0].numel"));
  EXPECT_THAT(workload_fault(with_numel("-1")), HasSubstr("layers[0].tensors[0].numel"));
  EXPECT_THAT(workload_fault(with_numel("1, \"dtype\": \"floaty\"")),
              HasSubstr("layers[0].tensors[0].dtype: is 'floaty'"));
  EXPECT_THAT(
      workload_fault(with_numel("1, \"numle\": 3")),
      AllOf(HasSubstr("layers[0].tensors[0].numle: is an unknown key"), HasSubstr("did you mean 'numel'?")));
  EXPECT_THAT(workload_fault(with_numel("1, \"numel\": 3")),
              HasSubstr("layers[0].tensors[0]: the key 'numel' is given twice"));
  EXPECT_THAT(workload_fault(with_numel("1}, {\"name\": \"t\", \"numel\": 1")),
              HasSubstr("layers[0].tensors[1].name: repeats the name 't'"));
  for (const char* time :
       {"-1", "-1e-9", "1e16", "1e300", "\"3\"", "null", "true", "[]", "9223372036854775807"}) {
    EXPECT_THAT(workload_fault(with_forward(time)), HasSubstr("layers[0].forward_us")) << time;
  }
}

TEST(WorkloadJson, RefusesWhatIsNotJsonWithLineAndColumn) {
  EXPECT_THAT(workload_fault(""), HasSubstr("is empty"));
  EXPECT_THAT(workload_fault(" \n"), HasSubstr("is empty"));
  EXPECT_THAT(workload_fault("{\"version\": 1,\n \"name\" 3}"), HasSubstr("line 2, column 9: is not JSON"));
  EXPECT_THAT(workload_fault(with_layers("") + "x"), HasSubstr("is not JSON"));
  EXPECT_THAT(workload_fault(with_forward("NaN")), HasSubstr("is not JSON"));
  EXPECT_THAT(workload_fault(with_forward("Infinity")), HasSubstr("is not JSON"));
  EXPECT_THAT(workload_fault(with_forward("1e400")), HasSubstr("line 1, column"));
  EXPECT_THAT(workload_fault("{\"name\": \"\xff\xfe\"}"), HasSubstr("UTF-8"));
  EXPECT_THAT(workload_fault(std::string(3, '\0')), HasSubstr("is not JSON"));
  EXPECT_THAT(workload_fault(with_layers("") + '\0'), HasSubstr("a byte of value 0"));
  for (const std::string mark : {"\xff\xfe", "\xfe\xff"})
    EXPECT_THAT(workload_fault(mark + '{' + '\0'), HasSubstr("is UTF-16; save it as UTF-8"));
  EXPECT_THAT(workload_fault(with_layers(R"({"name": "b", "forward_us": 0, "backward_us": 2,
                                             "communication_us": 1, "tensors": []})")),
              AllOf(HasSubstr("layers[0].communication_us"), HasSubstr("no tensors")));
}

TEST(WorkloadJson, MessagesStayShortWhateverTheInput) {
  const std::string huge(2'000'000, 'a');
  const std::vector<std::string> texts = {"{\"version\": 1, \"" + huge + "\": 1}",
                                          "{\"version\": \"" + huge + "\"}",
                                          "{\"" + huge,
                                          "{\"" + huge + "\": 1, \"" + huge + "\": 2}",
                                          "{\"version\": 1" + huge + "}",
                                          "{\"version\": " + std::string(2'000'000, '9') + "}",
                                          "{\"version\": 1, \"layers\": [], \"name\": \"" + huge + "\"}",
                                          "{\"version\": 1, \"blocks\": [], \"links\": [], \"options\": {\"" +
                                              huge + "\": \"\"}, \"period\": []}",
                                          std::string(2'000'000, '['),
                                          with_numel("1, \"dtype\": \"" + huge + "\""),
                                          with_numel("1" + std::string(2'000'000, '0'))};
  for (const std::string& text : texts) {
    EXPECT_NE(workload_fault(text), "accepted");
    EXPECT_NE(cluster_fault(text), "accepted");
    EXPECT_NE(plan_fault(text), "accepted");
  }
}

TEST(WorkloadJson, RefusesDeepNesting) {
  EXPECT_THAT(workload_fault(std::string(100'000, '[')), HasSubstr("nested more than 32 deep"));
  EXPECT_THAT(workload_fault("{\"a\": " + std::string(100'000, '[')), HasSubstr("a[0][0]"));
}

TEST(ClusterJson, ReadsRatesExactlyAndDefaults) {
  const Cluster cluster = parse_cluster(with_rate("0.0008"));
  EXPECT_EQ(cluster.workers_per_node, 1);
  EXPECT_EQ(cluster.startup_growth, StartupGrowth::kLinear);
  EXPECT_EQ(cluster.links[0], (Link{.name = "n",
                                    .startup_ns = 1000,
                                    .us_per_byte = {8, 4},
                                    .concurrency = 1,
                                    .relative_time = {1, 0}}));
  const auto rate = [](const std::string& text) {
    return parse_cluster(with_rate(text)).links[0].us_per_byte;
  };
  EXPECT_EQ(rate("0"), (Decimal{0, 0}));
  EXPECT_EQ(rate("1e2"), (Decimal{100, 0}));
  EXPECT_EQ(rate("1.250"), (Decimal{125, 2}));
  EXPECT_EQ(rate("123456789012345.678"), (Decimal{123456789012345678, 3}));
  EXPECT_EQ(rate("8E-4"), (Decimal{8, 4}));
  EXPECT_EQ(rate("0.1000000000000000055511151231257827"), (Decimal{1, 1}));  // beyond 18 digits: as a double
}

TEST(ClusterJson, RoundTripsEveryField) {
  const Cluster cluster{
      .workers = 8,
      .workers_per_node = 4,
      .startup_growth = StartupGrowth::kLog,
      .description = "two \"quoted\"\n lines",
      .source = "measured",
      .links = {{.name = "a", .startup_ns = 1, .us_per_byte = {123456789012345678, 30}, .concurrency = 0},
                {.name = "b", .us_per_byte = {0, 0}, .concurrency = 3, .relative_time = {165, 2}}},
      .compressor_rates = {{"fp16", {{1, 4}, {2, 40}}}}};
  EXPECT_EQ(parse_cluster(to_json(cluster)), cluster);
  EXPECT_EQ(to_json(parse_cluster(to_json(cluster))), to_json(cluster));
}

TEST(ClusterJson, NamesTheKeyOfEveryFault) {
  EXPECT_THAT(cluster_fault(R"({"version": 1, "workers": 2, "links": []})"),
              HasSubstr("links: must have at least one link"));
  EXPECT_THAT(cluster_fault(R"({"version": 1, "workers": 0, "links": []})"),
              HasSubstr("workers: is out of range"));
  EXPECT_THAT(cluster_fault(R"({"version": 1, "workers": 2, "startup_growth": "log2", "links": []})"),
              AllOf(HasSubstr("startup_growth: is 'log2'"), HasSubstr("did you mean 'log'?")));
  for (const char* rate : {"-1", "\"1\"", "1e300", "1e-60", "null"}) {
    EXPECT_THAT(cluster_fault(with_rate(rate)), HasSubstr("links[0].us_per_byte")) << rate;
  }
  EXPECT_THAT(cluster_fault(with_rate("1, \"concurrency\": -1")), HasSubstr("links[0].concurrency"));
  EXPECT_THAT(cluster_fault(with_rate("1, \"relative_time\": 0")), HasSubstr("links[0].relative_time"));
}

Plan full_plan() {
  Plan plan{.scheme = "hand",
            .options = {{"period", "2"}},
            .workload_hash = "aa",
            .cluster_hash = "bb",
            .workers = 4};
  plan.blocks = {{"a", 0, 3}, {"a", 3, 7}, {"b", 0, 5}};
  plan.links = {{"fast", 1}, {"slow", 0}};
  plan.merge = Merge::kMean;
  plan.residual = {.enabled = true, .initial = 0.1, .step = 0.25, .cap = 1, .every = 50};
  plan.outer = {.momentum = 0.9, .learning_rate = 0.7};
  Iteration iteration;
  iteration.ops = {{.link = "fast",
                    .blocks = {0, 1},
                    .merges = {-1, 0},
                    .release = {{PointKind::kBackwardEnd, 3, -1}, 1500}},
                   {.link = "slow",
                    .collective = Collective::kReduceScatter,
                    .payload = Payload::kParameter,
                    .blocks = {2},
                    .merges = {0},
                    .release = {{PointKind::kIterationEnd}}},
                   {.link = "slow",
                    .collective = Collective::kCompressed,
                    .blocks = {2},
                    .merges = {0},
                    .compression = {"topk", {{"density", 0.01}}}}};
  iteration.applies = {
      {.at = {PointKind::kForwardStart, 2},
       .blocks = {0},
       .merges = {-1},
       .source = Source::kAveragedParameter,
       .mode = Mode::kCorrect,
       .slices = true},
      {.at = {PointKind::kIterationEnd}, .blocks = {1}, .merges = {0}, .correction = Correction::kLocal}};
  iteration.dropped = {2};
  plan.prologue = {Iteration{}};
  plan.period = {iteration, Iteration{}};
  const PlanSummary other{"dear", {{"buffer_bytes", "1"}}, 1234.000001, {Effect::kDelayed}};
  plan.search_report = SearchReport{.chosen = {"ddp", {}, 12.5, {Effect::kExact, Effect::kCompressed}},
                                    .lower_bound_us = 0.1,
                                    .proof = "search of \"2\" nodes",
                                    .optimum = true,
                                    .reason = "none is faster",
                                    .runner_up = other,
                                    .if_corrected = PlanSummary{}};
  return plan;
}

TEST(PlanJson, RoundTripsEveryField) {
  const Plan plan = full_plan();
  EXPECT_EQ(parse_plan(to_json(plan)), plan);
  EXPECT_EQ(to_json(parse_plan(to_json(plan))), to_json(plan));
  EXPECT_EQ(parse_plan(to_json(Plan{})), Plan{});
}

TEST(PlanJson, AcceptsWhatOnlyTheValidatorCanJudge) {
  Plan plan = full_plan();
  plan.blocks[0] = {"unknown", -7, INT64_MIN};
  plan.period[0].ops[0].blocks = {99, -1};
  plan.period[0].ops[0].merges = {5, 5, 1};
  plan.period[0].ops[0].link = "";
  plan.period[0].ops[0].release = {{PointKind::kForwardStart, -4, 9}, -1};
  plan.period[0].applies[0].at = {PointKind::kBackwardStart, 0, 3};
  EXPECT_EQ(parse_plan(to_json(plan)), plan);
}

TEST(PlanJson, NamesTheKeyOfEveryFault) {
  const std::string text = to_json(full_plan());
  const auto changed = [&text](std::string_view from, std::string_view to) {
    std::string other = text;
    const std::size_t at = other.find(from);
    if (at == std::string::npos) return "no " + std::string(from);
    return plan_fault(other.replace(at, from.size(), to));
  };
  EXPECT_THAT(changed("\"collective\": \"reduce_scatter\"", "\"collective\": \"reduce_scater\""),
              AllOf(HasSubstr("period[0].ops[1].collective: is 'reduce_scater'"),
                    HasSubstr("did you mean 'reduce_scatter'?")));
  EXPECT_THAT(changed("\"blocks\": [2]", "\"blocks\": [2147483648]"),
              HasSubstr("period[0].ops[1].blocks[0]: is out of range"));
  EXPECT_THAT(changed("\"layer\": 3, ", ""), HasSubstr("period[0].ops[0].release.layer: is missing"));
  EXPECT_THAT(changed("\"payload\": \"parameter\"", "\"payload\": \"optimizer_state\""),
              AllOf(HasSubstr("period[0].ops[1].payload: is 'optimizer_state'"),
                    HasSubstr("use one of gradient, parameter")));
  EXPECT_THAT(changed("\"merge\": \"mean\"", "\"merge\": \"median\""), HasSubstr("merge: is 'median'"));
  EXPECT_THAT(changed("\"every\": 50", "\"every\": 0"), HasSubstr("residual.every: is out of range"));
  EXPECT_THAT(
      changed("\"link\": \"fast\"", "\"links\": \"fast\""),
      AllOf(HasSubstr("period[0].ops[0].links: is an unknown key"), HasSubstr("did you mean 'link'?")));
  EXPECT_THAT(changed("\"applies\": []", "\"applies\": {}"),
              HasSubstr("prologue[0].applies: is an object; give an array"));
}

TEST(TimelineJson, RoundTripsEveryField) {
  const Timeline timeline{
      .name = "ddp",
      .origin = "simulated",
      .links = {"a", "b"},
      .spans = {{.kind = SpanKind::kForward, .layer = 0, .begin_ns = -5, .end_ns = 1234, .label = "conv\t1"},
                {.kind = SpanKind::kOp, .track = 2, .iteration = 3, .op = 1, .end_ns = 7, .bytes = 8},
                {.kind = SpanKind::kWait, .op = 4, .op_link = 1, .ended = false, .reason = "waits for op 4"}},
      .stop = Stop{.rank = 1,
                   .ranks = 3,
                   .doing = "training iteration 3",
                   .verdict = "op 'x' failed\nafter 3 s",
                   .heard = {{.rank = 0, .doing = "in finish()", .ops = 7, .ago_ns = 1500}, {.rank = 2}}}};
  EXPECT_EQ(parse_timeline(to_json(timeline)), timeline);
  EXPECT_EQ(parse_timeline(to_json(Timeline{})), Timeline{});
}

TEST(Microseconds, AreExact) {
  EXPECT_EQ(microseconds(0), "0");
  EXPECT_EQ(microseconds(1), "0.001");
  EXPECT_EQ(microseconds(12345), "12.345");
  EXPECT_EQ(microseconds(12500), "12.5");
  EXPECT_EQ(microseconds(100'000), "100");
  EXPECT_EQ(microseconds(-1500), "-1.5");
  EXPECT_EQ(microseconds(INT64_MIN), "-9223372036854775.808");
}

TEST(ClusterJson, KeepsTheRangeThatALinkWasMeasuredIn) {
  const auto with = [](const std::string& range) {
    return R"({"version": 1, "workers": 2, "links": [{"name": "n", "startup_us": 1, "us_per_byte": 0.5)" +
           range + "}]}";
  };
  const Cluster cluster = parse_cluster(with(R"(, "measured_bytes": [8, 4096])"));
  EXPECT_EQ(cluster.links[0].measured, (MeasuredBytes{8, 4096}));
  EXPECT_EQ(parse_cluster(to_json(cluster)), cluster);
  EXPECT_EQ(hash_of(cluster), hash_of(parse_cluster(with(""))));
  for (const char* range : {"[8]", "[9, 8]", "[-1, 8]", "8"})
    EXPECT_THAT(cluster_fault(with(std::string(R"(, "measured_bytes": )") + range)),
                HasSubstr("measured_bytes"))
        << range;
}

TEST(LinkMeasurementsJson, ReadsLinksAndCollectives) {
  const std::string text =
      R"({"version": 1, "workers": 4, "startup_growth": "log", "links": [{"name": "n", "concurrency": 2,
    "measurements": [{"bytes": 8, "us": 1.5}, {"bytes": 16, "us": 2, "collective": "all_gather"},
                     {"bytes": 32, "us": 3, "collective": "reduce_scatter"}]}]})";
  EXPECT_EQ(parse_link_measurements(text), (ClusterMeasurements{.workers = 4,
                                                                .startup_growth = StartupGrowth::kLog,
                                                                .links = {{.name = "n",
                                                                           .concurrency = 2,
                                                                           .all_reduce = {{8, 1.5}},
                                                                           .reduce_scatter = {{32, 3}},
                                                                           .all_gather = {{16, 2}}}}}));
  const auto fault = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    changed.replace(changed.find(from), from.size(), to);
    return message_of(parse_link_measurements, changed);
  };
  EXPECT_THAT(fault("1.5", "0"), HasSubstr("links[0].measurements[0].us: is not positive"));
  EXPECT_THAT(fault("all_gather", "gather"), HasSubstr("links[0].measurements[1].collective"));
  EXPECT_THAT(fault("\"bytes\": 8", "\"bytes\": -8"), HasSubstr("links[0].measurements[0].bytes"));
  EXPECT_THAT(fault("\"workers\": 4, ", ""), HasSubstr("workers: is missing"));
}

}  // namespace
}  // namespace gradweave
