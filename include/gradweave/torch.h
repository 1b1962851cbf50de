// Training with libtorch in C++: one rank's session, as gradweave.wrap() is in Python. examples/cpp has a
// whole program. Link the CMake target gradweave::torch.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "gradweave/cluster.h"
#include "gradweave/observe.h"
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

// A link that a session's ops are issued on: a group of its own on Gloo.
struct SessionLink {
  std::string name;       // as plans and reports have it
  std::string interface;  // network interface; empty: GLOO_SOCKET_IFNAME's, else the host name's
  // To try a slower link: an op of n bytes takes at least startup_us + n us_per_byte, one after another. 0: what it takes.
  double startup_us = 0, us_per_byte = 0;
};

// As gradweave.wrap() has them in Python (docs/runtime.md), the same on every rank but for `interface`, `tell` and `dump`.
struct SessionOptions {
  std::chrono::milliseconds timeout{300'000};  // of one op, and of ranks that meet
  bool check = false;  // compare plan, sequence and size of each op across ranks before it starts
  // The plan comes from this scheme with these options, once warm_up + profile_iterations iterations were trained
  // synchronously. `auto` takes exact plans unless option `allow` says more, then at least 12 iterations to warm up.
  std::string scheme = "auto";
  std::map<std::string, std::string> options;
  int warm_up = 3, profile_iterations = 8;
  // Whether some backward may leave parameters without a gradient on some rank. By default the first iteration decides;
  // true: also a later one may, for which ranks tell each other in each iteration which were used.
  std::optional<bool> find_unused_parameters = {};
  std::optional<bool> follow;  // make a new plan once links or compute have changed; by default with `auto`
  int tune = 0;                // so many plans are tried in training
  std::vector<SessionLink> links;  // empty: one called "default"
  double probe_seconds = 3;        // for each link that is measured
  double loss_scale = 0;  // the first one of a dynamic scale, for 16-bit floats, 65536 for instance; 0: none
  std::function<void(const std::string&)> tell;  // lines for people, on rank 0; null: standard error
  // A folder, made if need be, where a rank leaves rank-0.json (by its number), a timeline of what it did last, when
  // training can't go on; `gradweave diff` says where two of them part. Empty: nothing is left.
  std::filesystem::path dump = {};
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
// to be registered in the order in which the forward runs them. To unfreeze parameters, finish() and begin
// another session. In the first iterations gradients are reduced one message at a time when all are known, and
// layers are profiled; then rank 0 plans, and all ranks put the plan in force after the same iteration. From
// then on the plan follows the run, or is tuned, as the options say.
//
// Errors of all members: InvalidInput for what the caller can change; RuntimeFailure once a peer is lost,
// and from then on. If the session is destroyed while an exception passes, the other ranks learn that this
// one has given up. One that ends without finish() says so where updates are lost with it.
class Session {
 public:
  // Broadcasts rank 0's parameters and buffers. Collective. `model` and `optimizer` must outlive the
  // session; their parameters stay the same from here on. Errors: InvalidInput for options that can't be, if the optimizer
  // has parameters that the model lacks or leaves some out, is LBFGS, which evaluates the loss many times in a
  // step, or if ranks have different models.
  Session(torch::nn::Module& model, torch::optim::Optimizer& optimizer, const Job& job,
          const SessionOptions& options = {});
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // The forward reaches `layer`: what the plan applies to it is applied here. C++ modules have no hooks, so
  // the forward says so itself, in the layer's first line; '' is the model itself, where it owns parameters. The
  // profile and plans that step in the forward, such as dear's, need it at every layer; with a plan of install()
  // that does neither it may be left out.
  void enter(const std::string& layer);

  // A backward whose gradients are added to those of the coming backward(): nothing is communicated.
  void accumulate(const at::Tensor& loss);

  // The backward of `loss`, in place of loss.backward(): gradients leave while it runs.
  void backward(const at::Tensor& loss);

  // Between backward() and step(): scales the gradients that the coming update will use so that their norm, over all of them,
  // is at most `max_norm`; returns the norm before. Where the plan steps in the next forward it waits for all results here.
  // Errors: InvalidInput where the plan steps in the backward, before the norm is known.
  double clip_grad_norm(double max_norm, double norm_type = 2);

  // In place of optimizer.step(): applies what the plan applies at the end of an iteration. What it applies later, in the
  // next forward, it steps with the hyperparameters of now. With a loss scale a step is left out where gradients are not finite,
  // on all ranks alike.
  void step();

  // In place of step(): drops the gradient of the last backward(), for instance because it is not finite; updates due from earlier
  // iterations take place. Every rank has to do the same. So do step(), the next forward and finish() where all gradients
  // have been set to none, as by zero_grad(). Errors: InvalidInput where the plan has stepped by the gradient in the backward.
  void skip_step();

  // Puts `plan` in force at the next iteration, once what the plan before has on its way is applied, and ends
  // profile and trials. Collective; every rank gives the same plan, of make_plan() or of read_plan(). Of a plan for one
  // link the name does not matter. Errors: InvalidInput on every rank for a plan that does not fit the model or the loop, or
  // that steps parts of the model, or lets ranks step alike that stepped on their own before, with an optimizer other than torch's
  // SGD, Adam, AdamW, RMSprop or Adagrad, whose steps are known to work parameter by parameter, and whose state can be averaged.
  void install(const Plan& plan);

  // The plan in force, and what it was made for; nothing where that is not known.
  const std::optional<Plan>& plan() const;
  const std::optional<Workload>& workload() const;
  const std::optional<Cluster>& cluster() const;
  // Returns what the plan in force takes beside what was predicted; nothing before enough iterations, or where nothing is
  // known of the links. Collective, between iterations.
  std::optional<Observer::Report> report();

  // Waits for, and applies, what this rank can finish alone: before parameters are read or changed between iterations, for an
  // average of weights, an evaluation without enter(), or to clamp them. Where ranks step on their own they stay different.
  void synchronize();

  // Applies everything on its way, averages what ranks stepped on their own, broadcasts rank 0's buffers,
  // and compares all parameters, also those that are frozen. Collective. Training may go on. Errors: InvalidInput on every rank if ranks
  // differ.
  void finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace gradweave
