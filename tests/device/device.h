// A simulated accelerator: streams, events and memory, on which ops are run at once by the processor while their order, and the
// time that they would take, are followed as on a device that works beside the host. Without torch; extension/ gives it to torch.
//
// What it shows: accesses that only their luck has put in order (order.h), a host that reads the device's memory (arena.h), memory
// that is read before it is written (NaN), results that the host reads before it has waited for them, and a timeline without
// noise (virtual_time.h).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "device/arena.h"
#include "device/order.h"
#include "device/virtual_time.h"

namespace gradweave::device {

// A moment of a stream that others can wait for.
struct Event {
  VectorClock clock;
  Moment moment;
};

// Used by any thread.
class Device {
 public:
  static Device& get();

  // Memory of `bytes` > 0 for use on `stream`; null for 0. Errors: std::bad_alloc.
  void* allocate(std::size_t bytes, Stream stream, std::string name);
  void free(void* device);
  void used_on(const void* device, Stream stream);
  std::size_t allocated() const;
  Arena& arena() { return arena_; }

  Stream new_stream();

  // `op` is launched on `stream` and takes `ns`. When this returns the caller is to run it, at once: for that it blocks until all
  // collectives that the op comes after have ended. Errors: std::runtime_error, of such a collective that failed.
  void launch(Stream stream, const Op& op, std::int64_t ns = 0);
  // A collective: somebody is to carry it out once `start` has settled, and then to land or to fail the flight.
  struct Launched {
    std::shared_ptr<Flight> flight;
    Moment start;
  };
  Launched launch_collective(Stream stream, const Op& op);
  // `ns` pass on `stream`.
  void spend(Stream stream, std::int64_t ns);

  Event record(Stream stream) const;
  // `stream` goes on after `event`. `ordered` = false: what it runs finds what collectives before `event` have written, but it
  // neither waits for that time nor may anyone rely on that order.
  void block(Stream stream, const Event& event, bool ordered = true);
  // The host waits. `arrives` is called when the host has waited for what `stream` has been given so far.
  void wait(const Event& event);
  void wait_for_all();
  void on_host_wait(Stream stream, std::function<void()> arrives);
  // Returns whether the host would not have to wait.
  bool reached(const Event& event) const;

  // Blocks the calling thread until all before the event has ended. Returns the nanoseconds from `begin` to `end`.
  static std::int64_t elapsed(Event begin, Event end);

  std::vector<std::string> take_reports();
  // Returns how often the host has waited.
  std::int64_t host_waits() const;

 private:
  Device();
  struct Arrival {
    Stream stream = 0;
    std::uint64_t at = 0;
    std::function<void()> arrives;
  };

  mutable std::mutex mutex_;
  Arena arena_;
  Order order_;
  std::map<Stream, Moment> moments_;
  std::vector<Arrival> arrivals_;
  Stream streams_ = 0;
  std::int64_t host_waits_ = 0, host_ns_ = 0;
};

}  // namespace gradweave::device
