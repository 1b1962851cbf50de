#include "gradweave/fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "gradweave/error.h"

namespace gradweave {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

double objective(const std::vector<Measurement>& measurements, double startup, double rate) {
  double sum = 0;
  for (const Measurement& m : measurements) {
    const double error = (startup + static_cast<double>(m.bytes) * rate - m.us) / m.us;
    const double size = std::abs(error);
    sum += size <= 0.05 ? size * size : 2 * 0.05 * size - 0.05 * 0.05;
  }
  return sum;
}

TEST(FitLink, FindsTheLineOfExactMeasurements) {
  const std::vector<Measurement> exact = {
      {4096, 120 + 4096 * 0.02}, {65536, 120 + 65536 * 0.02}, {4194304, 120 + 4194304 * 0.02}};
  const LinkFit fit = fit_link(exact);
  EXPECT_NEAR(fit.startup_us, 120, 1e-6);
  EXPECT_NEAR(fit.us_per_byte, 0.02, 1e-10);
  EXPECT_LT(fit.residual, 1e-8);
}

TEST(FitLink, NamesTheWorstMeasurement) {
  const LinkFit fit =
      fit_link(std::vector<Measurement>{{1000, 110}, {2000, 120}, {4000, 140}, {8000, 90}, {100000, 1100}});
  EXPECT_EQ(fit.worst_bytes, 8000);
  EXPECT_GT(fit.worst, 0.4);
  EXPECT_GE(std::abs(fit.worst), fit.residual);
}

TEST(FitLink, StaysPositiveWhereTheFreeLineIsNot) {
  const LinkFit no_startup = fit_link(std::vector<Measurement>{{1000, 5}, {2000, 30}, {4000, 80}});
  EXPECT_EQ(no_startup.startup_us, 0);
  EXPECT_GT(no_startup.us_per_byte, 0);
  const LinkFit no_rate = fit_link(std::vector<Measurement>{{1000, 30}, {2000, 20}, {4000, 10}});
  EXPECT_EQ(no_rate.us_per_byte, 0);
  EXPECT_GT(no_rate.startup_us, 10);
}

TEST(FitLink, RefusesWhatIsNoMeasurement) {
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_THROW(fit_link({}), InvalidInput);
  EXPECT_THROW(fit_link(std::vector<Measurement>{{8, 1}}), InvalidInput);
  EXPECT_THROW(fit_link(std::vector<Measurement>{{8, 1}, {8, 2}}), InvalidInput);
  EXPECT_THROW(fit_link(std::vector<Measurement>{{-8, 1}, {8, 2}}), InvalidInput);
  for (const double time : {0.0, -1.0, infinity, std::nan("")}) {
    try {
      fit_link(std::vector<Measurement>{{8, 1}, {16, time}});
      FAIL() << time;
    } catch (const InvalidInput& error) {
      EXPECT_EQ(error.where(), "measurements[1].us");
    }
  }
}

TEST(FitLink, IsNotTurnedByDisturbedMeasurements) {
  std::vector<Measurement> measured;
  for (const std::int64_t bytes : {8192, 65536, 262144, 524288, 1048576, 2097152, 4194304, 8388608})
    measured.push_back({bytes, 700 + static_cast<double>(bytes) * 0.0225});
  measured[0].us += 4000, measured[3].us += 3000;
  const LinkFit fit = fit_link(measured);
  EXPECT_NEAR(fit.us_per_byte, 0.0225, 0.01 * 0.0225);
  EXPECT_NEAR(fit.startup_us, 700, 100);
  EXPECT_GT(fit.residual, 0.1);
}

ClusterMeasurements measured_links() {
  const auto line = [](double startup, double rate) {
    std::vector<Measurement> measured;
    for (const std::int64_t bytes : {8192, 131072, 2097152, 33554432})
      measured.push_back({bytes, startup + rate * static_cast<double>(bytes)});
    return measured;
  };
  return {.workers = 4,
          .links = {{.name = "fast",
                     .all_reduce = line(60, 5e-4),
                     .reduce_scatter = line(20, 2e-4),
                     .all_gather = line(30, 3e-4)},
                    {.name = "slow", .concurrency = 0, .all_reduce = line(100, 2e-3)}}};
}

TEST(FitCluster, GivesEachLinkItsLines) {
  const ClusterFit fit = fit_cluster(measured_links());
  ASSERT_EQ(fit.cluster.links.size(), 2U);
  EXPECT_EQ(fit.cluster.workers, 4);
  EXPECT_EQ(fit.cluster.links[0].startup_ns, 60'000);
  ASSERT_TRUE(fit.cluster.links[0].halves);
  EXPECT_EQ(fit.cluster.links[0].halves->all_gather.startup_ns, 30'000);
  EXPECT_NEAR(to_double(fit.cluster.links[0].halves->reduce_scatter.us_per_byte), 2e-4, 1e-10);
  EXPECT_FALSE(fit.cluster.links[1].halves);
  EXPECT_EQ(fit.cluster.links[1].concurrency, 0);
  ASSERT_EQ(fit.lines.size(), 4U);
  EXPECT_EQ(fit.lines[2].collective, Collective::kAllGather);
  EXPECT_EQ(fit.lines[3].link, "slow");
  EXPECT_EQ(fit.lines[3].smallest, 8192);
  EXPECT_EQ(fit.lines[3].largest, 33554432);
  for (const FittedLine& line : fit.lines) EXPECT_TRUE(line.doubts.empty()) << line.doubts.front();
}

TEST(FitCluster, SaysWhatTheMeasurementsDoNotShow) {
  const auto doubts = [](std::vector<Measurement> measured) {
    return fit_cluster({.links = {{.name = "n", .all_reduce = std::move(measured)}}}).lines[0].doubts;
  };
  EXPECT_THAT(doubts({{100000, 60}, {200000, 110}}), ElementsAre(HasSubstr("measure smaller ones")));
  EXPECT_THAT(doubts({{100, 60.05}, {200, 60.1}}), ElementsAre(HasSubstr("measure larger ones")));
  EXPECT_THAT(doubts({{1000, 100}, {2000, 30}, {100000, 400}, {100000, 900}}),
              Contains(HasSubstr("no straight line")));
}

TEST(FitCluster, NamesTheLinkThatCannotBeFitted) {
  const auto where = [](const ClusterMeasurements& measured) -> std::string {
    try {
      fit_cluster(measured);
    } catch (const InvalidInput& error) {
      return error.where();
    }
    return "fitted";
  };
  ClusterMeasurements measured = measured_links();
  measured.links[1].all_reduce.resize(1);
  EXPECT_EQ(where(measured), "links[1], all_reduce: measurements");
  measured = measured_links();
  measured.links[0].all_gather.clear();
  EXPECT_EQ(where(measured), "links[0]");
  measured = measured_links();
  measured.links[1].name = "fast";
  EXPECT_EQ(where(measured), "links[1].name");
  EXPECT_EQ(where({}), "links");
}

TEST(Burst, IsWhatMessagesAreShorterAfterAPause) {
  const std::vector<double> following{11, 12, 11.5, 11.2, 30, 11.4, 11.3, 11.1};  // their median is 11.35
  EXPECT_NEAR(burst_of({8, 8.2, 9, 8.1, 25}, following), 3.15, 1e-9);
}

TEST(Burst, IsNoneWhereMessagesScatterAsMuch) {
  const std::vector<double> following{11, 12, 11.5, 11.2, 30, 11.4, 11.3, 11.1};
  EXPECT_EQ(burst_of({11, 12, 11.4, 11.1, 11.3}, following), 0);
  EXPECT_EQ(burst_of({8, 8.2, 12, 11.9, 25}, following), 0);          // only two of five are shorter
  EXPECT_EQ(burst_of({10.9, 10.8, 10.7, 10.6, 10.5}, following), 0);  // less than a tenth
  EXPECT_EQ(burst_of({15, 14, 16, 18, 15}, following), 0);            // an idle connection starts slowly
}

RC_GTEST_PROP(Burst, ItsTrainsLieOnTheLineOfALinkWithoutOne, ()) {
  const double startup = *rc::gen::inRange(10, 3000), rate = *rc::gen::inRange(1, 1000) / 1e4;
  const double burst = *rc::gen::inRange(0, 6000);
  LinkMeasurements measured{.name = "net"};
  for (const std::int64_t bytes : {8L, 1L << 16, 1L << 19, 1L << 22, 1L << 36}) {
    const double sending = static_cast<double>(bytes) * rate;
    measured.all_reduce.push_back({bytes, startup + std::max(0.0, sending - std::min(burst, startup))});
  }
  measured.all_gather = measured.all_reduce;
  const LinkMeasurements found = without_burst(measured, burst);
  RC_ASSERT(found.all_gather == found.all_reduce && found.reduce_scatter.empty());
  for (const Measurement& each : found.all_reduce) {
    const double line = startup + static_cast<double>(each.bytes) * rate;
    RC_ASSERT(std::abs(each.us - line) < 1e-3 * line);
  }
}

// No nearby line, and no line on a coarse grid, has a smaller sum.
RC_GTEST_PROP(FitLink, NoOtherLineIsBetter, ()) {
  const auto size = *rc::gen::inRange<std::size_t>(2, 9);
  std::vector<Measurement> measured;
  for (std::size_t i = 0; i < size; ++i) {
    measured.push_back({*rc::gen::inRange<std::int64_t>(0, 1 << 24), *rc::gen::inRange(1, 1'000'000) / 7.0});
  }
  measured[0].bytes = 1 + measured[1].bytes;
  const LinkFit fit = fit_link(measured);
  RC_ASSERT(fit.startup_us >= 0 && fit.us_per_byte >= 0);
  const double best = objective(measured, fit.startup_us, fit.us_per_byte);
  const double tolerance = 1e-6 * (1 + best);
  for (const double a : {0.0, 0.5, 0.999, 1.001, 2.0}) {
    for (const double b : {0.0, 0.5, 0.999, 1.001, 2.0}) {
      RC_ASSERT(objective(measured, fit.startup_us * a, fit.us_per_byte * b) >= best - tolerance);
      RC_ASSERT(objective(measured, fit.startup_us + a, fit.us_per_byte * b) >= best - tolerance);
      RC_ASSERT(objective(measured, fit.startup_us * a, fit.us_per_byte + b * 1e-3) >= best - tolerance);
    }
  }
}

}  // namespace
}  // namespace gradweave
