// The core's functions on JSON texts, and its errors, as members of a Python module.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "base/statistics.h"
#include "gradweave/error.h"
#include "gradweave/ranked_plans.h"
#include "runtime/core_json.h"
#include "runtime/low_priority.h"

namespace gradweave::runtime {

inline void bind_core(pybind11::module_& module) {
  using Unlocked = pybind11::call_guard<pybind11::gil_scoped_release>;
  // Python's own names for the two kinds of error: gradweave.InvalidInput is a ValueError.
  pybind11::register_exception<InvalidInput>(module, "InvalidInput", PyExc_ValueError);
  pybind11::register_exception<RuntimeFailure>(module, "RuntimeFailure", PyExc_RuntimeError);
  module.def(
      "make_plan",
      [](const std::string& workload, const std::string& cluster, const std::string& scheme,
         const std::string& options, bool beside_training) {
        const auto make = [&] { return make_plan_text(workload, cluster, scheme, options); };
        return beside_training ? at_low_priority(make) : make();
      },
      Unlocked());
  module.def("check_options", &check_options_text);
  module.def("check_tuning", &check_tuning_text);
  module.def(
      "ranked_plans",
      [](const std::string& workload, const std::string& cluster, const std::string& options,
         bool beside_training) {
        const auto rank = [&] { return ranked_plans_text(workload, cluster, options); };
        return beside_training ? at_low_priority(rank) : rank();
      },
      Unlocked());
  module.def("first_within", [](const std::vector<double>& times, double tolerance) {
    return first_within(times, tolerance);
  });
  module.def("demands", &demands_text, Unlocked());
  module.def("simulate", &simulate_text, Unlocked());
  module.def("typical_row", &typical_row);
  module.def("fit_link", &fit_link_text, Unlocked());
  module.def("cut_layers", &cut_layers_text, Unlocked());
  module.def("validate", &validate_text, Unlocked());
  module.def("schemes", &schemes_text);
  module.def("chrome_trace", &chrome_trace_text, Unlocked());
  module.def("write_report", &write_report, Unlocked());
}

}  // namespace gradweave::runtime
