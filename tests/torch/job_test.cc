// Sessions of several ranks, each a process: what no rank can do alone.
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/activation.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "gradweave/effects.h"
#include "gradweave/error.h"
#include "gradweave/schemes.h"
#include "gradweave/torch.h"
#include "torch/ranks.h"

namespace gradweave {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

namespace F = torch::nn::functional;

struct Classifier : torch::nn::Module {
  std::vector<torch::nn::Linear> layers;
  std::function<void(const std::string&)> enter;
  std::chrono::milliseconds backward_takes{0};  // of each layer, besides

  Classifier() {
    at::manual_seed(0);
    for (const auto& [in, out] : {std::pair(20, 64), std::pair(64, 64), std::pair(64, 10)})
      layers.push_back(register_module("layer" + std::to_string(layers.size()), torch::nn::Linear(in, out)));
  }
  at::Tensor forward(at::Tensor x) {
    for (std::size_t l = 0; l < layers.size(); ++l) {
      enter("layer" + std::to_string(l));
      x = layers[l](l == 0 ? x : at::relu(x));
      if (backward_takes.count() > 0) {
        x.register_hook([this](const at::Tensor&) { std::this_thread::sleep_for(backward_takes); });
      }
    }
    return x;
  }
};

// Ten classes, each around a point of its own. `disjoint`: even and odd ranks see half of the classes each.
std::pair<at::Tensor, at::Tensor> examples(int rank, int step, bool disjoint) {
  const at::Tensor centres = at::randn({10, 20}, at::detail::createCPUGenerator(7));
  at::Generator generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(1000 * step + rank));
  const at::Tensor labels =
      at::randint(disjoint ? 5 : 10, {64}, generator, at::kLong) + (disjoint ? 5 * (rank % 2) : 0);
  return {centres.index_select(0, labels) + 0.5 * at::randn({64, 20}, generator), labels};
}

using Optimizer = std::unique_ptr<torch::optim::Optimizer>;

// One rank of a job; what it tells is kept.
struct Member {
  Job job;
  Classifier net;
  Optimizer optimizer;
  std::vector<std::string> told;
  Session session;
  int step = 0;
  bool disjoint = false;

  Member(const Job& the_job, const std::function<Optimizer(std::vector<at::Tensor>)>& make,
         SessionOptions options)
      : job(the_job),
        optimizer(make(net.parameters())),
        session(net, *optimizer, job, with(std::move(options))) {
    net.enter = [this](const std::string& layer) { session.enter(layer); };
  }
  SessionOptions with(SessionOptions options) {
    options.timeout = std::chrono::seconds(30);
    options.profile_iterations = 2;
    options.tell = [this](const std::string& line) { told.push_back(line); };
    return options;
  }
  void iterate(int times) {
    for (int n = 0; n < times; ++n, ++step) {
      const auto [x, labels] = examples(job.rank, step, disjoint);
      optimizer->zero_grad();
      session.backward(F::cross_entropy(net.forward(x), labels));
      session.step();
    }
  }
  Plan plan_of(const std::string& scheme, const std::map<std::string, std::string>& options = {}) const {
    Workload workload = *session.workload();
    for (Layer& layer : workload.layers) layer.forward_ns = layer.backward_ns = 100'000;
    return std::get<Plan>(
        make_plan(scheme, workload, {.workers = job.world_size, .links = {{.name = "default"}}}, options));
  }
};

Optimizer sgd(std::vector<at::Tensor> parameters) {
  return std::make_unique<torch::optim::SGD>(std::move(parameters),
                                             torch::optim::SGDOptions(0.05).momentum(0.9));
}

// ---- from ranks that step on their own to ranks that step alike

// Returns the mean over ranks of a tensor of float32, by way of the store.
at::Tensor mean_over_ranks(const Job& job, const std::string& name, const at::Tensor& mine) {
  const auto* bytes = static_cast<const std::uint8_t*>(mine.const_data_ptr());
  job.store->set(name + std::to_string(job.rank), std::vector<std::uint8_t>(bytes, bytes + mine.nbytes()));
  at::Tensor sum = at::zeros_like(mine);
  for (int rank = 0; rank < job.world_size; ++rank) {
    std::vector<std::uint8_t> theirs = job.store->get(name + std::to_string(rank));
    sum += at::from_blob(theirs.data(), mine.sizes(), mine.options()).clone();
  }
  return sum / job.world_size;
}

template <typename Class, typename Options>
auto maker(Options options) {
  return [options](std::vector<at::Tensor> parameters) -> Optimizer {
    return std::make_unique<Class>(std::move(parameters), options);
  };
}

// finish() compares the parameters of all ranks.
TEST(Job, RanksThatHaveSteppedOnTheirOwnStepAlikeUnderAnExactPlan) {
  const auto job = this_rank(2);
  if (!job) return;
  using namespace torch::optim;
  const std::vector<std::function<Optimizer(std::vector<at::Tensor>)>> makers{
      sgd, maker<Adam>(AdamOptions(1e-3).amsgrad(true)), maker<AdamW>(AdamWOptions(1e-3)),
      maker<RMSprop>(RMSpropOptions(1e-3).momentum(0.9).centered(true)),
      maker<Adagrad>(AdagradOptions(1e-2))};
  for (std::size_t n = 0; n < makers.size(); ++n) {
    for (const char* scheme : {"local_sgd", "delayed_averaging"}) {
      SCOPED_TRACE(scheme + std::to_string(n));
      Member member(*job, makers[n], {});
      member.session.install(member.plan_of(scheme));
      member.iterate(7);
      member.session.install(member.plan_of("ddp"));
      member.iterate(5);
      EXPECT_NO_THROW(member.session.finish());
    }
  }
}

