#include "runtime/gloo.h"

#include <ATen/DeviceAccelerator.h>

#include <cstddef>
#include <memory>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace gradweave::runtime {
namespace {

using c10d::ProcessGroupGloo;

ProcessGroupGloo* gloo_of(c10d::ProcessGroup& group, c10::Device device) {
  return dynamic_cast<ProcessGroupGloo*>(group.getBackend(device.type()).get());
}

c10::intrusive_ptr<ProcessGroupGloo::Options> options_of(const GlooRoute& route,
                                                         std::chrono::milliseconds timeout) {
  if (route.interface.empty() && !route.like) return ProcessGroupGloo::Options::create_default(timeout);
  auto options = ProcessGroupGloo::Options::create(timeout);
  if (!route.interface.empty()) {
    options->devices = {ProcessGroupGloo::createDeviceForInterface(route.interface)};
  } else {
    options->devices = gloo_of(*route.like, route.device)->getOptions()->devices;
  }
  return options;
}

}  // namespace

bool is_gloo(c10d::ProcessGroup& group, c10::Device device) { return gloo_of(group, device) != nullptr; }

c10::intrusive_ptr<c10d::ProcessGroup> make_gloo_group(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                       int world_size, std::chrono::milliseconds timeout,
                                                       const GlooRoute& route) {
  const c10::intrusive_ptr<c10d::Backend> backend =
      c10::make_intrusive<ProcessGroupGloo>(store, rank, world_size, options_of(route, timeout));
  const auto kind = c10d::ProcessGroup::BackendType::GLOO;
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, world_size);
  group->setDefaultBackend(kind);
  group->setBackend(c10::kCPU, kind, backend);
  if (const auto accelerator = at::accelerator::getAccelerator())
    group->setBackend(*accelerator, kind, backend);
  return group;
}

c10::intrusive_ptr<c10d::ProcessGroup> make_gloo_group(Peers& peers,
                                                       const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                       int world_size, std::chrono::milliseconds timeout,
                                                       const GlooRoute& route) {
  // Of a thread that may outlive this call.
  const auto group = std::make_shared<c10::intrusive_ptr<c10d::ProcessGroup>>();
  peers.together("making the process groups",
                 [=] { *group = make_gloo_group(store, rank, world_size, timeout, route); },
                 {.limit = timeout});
  return *group;
}

}  // namespace gradweave::runtime
