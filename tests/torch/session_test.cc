// Sessions of one rank, whose emulated links only let time pass.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "gradweave/error.h"
#include "gradweave/torch.h"
#include "runtime/engine.h"
#include "session/optimizer.h"

namespace gradweave {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

struct Net : torch::nn::Module {
  torch::nn::Linear first{nullptr}, second{nullptr};
  std::function<void(const char*)> enter = [](const char*) {};

  Net() {
    at::manual_seed(0);
    first = register_module("first", torch::nn::Linear(8, 16));
    second = register_module("second", torch::nn::Linear(16, 1));
  }
  at::Tensor forward(const at::Tensor& x) {
    enter("first");
    const at::Tensor hidden = first(x);
    enter("second");
    return second(hidden).square().mean();
  }
};

at::Tensor batch(int step) { return at::full({4, 8}, 0.1 * (step % 3 + 1)); }

// A session on one slow link, or on two.
struct Trained {
  std::vector<std::string> told;
  std::vector<std::string>* told_to = &told;
  Net net;
  torch::optim::SGD optimizer{net.parameters(), torch::optim::SGDOptions(0.01)};
  Session session;

  explicit Trained(SessionOptions options, bool two_links = false)
      : session(net, optimizer, Job{}, with(std::move(options), two_links)) {
    net.enter = [this](const char* layer) { session.enter(layer); };
  }
  SessionOptions with(SessionOptions options, bool two_links) {
    options.warm_up = 1;
    options.profile_iterations = 2;
    options.links = {{.name = "slow", .startup_us = 2000, .us_per_byte = 1}};
    if (two_links) options.links.push_back({.name = "other", .startup_us = 2000, .us_per_byte = 1});
    options.tell = [this](const std::string& line) { told_to->push_back(line); };
    return options;
  }
  void iterate(const at::Tensor& x) {
    optimizer.zero_grad();
    session.backward(net.forward(x));
    session.step();
  }
};

// Without every `left_out`th step; 0: with all of them.
std::vector<at::Tensor> plainly_trained(int steps, int left_out = 0) {
  Net net;
  torch::optim::SGD optimizer(net.parameters(), torch::optim::SGDOptions(0.01));
  for (int n = 0; n < steps; ++n) {
    if (left_out != 0 && n % left_out == left_out - 1) continue;
    optimizer.zero_grad();
    net.forward(batch(n)).backward();
    optimizer.step();
  }
  return net.parameters();
}

void expect_equal(const std::vector<at::Tensor>& some, const std::vector<at::Tensor>& others) {
  for (std::size_t p = 0; p < some.size(); ++p) EXPECT_TRUE(at::equal(some[p], others[p])) << p;
}

TEST(Session, PlansByItselfAndTellsIt) {
  Trained job({.scheme = "wfbp"});
  for (int n = 0; n < 20; ++n) job.iterate(batch(n));
  EXPECT_EQ(job.session.plan()->scheme, "wfbp");
  EXPECT_EQ(job.session.cluster()->links[0].name, "slow");
  EXPECT_GT(job.session.workload()->layers[0].backward_ns, 0);
  ASSERT_TRUE(job.session.report());
  EXPECT_THAT(job.told, Contains(HasSubstr("in force: wfbp: ")));
  job.session.finish();
  expect_equal(job.net.parameters(), plainly_trained(20));
}

TEST(Session, AStepNeedsABackwardThatIsCommunicated) {
  Trained job({.scheme = "wfbp"});
  for (int n = 0; n < 8; ++n) {
    EXPECT_THROW(job.session.step(), InvalidInput);
    job.session.accumulate(job.net.forward(batch(n)) / 2);
    EXPECT_THROW(job.session.step(), InvalidInput);
    job.session.backward(job.net.forward(batch(n)) / 2);
    job.session.step();
    job.optimizer.zero_grad();
  }
  job.session.finish();
  expect_equal(job.net.parameters(), plainly_trained(8));
}

TEST(Session, UsesSeveralLinks) {
  Trained job({.scheme = "auto", .follow = false}, /*two_links=*/true);
  for (int n = 0; n < 12; ++n) job.iterate(batch(n));
  std::set<std::string> used;
  for (const Iteration& iteration : job.session.plan()->period) {
    for (const Op& op : iteration.ops) used.insert(op.link);
  }
  EXPECT_EQ(used.size(), 2u);
  job.session.finish();
  expect_equal(job.net.parameters(), plainly_trained(12));
}

TEST(Session, AScaledLossGivesTheSameStepsAndLeavesOutThoseThatOverflow) {
  for (const char* scheme : {"ddp", "dear"}) {
    Trained job({.scheme = scheme, .loss_scale = 1024});  // a power of two changes no bit
    for (int n = 0; n < 10; ++n) job.iterate(batch(n));
    job.session.finish();
    expect_equal(job.net.parameters(), plainly_trained(10));
    std::vector<at::Tensor> before;
    for (const at::Tensor& each : job.net.parameters()) before.push_back(each.detach().clone());
    job.iterate(at::full({4, 8}, std::numeric_limits<float>::infinity()));
    job.session.finish();
    expect_equal(job.net.parameters(), before);
    job.iterate(batch(0));
    job.session.finish();
    EXPECT_FALSE(at::equal(job.net.parameters()[0], before[0])) << scheme;
  }
}

TEST(Session, ClipsWhatTheComingUpdateWillUse) {
  for (const char* scheme : {"ddp", "dear"}) {
    Trained job({.scheme = scheme});
    for (int n = 0; n < 8; ++n) job.iterate(batch(n));
    job.session.finish();
    std::vector<at::Tensor> before;
    for (const at::Tensor& each : job.net.parameters()) before.push_back(each.detach().clone());
    job.optimizer.zero_grad();
    job.session.backward(job.net.forward(at::full({4, 8}, 100.0)));
    EXPECT_GT(job.session.clip_grad_norm(1e-3), 1);
    job.session.step();
    job.session.finish();
    for (std::size_t p = 0; p < before.size(); ++p)
      EXPECT_LE((job.net.parameters()[p] - before[p]).norm().item<double>(), 1.1e-5) << scheme;
  }
}

TEST(Session, ALoopThatEditsGradientsIsRefusedASchemeThatHasSentThem) {
  Trained job({.scheme = "p3"});
  job.optimizer.zero_grad();
  job.session.backward(job.net.forward(batch(0)));
  job.net.first->weight.mutable_grad().mul_(2);
  EXPECT_THROW(job.session.step(), InvalidInput);
}

// p3 would be refused to a loop that edits gradients, or accumulates them.
TEST(Session, DropsABatch) {
  const std::vector<std::function<void(Trained&)>> ways = {
      [](Trained& job) { job.session.skip_step(); },
      [](Trained& job) { job.optimizer.zero_grad(), job.session.step(); },
      [](Trained& job) { job.net.zero_grad(), job.session.step(); },
      [](Trained& job) { job.optimizer.zero_grad(); },
  };
  for (const char* scheme : {"ddp", "dear", "p3"}) {
    for (std::size_t way = 0; way < ways.size(); ++way) {
      Trained job({.scheme = scheme});
      EXPECT_THROW(job.session.skip_step(), InvalidInput);
      for (int n = 0; n < 12; ++n) {
        if (n % 2 == 0) {
          job.iterate(batch(n));
          continue;
        }
        job.optimizer.zero_grad();
        job.session.backward(job.net.forward(batch(n)) * std::numeric_limits<float>::quiet_NaN());
        ways[way](job);
      }
      job.session.finish();
      SCOPED_TRACE(std::string(scheme) + ", " + std::to_string(way));
      EXPECT_EQ(job.session.plan()->scheme, scheme);
      expect_equal(job.net.parameters(), plainly_trained(12, 2));
    }
  }
}

// The first model's gradients that come of the second's loss are dropped before its next backward.
TEST(Session, TrainsAModelThatAnothersLossReaches) {
  for (const char* scheme : {"ddp", "dear"}) {
    const auto trained = [&](bool plain) {
      Net judge, maker;
      torch::optim::SGD judges(judge.parameters(), torch::optim::SGDOptions(0.01));
      torch::optim::SGD makers(maker.parameters(), torch::optim::SGDOptions(0.01));
      std::optional<Session> first, second;
      const SessionOptions options{
          .scheme = scheme, .warm_up = 1, .profile_iterations = 2, .tell = [](const auto&) {}};
      if (!plain) {
        first.emplace(judge, judges, Job{}, options);
        second.emplace(maker, makers, Job{}, options);
        judge.enter = [&](const char* layer) { first->enter(layer); };
        maker.enter = [&](const char* layer) { second->enter(layer); };
      }
      const auto step = [](auto& session, torch::optim::Optimizer& optimizer, const at::Tensor& loss) {
        session ? session->backward(loss) : loss.backward();
        session ? session->step() : void(optimizer.step());
      };
      for (int n = 0; n < 8; ++n) {
        judges.zero_grad();
        step(first, judges, judge.forward(batch(n)));
        makers.zero_grad();
        step(second, makers, judge.forward(batch(n) * maker.forward(batch(n))));
      }
      judges.zero_grad();
      if (!plain) first->finish(), second->finish();
      std::vector<at::Tensor> both = judge.parameters();
      for (const at::Tensor& each : maker.parameters()) both.push_back(each);
      return both;
    };
    SCOPED_TRACE(scheme);
    expect_equal(trained(false), trained(true));
  }
}

TEST(Session, RefusesToStepWhatWasFrozenWhenItBegan) {
  for (const char* scheme : {"ddp", "dear"}) {
    Net net;
    net.first->bias.set_requires_grad(false);
    torch::optim::SGD optimizer(net.parameters(), torch::optim::SGDOptions(0.01));
    Session session(net, optimizer, Job{}, {.scheme = scheme, .tell = [](const auto&) {}});
    net.enter = [&](const char* layer) { session.enter(layer); };
    const auto iterate = [&] {
      session.backward(net.forward(batch(0)));
      session.step();
    };
    iterate();
    net.first->bias.set_requires_grad(true);
    const at::Tensor before = net.first->bias.detach().clone();
    EXPECT_THAT(iterate, ThrowsMessage<InvalidInput>(HasSubstr("'first.bias': it requires a gradient now")));
    EXPECT_TRUE(at::equal(net.first->bias, before)) << scheme;
  }
}

TEST(Session, RefusesOptionsThatCanNotBe) {
  EXPECT_THROW(Trained({.scheme = "none such"}), InvalidInput);
  EXPECT_THROW(Trained({.scheme = "dear", .options = {{"colour", "red"}}}), InvalidInput);
  EXPECT_THROW(Trained({.scheme = "wfbp", .tune = 4}), InvalidInput);
}

TEST(Session, NamesTheOptionThatCanNotBe) {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  constexpr double kEndless = std::numeric_limits<double>::infinity();
  const std::vector<std::pair<SessionOptions, const char*>> refused = {
      {{.timeout = std::chrono::milliseconds(0)}, "timeout: it is 0 s; give 0.001 to 1e+09 s"},
      {{.warm_up = 0}, "warm_up: it is 0; give at least 1"},
      {{.profile_iterations = -1}, "profile_iterations: it is -1; give at least 1"},
      {{.tune = -3}, "tune: -3 trials"},
      {{.links = {{.name = "x"}, {.name = "x"}}}, "links: two are called 'x'"},
      {{.links = {{.name = ""}}}, "links[0].name: it is empty"},
      {{.links = {{.name = "x", .startup_us = 1, .us_per_byte = kNone}}}, "links[0].us_per_byte: it is nan"},
      {{.links = {{.name = "x", .startup_us = -1}}},
       "links[0].startup_us: it is -1; give a finite number >= 0"},
      {{.links = {{.name = "x", .interface = "none0"}}}, "it is 'none0', which is not up here; choose among"},
      {{.probe_seconds = kNone}, "probe_seconds: it is nan s; give 0.001"},
      {{.loss_scale = kEndless}, "loss_scale: it is inf"},
      {{.loss_scale = -5}, "loss_scale: it is -5"},
  };
  for (const auto& [options, said] : refused) {
    Net net;
    torch::optim::SGD optimizer(net.parameters(), torch::optim::SGDOptions(0.01));
    const SessionOptions& given = options;
    EXPECT_THAT([&] { const Session session(net, optimizer, Job{}, given); },
                ThrowsMessage<InvalidInput>(HasSubstr(said)));
  }
}

TEST(Session, RefusesAnUnusedParameterWhereNoneMayBe) {
  Trained job({.scheme = "ddp", .find_unused_parameters = false});
  job.net.enter("first");
  job.net.enter("second");
  EXPECT_THAT(
      [&] {
        job.session.backward(job.net.second(at::ones({1, 16})).sum());
      },
      ThrowsMessage<InvalidInput>(HasSubstr("set it in SessionOptions")));
}

// dear steps in the next forward.
TEST(Session, ParametersMayBeChangedOnceSynchronized) {
  const auto clamp = [](Net& net) {
    const torch::NoGradGuard off;
    for (at::Tensor& parameter : net.parameters()) parameter.clamp_(-0.2, 0.2);
  };
  Net plain;
  torch::optim::SGD optimizer(plain.parameters(), torch::optim::SGDOptions(0.01));
  Trained job({.scheme = "dear"});
  for (int n = 0; n < 10; ++n) {
    optimizer.zero_grad();
    plain.forward(batch(n)).backward();
    optimizer.step();
    clamp(plain);
    job.iterate(batch(n));
    job.session.synchronize();
    clamp(job.net);
    expect_equal(job.net.parameters(), plain.parameters());
  }
  job.iterate(batch(0));
  clamp(job.net);
  EXPECT_THAT([&] { job.iterate(batch(0)); },
              ThrowsMessage<InvalidInput>(HasSubstr("C++: Session::synchronize()")));
}

TEST(Session, SaysThatUpdatesAreLostWhereItEndsUnfinished) {
  for (const bool finishes : {true, false}) {
    std::vector<std::string> told;
    {
      Trained job({.scheme = "dear"});
      for (int n = 0; n < 8; ++n) job.iterate(batch(n));
      if (finishes) job.session.finish();
      told = std::move(job.told);
      job.told_to = &told;
    }
    EXPECT_EQ(std::ranges::count_if(
                  told, [](const auto& line) { return line.find("without finish()") != std::string::npos; }),
              finishes ? 0 : 1);
  }
}

TEST(Session, AModelHasOneSessionAtATime) {
  Trained job({.scheme = "ddp"});
  EXPECT_THAT([&] { const Session another(job.net, job.optimizer, Job{}); },
              ThrowsMessage<InvalidInput>(HasSubstr("'first.weight': the model has a session already")));
  job.iterate(batch(0));
}

struct Scaled : torch::nn::Module {
  at::Tensor gain = register_parameter("gain", at::ones({1}));
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(8, 1));
};

