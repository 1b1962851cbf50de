// The executions that are alive: opened ahead of the iteration that is computed, handed to their links with it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "run/archive.h"
#include "run/context.h"

namespace gradweave::run {

// Iterations are the plan's, and opened and pushed in their order.
class Window {
 public:
  explicit Window(const Context& context) : context_(context) {}

  // The plan begins anew: nothing is opened.
  void restart() REQUIRES(compute_thread);
  // Makes the executions of an iteration's ops ready to be written to, unless they are. Returns whether it has: then the
  // place in the ring was another iteration's, whose ops must have ended.
  bool open(std::int64_t iteration) REQUIRES(compute_thread);
  // Hands an iteration's ops to their links, unless that was done.
  void push(std::int64_t iteration) REQUIRES(compute_thread);

  // The iterations that are open: those of the ring.
  std::int64_t first() const REQUIRES(compute_thread);
  std::int64_t last() const REQUIRES(compute_thread) { return opened_; }
  std::span<Execution> row(std::int64_t iteration) const { return context_.tables.ring.row(iteration); }

  // While nothing is under way: how far it is, and its executions. Reading opens them again and pushes what is not done.
  void archive(Archive& archive) REQUIRES(compute_thread);
  void archive_executions(Archive& archive) REQUIRES(compute_thread);
  void push_again() REQUIRES(compute_thread);

 private:
  const Context& context_;
  std::int64_t opened_ GUARDED_BY(compute_thread) = -1, pushed_
                                                        GUARDED_BY(compute_thread) = -1;  // up to these
  std::vector<std::int64_t> op_ns_ GUARDED_BY(compute_thread);                            // scratch
};

}  // namespace gradweave::run
