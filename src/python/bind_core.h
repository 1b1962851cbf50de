// The core for Python: its values as classes, its functions on them, its errors.
#pragma once

#include <pybind11/pybind11.h>

namespace gradweave::python {

// Makes them members of `module`.
void bind_core(pybind11::module_& module);

}  // namespace gradweave::python
