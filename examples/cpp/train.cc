// Data-parallel training in C++: a small convolutional network learns to tell made-up pictures apart.
//
//   torchrun --no-python --nproc-per-node 2 build/examples/cpp/train  # plans for its link
//   torchrun --no-python --nproc-per-node 2 build/examples/cpp/train --scheme dear
//   torchrun --no-python --nproc-per-node 2 build/examples/cpp/train --scheme dear --tune 4  # tries plans in training
//   torchrun --no-python --nproc-per-node 2 build/examples/cpp/train --clip 0.5 --passes 2  # clips, and accumulates
//   torchrun --no-python --nproc-per-node 2 build/examples/cpp/train --plan plan.json
//   torchrun --no-python --nproc-per-node 2 build/examples/cpp/train --plain  # one all-reduce a tensor
//
// Any other launcher that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT does, too. Rank 0 prints the
// loss and a sum over the parameters, bit for bit: with an exact scheme and two ranks it is that of
// --plain.
#include <gradweave/error.h>
#include <gradweave/json.h>
#include <gradweave/torch.h>
#include <torch/nn/functional/activation.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/functional/pooling.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>

#include <cstdint>
#include <cstdio>
#include <iostream>
#include <map>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace {

namespace F = torch::nn::functional;

constexpr int kBatch = 32, kClasses = 10;

struct Network : torch::nn::Module {
  torch::nn::Conv2d conv1{nullptr}, conv2{nullptr};
  torch::nn::Linear hidden{nullptr}, classes{nullptr};
  std::function<void(const char*)> enter = [](const char*) {};  // a session's, where one trains it

  Network() {  // registered in the order of the forward
    conv1 = register_module("conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 16, 3).padding(1)));
    conv2 = register_module("conv2", torch::nn::Conv2d(torch::nn::Conv2dOptions(16, 32, 3).padding(1)));
    hidden = register_module("hidden", torch::nn::Linear(32 * 7 * 7, 128));
    classes = register_module("classes", torch::nn::Linear(128, kClasses));
  }

  at::Tensor forward(at::Tensor x) {
    enter("conv1");
    x = F::max_pool2d(at::relu(conv1(x)), F::MaxPool2dFuncOptions(2));
    enter("conv2");
    x = F::max_pool2d(at::relu(conv2(x)), F::MaxPool2dFuncOptions(2));
    enter("hidden");
    x = at::relu(hidden(x.flatten(1)));
    enter("classes");
    return classes(x);
  }
};

// Each class has a pattern; a picture is its class's with noise. The batches of a rank are its own.
struct Pictures {
  at::Tensor patterns;
  at::Generator generator;

  explicit Pictures(int rank)
      : generator(at::detail::createCPUGenerator(100 + static_cast<std::uint64_t>(rank))) {
    patterns = at::randn({kClasses, 1, 28, 28}, at::detail::createCPUGenerator(7));
  }

  std::pair<at::Tensor, at::Tensor> next() {
    const at::Tensor labels = at::randint(kClasses, {kBatch}, generator, at::kLong);
    return {patterns.index_select(0, labels) + 2 * at::randn({kBatch, 1, 28, 28}, generator), labels};
  }
};

struct Arguments {
  std::map<std::string, std::string> values{{"scheme", "auto"}, {"plan", ""}, {"iterations", "30"},
                                            {"plain", ""},      {"clip", ""}, {"passes", "1"},
                                            {"tune", "0"},      {"dump", ""}};

