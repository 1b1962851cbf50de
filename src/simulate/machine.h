// The two simulators of a compiled program, behind one interface, and what they report as they run.
//
// Where every link serves one op at a time and compute has one speed, each time is the maximum of earlier
// times plus a constant (a max-plus system): SerialMachine evaluates it in order of dependency, without an
// event queue. Where ops share a link, or take of compute, it depends on what else goes on: SharedMachine goes
// from event to event.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "simulate/program.h"

namespace gradweave {

// One execution of an op, with what held it back.
struct OpRecord {
  std::int64_t iteration = 0;
  std::int32_t link = 0;
  std::int32_t plan_op = 0;
  Nanoseconds data = 0;      // its data existed
  Nanoseconds released = 0;  // the plan let it go
  Nanoseconds free = 0;      // the link would take it
  Nanoseconds start = 0;
  Nanoseconds end = 0;
  Nanoseconds alone = 0;  // start-up and transfer on a link of its own
};

// A wait of compute for the results of ops, the last of which is `op`. layer -1: at iteration_end.
struct WaitRecord {
  std::int64_t iteration = 0;
  std::int32_t layer = 0;
  Nanoseconds begin = 0;
  Nanoseconds end = 0;
  OpRecord op;
};

// Told of everything that ends on the main class of workers and on the links, in the order in which the
// machine gets to it.
class Recorder {
 public:
  virtual ~Recorder() = default;
  virtual void wait(const WaitRecord& wait) = 0;
  virtual void compute(std::int64_t iteration, const Step& step, Nanoseconds begin, Nanoseconds end) = 0;
  virtual void op(const OpRecord& run) = 0;
  // Whether compute() and op() are wanted.
  virtual bool detailed() const = 0;
};

class Machine {
 public:
  virtual ~Machine() = default;

  // Runs until the main class has ended `iterations` iterations in all. `recorder` may be null.
  // Errors: InvalidInput if the plan makes no progress: ops and points wait for each other.
  virtual void run_to(std::int64_t iterations, Recorder* recorder) = 0;

  // When the main class ended its last iteration.
  virtual Nanoseconds time() const = 0;

  // Time in which `link` was busy with ops that have ended or, on shared links, up to now.
  virtual Nanoseconds busy(std::size_t link) const = 0;

  // Appends all that the future depends on, relative to now and to the next iteration: equal snapshots at
  // iterations that run the same code mean equal futures.
  virtual void snapshot(std::vector<std::int64_t>& state) const = 0;
};

// The program must outlive the machine.
std::unique_ptr<Machine> serial_machine(const Program& program);
std::unique_ptr<Machine> shared_machine(const Program& program, Decimal contention);

// The error of both when a plan makes no progress.
[[noreturn]] void throw_deadlock(std::int64_t iteration);

}  // namespace gradweave