TEST(Session, TheModelItselfIsALayerWhereItOwnsParameters) {
  Scaled model;
  torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.01));
  Session session(model, optimizer, Job{},
                  {.scheme = "dear", .warm_up = 1, .profile_iterations = 1, .tell = [](const auto&) {}});
  for (int n = 0; n < 4; ++n) {
    session.enter("");
    const at::Tensor x = batch(n) * model.gain;
    session.enter("linear");
    optimizer.zero_grad();
    session.backward(model.linear(x).sum());
    session.step();
  }
  EXPECT_EQ(session.plan()->scheme, "dear");
}

struct Rateless : torch::optim::OptimizerCloneableOptions<Rateless> {};
struct OwnOptimizer : torch::optim::Optimizer {
  explicit OwnOptimizer(const std::vector<at::Tensor>& parameters)
      : Optimizer({torch::optim::OptimizerParamGroup(parameters)}, std::make_unique<Rateless>()) {}
  at::Tensor step(LossClosure /*closure*/) override { return {}; }
};

TEST(Session, AnOptimizerWithoutALearningRateHasZero) {
  const at::Tensor parameter = at::ones({3}).requires_grad_();
  OwnOptimizer optimizer({parameter});
  const std::vector<runtime::NamedParameter> parameters{{"a", parameter}};
  EXPECT_EQ(SessionOptimizer(optimizer, parameters).learning_rates(), std::vector<double>{0});
}

