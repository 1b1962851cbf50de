// The extension module simulated_device: what tests do with the accelerator besides using it.
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <cmath>

#include "device/extension/accelerator.h"
#include "device/extension/collectives.h"

namespace py = pybind11;

namespace gradweave::device {
namespace {

using Unlocked = py::call_guard<py::gil_scoped_release>;

PYBIND11_MODULE(simulated_device, module) {
  module.def("take_reports", [] { return Device::get().take_reports(); });
  module.def("host_waits", [] { return Device::get().host_waits(); });
  module.def("take_sites", &take_sites, py::arg("left_out") = "");
  module.def(
      "spend_us", [](double us) { Device::get().spend(current_stream(), std::llround(us * 1000)); },
      Unlocked());
  module.def("take_launches", &take_launches);
  module.def(
      "carry_by",
      [](bool one_queue, std::optional<std::pair<double, double>> cost) {
        carry_by(
            {.one_queue = one_queue,
             .cost = cost ? std::optional(Cost{cost->first * 1000, cost->second * 1000}) : std::nullopt});
      },
      py::arg("one_queue") = false, py::arg("cost_us") = std::nullopt);
  module.def("make_collectives", &make_collectives, Unlocked());
}

}  // namespace
}  // namespace gradweave::device
