#include "python/bind_core.h"

#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>

#include <filesystem>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "gradweave/effects.h"
#include "gradweave/fit.h"
#include "gradweave/ranked_plans.h"
#include "gradweave/report.h"
#include "gradweave/schemes.h"
#include "gradweave/simulate.h"
#include "gradweave/tune.h"
#include "gradweave/validate.h"
#include "python/values.h"
#include "report/result_json.h"
#include "report/rows.h"
#include "run/layer_timer.h"

namespace py = pybind11;

namespace gradweave::python {
namespace {

using Unlocked = py::call_guard<py::gil_scoped_release>;
using Written = std::map<std::string, std::string>;  // options: {name: text}

// Returns calculate(), done without Python's lock.
template <class Calculate>
auto unlocked(const Calculate& calculate) {
  const py::gil_scoped_release released;
  return calculate();
}

// Returns the value as a dictionary in the form of its file.
template <typename T>
py::dict dictionary_of(const T& value) {
  return py::module_::import("json").attr("loads")(unlocked([&] { return to_json(value); }));
}

// A value of the core: it never changes, equal ones have one hash, and from_json(to_json()) is the same again. It reads like
// the dictionary of its file.
template <typename T>
py::class_<T, std::shared_ptr<T>> bind_value(py::module_& module) {
  const auto itself = [](const std::shared_ptr<T>& value) { return value; };
  return py::class_<T, std::shared_ptr<T>>(module, Form<T>::kClass.text)
      .def(py::init([](const Given<T>& given) { return std::make_shared<T>(*given); }), py::arg("given"))
      .def_static("from_json", &parsed<T>, py::arg("text"))
      .def_static(
          "read",
          [](const std::filesystem::path& path) {
            return std::make_shared<T>(Form<T>::kRead(path.string()));
          },
          py::arg("path"), Unlocked())
      .def(
          "to_json", [](const T& value) { return to_json(value); }, Unlocked())
      .def("to_dict", &dictionary_of<T>)
      .def("__getitem__",
           [](const T& value, const py::object& key) -> py::object {
             const py::dict dictionary = dictionary_of(value);
             if (!dictionary.contains(key)) throw py::key_error(py::str(key));
             return dictionary[key];
           })
      .def(
          "get",
          [](const T& value, const py::object& key, const py::object& instead) -> py::object {
            return dictionary_of(value).attr("get")(key, instead);
          },
          py::arg("key"), py::arg("default") = py::none())
      .def("keys", [](const T& value) { return dictionary_of(value).attr("keys")(); })
      .def("__contains__",
           [](const T& value, const py::object& key) { return dictionary_of(value).contains(key); })
      .def("__iter__", [](const T& value) { return py::iter(dictionary_of(value)); })
      .def("__repr__", [](const T& value) { return Form<T>::kClass.text + ("(" + to_json(value) + ")"); })
      .def(
          py::pickle([](const T& value) { return py::make_tuple(to_json(value)); },
                     [](const py::tuple& state) { return parsed<T>(state[0].template cast<std::string>()); }))
      .def("__eq__",
           [](const T& one, const py::object& other) -> py::object {
             if (!py::isinstance<T>(other)) return py::reinterpret_borrow<py::object>(Py_NotImplemented);
             return py::bool_(one == other.cast<const T&>());
           })
      .def("__hash__", [](const T& value) { return py::hash(py::str(to_json(value))); })
      .def("__copy__", itself)
      .def("__deepcopy__", [](const std::shared_ptr<T>& value, const py::dict&) { return value; });
}

// By layer: its name, and of its tensors name, shape and element type.
using Layers = std::vector<
    std::pair<std::string, std::vector<std::tuple<std::string, std::vector<std::int64_t>, std::string>>>>;

Workload workload_of(const std::string& name, const Layers& layers) {
  Workload workload{.name = name};
  for (const auto& [layer, tensors] : layers) {
    Layer& added = workload.layers.emplace_back(Layer{.name = layer});
    for (const auto& [tensor, shape, dtype] : tensors) {
      const std::optional<DType> known = dtype_from_name(dtype);
      if (!known) throw InvalidInput("unknown element type '" + dtype + "'", tensor, "use one of torch's");
      const std::int64_t numel =
          std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies{});
      added.tensors.push_back({.name = tensor, .numel = numel, .dtype = *known, .shape = shape});
    }
  }
  check(workload);
  return workload;
}

void bind_values(py::module_& module) {
  bind_value<Workload>(module)
      .def_static("of_layers", &workload_of, py::arg("name"), py::arg("layers"))
      .def(
          "timed",
          [](const Workload& workload, std::vector<double> forward_ns, std::vector<double> backward_ns) {
            return run::timed(workload, {std::move(forward_ns), std::move(backward_ns)});
          },
          py::arg("forward_ns"), py::arg("backward_ns"));
  bind_value<Cluster>(module).def_readonly("workers", &Cluster::workers);
  bind_value<Plan>(module)
      .def_readonly("scheme", &Plan::scheme)
      .def_readonly("options", &Plan::options)
      .def_property_readonly("links",
                             [](const Plan& plan) {
                               std::vector<std::string> names;
                               for (const PlanLink& link : plan.links) names.push_back(link.name);
                               return names;
                             })
      .def_readonly("workers_per_node", &Plan::workers_per_node)
      .def_property_readonly("links_inside",
                             [](const Plan& plan) {
                               std::vector<std::string> names;
                               for (const PlanLink& link : plan.links)
                                 if (link.level == Level::kInside) names.push_back(link.name);
                               return names;
                             })
      .def_property_readonly("chosen", [](const Plan& plan) {
        if (plan.search_report && !plan.search_report->chosen.scheme.empty())
          return python_of(to_object(plan.search_report->chosen));
        return python_of({{"scheme", plan.scheme}, {"options", plan.options}});
      });
  bind_value<Timeline>(module)
      .def_property_readonly("empty", [](const Timeline& timeline) { return timeline.spans.empty(); })
      .def(
          "named",
          [](Timeline timeline, std::string name) {
            timeline.name = std::move(name);
            return timeline;
          },
          py::arg("name"));
}

// Warns, where Python called, of what plans and predictions leave out.
void warn_of(const Cluster& cluster) {
  const std::string left_out = not_modelled(cluster);
  if (!left_out.empty() && PyErr_WarnEx(PyExc_UserWarning, left_out.c_str(), 2) != 0)
    throw py::error_already_set();
}

[[noreturn]] void fail_to_plan(std::string_view scheme, const Infeasible& infeasible) {
  throw std::runtime_error("scheme '" + std::string(scheme) + "' found no plan: " + infeasible.reason);
}

std::shared_ptr<Plan> plan_by(const Given<Workload>& workload, const Given<Cluster>& cluster,
                              const std::string& scheme, const Written& options) {
  warn_of(*cluster);
  PlanResult result = unlocked([&] { return make_plan(scheme, *workload, *cluster, options); });
  if (const auto* infeasible = std::get_if<Infeasible>(&result)) fail_to_plan(scheme, *infeasible);
  return std::make_shared<Plan>(std::get<Plan>(std::move(result)));
}

py::list ranked(const Given<Workload>& workload, const Given<Cluster>& cluster, const Written& options) {
  warn_of(*cluster);
  const SchemeOptions set = parse_options(kAuto, options);
  RankedPlans result = unlocked([&] { return ranked_plans(*workload, *cluster, set); });
  if (const auto* infeasible = std::get_if<Infeasible>(&result)) fail_to_plan(kAuto, *infeasible);
  py::list entries;
  for (RankedPlan& each : std::get<std::vector<RankedPlan>>(result)) {
    py::dict entry;
    py::list effects;
    for (const Effect effect : each.effects) effects.append(std::string(name_of(effect)));
    entry["prediction"] = python_of(to_object(each.prediction));
    entry["effects"] = effects;
    entry["demands"] = python_of(to_object(each.demands));
    entry["plan"] = std::make_shared<Plan>(std::move(each.plan));
    entries.append(entry);
  }
  return entries;
}

py::object simulated(const Given<Plan>& plan, const Given<Workload>& workload, const Given<Cluster>& cluster,
                     double optimizer_us, double apply_us, double contention, double handover_us,
                     double launch_us, double burst_us) {
  warn_of(*cluster);
  const SimulationOptions how = {.optimizer_ns = nanoseconds(optimizer_us),
                                 .apply_ns = nanoseconds(apply_us),
                                 .contention = decimal_from_double(contention, "contention"),
                                 .handover_ns = nanoseconds(handover_us),
                                 .launch_ns = nanoseconds(launch_us),
                                 .burst_ns = nanoseconds(burst_us)};
  return python_of(unlocked([&] {
    SimulationResult result = simulate(*plan, *workload, *cluster, how);
    add_proved_optimum(*plan, {*workload}, *cluster, result);
    return to_object(result);
  }));
}

py::object fitted(const std::vector<std::pair<std::int64_t, double>>& points) {
  std::vector<Measurement> measurements;
  for (const auto& [bytes, us] : points) measurements.push_back({bytes, us});
  const LinkFit fit = unlocked([&] { return fit_link(measurements); });
  return python_of(
      {{"startup_us", fit.startup_us}, {"us_per_byte", fit.us_per_byte}, {"residual", fit.residual}});
}

std::vector<std::string> violations(const Given<Plan>& plan, const Given<Workload>& workload) {
  std::vector<std::string> texts;
  for (const Violation& violation : validate(*plan, *workload).violations)
    texts.push_back(violation.where + ": " + violation.what + "; " + violation.remedy);
  return texts;
}

// The page of report.h. Without `schemes` those that don't search among the others.
void write_report(const std::string& path, const std::optional<Given<Workload>>& workload,
                  const std::optional<Given<Cluster>>& cluster,
                  const std::optional<std::vector<std::string>>& chosen,
                  const std::vector<std::pair<std::string, Given<Plan>>>& plans,
                  const std::vector<Given<Timeline>>& timelines, std::vector<std::string> measured,
                  double optimizer_us, double contention, double burst_us) {
  ReportInput input{.measured = std::move(measured)};
  input.simulation.optimizer_ns = nanoseconds(optimizer_us);
  input.simulation.contention = decimal_from_double(contention, "contention");
  input.simulation.burst_ns = nanoseconds(burst_us);
  if (workload) {
    if (!cluster) throw InvalidInput("is missing", "cluster", "give the cluster of the workload");
    input.classes = {**workload};
    input.cluster = **cluster;
    for (const std::string& text : chosen.value_or(std::vector<std::string>{}))
      input.methods.push_back(parse_method(text));
    for (const SchemeInfo& scheme : schemes()) {
      if (!chosen && !scheme.chooses) input.methods.push_back(parse_method(scheme.name));
    }
    for (const auto& [name, plan] : plans) {
      require_valid(validate(*plan, input.classes[0], &*input.cluster), name);
      input.plans.push_back({.name = name, .plan = *plan});
    }
  }
  for (const Given<Timeline>& timeline : timelines) input.timelines.push_back(*timeline);
  write_file(path, report_page(input));
}

}  // namespace

