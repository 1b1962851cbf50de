// Results are waited for, put in place and used.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "run/arrivals.h"
#include "run/context.h"
#include "run/outbox.h"

namespace gradweave::run {

class Applies {
 public:
  Applies(const Context& context, const Arrivals& arrivals, Outbox& outbox);

  // The plan begins anew: no reduced gradient is in place, and nothing is late.
  void restart() REQUIRES(compute_thread);

  // Returns once the op has ended; compute waits in `layer`, or in none (-1).
  void wait_for(const Execution& execution, std::int32_t layer) REQUIRES(compute_thread);
  // Waits for the reduced gradients of an apply, and puts those in place that were used and are not left out.
  void put_reduced(const RunApply& apply) REQUIRES(compute_thread);
  // Waits for averages of parameters, and writes them.
  void average(const RunApply& apply) REQUIRES(compute_thread);
  // Applies of this iteration, by number, at a forward_start or a backward_end: steps of a few tensors on their own.
  void outside_end(const std::vector<std::int32_t>& applies) REQUIRES(compute_thread);
  void outside_end(const RunApply& apply) REQUIRES(compute_thread);
  // Those at the layer's backward_end; but where one may hold a gradient that is unused or has not come, or comes after one of a
  // layer that hasn't ended, it and what follows wait until the backward's end: only then ranks know.
  void backward_end(std::int32_t layer) REQUIRES(compute_thread);
  void backward_ended() REQUIRES(compute_thread);

  // Steps the optimizer: the end of a span that the caller began.
  void step(const Stepped& stepped) REQUIRES(compute_thread);
  // Return what is left of `stepped`, until the next such call. Of this iteration's end, where only what something sound
  // updates is stepped: other tensors lose their gradients, so that the optimizer passes them over.
  const Stepped& sound(const Stepped& stepped) REQUIRES(compute_thread);
  // Where only blocks with a reduced gradient in place are stepped: of a part of a tensor nothing else says that it has
  // none.
  const Stepped& in_place(const Stepped& stepped) REQUIRES(compute_thread);
  // The gradients that are there are no longer reduced ones.
  void forget_places() REQUIRES(compute_thread);

  // Updates that are on their way at the end of an iteration are meant for the parameters as they are then.
  void note_parameters() REQUIRES(compute_thread);
  // Errors: InvalidInput if the caller has changed what these applies of this iteration write to.
  void check_unchanged(const std::vector<std::int32_t>& applies) const REQUIRES(compute_thread);

 private:
  bool must_wait(const RunApply& apply, std::int32_t layer) const REQUIRES(compute_thread);
  void put_gradient(const RunApply& apply, std::size_t place) REQUIRES(compute_thread);
  bool used(const RunApply& apply, std::int32_t tensor) const REQUIRES(compute_thread);
  bool is_in_place(std::int32_t block) const REQUIRES(compute_thread) {
    return put_[static_cast<std::size_t>(block)] == context_.cursor.now();
  }
  void check_parameters(const RunApply& apply) const REQUIRES(compute_thread);

  const Context& context_;
  const Arrivals& arrivals_;
  Outbox& outbox_;
  std::vector<std::int64_t> put_
      GUARDED_BY(compute_thread);  // by block: when its reduced gradient was put in place
  std::vector<std::int64_t> waited_for_ GUARDED_BY(compute_thread);  // by slot: the op's iteration of the run
  std::vector<std::int64_t> ended_ GUARDED_BY(compute_thread);       // by layer: when its backward ended last
  std::vector<std::int32_t> late_ GUARDED_BY(compute_thread);  // applies that wait for the backward's end
  std::vector<Part> parts_ GUARDED_BY(compute_thread);         // scratch of one apply
  Stepped left_ GUARDED_BY(compute_thread);                    // scratch of one step
};

}  // namespace gradweave::run
