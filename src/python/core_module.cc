// The extension module gradweave._core: the core on JSON texts, without torch.
#include "runtime/bind_core.h"

PYBIND11_MODULE(_core, module) { gradweave::runtime::bind_core(module); }
