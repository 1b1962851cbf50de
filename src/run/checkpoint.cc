// Between two iterations a run is written down and goes on from there elsewhere.
#include <algorithm>

#include "gradweave/error.h"
#include "run/run.h"

namespace gradweave::run {

// What has its data is the same on all ranks between two iterations, so that after this the same ops have ended.
void Run::rest() {
  queue_->check_failure();
  end_left_iteration();
  if (phase_ != Phase::kIdle || std::ranges::find(touched_, 1) != touched_.end()) {
    throw InvalidInput("a backward is not finished by optimizer.step()", "state_dict",
                       "call it between iterations");
  }
  synchronize();
  queue_->run_ready();
  for (Flags& flags : flags_) finish_exchange(flags);
}

void Run::archive(Archive& archive) {
  Ring& ring = tables_->ring;
  if (archive.reads()) {
    ring.clear();
    queue_->reset(tables_->calendar, ring.capacity());
    queue_->restart();
  }
  archive(iteration_);
  archive(base_);
  archive(prepared_);
  archive(pushed_);
  archive(last_spoilt_);
  archive(updated_);
  archive(find_unused_);
  archive(counters_.iterations);
  archive(counters_.updates);
  for (std::int64_t n = first_alive(); n <= prepared_; ++n) {
    if (archive.reads()) {
      ring.open(tables_->calendar, n, base_ + n);
      queue_->open(ring.row(n));
    }
    queue_->archive(archive, ring.row(n));
    for (Execution& execution : ring.row(n)) {
      if (execution.op != nullptr) archive(execution.written);
    }
  }
  archive(forwarded_);
  for (Flags& flags : flags_) {
    archive(flags.values);
    archive(flags.spoilt);
  }
  queue_->archive_points(archive);
  if (!archive.reads()) return;
  for (std::int64_t n = first_alive(); n <= pushed_; ++n) queue_->push(ring.row(n), n);
  peers_->outside(base_ + iteration_);
}

std::int64_t Run::archived_iteration(Archive& archive) {
  std::int64_t iteration = 0, base = 0;
  archive(iteration);
  archive(base);
  return base + iteration;
}

void Run::visit_alive(const std::function<void(const Execution&)>& visit) {
  for (std::int64_t n = first_alive(); n <= prepared_; ++n) {
    for (const Execution& execution : tables_->ring.row(n)) {
      if (execution.op != nullptr) visit(execution);
    }
  }
}

std::int64_t Run::first_alive() const {
  return std::max<std::int64_t>(0, prepared_ + 1 - static_cast<std::int64_t>(tables_->ring.depth()));
}

}  // namespace gradweave::run
