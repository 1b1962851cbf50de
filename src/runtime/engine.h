// The engine: runs any valid plan in a training job. docs/engine.md follows one gradient through it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>
#include <vector>

#include "gradweave/plan.h"
#include "gradweave/timeline.h"
#include "gradweave/workload.h"
#include "run/compute_thread.h"
#include "run/run.h"
#include "runtime/device_watch.h"
#include "runtime/echo.h"
#include "runtime/group_channel.h"
#include "runtime/hooks.h"
#include "runtime/host.h"
#include "runtime/peers.h"
#include "runtime/state.h"
#include "runtime/trainer.h"

namespace gradweave::runtime {

struct EngineOptions {
  LinkOptions link;
  run::FindUnused find_unused = run::FindUnused::kAuto;
};

struct Counters : run::Counters {
  std::int64_t buffer_bytes = 0;  // held by the engine's buffers
};

// One rank's engine: a run of a plan on libtorch and c10d. The training thread calls it (autograd threads
// while the training thread is in backward); links have threads of their own. No call holds Python's lock
// while it waits. Errors: InvalidInput for what the caller can change; RuntimeFailure once a peer or a link
// is lost, and from then on. Once it is closed, every call but close() is InvalidInput.
class Engine {
 public:
  // `links`: one per link that a plan may name, those of all ranks first. `control`: a group for small CPU messages, null with one
  // rank. `peers`: of these ranks, or of all that have one plan with them; also used by the caller.
  Engine(std::vector<NamedParameter> parameters, std::vector<LinkSpec> links,
         c10::intrusive_ptr<c10d::ProcessGroup> control, std::shared_ptr<Peers> peers, int world_size,
         const EngineOptions& options, Stepper stepper);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Makes `plan` the plan in force, from its iteration 0, or from where `state` was taken. Collective: compares it
  // across ranks. Nothing may be pending. Errors: InvalidInput if the plan is invalid, differs between ranks (naming
  // them), or names unknown links, or keeps more than some rank has memory left for, or if the state is of another plan.
  // `refusal`: why this rank can't do it for a reason of its own. What one rank refuses or finds wrong, none does: each has
  // the error, which names the rank.
  void install(const Plan& plan, const Workload& workload, const StateTensors::Map* state = nullptr,
               const std::string& refusal = "");
  // Between iterations: returns copies of all that this rank has besides the caller's parameters and optimizer, after
  // what the coming forward would apply. Every rank has to do it after the same iteration; none waits for the others'
  // call. Empty before there is a plan. Errors: as Run::rest().
  StateTensors::Map state();

  // Of an engine whose links have no group: puts `plan` in force where rank `rank` of a job was, of which each rank has
  // saved one of `states`. What was under way is taken as it would have arrived: what was still to be sent is added up
  // exactly, and residuals stay such. drain() then makes of this rank what the job's own would have, but averages
  // nothing over ranks. Errors: as install().
  void play(const Plan& plan, const Workload& workload, const std::vector<StateTensors::Map>& states,
            std::size_t rank);
  // Between iterations: returns copies of what outlives a plan: residuals, by parameter, the outer
  // optimizer's momentum, the iteration.
  StateTensors::Map remains() const;
  // Before the first plan: goes on from remains() of every rank of a job, of any number. Errors: InvalidInput.
  void take_over(const std::vector<StateTensors::Map>& remains);

  // Makes the groups of links for messages in the processor's memory, beside an accelerator's, unless they are there. Collective.
  void open_controls();

  // On: copies of this rank's own gradients are kept. Returns, by parameter, what the last backward computed here, flat;
  // undefined where it computed nothing.
  void keep_local_gradients(bool on);
  std::vector<at::Tensor> take_local_gradients();

  // Returns an echo of the link of that name. Errors: InvalidInput if there is none.
  Echo echo(const std::string& link) const;

  // Points of an iteration. A training forward, and what ends an iteration, say which thread trains. With a plan that
  // steps in the forward, forward_start() and synchronize() are an InvalidInput in another one.
  void forward_begins();
  void forward_start(std::int32_t layer);
  // The layer's parameters are about to be read for its forward, which comes later.
  void forward_comes(std::int32_t layer);
  void forward_end(std::int32_t layer);
  void backward_start();  // from a hook on the model's output
  // Of a parameter, by its number, whose gradient has a place of its own: it is complete. The others' are seen by hooks.
  void on_gradient(std::int32_t parameter);
  // The user's optimizer.step(): applies what the plan applies at iteration_end and begins the next
  // iteration.
  void end_iteration();
  // In place of it: drops the gradient of the last backward.
  void skip();

  // Applies everything that is on its way, then averages parameters that ranks stepped on their own; the plan
  // goes on from its iteration 0. Collective: ranks meet in `what` first ("finish()"), since they would run
  // other ops after other iterations. Between iterations only.
  void drain(const std::string& what);
  // Applies what the coming forward would, and waits for the ops that can run. Safe on one rank alone.
  void synchronize();
  // Gradients are no longer seen: parameters are as they were before.
  void unhook();
  // Releases hooks, links and groups. Idempotent. Waits for all ops that may start, which other ranks may need: at most the
  // timeout in all, and with `patience` only until none has ended for so long. 0: after an error of this rank's own.
  void close(std::optional<run::Clock::duration> patience = {});

