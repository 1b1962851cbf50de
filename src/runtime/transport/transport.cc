#include "runtime/transport/transport.h"

#include <algorithm>
#include <array>

#include "gradweave/error.h"
#include "runtime/transport/rows.h"

namespace gradweave::runtime {
namespace {

// Gloo's reduce_scatter moves a whole all-reduce (measured). NCCL runs a send only with its receive, and its
// communicators take turns on the device (its documentation).
constexpr std::array kBackends{
    Backend{.name = "gloo", .eager_sends = true},
    Backend{.name = "nccl", .native_halves = true, .ordered_launches = true},
    Backend{.name = "mirror", .native_halves = true},  // rates.cc
};
constexpr Backend kAnyBackend{.name = "any", .native_halves = true, .ordered_launches = true};

}  // namespace

std::span<const Transport> transports() {
  static const std::array table{float32_sum(), native_halves(), ring(), all_reduce()};
  return table;
}

at::Tensor part_of(const at::Tensor& flat, int part, int parts) {
  return flat.slice(0, edge_of(flat.numel(), part, parts), edge_of(flat.numel(), part + 1, parts));
}

Backend backend_called(std::string_view name) {
  const auto* found = std::ranges::find(kBackends, name, &Backend::name);
  return found == kBackends.end() ? kAnyBackend : *found;
}

Backend backend_of(c10d::ProcessGroup& group, c10::Device device) {
  return backend_called(group.getBackend(device.type())->getBackendName());
}

const Transport& choose(const Backend& backend, Collective collective, c10::ScalarType dtype, int world) {
  for (const Transport& transport : transports()) {
    if (transport.serves(backend, collective, dtype, world)) return transport;
  }
  throw InvalidInput("no transport for " + std::string(name_of(collective)),
                     "process group of backend '" + std::string(backend.name) + "'",
                     "use a group of gloo or nccl");
}

std::unique_ptr<Pending> start_in_any_order(const Call& call) {
  if (call.world() == 1) return std::make_unique<Ended>();
  const Backend backend = backend_of(call.group, call.flat.device());
  const Transport& best = choose(backend, call.collective, call.flat.scalar_type(), call.world());
  // Where one order of launches is asked for, nothing is started by threads that wait (then(), codec.h).
  return best.by_order && backend.eager_sends ? ring_all_reduce(call) : best.start(call, backend);
}

std::unique_ptr<Pending> start(const Call& call) {
  if (call.world() == 1 || call.flat.numel() == 0) return std::make_unique<Ended>();
  const Backend backend = backend_of(call.group, call.flat.device());
  return choose(backend, call.collective, call.flat.scalar_type(), call.world()).start(call, backend);
}

}  // namespace gradweave::runtime
