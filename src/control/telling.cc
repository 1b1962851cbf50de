#include "control/telling.h"

#include <vector>

#include "base/statistics.h"
#include "base/text.h"

namespace gradweave::control {
namespace {

constexpr std::size_t kKept = 1024;  // iterations
constexpr std::size_t kEnough = 10;  // that tell what DistributedDataParallel's plan takes

std::string ms(double ns) { return fixed_text(ns / 1e6, 1) + " ms"; }

std::string with_options(const std::string& scheme, const std::map<std::string, std::string>& options) {
  std::string text = scheme;
  for (const auto& [name, value] : options)
    text.append(text.size() == scheme.size() ? " with " : ", ").append(name).append(" ").append(value);
  return text;
}

}  // namespace

std::string with_options(const Plan& plan) {
  const MadeBy made = made_by(plan);
  return with_options(made.scheme, made.options);
}

void Telling::iteration_ended() {
  if (on_ && chosen_) take_times(/*wait=*/false);
}

void Telling::take_times(bool wait) {
  for (const double ns : job_.take_iteration_ns(wait)) {
    if (left_out_ > 0) {
      --left_out_;
      continue;
    }
    iterations_ns_.push_back(ns);
    if (iterations_ns_.size() > kKept) iterations_ns_.pop_front();
  }
}

void Telling::change_to(const Candidate& chosen) {
  if (chosen_ && chosen_->scheme == "ddp" && iterations_ns_.size() >= kEnough)
    ddp_measured_ns_ = median_of(std::vector(iterations_ns_.begin(), iterations_ns_.end()));
  chosen_ = chosen;
  iterations_ns_.clear();
  left_out_ = kSettling;
}

void Telling::switched(const Decision& decision, const Candidate& chosen) {
  change_to(chosen);
  ddp_ns_ = decision.ddp_ns;
  const SimulationOptions& overheads = decision.costs.overheads;
  std::string line = "in force: " + with_options(chosen.plan) + ": " + ms(chosen.prediction.iteration_ns()) +
                     " an iteration predicted, from measured layers and links; " +
                     ms(static_cast<double>(overheads.optimizer_ns)) +
                     " of it are the optimizer and the rest of the loop";
  if (overheads.contention != Decimal{1, 0}) {
    line += "; messages make computation take " + fixed_text(to_double(overheads.contention), 2) +
            " times as long";
  }
  if (overheads.burst_ns > 0) {
    line += "; links that were idle send the first " + ms(static_cast<double>(overheads.burst_ns)) +
            " of messages at once";
  }
  if (decision.ddp_ns && chosen.scheme != "ddp")
    line += "; ddp would take " + ms(*decision.ddp_ns) + ", predicted";
  if (!decision.passed_over.empty()) line += "; " + decision.passed_over;
  if (const auto& other = decision.if_corrected) {
    line += "; options={'allow': 'exact+corrected'} would give " +
            with_options(other->scheme, other->options) + ", " + ms(other->iteration_us * 1e3) +
            ", predicted";
  }
  tell(line);
  if (!decision.objection.empty()) objected(decision.objection);
}

void Telling::installed(const Plan& plan, const std::optional<SimulationResult>& prediction) {
  if (prediction) {
    change_to({made_by(plan).scheme, plan, *prediction});
  } else {
    chosen_.reset();
  }
}

void Telling::unprofiled(bool starter_stays) {
  const std::string plan = starter_stays ? "the plan of the first iterations stays in force"
                                         : "the plan is made as if layers took no time";
  tell(
      "no iteration could be profiled, because none called the model and then backward(): call the model "
      "itself, as model(x), and not one of its methods or parts; " +
      plan);
}

void Telling::refused(const Plan& plan, const std::string& refusal) {
  tell(with_options(plan) + " was not chosen: " + refusal);
}

void Telling::objected(const std::string& objection) { tell("the Preserver objects: " + objection); }

void Telling::obeyed(const std::string& objection, const Candidate& chosen) {
  change_to(chosen);
  tell(objection + "; now in force: " + with_options(chosen.plan) + ", " +
       ms(chosen.prediction.iteration_ns()) + " an iteration predicted");
}

void Telling::followed(const Decision& decision, const Candidate& chosen) {
  change_to(chosen);
  ddp_ns_ = decision.ddp_ns;
  const Candidate& before = decision.candidates.back();
  if (decision.takes_back) {
    tell(with_options(before.plan) +
         " was slower than the plan before, measured; in force again: " + with_options(chosen.plan));
    return;
  }
  tell("measured times have changed; now in force: " + with_options(chosen.plan) + ", " +
       ms(chosen.prediction.iteration_ns()) + " an iteration predicted; the plan before would take " +
       ms(before.prediction.iteration_ns()) + ", simulated");
}

void Telling::tuned(const Candidate& chosen, const TuningReport& tuning) {
  change_to(chosen);
  const auto measured = [](const PlanTuner::Trial& trial) { return ms(1e9 * median_of(trial.seconds)); };
  tell("tuned by " + std::to_string(tuning.trials.size()) + " plans in " + fixed_text(tuning.seconds, 0) +
       " s; now in force: " + with_options(chosen.plan) + ", " + measured(tuning.trials[tuning.best]) +
       " an iteration measured; the first one took " + measured(tuning.trials.front()));
}

void Telling::resumed(const Plan& plan, std::int64_t iteration, bool keeps) {
  tell("goes on with " + with_options(plan) + " from iteration " + std::to_string(iteration) +
       (keeps
            ? "; it keeps this plan, since the checkpoint, of an earlier version, doesn't say what the loop "
              "does and what gradients showed"
            : ""));
}

void Telling::folded(int before, std::int64_t iteration) {
  tell("goes on from iteration " + std::to_string(iteration) + " with " + std::to_string(job_.size()) +
       " ranks in place of " + std::to_string(before));
}

void Telling::ended() {
  if (!on_ || !chosen_) return;
  take_times(/*wait=*/true);
  if (iterations_ns_.empty()) return;
  const double now = median_of(std::vector(iterations_ns_.begin(), iterations_ns_.end()));
  std::string line = with_options(chosen_->plan) + ": " + ms(now) + " an iteration measured";
  if (chosen_->scheme != "ddp" && ddp_measured_ns_) {
    line += "; ddp took " + ms(*ddp_measured_ns_) + " measured, " + fixed_text(*ddp_measured_ns_ / now, 2) +
            " times as long";
  } else if (chosen_->scheme != "ddp" && ddp_ns_) {
    line += "; predicted: " + fixed_text(*ddp_ns_ / chosen_->prediction.iteration_ns(), 2) +
            " times as fast as ddp, which was not measured";
  }
  chosen_.reset();
  tell(line);
}

void Telling::tell(const std::string& line) {
  if (on_) job_.tell(line);
}

}  // namespace gradweave::control
