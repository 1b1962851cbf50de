// Ops of links that only enqueue work for an accelerator. Its host waits for none of them, so that no call of the engine's tells
// that one has failed or doesn't end.
#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "base/mutex.h"
#include "base/thread.h"
#include "runtime/group_channel.h"

namespace gradweave::runtime {

// The backends of such links. Safe from any thread.
class DeviceBackends {
 public:
  DeviceBackends(const std::vector<LinkSpec>& links, c10::Device device);
  bool empty() const { return all_.empty(); }

  // Of the first link whose backend has found that an op failed.
  struct Failure {
    std::string link;  // "" none has
    bool overdue = false;
    std::string cause;
  };
  // Asks no device. A backend that can't tell, as c10d's do by default, has found nothing.
  Failure failure() const;

  // Training has ended with `verdict`. Unless `told` says soon that the training thread knows, it is interrupted: it may wait for the
  // accelerator in a call of its own. Then what is under way is aborted, without a result. The thread must not go on as if nothing had
  // happened, since it might save what it finds: where nobody can interrupt it, nothing is aborted either.
  void end(const std::string& verdict, const std::function<bool()>& told) const;
  using Interrupt = std::function<void(const std::string& verdict)>;
  void set_interrupt(Interrupt interrupt);  // null: nobody can

 private:
  struct Named {
    std::string link;
    c10::intrusive_ptr<c10d::Backend> backend;
  };
  std::vector<Named> all_;
  mutable Mutex mutex_;
  std::shared_ptr<const Interrupt> interrupt_
      GUARDED_BY(mutex_);  // copying one of Python's takes Python's lock
};

// Asks them all the time, on a thread of its own.
class DeviceWatch {
 public:
  // `give_up` is called with the first failure, from that thread, at most once; `after`: what was waited for.
  using GiveUp =
      std::function<void(const std::string& what, std::chrono::nanoseconds after, const std::string& cause)>;
  DeviceWatch(std::shared_ptr<DeviceBackends> backends, std::chrono::milliseconds timeout,
              const GiveUp& give_up);
  ~DeviceWatch();
  DeviceWatch(const DeviceWatch&) = delete;
  DeviceWatch& operator=(const DeviceWatch&) = delete;

 private:
  void watch(const DeviceBackends& backends, std::chrono::milliseconds timeout, const GiveUp& give_up);

  Mutex mutex_;
  CondVar stopped_;
  bool stop_ GUARDED_BY(mutex_) = false;
  Thread thread_;
};

}  // namespace gradweave::runtime
