#include "gradweave/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gradweave/compression.h"
#include "gradweave/error.h"
#include "gradweave/schemes.h"
#include "schemes/compressed.h"

namespace gradweave {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(SchemeOptions, AreReadFromTextAndWrittenAsPeopleWriteThem) {
  const SchemeOptions options =
      parse_options("horovod", {{"fusion_bytes", "25MB"}, {"cycle_us", "1.50ms"}, {"compressor", "fp16"}});
  EXPECT_EQ(std::get<std::int64_t>(*options.find("fusion_bytes")), 25'000'000);
  EXPECT_EQ(std::get<double>(*options.find("cycle_us")), 1500);
  EXPECT_EQ(std::get<std::string>(*options.find("compressor")), "fp16");
  EXPECT_EQ(options.find("compressor_density"), nullptr);
  EXPECT_EQ(options.written(),
            (std::map<std::string, std::string>{
                {"fusion_bytes", "25000000"}, {"cycle_us", "1500"}, {"compressor", "fp16"}}));
  EXPECT_EQ(parse_options("horovod", options.written()), options);
}

TEST(SchemeOptions, RefuseWhatTheSchemeDoesNotHave) {
  SchemeOptions options = options_of("ddp");
  EXPECT_THAT([&] { options.set("buffer_bytes", std::int64_t{1}); },
              ThrowsMessage<InvalidInput>(HasSubstr("bucket_cap_bytes")));
  EXPECT_THAT([&] { options.set("bucket_cap_bytes", std::int64_t{0}); },
              ThrowsMessage<InvalidInput>(HasSubstr("option bucket_cap_bytes of ddp")));
  EXPECT_THROW(options.set("bucket_cap_bytes", 1.5), InvalidInput);
  EXPECT_THROW(options.set("compressor", std::string("zip")), InvalidInput);
  EXPECT_THROW(options.parse("bucket_cap_bytes", "1.5"), InvalidInput);
  EXPECT_TRUE(options.empty());
}

// What is written as a default is what the planner has without the option.
TEST(SchemeOptions, DefaultsAreThoseOfTheTable) {
  const Workload workload{
      .name = "w",
      .layers = {{"a", 100'000, 200'000, std::nullopt, {{"a.w", 300'000}}},
                 {"b", 100'000, 200'000, std::nullopt, {{"b.w", 2'000'000}, {"b.b", 1000}}}}};
  const Cluster cluster{.workers = 4, .links = {{"net", 20'000, {1, 4}, 1, {1, 0}}}};
  for (const SchemeInfo& scheme : schemes()) {
    const PlanResult without = make_plan(workload, cluster, options_of(scheme.name));
    for (const OptionSpec& spec : scheme.options) {
      if (spec.default_value.empty()) continue;
      SchemeOptions with = options_of(scheme.name);
      with.parse(spec.name, spec.default_value);
      PlanResult result = make_plan(workload, cluster, with);
      const Plan* plan = std::get_if<Plan>(&without);
      ASSERT_EQ(plan != nullptr, std::holds_alternative<Plan>(result)) << scheme.name << " " << spec.name;
      if (plan == nullptr) continue;
      std::get<Plan>(result).options = plan->options;
      EXPECT_EQ(std::get<Plan>(result), *plan) << scheme.name << " " << spec.name;
    }
  }
}

// A compressor's parameters are written down in its own file alone; these are their options.
TEST(SchemeOptions, HaveEveryParameterOfEveryCompressor) {
  for (const SchemeInfo& scheme : schemes()) {
    for (const CompressorInfo& info : compressors()) {
      if (info.cost_of(scheme.payload) == nullptr) continue;
      SchemeOptions options = options_of(scheme.name);
      options.set("compressor", std::string(info.name));
      Compression expected{.name = std::string(info.name), .parameters = {}};
      for (const CompressorParameter& parameter : info.parameters) {
        const std::string name = "compressor_" + std::string(parameter.name);
        ASSERT_NE(options.spec(name), nullptr) << name;
        EXPECT_THAT(options.spec(name)->default_source, HasSubstr(std::string(info.name)));
        EXPECT_THAT(options.spec(name)->meaning, HasSubstr(std::string(parameter.meaning)));
        for (const double value : {parameter.minimum, parameter.maximum})
          EXPECT_NO_THROW(options.parse(name, to_string(OptionValue(value)))) << name;
        expected.parameters[std::string(parameter.name)] = parameter.maximum;
      }
      EXPECT_EQ(compression_of(options), expected) << info.name;
      SchemeOptions again = options_of(scheme.name);
      set_compression(again, expected);
      EXPECT_EQ(again, options) << info.name;
    }
  }
}

TEST(SchemeOptions, AParameterBelongsToItsCompressor) {
  EXPECT_THAT(
      [] {
        parse_options("ddp", {{"compressor", "fp16"}, {"compressor_rank", "2"}});
      },
      ThrowsMessage<InvalidInput>(HasSubstr("compressor 'fp16' has no rank")));
  EXPECT_THAT(
      [] {
        parse_options("ddp", {{"compressor_density", "0.5"}});
      },
      ThrowsMessage<InvalidInput>(HasSubstr("compressor 'none' has no density")));
}

TEST(CommonOptions, GiveEachSchemeWhatItHas) {
  const CommonOptions options(
      std::map<std::string, std::string>{{"bucket_cap_bytes", "1MB"}, {"compressor", "fp16"}});
  EXPECT_EQ(std::get<SchemeOptions>(options.of("ddp")).written(),
            (std::map<std::string, std::string>{{"bucket_cap_bytes", "1000000"}, {"compressor", "fp16"}}));
  EXPECT_EQ(std::get<SchemeOptions>(options.of("dear")).written(),
            (std::map<std::string, std::string>{{"compressor", "fp16"}}));
  EXPECT_THAT(std::get<Infeasible>(options.of("local_sgd")).reason, HasSubstr("'fp16'"));
  EXPECT_EQ(std::get<SchemeOptions>(options.without_compressor().of("local_sgd")), options_of("local_sgd"));
  const CommonOptions unknown(std::map<std::string, std::string>{{"compressor", "zip"}});
  EXPECT_THROW(unknown.of("ddp"), InvalidInput);
}

}  // namespace
}  // namespace gradweave
