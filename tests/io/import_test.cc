#include "gradweave/import.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include <zlib.h>

#include <fstream>

#include "gradweave/error.h"
#include "io/import/trace_events.h"

namespace gradweave {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Returns the message of the InvalidInput that `call` throws.
template <typename Call>
std::string fault_of(Call call) {
  try {
    call();
  } catch (const InvalidInput& error) {
    EXPECT_LT(std::string_view(error.what()).size(), 20'000U);
    return error.what();
  }
  return "accepted";
}

// A folder for the test's files.
class Import : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) / ("gradweave-import-" + std::to_string(::getpid()));
    fs::create_directory(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path file(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
    return folder_ / name;
  }

  fs::path zipped(const std::string& name, const std::string& text) const {
    const gzFile out = gzopen((folder_ / name).c_str(), "wb");
    gzwrite(out, text.data(), static_cast<unsigned>(text.size()));
    gzclose(out);
    return folder_ / name;
  }

  std::vector<std::string> names(const std::string& text, TraceSummary* summary = nullptr) const {
    std::vector<std::string> found;
    const TraceSummary read =
        read_trace_events(file("events.json", text), [&](const TraceEvent& e) { found.push_back(e.name); });
    if (summary != nullptr) *summary = read;
    return found;
  }

  fs::path folder_;
};

using TraceEvents = Import;

std::string event(const std::string& name, const std::string& more = "") {
  return R"({"ph": "X", "cat": "cpu_op", "name": ")" + name +
         R"(", "pid": 1, "tid": 2, "ts": 5.5, "dur": 2)" + more + "}";
}

TEST_F(TraceEvents, HaveWhatCounts) {
  const std::string text =
      R"({"schemaVersion": 1, "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 4},
    "traceEvents": [{"ph": "M", "name": "process_name", "args": {"name": "python"}},
    {"ph": "X", "cat": "cpu_op", "name": "a\"b", "pid": 7, "tid": "stream 7", "ts": 4525825531019.477, "dur": 1.25,
     "args": {"External id": 1, "Sequence number": 12, "Fwd thread id": 2, "correlation": 9, "Concrete Inputs": ["[1]"],
              "Input type": ["float", "Scalar"], "Input Dims": [[512, 128], [], [[3]]]}}], "traceName": "x"})";
  std::vector<TraceEvent> events;
  const TraceSummary summary =
      read_trace_events(file("t.json", text), [&](const TraceEvent& e) { events.push_back(e); });
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].name, "a\"b");
  EXPECT_EQ(events[0].category, "cpu_op");
  EXPECT_EQ(events[0].process, 7);
  EXPECT_EQ(events[0].begin, 4525825531019477);
  EXPECT_EQ(events[0].end, 4525825531019477 + 1250);
  EXPECT_EQ(events[0].sequence_number, 12);
  EXPECT_EQ(events[0].forward_thread, 2);
  EXPECT_EQ(events[0].correlation, 9);
  EXPECT_EQ(events[0].numel, 512 * 128);
  EXPECT_EQ(events[0].dtype, "float");
  EXPECT_EQ(summary.rank, 3);
  EXPECT_EQ(summary.damaged, 0);
  EXPECT_FALSE(summary.truncated);
}

TEST_F(TraceEvents, DimensionsOfTheFirstInputOnly) {
  const auto numel = [&](const std::string& dims) {
    std::optional<std::int64_t> found;
    read_trace_events(file("d.json", "[" + event("e", R"(, "args": {"Input Dims": )" + dims + "}") + "]"),
                      [&](const TraceEvent& e) { found = e.numel; });
    return found;
  };
  EXPECT_EQ(numel("[[2,3],[4]]"), 6);
  EXPECT_EQ(numel("[[]]"), 1);
  EXPECT_EQ(numel("[[0, 5]]"), 0);
  EXPECT_EQ(numel("[]"), std::nullopt);
  EXPECT_EQ(numel("[[[2], [3]], [4]]"), std::nullopt);
  EXPECT_EQ(numel("[[4294967296, 4294967296]]"), std::nullopt);
  EXPECT_EQ(numel("null"), std::nullopt);
}

