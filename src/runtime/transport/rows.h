// The rows of the table of transports; each is made in the file of its name.
#pragma once

#include "runtime/transport/transport.h"

namespace gradweave::runtime {

Transport all_reduce();
Transport ring();
Transport native_halves();
Transport float32_sum();

}  // namespace gradweave::runtime