  // With a loss scale, plans that do not apply everything at the end of its own iteration take it out where a
  // gradient is handed over, since a generation may hold gradients of several scales. If a gradient of some
  // rank was not finite, nothing that holds it is applied, on any rank. Null: no scale.
  void set_unscaler(Unscaler unscaler);

  // Before the first install(). `make`: is called once a plan is to come into force that needs a Pause, which it returns, or
  // null where there is none; it may wait for the accelerator. Without, or null: such plans are refused.
  void set_pause(std::function<Pause()> make);

  // `interrupt` makes the training thread's next call fail with the verdict, from another thread: see DeviceBackends::end().
  void set_interrupt(DeviceBackends::Interrupt interrupt);

  // By parameter, the parts of the gradient that the coming update will use, for changes in place; empty
  // where it has none. Waits for them. Errors: InvalidInput without a backward before, or if the plan sends
  // some of it only in the next iteration.
  std::vector<std::vector<at::Tensor>> coming_gradients();

  // Ends training for all ranks because `what` failed for `cause`, `after` it began, as a lost op does:
  // RuntimeFailure with the suspects, which the other ranks get too.
  [[noreturn]] void fail(const std::string& what, run::Clock::duration after, const std::string& cause);

  // What one step of the optimizer is of; parameters are places in the constructor's list.
  OptimizerSteps::Subset subset(std::int32_t number) const;
  // All slices that the plan in force steps as parameters of their own. Empty before there is one.
  std::vector<Slice> slices() const;
  // Parameters that ranks step on their own under the plan in force. Empty before there is one.
  std::vector<std::int32_t> stepped_locally() const;
  // As the constructor had them.
  const std::vector<LinkSpec>& links() const { return open().links; }
  c10::Device device() const { return open().options.device; }
  const std::vector<NamedParameter>& parameters() const { return open().host.parameters().all(); }
  // Asks or tells the run, which knows what the plan in force does and how far it is: engine.run(&run::Run::iteration).
  template <typename Call, typename... Given>
  decltype(auto) run(Call call, Given&&... given) {
    return std::invoke(call, open().run, std::forward<Given>(given)...);
  }
  template <typename Call, typename... Given>
  decltype(auto) run(Call call, Given&&... given) const {
    return std::invoke(call, std::as_const(open().run), std::forward<Given>(given)...);
  }
  Counters counters() const;
  // Returns what was recorded since the last call. Empty unless the run's timeline is on.
  Timeline take_timeline();

 private:
  // All that an engine is until it is closed. Of the compute thread, but for what the run's queue shares.
  struct Open {
    Open(std::vector<NamedParameter> parameters, std::vector<LinkSpec> links,
         c10::intrusive_ptr<c10d::ProcessGroup> control, std::shared_ptr<Peers> peers, int world_size,
         const EngineOptions& options, Stepper stepper);

    std::vector<LinkSpec> links;
    int world_size;
    LinkOptions options;
    std::function<Pause()> make_pause;
    std::shared_ptr<Peers> peers;
    TorchHost host;
    run::Run run;
    std::unique_ptr<GradientHooks> hooks;
    std::vector<std::string> layer_names;
    bool has_places = false;  // of gradients
    Trainer trainer;
    std::shared_ptr<DeviceBackends> backends;
    std::unique_ptr<DeviceWatch> watch;  // null: the host waits for all ops

    // Updates that are on their way are the training thread's to apply: it may be about to.
    bool may_apply() const REQUIRES(run::compute_thread);
    void check_hooks() const;
    // What can be found wrong with a plan by one rank alone.
    struct Prepared {
      RunPlan run_plan;
      std::vector<std::int32_t> parameter_of;
      std::vector<const LinkSpec*> links;
      std::int64_t extra_bytes = 0;
      std::string hash;  // of the plan and of the order of the model's tensors
      std::string from;  // where the plan begins, for people; empty: at its beginning
    };
    Prepared prepare(const Plan& plan, const Workload& workload, const StateTensors::Map* state)
        REQUIRES(run::compute_thread);
    // `refusal`: this rank's, instead of a plan.
    void check_same_plan(const Prepared* prepared, const std::string& refusal) const;
    // Of these links, or all.
    void open_controls(const std::vector<const LinkSpec*>* only);
    // `held`: what goes there before the plan comes. Collective. Errors: those of require_room().
    void check_room(std::int64_t wanted, c10::Device on, std::int64_t held) const;
    // `rank`: this one's, for messages that differ by rank. `restored` is called before anything is sent.
    void put_in_force(Prepared&& prepared, const Workload& workload, const StateTensors::Map* state, int rank,
                      const std::function<void()>& restored) REQUIRES(run::compute_thread);
    static std::string resumed_at(const StateTensors::Map& state);
    void rest() REQUIRES(run::compute_thread);
    void restore(const StateTensors::Map& state) REQUIRES(run::compute_thread);
    void archive(run::Archive& numbers, StateTensors& tensors) REQUIRES(run::compute_thread);
    const LinkSpec& link_called(const std::string& name, Level level = Level::kAll) const;
    std::vector<const LinkSpec*> links_of(const RunPlan& plan) const;
  };
  // Errors: InvalidInput once it is closed.
  Open& open() const;
  void queue_finish();
  void finish_backward();

  std::unique_ptr<Open> open_;  // null once it is closed
};

}  // namespace gradweave::runtime
