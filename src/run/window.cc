#include "run/window.h"

#include <algorithm>

namespace gradweave::run {

void Window::restart() {
  opened_ = pushed_ = -1;
  context_.tables.ring.clear();
}

bool Window::open(std::int64_t iteration) {
  if (iteration <= opened_) return false;
  opened_ = iteration;
  Tables& tables = context_.tables;
  if (const std::int64_t before = iteration - static_cast<std::int64_t>(tables.ring.depth()); before >= 0) {
    context_.queue.times(row(before), op_ns_);
    context_.recorder.ops_ended(before, op_ns_);
  }
  tables.ring.open(tables.plan, iteration, context_.cursor.of_run(iteration));
  context_.queue.open(row(iteration));
  return true;
}

void Window::push(std::int64_t iteration) {
  if (iteration <= pushed_) return;
  pushed_ = iteration;
  context_.queue.push(row(iteration), iteration);
}

std::int64_t Window::first() const {
  return std::max<std::int64_t>(0, opened_ + 1 - static_cast<std::int64_t>(context_.tables.ring.depth()));
}

void Window::archive(Archive& archive) {
  archive(opened_);
  archive(pushed_);
}

void Window::archive_executions(Archive& archive) {
  for (std::int64_t n = first(); n <= opened_; ++n) {
    if (archive.reads()) {
      context_.tables.ring.open(context_.plan(), n, context_.cursor.of_run(n));
      context_.queue.open(row(n));
    }
    context_.queue.archive(archive, row(n));
    for (Execution& execution : row(n)) {
      if (execution.op != nullptr) archive(execution.written);
    }
  }
}

void Window::push_again() {
  for (std::int64_t n = first(); n <= pushed_; ++n) context_.queue.push(row(n), n);
}

}  // namespace gradweave::run