void bind_core(py::module_& module) {
  // Python's own names for the two kinds of error: gradweave.InvalidInput is a ValueError.
  py::register_exception<InvalidInput>(module, "InvalidInput", PyExc_ValueError);
  py::register_exception<RuntimeFailure>(module, "RuntimeFailure", PyExc_RuntimeError);
  bind_values(module);
  module.def("make_plan", &plan_by, py::arg("workload"), py::arg("cluster"), py::arg("scheme"),
             py::arg("options"));
  module.def("check_options",
             [](const std::string& scheme, const Written& options) { parse_options(scheme, options); });
  module.def("check_tuning", [](const std::string& scheme, const Written& options, int trials) {
    check_tuning(parse_options(scheme, options), trials);
  });
  module.def("ranked_plans", &ranked, py::arg("workload"), py::arg("cluster"), py::arg("options"));
  module.def("demands", [](const Given<Plan>& plan) { return python_of(to_object(demands_of(*plan))); });
  module.def("simulate", &simulated, py::arg("plan"), py::arg("workload"), py::arg("cluster"),
             py::arg("optimizer_us"), py::arg("apply_us"), py::arg("contention"), py::arg("handover_us"),
             py::arg("launch_us"), py::arg("burst_us"));
  module.def("fit_link", &fitted, py::arg("measurements"));
  module.def(
      "cut_layers",
      [](const Given<Plan>& plan, const Given<Workload>& workload) { return cut_layers(*plan, *workload); },
      Unlocked());
  module.def("validate", &violations, Unlocked());
  module.def("schemes", [] { return python_of(schemes_object().at("schemes")); });
  module.def(
      "chrome_trace",
      [](const std::vector<Given<Timeline>>& timelines) {
        std::vector<Timeline> values;
        for (const Given<Timeline>& each : timelines) values.push_back(*each);
        return to_chrome_trace(values);
      },
      Unlocked());
  module.def("write_report", &write_report, py::arg("path"), py::kw_only(), py::arg("workload"),
             py::arg("cluster"), py::arg("schemes"), py::arg("plans"), py::arg("timelines"),
             py::arg("measured"), py::arg("optimizer_us"), py::arg("contention"), py::arg("burst_us"),
             Unlocked());
}

}  // namespace gradweave::python
