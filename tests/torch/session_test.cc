// Training in C++ on one rank; tests/runtime/test_cpp.py has real ones.
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "gradweave/error.h"
#include "gradweave/schemes.h"
#include "gradweave/torch.h"
#include "runtime/engine.h"

namespace gradweave {
namespace {

struct Layers : torch::nn::Module {
  Layers() {
    for (const char* name : {"a", "b", "c"}) {
      layers.push_back(register_module(name, torch::nn::Linear(3, 3)));
      const torch::NoGradGuard off;
      for (at::Tensor& parameter : layers.back()->parameters()) parameter.fill_(0.25);
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& layer : layers) {
      if (session != nullptr)
        session->enter(layer.ptr() == layers[0].ptr() ? "a" : layer.ptr() == layers[1].ptr() ? "b" : "c");
      x = layer->forward(x);
    }
    return x;
  }

  std::vector<torch::nn::Linear> layers;
  Session* session = nullptr;
};

// A schedule of learning rates that is set after step(), as schedulers do.
std::vector<at::Tensor> trained_by(const std::string& scheme) {
  Layers model;
  torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.01).momentum(0.5));
  auto& options = static_cast<torch::optim::SGDOptions&>(optimizer.param_groups()[0].options());
  Session session(model, optimizer, Job());
  model.session = &session;
  const auto iterate = [&](int n) {
    optimizer.zero_grad();
    session.backward(model.forward(at::ones({2, 3})).sum());
    session.step();
    options.lr(0.01 / (n + 1));
  };
  iterate(0);
  session.install(std::get<Plan>(make_plan(scheme, session.profile(), session.probe())));
  for (int n = 1; n < 6; ++n) iterate(n);
  session.finish();
  std::vector<at::Tensor> parameters;
  for (const at::Tensor& each : model.parameters()) parameters.push_back(each.detach().clone());
  return parameters;
}

// dear, p3 and us_byte step in the next forward.
TEST(Session, AStepUsesTheHyperparametersThatItWasCalledWith) {
  const std::vector<at::Tensor> expected = trained_by("ddp");
  for (const char* scheme : {"dear", "p3", "us_byte"}) {
    const std::vector<at::Tensor> found = trained_by(scheme);
    for (std::size_t p = 0; p < expected.size(); ++p) EXPECT_TRUE(at::equal(found[p], expected[p])) << scheme;
  }
}

TEST(Engine, RefusesEveryCallOnceItIsClosed) {
  const at::Tensor parameter = at::ones({3}).requires_grad_();
  runtime::Engine engine({{"a", parameter}}, {{.name = "link"}}, {},
                         std::make_shared<runtime::Peers>(nullptr, 0, 1), 1, {}, [](std::int32_t) {});
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
    const runtime::Engine engine(parameters, {}, {}, std::make_shared<runtime::Peers>(nullptr, 0, 1), 1, {},
                                 [](std::int32_t) {});
    FAIL();
  } catch (const InvalidInput& error) {
    EXPECT_NE(std::string(error.what()).find("'b'"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace gradweave
