// The page's contents are what the simulator says, whatever the names.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gradweave/error.h"
#include "gradweave/report.h"
#include "gradweave/schemes.h"

namespace gradweave {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Workload workload() {
  return {.name = "two",
          .layers = {
              {.name = "a", .forward_ns = 100'000, .backward_ns = 200'000, .tensors = {{"a.w", 100'000}}},
              {.name = "b", .forward_ns = 100'000, .backward_ns = 200'000, .tensors = {{"b.w", 300'000}}}}};
}

Cluster cluster() {
  return {.workers = 4, .links = {{.name = "net", .startup_ns = 50'000, .us_per_byte = {1, 3}}}};
}

ReportInput input(const std::vector<std::string>& texts = {"ddp", "wfbp", "delayed_averaging"}) {
  std::vector<Method> methods;
  std::ranges::transform(texts, std::back_inserter(methods), parse_method);
  return {.classes = {workload()}, .cluster = cluster(), .methods = std::move(methods)};
}

nlohmann::json data_of(const std::string& page) {
  const std::string begin = "id=\"data\">", end = "</script>";
  const std::size_t from = page.find(begin) + begin.size();
  return nlohmann::json::parse(page.substr(from, page.find(end, from) - from));
}

std::size_t count(std::string_view text, std::string_view part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(Page, RowsAreThoseOfTheSimulator) {
  const nlohmann::json data = data_of(report_page(input()));
  ASSERT_EQ(data["rows"].size(), 3U);
  for (const nlohmann::json& row : data["rows"]) {
    const auto plan = std::get<Plan>(make_plan(row["name"].get<std::string>(), workload(), cluster()));
    const SimulationResult result = simulate(plan, workload(), cluster(), {.timeline_iterations = 4});
    EXPECT_EQ(row["iteration_us"], result.iteration_ns() / 1000);
    EXPECT_EQ(row["effect"], name_of(effects_of(plan).front()));
    EXPECT_EQ(row["timeline"]["spans"].size(), result.timeline.spans.size());
    EXPECT_FALSE(row["given"]);
  }
}

TEST(Page, ABaselineGoesThroughNoCompressor) {
  ReportInput compressed = input({"ddp", "dear"});
  compressed.options = CommonOptions(std::map<std::string, std::string>{{"compressor", "fp16"}});
  const nlohmann::json data = data_of(report_page(compressed)), plain = data_of(report_page(input({"ddp"})));
  std::vector<std::string> names;
  for (const nlohmann::json& row : data["rows"]) names.push_back(row["name"]);
  EXPECT_EQ(names, (std::vector<std::string>{"ddp", "ddp +fp16", "dear"}));
  EXPECT_EQ(data["baseline"], "ddp");
  EXPECT_EQ(data["rows"][0], plain["rows"][0]);
  EXPECT_EQ(data["grid"]["iteration_us"][0], plain["grid"]["iteration_us"][0]);
  for (const std::size_t row : {1, 2}) {
    EXPECT_EQ(data["rows"][row]["effect"], "compressed");
    EXPECT_FALSE(data["rows"][row]["given"]);
  }
  EXPECT_LT(data["rows"][1]["iteration_us"], data["rows"][0]["iteration_us"]);
}

TEST(Page, TheGridHoldsTheClusterAsGivenAndWhatIfs) {
  ReportInput what_if = input();
  what_if.workers = {2, 4, 8};
  what_if.gigabits = {1, 100};
  what_if.startup_us = {0, 200};
  const nlohmann::json data = data_of(report_page(what_if));
  const nlohmann::json& grid = data["grid"];
  EXPECT_EQ(grid["workers"], nlohmann::json({2, 4, 8}));
  EXPECT_EQ(grid["gigabits"], nlohmann::json({1.0, 12.0, 100.0}));  // 2 * 3/4 * 8 bits in 1 ns
  EXPECT_EQ(grid["startup_us"], nlohmann::json({0.0, 50.0, 200.0}));
  EXPECT_EQ(grid["here"], nlohmann::json({1, 1, 1}));
  const auto at = [&](std::size_t row, std::size_t w, std::size_t b, std::size_t s) {
    return grid["iteration_us"][row][(w * 3 + b) * 3 + s].get<double>();
  };
  for (std::size_t row = 0; row < 3; ++row)
    EXPECT_NEAR(at(row, 1, 1, 1), data["rows"][row]["iteration_us"].get<double>(), 0.01);
  const Cluster eight = scaled_to(with_bandwidth(cluster(), 1), 8);
  const auto plan = std::get<Plan>(make_plan("wfbp", workload(), eight));
  EXPECT_NEAR(at(1, 2, 0, 1), simulate(plan, workload(), eight).iteration_ns() / 1000, 0.1);
  Cluster at_once = cluster();
  at_once.links[0].startup_ns = 0;
  EXPECT_NEAR(
      at(1, 1, 1, 0),
      simulate(std::get<Plan>(make_plan("wfbp", workload(), at_once)), workload(), at_once).iteration_ns() /
          1000,
      0.01);
}

TEST(Page, NamesCannotLeaveTheirPlace) {
  const std::string evil = "</script><script>alert(1)</script><!--<img src=x onerror=alert(2)>\xff \"&'";
  ReportInput odd = input({"wfbp"});
  odd.classes[0].name = odd.classes[0].layers[0].name = odd.classes[0].layers[1].tensors[0].name = evil;
  odd.cluster->links[0].name = evil;
  odd.timelines = {
      {.name = evil, .origin = evil, .links = {evil}, .spans = {{.layer = 0, .end_ns = 5, .label = evil}}}};
  const std::string page = report_page(odd);
  EXPECT_EQ(count(page, "</script>"), 2U);
  EXPECT_EQ(count(page, "<script"), 2U);
  EXPECT_EQ(count(page, "<!--"), 0U);
  EXPECT_EQ(count(page, "<img"), 0U);
  EXPECT_THAT(data_of(page)["layers"][0].get<std::string>(), HasSubstr("</script><script>alert(1)</script>"));
}

TEST(Page, LoadsNothingAndIsTheSameEachTime) {
  const std::string page = report_page(input());
  EXPECT_EQ(page, report_page(input()));
  for (const char* part : {"src=", "href=", "@import", "url(", "fetch(", "XMLHttpRequest"})
    EXPECT_EQ(count(page, part), 0U) << part;
  EXPECT_EQ(count(page, "://"), 1U);  // the name of SVG's elements
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
  EXPECT_THAT(page, Not(HasSubstr("/*script*/")));
}

TEST(Page, GivenPlansAndTimelinesStandBesideSchemes) {
  ReportInput all = input({"ddp"});
  all.plans = {{"mine.json", std::get<Plan>(make_plan("wfbp", workload(), cluster()))}};
  all.timelines = {simulate(all.plans[0].plan, workload(), cluster(), {.timeline_iterations = 3}).timeline};
  all.timelines[0].origin = "measured";
  const nlohmann::json rows = data_of(report_page(all))["rows"];
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows[1]["name"], "mine.json");
  EXPECT_TRUE(rows[1]["given"]);
  EXPECT_EQ(rows[2]["origin"], "measured");
  EXPECT_NEAR(rows[2]["iteration_us"].get<double>(), rows[1]["iteration_us"].get<double>(), 0.01);
}

TEST(Page, SaysWhatElseWasMeasured) {
  ReportInput told = input({"wfbp"});
  EXPECT_TRUE(data_of(report_page(told))["measured"].empty());
  told.measured = {"link net: ops take 1.50 times what was predicted"};
  EXPECT_EQ(data_of(report_page(told))["measured"], nlohmann::json(told.measured));
}

TEST(Page, TimelinesAloneMakeAPage) {
  const auto plan = std::get<Plan>(make_plan("wfbp", workload(), cluster()));
  const nlohmann::json data = data_of(report_page(
      {.timelines = {simulate(plan, workload(), cluster(), {.timeline_iterations = 3}).timeline}}));
  EXPECT_EQ(data["rows"].size(), 1U);
  EXPECT_EQ(data["layers"], nlohmann::json({"a", "b"}));
  EXPECT_FALSE(data.contains("grid"));
}

TEST(Page, NothingToShowIsAnError) {
  EXPECT_THROW(report_page({}), InvalidInput);
  EXPECT_THROW(report_page({.classes = {workload()}}), InvalidInput);
}

TEST(Page, WhereNoClusterCanBeIsNoTime) {
  ReportInput far = input({"wfbp"});
  far.cluster->workers = 5'000'000;
  far.cluster->links[0].us_per_byte = {1, 39};
  const nlohmann::json data = data_of(report_page(far));
  const auto& times = data["grid"]["iteration_us"][0];
  ASSERT_EQ(times.size(), 5U * 7 * 3);
  EXPECT_TRUE(times[0].is_number());
  EXPECT_TRUE(times[20].is_null());     // a rate of more decimals than are kept
  EXPECT_TRUE(times.back().is_null());  // 20,000,000 workers
  EXPECT_GT(data["rows"][0]["iteration_us"], 0);
  far.workers = {20'000'000};
  EXPECT_THROW(report_page(far), InvalidInput);  // asked for
}

TEST(Page, PlansOfVeryManyOpsHaveNoWhatIfAndFewSpans) {
  ReportInput many = input({"wfbp", "p3"});
  many.classes[0].layers[1].tensors[0].numel = 30'000'000;
  many.options = CommonOptions(std::map<std::string, std::string>{{"partition_bytes", "4096"}});
  many.simulation.timeline_iterations = 2;
  const nlohmann::json data = data_of(report_page(many));
  EXPECT_TRUE(data["grid"]["iteration_us"][0][0].is_number());
  for (const auto& time : data["grid"]["iteration_us"][1]) EXPECT_TRUE(time.is_null());
  EXPECT_GT(data["rows"][1]["ops"], 20'000);
  const auto plan =
      std::get<Plan>(make_plan("p3", many.classes[0], *many.cluster, {{"partition_bytes", "4096"}}));
  const Timeline all = simulate(plan, many.classes[0], *many.cluster, many.simulation).timeline;
  const auto& spans = data["rows"][1]["timeline"]["spans"];
  EXPECT_LT(spans.size(), all.spans.size() / 3 * 2);
  std::int64_t drawn = 0, sent = 0;
  for (const auto& span : spans) drawn += span[9].get<std::int64_t>();
  for (const Span& span : all.spans) sent += span.bytes;
  EXPECT_EQ(drawn, sent);
}

TEST(Page, OneWorkerHasNoWhatIf) {
  ReportInput alone = input();
  alone.cluster->workers = 1;
  const nlohmann::json grid = data_of(report_page(alone))["grid"];
  EXPECT_EQ(grid["workers"].size() * grid["gigabits"].size() * grid["startup_us"].size(), 1U);
}

std::string advice(const ReportInput& of) {
  std::string text;
  const nlohmann::json data = data_of(report_page(of));
  for (const nlohmann::json& line : data["advice"]) text += line.get<std::string>() + "\n";
  return text;
}

TEST(Advice, SaysWhatHelpsWhereTheNetworkIsSlow) {
  const std::string text = advice(input());
  EXPECT_THAT(text, HasSubstr("coverage rate 2.75"));  // 50 us + 1.6 MB at 1 ns over 600 us
  EXPECT_THAT(text, HasSubstr("If what is computed may change: delayed_averaging (corrected)"));
  EXPECT_THAT(text, HasSubstr("With 24 Gb/s"));
  EXPECT_THAT(text, HasSubstr("It waits longest"));
}

TEST(Advice, SaysWhereNothingIsToGain) {
  ReportInput fast = input();
  fast.cluster->links[0] = {.name = "net", .startup_ns = 10, .us_per_byte = {1, 7}};
  const std::string text = advice(fast);
  EXPECT_THAT(text, HasSubstr("only faster computation helps"));
  EXPECT_THAT(text, Not(HasSubstr("may change")));
}

TEST(Advice, ComparesMeasuredWithPredicted) {
  ReportInput measured = input({"wfbp"});
  measured.timelines = {simulate(std::get<Plan>(make_plan("wfbp", workload(), cluster())), workload(),
                                 cluster(), {.timeline_iterations = 3})
                            .timeline};
  EXPECT_THAT(advice(measured), HasSubstr("0 % more"));
  EXPECT_THAT(advice(measured), Not(HasSubstr("measure again")));
  for (Span& span : measured.timelines[0].spans) span.begin_ns *= 2, span.end_ns *= 2;
  EXPECT_THAT(advice(measured), HasSubstr("50 % less. The workload, the cluster or the overheads "
                                          "(--optimizer-us, --contention, --burst-us) may not be"));
}

}  // namespace
}  // namespace gradweave