struct Layers : torch::nn::Module {
  explicit Layers(std::vector<const char*> of) : names(std::move(of)) {
    for (const char* name : names) {
      layers.push_back(register_module(name, torch::nn::Linear(3, 3)));
      const torch::NoGradGuard off;
      for (at::Tensor& parameter : layers.back()->parameters()) parameter.fill_(0.25);
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (std::size_t l = 0; l < layers.size(); ++l) {
      if (session != nullptr) session->enter(names[l]);
      x = layers[l]->forward(x);
    }
    return x;
  }

  std::vector<const char*> names;
  std::vector<torch::nn::Linear> layers;
  Session* session = nullptr;
};

// A schedule of learning rates that is set after step(), as schedulers do.
std::vector<at::Tensor> trained_by(const std::string& scheme, const std::vector<const char*>& names) {
  Layers model(names);
  torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.01).momentum(0.5));
  auto& options = static_cast<torch::optim::SGDOptions&>(optimizer.param_groups()[0].options());
  Session session(
      model, optimizer, Job(),
      {.scheme = scheme, .warm_up = 1, .profile_iterations = 1, .follow = false, .tell = [](const auto&) {}});
  model.session = &session;
  const auto iterate = [&](int n) {
    optimizer.zero_grad();
    session.backward(model.forward(at::ones({2, 3})).sum());
    session.step();
    options.lr(0.01 / (n + 1));
  };
  for (int n = 0; n < 8; ++n) iterate(n);
  session.finish();
  std::vector<at::Tensor> parameters;
  for (const at::Tensor& each : model.parameters()) parameters.push_back(each.detach().clone());
  return parameters;
}

