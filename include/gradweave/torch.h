// Training with libtorch in C++: one rank's session, as gradweave.wrap() is in Python. examples/cpp has a
// whole program. Link the CMake target gradweave::torch.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "gradweave/cluster.h"
#include "gradweave/plan.h"
#include "gradweave/workload.h"

namespace at {
class Tensor;
}
namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace gradweave {

// This process among those that train one model.
struct Job {
  int rank = 0;
  int world_size = 1;
  c10::intrusive_ptr<c10d::Store> store;  // that all ranks reach; null with one rank
};

// Returns the job that torchrun's environment names: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT; rank 0
// serves the store, unless torchrun does. Without RANK it is a job of one rank. Waits up to `timeout` for
// the other ranks. Errors: InvalidInput naming the variable that is missing or wrong; RuntimeFailure if
// ranks don't come.
Job job_of_environment(std::chrono::milliseconds timeout = std::chrono::minutes(5));

// Returns a process group of the job's ranks on Gloo, over GLOO_SOCKET_IFNAME's interface, else the host
// name's. Collective: every rank asks for the same `name`, which no other group has. Null with one rank.
c10::intrusive_ptr<c10d::ProcessGroup> gloo_group(
    const Job& job, const std::string& name, std::chrono::milliseconds timeout = std::chrono::minutes(5));

struct SessionOptions {
  std::chrono::milliseconds timeout{300'000};  // of one op, and of ranks that meet
  bool check = false;  // compare plan, sequence and size of each op across ranks before it starts
};

// One rank's training of one model by one optimizer, all on one thread:
//
//   Session session(model, optimizer, job_of_environment());
//   for (...) {
//     optimizer.zero_grad();
//     session.backward(loss(model.forward(batch)));  // forward calls session.enter(layer) at each layer
//     session.step();
//   }
//   session.finish();
//
// A layer is a module that owns parameters which require a gradient; its name is the module's. Layers have
// to be registered in the order in which the forward runs them. Until install() puts a plan in force,
// gradients are reduced one message at a time when all are known, and layers are profiled.
//
// Errors of all members: InvalidInput for what the caller can change; RuntimeFailure once a peer is lost,
// and from then on. If the session is destroyed while an exception passes, the other ranks learn that this
// one has given up.
class Session {
 public:
  // Broadcasts rank 0's parameters and buffers. Collective. `model` and `optimizer` must outlive the
  // session; their parameters stay the same from here on. Errors: InvalidInput if the optimizer has
  // parameters that the model lacks or leaves some out, is LBFGS, which evaluates the loss many times in a
  // step, or if ranks have different models.
  Session(torch::nn::Module& model, torch::optim::Optimizer& optimizer, const Job& job,
          const SessionOptions& options = {});
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // The forward reaches `layer`: what the plan applies to it is applied here. C++ modules have no hooks, so
  // the forward says so itself, in the layer's first line. Plans that step in the forward, such as dear's,
  // and profile() need it at every layer; for others it may be left out.
  void enter(const std::string& layer);

  // The backward of `loss`, in place of loss.backward(): gradients leave while it runs.
  void backward(const at::Tensor& loss);

  // In place of optimizer.step(): applies what the plan applies at the end of an iteration. What it applies later, in the
  // next forward, it steps with the hyperparameters of now.
  void step();

  // Returns the layers with the medians of their times since the session began or was last asked, scaled
  // so that they add up to the median iteration, of the slowest rank, the same on all ranks. Collective.
  // Errors: InvalidInput unless each layer was entered in a whole iteration.
  Workload profile();

  // Returns the job's cluster, its one link called "default" measured for about `seconds`, the same on all
  // ranks. Collective. Not while an iteration runs.
  Cluster probe(double seconds = 2.0);

  // Puts `plan` in force at the next iteration, once what the plan before has on its way is applied.
  // Collective; every rank gives the same plan, as make_plan() makes of profile() and probe(), or
  // read_plan() of a file. It may name one link, whatever it is called. Errors: InvalidInput for a plan
  // that does not fit the model or that steps parts of it with an optimizer other than torch's SGD, Adam,
  // AdamW, RMSprop or Adagrad, whose steps are known to work parameter by parameter.
  void install(const Plan& plan);

  // Applies everything on its way, averages what ranks stepped on their own, broadcasts rank 0's buffers,
  // and compares parameters. Collective. Training may go on. Errors: InvalidInput on every rank if ranks
  // differ.
  void finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace gradweave
