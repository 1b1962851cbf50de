// The extension module simulated_device: what tests do with the accelerator besides using it.
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <cmath>

#include "device/extension/accelerator.h"
#include "device/extension/collectives.h"

namespace py = pybind11;

namespace gradweave::device {
namespace {

using CostUs = std::pair<double, double>;  // start-up, of a byte

Cost cost_of(const CostUs& us) { return {us.first * 1000, us.second * 1000}; }

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
      [](bool one_queue, std::optional<CostUs> cost, const std::map<std::string, CostUs>& cost_of_group) {
        Carriage carriage{.one_queue = one_queue};
        if (cost) carriage.cost = cost_of(*cost);
        for (const auto& [group, of_group] : cost_of_group)
          carriage.cost_of_group.emplace(group, cost_of(of_group));
        carry_by(carriage);
      },
      py::arg("one_queue") = false, py::arg("cost_us") = std::nullopt,
      py::arg("cost_us_of_group") = std::map<std::string, CostUs>());
  module.def("make_collectives", &make_collectives, Unlocked());
}

}  // namespace
}  // namespace gradweave::device