// dear, p3 and us_byte step in the next forward.
TEST(Session, AStepUsesTheHyperparametersThatItWasCalledWith) {
  for (const std::vector<const char*>& names : {std::vector{"a", "b", "c"}, {"a"}}) {
    const std::vector<at::Tensor> expected = trained_by("ddp", names);
    for (const char* scheme : {"dear", "p3", "us_byte"}) {
      const std::vector<at::Tensor> found = trained_by(scheme, names);
      for (std::size_t p = 0; p < expected.size(); ++p)
        EXPECT_TRUE(at::equal(found[p], expected[p])) << scheme;
    }
  }
}

TEST(Engine, RefusesEveryCallOnceItIsClosed) {
  const at::Tensor parameter = at::ones({3}).requires_grad_();
  runtime::Engine engine({{"a", parameter}}, {{.name = "link"}}, {},
                         std::make_shared<runtime::Peers>(nullptr, 0, 1, std::chrono::seconds(60)), 1, {},
                         [](std::int32_t) {});
  EXPECT_EQ(engine.counters().iterations, 0);
  engine.close();
  engine.close();
  EXPECT_THROW(engine.counters(), InvalidInput);
  EXPECT_THROW(engine.run(&run::Run::iteration), InvalidInput);
}

TEST(Engine, RefusesParametersOnTwoDevices) {
  const std::vector<runtime::NamedParameter> parameters{
      {"a", at::ones({3}).requires_grad_()},
      {"b", at::ones({3}, at::TensorOptions().device(c10::kMeta)).requires_grad_()}};
  try {
    const runtime::Engine engine(parameters, {}, {},
                                 std::make_shared<runtime::Peers>(nullptr, 0, 1, std::chrono::seconds(60)), 1,
                                 {}, [](std::int32_t) {});
    FAIL();
  } catch (const InvalidInput& error) {
    EXPECT_NE(std::string(error.what()).find("'b'"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace gradweave
