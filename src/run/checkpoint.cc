// Between two iterations a run is written down and goes on from there elsewhere.
#include "gradweave/error.h"
#include "run/run.h"

namespace gradweave::run {

// What has its data is the same on all ranks between two iterations, so that after this the same ops have ended.
void Run::rest() {
  queue_->check_failure();
  end_left_iteration();
  if (phase_ != Phase::kIdle) {
    throw InvalidInput("a backward is not finished by optimizer.step()", "state_dict",
                       "call it between iterations");
  }
  synchronize();
  queue_->run_ready();
  plan_->flags.settle();
}

void Run::archive(Archive& archive) {
  if (archive.reads()) {
    plan_->window.restart();
    queue_->reset(plan(), slots());
  }
  cursor_.archive(archive);
  if (archive.reads()) queue_->restart(cursor_.of_run(0));
  plan_->window.archive(archive);
  plan_->flags.archive_last_left_out(archive);
  recorder_.archive_updated(archive);
  plan_->flags.archive_find_unused(archive);
  recorder_.archive_counters(archive);
  plan_->window.archive_executions(archive);
  archive(plan_->forwarded);
  plan_->flags.archive_iterations(archive);
  queue_->archive_points(archive);
  if (!archive.reads()) return;
  plan_->window.push_again();
  peers_->outside(cursor_.of_run());
}

std::int64_t Run::archived_iteration(Archive& archive) {
  const AsComputeThread here;
  Cursor cursor;
  cursor.archive(archive);
  return cursor.of_run();
}

void Run::visit_alive(const std::function<void(const Execution&)>& visit) const {
  for (std::int64_t n = plan_->window.first(); n <= plan_->window.last(); ++n) {
    for (const Execution& execution : plan_->window.row(n)) {
      if (execution.op != nullptr) visit(execution);
    }
  }
}

}  // namespace gradweave::run
