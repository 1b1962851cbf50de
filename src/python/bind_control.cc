#include "python/bind_control.h"

#include <pybind11/chrono.h>
#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <optional>
#include <tuple>

#include "control/controller.h"
#include "jobs/engine_job.h"
#include "python/values.h"
#include "report/result_json.h"

namespace py = pybind11;

namespace gradweave::python {
namespace {

using control::Controller;
using runtime::ControlGroup;
using runtime::Engine;
using runtime::EngineJob;
using runtime::Peers;
using Unlocked = py::call_guard<py::gil_scoped_release>;
using Rule = std::tuple<double, double, bool>;  // momentum, dampening, nesterov

// Calls a method of the Python object.
template <typename Result, typename... Arguments>
Result called(const EngineJob* job, const char* name, Arguments&&... arguments) {
  const py::gil_scoped_acquire lock;
  const py::function method = py::get_override(job, name);
  if (!method) py::pybind11_fail(std::string("EngineJob.") + name + " is missing");
  py::object result = method(std::forward<Arguments>(arguments)...);
  if constexpr (!std::is_void_v<Result>) return result.cast<Result>();
}

// Python may keep what it is given: a copy.
template <typename T>
std::shared_ptr<T> kept(const T& value) {
  return std::make_shared<T>(value);
}

template <typename T>
std::shared_ptr<T> kept(const std::optional<T>& value) {
  return value ? kept(*value) : nullptr;
}

// What is Python's of a job: its tensors, optimizers, groups and hooks.
class PythonJob : public EngineJob {
 public:
  using EngineJob::EngineJob;
  using Numbers = std::vector<double>;

