// A rank among the islands, for Python.
#pragma once

#include <pybind11/pybind11.h>

namespace gradweave::python {

void bind_islands(pybind11::module_& module);

}  // namespace gradweave::python