TEST_F(TraceEvents, TimesKeepTheirNanoseconds) {
  const auto begin = [&](const std::string& ts) {
    std::optional<Nanoseconds> found;
    read_trace_events(file("t.json", R"([{"ph": "X", "name": "e", "ts": )" + ts + "}]"),
                      [&](const TraceEvent& e) { found = e.begin; });
    return found;
  };
  EXPECT_EQ(begin("1790857026000123.456"), 1790857026000123456);
  EXPECT_EQ(begin("\"12.5\""), 12500);
  EXPECT_EQ(begin("1.5e3"), 1500000);
  EXPECT_EQ(begin("-2.5"), -2500);
  for (const char* none : {"NaN", "-Infinity", "1e300", "1.2.3", "null", "{}"})
    EXPECT_EQ(begin(none), std::nullopt) << none;
}

TEST_F(TraceEvents, InvalidJsonThatProfilersWriteLosesNothing) {
  TraceSummary summary;
  const std::string text = "{\"traceEvents\": [\n" + event("raw \n\t\x01 control") + "," +
                           event("wrong \xff\xc3 utf-8") + ",," + event("C:\\Users\\new") + "," +
                           event("nan", R"(, "args": {"x": NaN, "y": -Infinity, "z": inf})") + "," +
                           event("missing", R"(, "args": {"Process Group Description": , "last": })") + "," +
                           event("comma", ",") + ",]}";
  EXPECT_THAT(names(text, &summary), ElementsAre("raw \n\t\x01 control", "wrong \xff\xc3 utf-8",
                                                 "C:\\Users\\new", "nan", "missing", "comma"));
  EXPECT_EQ(summary.damaged, 0);
  EXPECT_FALSE(summary.truncated);
}

TEST_F(TraceEvents, GoOnAfterWhatCannotBeRead) {
  TraceSummary summary;
  const std::string text = "{\"traceEvents\": [" + event("first") + "," + event("a \"quoted\" name") + "," +
                           event("last") + "], \"distributedInfo\": {\"rank\": 1}}";
  EXPECT_THAT(names(text, &summary), ElementsAre("first", "last"));
  EXPECT_EQ(summary.damaged, 1);
  EXPECT_EQ(summary.rank, 1);
  EXPECT_FALSE(summary.truncated);
}