  std::string install(const Plan& plan, const Workload& workload) override {
    return called<std::string>(this, "install", kept(plan), kept(workload));
  }
  bool compiled() override { return called<bool>(this, "compiled"); }
  void profiles(bool on) override { called<void>(this, "profiles", on); }
  void look_at_optimizers() override { called<void>(this, "look_at_optimizers"); }
  control::Costs measure(const Workload& workload) override {
    return called<control::Costs>(this, "measure", kept(workload));
  }
  std::optional<StepRule> step_rule() override {
    const auto rule = called<std::optional<Rule>>(this, "step_rule");
    if (!rule) return std::nullopt;
    return StepRule{std::get<0>(*rule), std::get<1>(*rule), std::get<2>(*rule)};
  }
  Numbers learning_rates() override { return called<Numbers>(this, "learning_rates"); }
  runtime::OptimizerMoments moments() override {
    auto [moments, share] =
        called<std::pair<std::vector<std::optional<at::Tensor>>, double>>(this, "moments");
    runtime::OptimizerMoments found{.share = share};
    for (std::optional<at::Tensor>& each : moments)
      found.moments.push_back(std::move(each).value_or(at::Tensor()));
    return found;
  }
  void tell(const std::string& line) override { called<void>(this, "tell", line); }
};

// None where there is nothing.
template <typename Value>
py::object result_of(const std::optional<Value>& value) {
  return value ? python_of(to_object(*value)) : py::none();
}

void bind_job(py::module_& module) {
  using control::Costs;
  py::class_<Costs>(module, "Costs")
      .def(py::init([](const Given<Cluster>& usual, const std::optional<Given<Cluster>>& staged,
                       double optimizer_us, double contention, double burst_us) {
             Costs costs{.usual = *usual,
                         .overheads = {.optimizer_ns = nanoseconds(optimizer_us),
                                       .contention = decimal_from_double(contention, "contention"),
                                       .burst_ns = nanoseconds(burst_us)}};
             if (staged) costs.staged = **staged;
             return costs;
           }),
           py::arg("usual"), py::arg("staged") = py::none(), py::arg("optimizer_us") = 0.0,
           py::arg("contention") = 1.0, py::arg("burst_us") = 0.0)
      .def_property_readonly("usual", [](const Costs& costs) { return kept(costs.usual); })
      .def_property_readonly("staged", [](const Costs& costs) { return kept(costs.staged); })
      .def_property_readonly("overheads", [](const Costs& costs) {
        return std::map<std::string, double>{
            {"optimizer_us", static_cast<double>(costs.overheads.optimizer_ns) / 1e3},
            {"contention", to_double(costs.overheads.contention)},
            {"burst_us", static_cast<double>(costs.overheads.burst_ns) / 1e3}};
      });
  py::class_<EngineJob, PythonJob>(module, "EngineJob")
      .def(py::init_alias<Engine&, std::shared_ptr<Peers>, std::shared_ptr<ControlGroup>, int, int, bool,
                          std::chrono::milliseconds>(),
           py::arg("engine"), py::arg("peers"), py::arg("messages"), py::arg("rank"), py::arg("size"),
           py::arg("decides"), py::arg("timeout"), py::keep_alive<1, 2>())
      .def(
          "measured",
          [](const EngineJob& job, const Given<Workload>& workload, const std::string& scheme,
             const std::map<std::string, std::string>& options,
             double seconds) { return job.measured(*workload, scheme, options, seconds); },
          py::arg("workload"), py::arg("scheme"), py::arg("options"), py::arg("seconds"), Unlocked())
      .def_property_readonly("comparing", &EngineJob::comparing)
      .def("backward_ended", &EngineJob::backward_ended, Unlocked())
      .def("optimizer_stepped", &EngineJob::optimizer_stepped, Unlocked());
}

void bind_loop(py::module_& module) {
  py::class_<control::Loop>(module, "Loop")
      .def(py::init())
      .def(
          "saw",
          [](control::Loop& loop, const std::string& trait, const std::string& detail) {
            loop.saw(trait, detail);
          },
          py::arg("trait"), py::arg("detail") = "")
      .def("seen", [](const control::Loop& loop, const std::string& trait) { return loop.seen(trait); })
      .def("refusal", [](const control::Loop& loop, const Given<Plan>& plan) {
        return loop.refusal(demands_of(*plan));
      });
  module.def(
      "check_runs",
      [](const std::string& scheme, const std::map<std::string, std::string>& options,
         const std::vector<std::pair<std::string, std::string>>& tensors, int workers, int workers_per_node,
         c10::Device device) {
        std::vector<Tensor> described;
        for (const auto& [name, dtype] : tensors) {
          if (const auto known = dtype_from_name(dtype))
            described.push_back({.name = name, .numel = 1, .dtype = *known});
        }
        control::check_runs({scheme, options}, described, workers, workers_per_node,
                            runtime::unrunnable_on(workers, device));
      },
      py::arg("scheme"), py::arg("options"), py::arg("tensors"), py::arg("workers"),
      py::arg("workers_per_node"), py::arg("device"), Unlocked());
}

}  // namespace

void bind_control(py::module_& module) {
  bind_job(module);
  bind_loop(module);
  py::class_<Controller>(module, "Controller")
      .def(py::init([](EngineJob& job, control::Loop& loop, const std::string& scheme,
                       const std::map<std::string, std::string>& options, int warm_up, int profile_iterations,
                       bool compares_gradients, bool follows, int trials, bool tells, c10::Device device) {
             const control::ControllerOptions how{.request = {scheme, options},
                                                  .warm_up = warm_up,
                                                  .profile_iterations = profile_iterations,
                                                  .compares_gradients = compares_gradients,
                                                  .follows = follows,
                                                  .trials = trials,
                                                  .tells = tells};
             return std::make_unique<Controller>(job, loop, how, runtime::unrunnable_on(job.size(), device));
           }),
           py::arg("job"), py::arg("loop"), py::kw_only(), py::arg("scheme"), py::arg("options"),
           py::arg("warm_up"), py::arg("profile_iterations"), py::arg("compares_gradients"),
           py::arg("follows"), py::arg("trials"), py::arg("tells"), py::arg("device"), py::keep_alive<1, 2>(),
           py::keep_alive<1, 3>())
      .def("begin", &Controller::begin, Unlocked())
      .def(
          "layers_known",
          [](Controller& controller, const Given<Workload>& workload, std::vector<std::string> links,
             std::vector<std::string> inside, int workers_per_node) {
            controller.layers_known(*workload, {std::move(links), std::move(inside), workers_per_node});
          },
          py::arg("workload"), py::arg("links"), py::arg("inside"), py::arg("workers_per_node"), Unlocked())
      .def("iteration_ended", &Controller::iteration_ended, Unlocked())
      .def(
          "install", [](Controller& controller, const Given<Plan>& plan) { controller.install(*plan); },
          Unlocked())
      .def(
          "go_on",
          [](Controller& controller, const Given<Plan>& plan, const Given<Workload>& workload,
             const std::optional<control::Costs>& costs,
             std::optional<std::pair<control::Loop::Traits, std::vector<double>>> seen,
             std::int64_t iteration) {
            std::optional<control::Seen> then;
            if (seen) then = {std::move(seen->first), std::move(seen->second)};
            controller.go_on(*plan, *workload, costs, then, iteration);
          },
          py::arg("plan"), py::arg("workload"), py::arg("costs"), py::arg("seen"), py::arg("iteration"),
          Unlocked())
      .def("folded", &Controller::folded, py::arg("before"), py::arg("iteration"), Unlocked())
      .def("finish", &Controller::finish, Unlocked())
      .def("close", &Controller::close, py::arg("failed"), Unlocked())
      .def_property_readonly("profiling", &Controller::profiling)
      .def_property_readonly("workload",
                             [](const Controller& controller) { return kept(controller.workload()); })
      .def_property_readonly("cluster",
                             [](const Controller& controller) { return kept(controller.cluster()); })
      .def_property_readonly("prediction",
                             [](const Controller& controller) { return result_of(controller.prediction()); })
      .def_property_readonly("costs", [](const Controller& controller) { return controller.costs(); })
      .def_property_readonly("seen",
                             [](const Controller& controller) {
                               control::Seen seen = controller.seen();
                               return std::pair(std::move(seen.traits), std::move(seen.gradients));
                             })
      .def_property_readonly("tuning",
                             [](const Controller& controller) { return result_of(controller.tuning()); })
      .def("report", [](Controller& controller) {
        std::optional<Observer::Report> report;
        {
          const py::gil_scoped_release unlocked;
          report = controller.report();
        }
        return result_of(report);
      });
}

}  // namespace gradweave::python