TEST(Job, WhatIsNotAlikeInMemoryIsRefused) {
  const auto job = this_rank(2);
  if (!job) return;
  Member member(*job, sgd, {});
  at::Tensor& table = member.net.register_buffer("table", at::zeros({3 + job->rank}));
  EXPECT_THROW(member.session.finish(), InvalidInput);
  table.set_data(at::zeros({4}));
  EXPECT_NO_THROW(member.session.finish());
  Classifier other;
  const at::Tensor weight = other.parameters().front();
  if (job->rank == 1) weight.set_data(weight.detach().t().contiguous().t());
  const Optimizer optimizer = sgd(other.parameters());
  EXPECT_THROW(Session(other, *optimizer, *job, {}), InvalidInput);
}

TEST(Job, WhatOptimizersKeepBecomesTheMeanOverRanks) {
  const auto job = this_rank(3);
  if (!job) return;
  Member member(*job, maker<torch::optim::AdamW>(torch::optim::AdamWOptions(1e-3)), {});
  const at::Tensor first = member.net.parameters().front();
  const auto kept = [&]() -> torch::optim::AdamWParamState& {
    return static_cast<torch::optim::AdamWParamState&>(
        *member.optimizer->state().at(first.unsafeGetTensorImpl()));
  };
  member.session.install(member.plan_of("delayed_averaging"));
  member.iterate(6);
  kept().step(kept().step() + 3 * job->rank);  // as where a rank's part was unused
  const at::Tensor mean = mean_over_ranks(*job, "exp_avg", kept().exp_avg());
  EXPECT_FALSE(at::allclose(kept().exp_avg(), mean));
  member.session.install(member.plan_of("delayed_averaging", {{"period", "9"}}));
  EXPECT_FALSE(at::allclose(kept().exp_avg(), mean));
  member.session.install(member.plan_of("ddp"));
  EXPECT_TRUE(at::allclose(kept().exp_avg(), mean));
  EXPECT_EQ(kept().step(), 9);
}

struct OfTheProgram : torch::optim::Optimizer {
  explicit OfTheProgram(std::vector<at::Tensor> parameters)
      : Optimizer({torch::optim::OptimizerParamGroup(std::move(parameters))},
                  std::make_unique<torch::optim::SGDOptions>(0.01)) {}
  torch::Tensor step(LossClosure = nullptr) override {
    for (const at::Tensor& parameter : param_groups()[0].params()) {
      const torch::NoGradGuard off;
      state()[parameter.unsafeGetTensorImpl()] = std::make_unique<torch::optim::SGDParamState>();
      parameter.sub_(parameter.grad(), 0.01);
    }
    return {};
  }
};

TEST(Job, AnOptimizerWhoseStateIsNotKnownGoesOnFromNoLocalPlanToAnExactOne) {
  const auto job = this_rank(2);
  if (!job) return;
  Member member(*job,
                [](std::vector<at::Tensor> parameters) {
                  return std::make_unique<OfTheProgram>(std::move(parameters));
                },
                {});
  member.session.install(member.plan_of("delayed_averaging"));
  member.iterate(4);
  try {
    member.session.install(member.plan_of("ddp"));
    ADD_FAILURE() << "it is in force";
  } catch (const InvalidInput& error) {
    EXPECT_THAT(error.what(), HasSubstr("what their optimizers keep can be averaged of torch's SGD"));
  }
  EXPECT_NO_THROW(member.session.finish());
}

// ---- what is decided in training

const SessionLink kSlow{.name = "slow", .startup_us = 100, .us_per_byte = 0.5};

TEST(Job, RanksWithOtherDataGetAnExactPlan) {
  const auto job = this_rank(2);
  if (!job) return;
  for (const bool disjoint : {false, true}) {
    Member member(*job, sgd, {.options = {{"allow", "exact+corrected"}}, .links = {kSlow}});
    member.disjoint = disjoint;
    member.iterate(24);
    EXPECT_EQ(effects_of(*member.session.plan()) == std::vector{Effect::kExact}, disjoint);
    if (job->rank == 0 && disjoint) {
      EXPECT_THAT(member.told, Contains(HasSubstr("learn from different data")));
    }
    member.session.finish();
  }
}

TEST(Job, ThePreserverObjectsToASchemeThatWasAskedFor) {
  const auto job = this_rank(2);
  if (!job) return;
  Member member(*job, maker<torch::optim::SGD>(torch::optim::SGDOptions(0.2).momentum(0.9)),
                {.scheme = "deft", .warm_up = 10, .links = {kSlow}});
  member.iterate(20);
  if (job->rank == 0) {
    EXPECT_THAT(member.told, Contains(HasSubstr("the Preserver objects: the plan delays gradients")));
  }
  member.session.finish();
}

TEST(Job, ThePlanFollowsAComputationThatTakesLonger) {
  const auto job = this_rank(2);
  if (!job) return;
  Member member(*job, sgd,
                {.scheme = "mg_wfbp",
                 .warm_up = 1,
                 .follow = true,
                 .links = {{.name = "slow", .startup_us = 2000, .us_per_byte = 0.1}}});
  const auto ops = [&] { return member.session.plan()->period[0].ops.size(); };
  member.iterate(60);
  EXPECT_EQ(ops(), 1u);
  member.net.backward_takes = std::chrono::milliseconds(10);
  while (ops() == 1 && member.step < 600) member.iterate(10);
  EXPECT_GT(ops(), 1u);
  if (job->rank == 0) {
    EXPECT_THAT(member.told, Contains(HasSubstr("measured times have changed; now in force: mg_wfbp")));
  }
  member.session.finish();
}

}  // namespace
}  // namespace gradweave