  Arguments(int count, char** texts) {
    for (int i = 1; i < count; ++i) {
      const std::string name = texts[i];
      const auto value = name.starts_with("--") ? values.find(name.substr(2)) : values.end();
      if (value == values.end())
        throw gradweave::InvalidInput("unknown argument", name, "see the top of train.cc");
      if (name != "--plain" && i + 1 == count) throw gradweave::InvalidInput("it has no value", name);
      value->second = name == "--plain" ? "yes" : texts[++i];
    }
  }
  const std::string& operator[](const std::string& name) const { return values.at(name); }
  double number(const std::string& name) const {
    try {
      return std::stod(values.at(name));
    } catch (const std::logic_error&) {
      throw gradweave::InvalidInput("'" + values.at(name) + "' is no number", "--" + name);
    }
  }
  int count(const std::string& name) const { return static_cast<int>(number(name)); }
};

at::Tensor loss_of(Network& network, Pictures& pictures) {
  const auto [images, labels] = pictures.next();
  return F::cross_entropy(network.forward(images), labels);
}

double plain_iteration(Network& network, torch::optim::Optimizer& optimizer, c10d::ProcessGroup* group,
                       int ranks, Pictures& pictures, const Arguments& arguments) {
  optimizer.zero_grad();
  double loss = 0;
  for (int pass = 0; pass < arguments.count("passes"); ++pass) {
    const at::Tensor each = loss_of(network, pictures);
    each.backward();
    loss = each.item<double>();
  }
  for (const at::Tensor& parameter : network.parameters()) {
    std::vector<at::Tensor> gradient{parameter.grad().div_(ranks)};
    if (group != nullptr) group->allreduce(gradient)->wait();
  }
  if (!arguments["clip"].empty())
    torch::nn::utils::clip_grad_norm_(network.parameters(), arguments.number("clip"));
  optimizer.step();
  return loss;
}

double iteration(Network& network, torch::optim::Optimizer& optimizer, gradweave::Session& session,
                 Pictures& pictures, const Arguments& arguments) {
  optimizer.zero_grad();
  for (int pass = 1; pass < arguments.count("passes"); ++pass) session.accumulate(loss_of(network, pictures));
  const at::Tensor loss = loss_of(network, pictures);
  session.backward(loss);
  if (!arguments["clip"].empty()) session.clip_grad_norm(arguments.number("clip"));
  session.step();
  return loss.item<double>();
}

gradweave::SessionOptions options_of(const Arguments& arguments) {
  gradweave::SessionOptions options;
  options.scheme = arguments["scheme"];
  options.warm_up = 2;
  options.profile_iterations = 4;
  options.probe_seconds = 0.5;
  options.tune = arguments.count("tune");
  options.dump = arguments["dump"];
  return options;
}

std::uint64_t sum_of_bits(const Network& network) {
  std::uint64_t sum = 0;
  for (const at::Tensor& parameter : network.parameters()) {
    const at::Tensor flat = parameter.detach().contiguous();
    const auto* bits = static_cast<const std::uint32_t*>(flat.const_data_ptr());
    for (std::int64_t i = 0; i < flat.numel(); ++i) sum = sum * 31 + bits[i];
  }
  return sum;
}

double train(const Arguments& arguments, const gradweave::Job& job, Network& network) {
  const int iterations = arguments.count("iterations");
  torch::optim::AdamW optimizer(network.parameters(), torch::optim::AdamWOptions(1e-3));
  Pictures pictures(job.rank);
  double loss = 0;
  if (!arguments["plain"].empty()) {
    const auto group = gradweave::gloo_group(job, "plain");
    for (int i = 0; i < iterations; ++i)
      loss = plain_iteration(network, optimizer, group.get(), job.world_size, pictures, arguments);
    return loss;
  }
  gradweave::Session session(network, optimizer, job, options_of(arguments));
  network.enter = [&](const char* layer) { session.enter(layer); };
  if (!arguments["plan"].empty()) session.install(gradweave::read_plan(arguments["plan"]));
  for (int i = 0; i < iterations; ++i) loss = iteration(network, optimizer, session, pictures, arguments);
  session.finish();  // all ranks are equal now, or each has an error
  return loss;
}

}  // namespace

int main(int count, char** texts) {
  try {
    const Arguments arguments(count, texts);
    const gradweave::Job job = gradweave::job_of_environment();
    at::set_num_threads(1);
    at::manual_seed(0);
    Network network;
    const double loss = train(arguments, job, network);
    if (job.rank == 0)
      std::printf("loss %.6f, parameters %016llx\n", loss,
                  static_cast<unsigned long long>(sum_of_bits(network)));
  } catch (const std::exception& error) {
    std::cerr << "train: " << error.what() << '\n';
    return 1;
  }
  return 0;
}
