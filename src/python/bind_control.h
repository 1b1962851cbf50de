// The controller of a job for Python, which carries out its commands.
#pragma once

#include <pybind11/pybind11.h>

namespace gradweave::python {

// After bind_engine(), whose types it uses.
void bind_control(pybind11::module_& module);

}  // namespace gradweave::python
