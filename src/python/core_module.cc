// The extension module gradweave._core: the core without torch.
#include "python/bind_core.h"

PYBIND11_MODULE(_core, module) { gradweave::python::bind_core(module); }