TEST_F(TraceEvents, EndInTheMiddle) {
  TraceSummary summary;
  const std::string text = "{\"traceEvents\": [" + event("first") + "," + event("second");
  for (std::size_t size = text.size(); size > text.size() - 40; --size) {
    EXPECT_THAT(names(text.substr(0, size), &summary).front(), "first");
    EXPECT_TRUE(summary.truncated);
  }
  std::string many = "[";
  for (int i = 0; i < 50'000; ++i) many += event("e" + std::to_string(i)) + ",";
  const fs::path path = zipped("cut.json.gz", many + event("last") + "]");
  std::int64_t whole = 0, cut = 0;
  EXPECT_FALSE(read_trace_events(path, [&](const TraceEvent&) { ++whole; }).truncated);
  EXPECT_EQ(whole, 50'001);
  fs::resize_file(path, fs::file_size(path) / 2);
  EXPECT_TRUE(read_trace_events(path, [&](const TraceEvent&) { ++cut; }).truncated);
  EXPECT_GT(cut, 10'000);
  EXPECT_LT(cut, whole);
}

TEST_F(TraceEvents, WithoutEventsAreRefused) {
  const auto ignore = [](const TraceEvent&) {};
  for (const char* text : {"", "{}", "hello", "[", "\x1f\x8b nonsense"}) {
    const fs::path path = file("none.json", text);
    EXPECT_THAT(fault_of([&] { read_trace_events(path, ignore); }), HasSubstr(path.string())) << text;
  }
  EXPECT_THAT(fault_of([&] { read_trace_events(folder_ / "missing.json", ignore); }),
              HasSubstr("cannot be read"));
  EXPECT_THAT(fault_of([&] { read_trace_events(folder_, ignore); }), HasSubstr("is a folder"));
}

// Writes a trace of known times: two linear layers, `a` and `b`, each with a weight and a bias.
struct Trace {
  std::string events;
  std::int64_t sequence = 10;

  void add(const std::string& cat, const std::string& name, int thread, double begin, double end,
           const std::string& args) {
    events += (events.empty() ? "" : ",\n") + (R"({"ph": "X", "cat": ")" + cat) + R"(", "name": ")" + name +
              R"(", "pid": 1, "tid": )" + std::to_string(thread) + R"(, "ts": )" + std::to_string(begin) +
              R"(, "dur": )" + std::to_string(end - begin) + R"(, "args": {)" + args + "}}";
  }
  void module(const std::string& name, double begin, double end) {
    add("python_function", "nn.Module: " + name, 1, begin, end, "");
  }
  void forward(const std::string& name, double begin, double end, std::int64_t number) {
    add("cpu_op", name, 1, begin, end,
        R"("Sequence number": )" + std::to_string(number) + R"(, "Fwd thread id": 0)");
  }
  void node(double begin, double end, std::int64_t number, int thread = 1) {
    add("cpu_op", "autograd::engine::evaluate_function: MmBackward0", thread, begin, end,
        R"("Sequence number": )" + std::to_string(number) + R"(, "Fwd thread id": 1)");
  }
  void gradient(double begin, double end, const std::string& dims, int thread = 1,
                const std::string& type = "float") {
    add("cpu_op", "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", thread, begin, end,
        "");
    add("cpu_op", "torch::autograd::AccumulateGrad", thread, begin, end,
        R"("Input type": [")" + type + R"("], "Input Dims": [)" + dims + "]");
  }

  // An iteration from `at`: model 10-60 (a 12-30, b 32-50), loss 70, backward 80-140, b's gradients complete at 105 and
  // 110, a's at 130 and `a_ready`. `slow` is added to b's forward.
  void iteration(double at, double a_ready = 140, double slow = 0, bool modules = true) {
    const std::int64_t n = sequence;
    sequence += 10;
    if (modules) {
      module("Net_0", at + 10, at + 60 + slow);
      module("Linear_0", at + 12, at + 30);
      module("Linear_1", at + 32, at + 50 + slow);
    }
    forward("aten::flatten", at + 1, at + 2, n);  // not of the model: sees the number that the next node gets
    forward("aten::linear", at + 13, at + 29, n);
    forward("aten::t", at + 14, at + 15, n);
    forward("aten::addmm", at + 16, at + 28, n + 1);
    forward("aten::linear", at + 33, at + 49, n + 2);
    forward("aten::t", at + 34, at + 35, n + 2);
    forward("aten::addmm", at + 36, at + 48, n + 3);
    forward("aten::nll_loss", at + 65 + slow, at + 70 + slow, n + 4);
    node(at + 75 + slow, at + 80 + slow, n + 4);
    node(at + 80 + slow, at + 100 + slow, n + 3);
    gradient(at + 101 + slow, at + 105 + slow, "[8]");
    node(at + 106 + slow, at + 107 + slow, n + 2);
    gradient(at + 107 + slow, at + 110 + slow, "[8, 4]");
    node(at + 111 + slow, at + 125 + slow, n + 1);
    gradient(at + 126 + slow, at + 130 + slow, "[4]");
    node(at + 131 + slow, at + 132 + slow, n);
    gradient(at + 133 + slow, at + a_ready + slow, "[4, 2]");
  }

  std::string text(const std::string& head = "") const {
    return "{" + head + "\"traceEvents\": [" + events + "]}";
  }
};

using Kineto = Import;

Workload imported(const fs::path& path) { return import_kineto({path}, "w").workload; }

TEST_F(Kineto, LayersAreModulesWithTheirTimes) {
  Trace trace;
  trace.iteration(0);
  const Workload workload = imported(file("t.json", trace.text()));
  ASSERT_EQ(workload.layers.size(), 2U);
  // As in the live profile: the first layer begins with the model, what is between two layers counts to the first of
  // them, the loss to the last.
  EXPECT_EQ(workload.layers[0], (Layer{.name = "Linear_0",
                                       .forward_ns = 22000,
                                       .backward_ns = 30000,
                                       .tensors = {{"Linear_0.0", 8}, {"Linear_0.1", 4}}}));
  EXPECT_EQ(workload.layers[1], (Layer{.name = "Linear_1",
                                       .forward_ns = 48000,
                                       .backward_ns = 30000,
                                       .tensors = {{"Linear_1.0", 32}, {"Linear_1.1", 8}}}));
}

TEST_F(Kineto, NamesThatAreNotUtf8CanBeWritten) {
  Trace trace;
  trace.module("Lin\xffr_0", 10, 60);
  trace.forward("aten::mm", 12, 30, 0);
  trace.node(40, 50, 0);
  trace.gradient(50, 55, "[8]");
  const Workload workload = imported(file("t.json", trace.text()));
  EXPECT_EQ(workload.layers.front().name, "Lin\uFFFDr_0");
  EXPECT_EQ(parse_workload(to_json(workload)), workload);
}

TEST_F(Kineto, WithoutModulesLayersAreOperators) {
  Trace trace;
  trace.iteration(0, 140, 0, false);
  const ImportedWorkload result = import_kineto({file("t.json", trace.text())}, "w");
  ASSERT_EQ(result.workload.layers.size(), 2U);
  EXPECT_EQ(result.workload.layers[0].name, "linear_0");
  EXPECT_EQ(result.workload.layers[0].forward_ns, 20000);
  EXPECT_EQ(result.workload.layers[1].name, "linear_1");
  EXPECT_EQ(result.workload.layers[1].tensors, (std::vector<Tensor>{{"linear_1.0", 32}, {"linear_1.1", 8}}));
  EXPECT_THAT(result.notes, ElementsAre(HasSubstr("with_stack=True")));
}

TEST_F(Kineto, MedianOfIterationsSlowestOfRanks) {
  const auto rank = [](int number, double slow) {
    Trace trace;
    for (int i = 0; i < 3; ++i) {
      trace.add("user_annotation", "ProfilerStep#" + std::to_string(i), 1, 1000 * i, 1000 * i + 900, "");
      trace.iteration(1000 * i, 140 + 10 * i, slow);
    }
    return trace.text("\"distributedInfo\": {\"rank\": " + std::to_string(number) + "}, ");
  };
  const ImportedWorkload one = import_kineto({file("0.json", rank(0, 0))}, "w");
  EXPECT_EQ(one.iterations, 3);
  EXPECT_EQ(one.workload.layers[0].backward_ns, 40000);  // of 30, 40 and 50
  const ImportedWorkload two = import_kineto({folder_ / "0.json", zipped("1.json.gz", rank(1, 7))}, "w");
  EXPECT_EQ(two.ranks, 2);
  EXPECT_EQ(two.iterations, 6);
  EXPECT_EQ(two.workload.layers[1].forward_ns, 48000 + 7000);
  // Files of one rank are one.
  EXPECT_EQ(import_kineto({folder_ / "0.json", folder_ / "0.json"}, "w").ranks, 1);
}

TEST_F(Kineto, IterationsEndAtTheOptimizerWhereTheProfilerHasNoSteps) {
  Trace trace;
  for (int i = 0; i < 3; ++i) {
    trace.iteration(1000 * i);
    trace.add("user_annotation", "Optimizer.step#SGD.step", 1, 1000 * i + 200, 1000 * i + 300, "");
  }
  EXPECT_EQ(import_kineto({file("t.json", trace.text())}, "w").iterations, 3);
}

TEST_F(Kineto, IterationsThatAreNotWholeOrLikeMostAreLeftOut) {
  Trace trace;
  for (int i = 0; i < 4; ++i) {
    trace.add("user_annotation", "ProfilerStep#" + std::to_string(i), 1, 1000 * i, 1000 * i + 900, "");
    if (i == 0) {
      trace.gradient(10, 20, "[3]");  // its forward was before the trace
    } else {
      trace.iteration(1000 * i);
    }
    if (i == 2) trace.gradient(2300, 2310, "[77]");
  }
  const ImportedWorkload result = import_kineto({file("t.json", trace.text())}, "w");
  EXPECT_EQ(result.iterations, 2);
  EXPECT_EQ(result.left_out, 2);
  EXPECT_EQ(result.workload.layers[0].tensors.size(), 2U);
}

TEST_F(Kineto, WithoutIterationsTheLastPassCounts) {
  Trace trace;
  trace.iteration(0);
  trace.iteration(500, 150);
  const ImportedWorkload result = import_kineto({file("t.json", trace.text())}, "w");
  EXPECT_EQ(result.iterations, 1);
  EXPECT_EQ(result.workload.layers[0].backward_ns, 40000);
  EXPECT_EQ(result.workload.layers[1].forward_ns, 48000);
}

// Three iterations of two passes, at 0 and at 300, and the optimizer. The profiler steps after each iteration, after each
// pass, or never.
TEST_F(Kineto, OfPassesThatAccumulateTheFirstForwardAndTheLastBackwardCount) {
  enum Steps { kOfIterations, kOfPasses, kNever };
  for (const bool modules : {true, false}) {
    for (const Steps steps : {kOfIterations, kOfPasses, kNever}) {
      Trace trace;
      const auto step = [&](double begin, double end) {
        trace.add("user_annotation", "ProfilerStep#1", 1, begin, end, "");
      };
      for (double at = 0; at < 3000; at += 1000) {
        if (steps == kOfIterations) step(at, at + 900);
        if (steps == kOfPasses) step(at, at + 290), step(at + 290, at + 900);
        trace.iteration(at, 140, 0, modules);
        trace.iteration(at + 300, 150, 0, modules);
        trace.add("user_annotation", "Optimizer.step#SGD.step", 1, at + 500, at + 600, "");
      }
      trace.iteration(3000, 170, 0, modules);  // the optimizer doesn't step any more
      const ImportedWorkload result = import_kineto({file("t.json", trace.text())}, "w");
      EXPECT_EQ(result.iterations, 3);
      const std::vector<Layer>& layers = result.workload.layers;
      EXPECT_EQ(layers[0].forward_ns, modules ? 22000 : 20000);
      EXPECT_EQ(layers[1].forward_ns, modules ? 348000 : 347000);
      EXPECT_EQ(layers[1].backward_ns, 30000);
      EXPECT_EQ(layers[0].backward_ns, 40000);
    }
  }
}

TEST_F(Kineto, StepsWithoutGradientsBelongToNoIteration) {
  Trace trace;
  for (double at = 0; at < 3000; at += 1000) {
    trace.add("user_annotation", "ProfilerStep#1", 1, at, at + 400, "");
    trace.forward("aten::linear", at + 10, at + 390, 0);  // an evaluation
    trace.add("user_annotation", "ProfilerStep#2", 1, at + 400, at + 900, "");
    trace.iteration(at + 400);
    trace.add("user_annotation", "Optimizer.step#SGD.step", 1, at + 600, at + 700, "");
  }
  const ImportedWorkload result = import_kineto({file("t.json", trace.text())}, "w");
  EXPECT_EQ(result.iterations, 3);
  EXPECT_EQ(result.left_out, 0);
  EXPECT_EQ(result.workload.layers[0].forward_ns, 22000);
}

TEST_F(Kineto, ASharedParameterBelongsToTheLayerThatUsesItFirst) {
  Trace trace;
  trace.module("Net_0", 10, 60);
  trace.module("Embedding_0", 12, 20);
  trace.module("Linear_0", 30, 40);
  trace.forward("aten::embedding", 13, 19, 5);
  trace.forward("aten::mm", 31, 39, 6);
  trace.node(80, 90, 6);
  trace.node(90, 100, 5);  // now both uses have their gradients
  trace.gradient(101, 105, "[100, 4]");
  const Workload workload = imported(file("t.json", trace.text()));
  ASSERT_EQ(workload.layers.size(), 1U);
  EXPECT_EQ(workload.layers[0].name, "Embedding_0");
}

TEST_F(Kineto, LayersThatAreComputedAgainKeepTheirPlaces) {
  Trace trace;
  trace.module("Net_0", 10, 60);
  trace.module("Linear_0", 12, 30);
  trace.module("Linear_1", 32, 50);
  trace.forward("Checkpoint", 11, 31, 1);
  trace.forward("aten::linear", 33, 49, 2);
  trace.node(80, 90, 2);
  trace.gradient(91, 95, "[8]");
  trace.node(100, 150, 1);  // computes the first layer again
  trace.module("Linear_0", 102, 110);
  trace.forward("aten::linear", 103, 109, 3);
  trace.node(120, 130, 3);
  trace.gradient(131, 140, "[4]");
  const Workload workload = imported(file("t.json", trace.text()));
  ASSERT_EQ(workload.layers.size(), 2U);
  EXPECT_EQ(workload.layers[0].name, "Linear_0");
  EXPECT_EQ(workload.layers[0].forward_ns, 22000);
  EXPECT_EQ(workload.layers[0].backward_ns, 55000);  // 95 to 150
}

TEST_F(Kineto, OnADeviceTimesAreWhenItsWorkIsDone) {
  // The host runs ahead: it needs microseconds, the kernels hundreds. The backward has a thread of its own, which counts
  // sequence numbers of its own.
  Trace trace;
  std::int64_t correlation = 0;
  const auto kernel = [&](const std::string& name, double launch, double begin, double end) {
    ++correlation;
    const std::string args = R"("correlation": )" + std::to_string(correlation);
    trace.add("cuda_runtime", "cudaLaunchKernel", 1, launch, launch + 1, args);
    trace.add(name.starts_with("Memcpy") ? "gpu_memcpy" : "kernel", name, 7, begin, end, args);
  };
  trace.module("Net_0", 10, 60);
  trace.module("Linear_0", 12, 20);
  trace.module("Linear_1", 22, 30);
  trace.forward("aten::linear", 13, 19, 5);
  trace.forward("aten::linear", 23, 29, 6);
  trace.node(40, 50, 6, 2);
  trace.gradient(50, 52, "[8]", 2);
  trace.node(60, 70, 5, 2);
  trace.gradient(70, 72, "[4]", 2, "c10::BFloat16");
  kernel("Memcpy HtoD", 5, 100, 200);
  kernel("gemm", 14, 200, 500);
  kernel("gemm", 24, 500, 600);
  kernel("gemm backward", 45, 600, 1000);
  kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 51, 1000, 9000);
  kernel("gemm backward", 65, 1000, 1700);
  const Workload workload = imported(file("t.json", trace.text()));
  ASSERT_EQ(workload.layers.size(), 2U);
  EXPECT_EQ(workload.layers[0].forward_ns, 300000);
  EXPECT_EQ(workload.layers[1].forward_ns, 100000);
  EXPECT_EQ(workload.layers[1].backward_ns, 400000);
  EXPECT_EQ(workload.layers[0].backward_ns, 700000);
  EXPECT_EQ(workload.layers[0].tensors[0].dtype, DType::kBFloat16);
}

TEST_F(Kineto, SaysWhatToSwitchOn) {
  Trace trace;
  trace.forward("aten::linear", 13, 29, 1);
  const fs::path path = file("t.json", trace.text());
  EXPECT_THAT(fault_of([&] { imported(path); }),
              AllOf(HasSubstr(path.string()), HasSubstr("shows no gradients")));
  trace.node(30, 40, 1);
  trace.add("cpu_op", "torch::autograd::AccumulateGrad", 1, 41, 42, "");
  EXPECT_THAT(fault_of([&] { imported(file("t.json", trace.text())); }), HasSubstr("record_shapes=True"));
  Trace only_backward;
  only_backward.node(30, 40, 1);
  only_backward.gradient(41, 42, "[3]");
  EXPECT_THAT(fault_of([&] { imported(file("t.json", only_backward.text())); }),
              HasSubstr("no whole iteration"));
  Trace odd;
  odd.forward("aten::linear", 13, 29, 1);
  odd.node(30, 40, 1);
  odd.gradient(41, 42, "[3]", 1, "c10::qint8");
  EXPECT_THAT(fault_of([&] { imported(file("t.json", odd.text())); }), HasSubstr("'c10::qint8'"));
}

TEST_F(Kineto, RanksWithDifferentLayersAreRefused) {
  Trace one, other;
  one.iteration(0);
  other.forward("aten::linear", 13, 29, 1);
  other.node(30, 40, 1);
  other.gradient(41, 42, "[3]");
  const fs::path second = file("1.json", other.text());
  EXPECT_THAT(fault_of([&] {
                import_kineto({file("0.json", one.text()), second}, "w");
              }),
              AllOf(HasSubstr(second.string()), HasSubstr("layers")));
}

// What all_reduce_perf 2.17 prints on two hosts; times are 40 us + 0.0002 us a byte in place, 1 us more out of place.
std::string table(const std::string& program, const std::string& redop, double share) {
  std::string text =
      "# nccl-tests version 2.17.6 nccl-headers=22807 nccl-library=22807\n" +
      (program.empty() ? "" : "# Collective test starting: " + program + "\n") +
      "# nThread 1 nGpus 1 minBytes 1024 maxBytes 67108864 step: 64(factor) warmup iters: 5 iters: 20\n#\n"
      "# Using devices\n"
      "#  Rank  0 Group  0 Pid  97166 on     node-a device  0 [0000:f9:05] NVIDIA H100\n"
      "#  Rank  1 Group  0 Pid  97167 on     node-a device  1 [0000:fb:05] NVIDIA H100\n"
      "#  Rank  2 Group  0 Pid   1166 on     node-b device  0 [0000:f9:05] NVIDIA H100\n"
      "#  Rank  3 Group  0 Pid   1167 on     node-b device  1 [0000:fb:05] NVIDIA H100\n#\n"
      "#                                                      out-of-place                       in-place\n"
      "#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   "
      "algbw   busbw  #wrong\n"
      "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  "
      "(GB/s)  (GB/s)\n";
  for (const std::int64_t size : {0, 1024, 65536, 4194304, 67108864}) {
    const double us = size > 0 ? 40 + 0.0002 * static_cast<double>(size) : 0.5;
    const double algorithm = static_cast<double>(size) / us / 1000;
    char line[200];
    std::snprintf(line, sizeof line, "%12ld %12ld float %s -1 %.2f %.2f %.2f 0 %.2f %.2f %.2f N/A\n", size,
                  size / 4, redop.c_str(), us + 1, algorithm, algorithm * share, us, algorithm,
                  algorithm * share);
    text += line;
  }
  return text + "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 5.1\n#\n";
}

TEST(NcclTests, ReadsSizesTimesRanksAndHosts) {
  const auto runs = parse_nccl_tests(table("all_reduce_perf", "sum", 1.5));
  ASSERT_EQ(runs.size(), 1U);
  EXPECT_EQ(runs[0].collective, Collective::kAllReduce);
  EXPECT_EQ(runs[0].workers, 4);
  EXPECT_EQ(runs[0].workers_per_node, 2);
  ASSERT_EQ(runs[0].measurements.size(), 4U);  // in place; size 0 tells nothing
  EXPECT_EQ(runs[0].measurements[0].bytes, 1024);
  EXPECT_NEAR(runs[0].measurements[0].us, 40.20, 1e-9);
  const auto half = parse_nccl_tests(table("all_gather_perf", "none", 0.75));
  EXPECT_EQ(half[0].collective, Collective::kAllGather);
  EXPECT_NEAR(half[0].measurements[0].us, 41.20, 1e-9);  // out of place
}

TEST(NcclTests, ReadsSeveralRunsOfOneLogWithWhatLaunchersPutBefore) {
  std::string log;
  std::istringstream lines(table("reduce_scatter_perf", "sum", 0.75) +
                           table("all_gather_perf", "none", 0.75));
  for (std::string line; std::getline(lines, line);) log += "[1,0]<stdout>:" + line + "\r\n";
  const auto runs = parse_nccl_tests("mpirun noise\n" + log);
  ASSERT_EQ(runs.size(), 2U);
  EXPECT_EQ(runs[0].collective, Collective::kReduceScatter);
  EXPECT_EQ(runs[1].collective, Collective::kAllGather);
  EXPECT_EQ(runs[1].measurements.size(), 4U);
  EXPECT_EQ(runs[1].workers, 4);
}

TEST(NcclTests, FindsTheCollectiveWhereOldVersionsDoNotNameIt) {
  EXPECT_EQ(parse_nccl_tests(table("", "sum", 1.5))[0].collective, Collective::kAllReduce);
  EXPECT_EQ(parse_nccl_tests(table("", "sum", 0.75))[0].collective, Collective::kReduceScatter);
  EXPECT_EQ(parse_nccl_tests("$ ./build/all_gather_perf -b 1K\n" + table("", "none", 0.75))[0].collective,
            Collective::kAllGather);
  EXPECT_THAT(fault_of([] { parse_nccl_tests(table("", "none", 0.75)); }), HasSubstr("which collective"));
  // As many ranks as make a reduce-scatter's bus bandwidth look like the other one; listed, or told.
  std::string many = table("", "sum", 127.0 / 128), unlisted = many;
  for (std::size_t at; (at = unlisted.find("#  Rank")) != std::string::npos;)
    unlisted.erase(at, unlisted.find('\n', at) + 1 - at);
  EXPECT_EQ(parse_nccl_tests(unlisted, 128)[0].collective, Collective::kReduceScatter);
  EXPECT_THAT(fault_of([&] { parse_nccl_tests(unlisted); }), HasSubstr("which collective"));
  EXPECT_THAT(fault_of([&] { parse_nccl_tests(many); }), HasSubstr("which collective"));  // of 4 ranks
  for (int rank = 4; rank < 128; ++rank) {
    many.insert(many.find("#  Rank"), "#  Rank  " + std::to_string(rank) + " Group  0 Pid 1 on     node-c\n");
  }
  EXPECT_EQ(parse_nccl_tests(many)[0].collective, Collective::kReduceScatter);
  std::string slow = table("", "sum", 1.5);
  slow.resize(slow.rfind("       65536"));
  slow.replace(slow.find("0.03 0.04"), 9, "0.01 0.01");  // 0.75 of 0.013, or 1.5 of 0.007
  EXPECT_THAT(fault_of([&] { parse_nccl_tests(slow); }), HasSubstr("which collective"));
  std::string reduce = table("", "sum", 1);
  for (std::size_t at; (at = reduce.find("sum -1")) != std::string::npos;) reduce.replace(at, 6, "sum 0");
  EXPECT_THAT(fault_of([&] { parse_nccl_tests(reduce); }), HasSubstr("has a root"));
}

TEST(NcclTests, RefusesWhatIsNoMeasurement) {
  EXPECT_THAT(fault_of([] { parse_nccl_tests("hello\n"); }), HasSubstr("not what nccl-tests print"));
  EXPECT_THAT(fault_of([] { parse_nccl_tests(table("alltoall_perf", "none", 0.75)); }),
              HasSubstr("alltoall_perf"));
  std::string wrong = table("all_reduce_perf", "sum", 1.5);
  wrong.replace(wrong.find(" 0 53."), 3, " 7 ");
  EXPECT_THAT(fault_of([&] { parse_nccl_tests(wrong); }),
              AllOf(HasSubstr("line 16"), HasSubstr("wrong results")));
  std::string host = table("all_reduce_perf", "sum", 1.5);
  for (std::size_t at; (at = host.find("   time ")) != std::string::npos;) host.replace(at, 8, "cputime ");
  EXPECT_THAT(fault_of([&] { parse_nccl_tests(host); }), HasSubstr("-C"));
  std::string broken = table("all_reduce_perf", "sum", 1.5);
  broken.resize(broken.rfind(" N/A") - 7);  // within the bus bandwidth of the last row
  EXPECT_THAT(fault_of([&] { parse_nccl_tests(broken); }), HasSubstr("of 13 columns"));
  const std::string cut = table("all_reduce_perf", "sum", 1.5).substr(0, 900);
  EXPECT_THAT(fault_of([&] { parse_nccl_tests(cut); }), HasSubstr("no line with a size"));
}

TEST(NcclTests, ReadsItsJson) {
  const std::string text =
      R"({"start_time": "2026-01-01", "args": ["./build/reduce_scatter_perf", "-J", "out.json"],
    "env": ["PATH=/bin"], "nccl_version": 22807, "config": {"nthreads": 1, "ngpus": 1, "devices": [
      {"rank": 0, "group": 0, "pid": 1, "hostname": "a", "device": 0, "device_hex": "f9", "device_info": "H100"},
      {"rank": 1, "group": 0, "pid": 1, "hostname": "b", "device": 0, "device_hex": "f9", "device_info": "H100"}]},
    "results": [{"size": 1024, "count": 128, "type": "float", "redop": "sum", "root": "    -1",
      "out_of_place": {"time": 21.5, "alg_bw": 0.05, "bus_bw": 0.02, "nwrong": 0},
      "in_place": {"time": 20.5, "alg_bw": 0.05, "bus_bw": 0.02, "nwrong": null}, "actual_iterations": 20},
      {"size": 2048, "count": 256, "type": "float", "redop": "sum", "root": "    -1", "out_of_place": null,
      "in_place": {"time": 30.5, "alg_bw": 0.05, "bus_bw": 0.02, "nwrong": null}}], "average_bus_bandwidth": {"bandwidth": 1}})";
  const auto runs = parse_nccl_tests(text);
  ASSERT_EQ(runs.size(), 1U);
  EXPECT_EQ(runs[0].collective, Collective::kReduceScatter);
  EXPECT_EQ(runs[0].workers, 2);
  EXPECT_EQ(runs[0].workers_per_node, 1);
  EXPECT_EQ(runs[0].measurements, (std::vector<Measurement>{{1024, 21.5}, {2048, 30.5}}));
  std::string wrong = text;
  wrong.replace(wrong.find("\"nwrong\": 0"), 11, "\"nwrong\": 3");
  EXPECT_THAT(fault_of([&] { parse_nccl_tests(wrong); }), HasSubstr("results[0].out_of_place.nwrong"));
  std::string never = text;
  never.replace(never.find("30.5"), 4, "0.00");
  EXPECT_THAT(fault_of([&] { parse_nccl_tests(never); }), HasSubstr("results[1]: has no time above 0"));
}

}  // namespace
}  // namespace gradweave
