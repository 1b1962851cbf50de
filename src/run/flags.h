// What ranks tell each other of each iteration: which parameters had a gradient, and whether all were finite.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gradweave/workload.h"
#include "run/archive.h"
#include "run/compute_thread.h"
#include "run/ending.h"
#include "run/host.h"

namespace gradweave::run {

// Whether ranks tell each other in each iteration which parameters had a gradient, so that what no rank used
// is not stepped. kAuto: only if the first iteration of a plan leaves some parameter unused on some rank.
enum class FindUnused : std::uint8_t { kAuto, kOn, kOff };

// Iterations are the plan's. Of the last `depth` of them something is known; before the first and after the last nobody
// left anything out.
class Flags {
 public:
  // `exchange`, `index` and `ending` must outlive it.
  Flags(FlagExchange& exchange, const Ending& ending, const WorkloadIndex& index, std::size_t depth,
        FindUnused find_unused, int world_size);

  // The plan begins anew: forgets all but whether ranks exchange. Waits for exchanges under way.
  void restart() REQUIRES(compute_thread);

  // The backward of `iteration` has ended; `used`, by tensor: here it had a gradient. `bad`: one of them was not finite.
  // `owed`, by tensor, or empty: something of earlier gradients was sent, which counts as one. Tells the other ranks.
  // Where `ask`, waits for their answer, and returns whether any rank's were bad; else false.
  // Errors: InvalidInput for a parameter without a gradient where FindUnused is kOff; RuntimeFailure.
  bool tell(std::int64_t iteration, std::span<const std::uint8_t> used, bool bad, bool ask,
            std::span<const std::uint8_t> owed = {}) REQUIRES(compute_thread);

  // Nothing that holds a gradient of `iteration` is to be applied, alike on all ranks.
  void leave_out(std::int64_t iteration) REQUIRES(compute_thread);
  bool left_out(std::int64_t iteration) const REQUIRES(compute_thread) { return at(iteration).left_out; }
  // Whether an iteration was left out that `iteration` may still apply something of.
  bool left_out_lately(std::int64_t iteration) const REQUIRES(compute_thread);
  bool ever_left_out() const REQUIRES(compute_thread) { return last_left_out_ >= 0; }

  // Whether some rank had a gradient for the tensor in `iteration`. Waits for their answers. Errors: RuntimeFailure.
  bool used(std::int64_t iteration, std::int32_t tensor) REQUIRES(compute_thread);
  // Whether ranks were found to leave parameters unused.
  bool found_unused() const REQUIRES(compute_thread) { return find_unused_ == FindUnused::kOn; }
  // Whether that may be asked: else every tensor was used.
  bool may_be_unused() const REQUIRES(compute_thread) { return find_unused_ != FindUnused::kOff; }

  // Waits for all exchanges under way. Errors: RuntimeFailure.
  void settle() REQUIRES(compute_thread);
  // After settle(): in the parts that a checkpoint has had from the beginning.
  void archive_last_left_out(Archive& archive) REQUIRES(compute_thread) { archive(last_left_out_); }
  // What the caller asks for now comes before what was found then.
  void archive_find_unused(Archive& archive) REQUIRES(compute_thread) {
    FindUnused found = find_unused_;
    archive(found);
    if (find_unused_ == FindUnused::kAuto) find_unused_ = found;
  }
  void archive_iterations(Archive& archive) REQUIRES(compute_thread);

 private:
  struct Row {
    std::vector<std::uint8_t> values;  // per tensor: had a gradient; then: some had none; then: not finite
    bool exchanging = false;
    bool left_out = false;
  };
  std::size_t slot_of(std::int64_t iteration) const { return static_cast<std::size_t>(iteration) % depth_; }
  Row& at(std::int64_t iteration) REQUIRES(compute_thread) { return rows_[slot_of(iteration)]; }
  const Row& at(std::int64_t iteration) const REQUIRES(compute_thread) { return rows_[slot_of(iteration)]; }
  void settle(std::size_t slot) REQUIRES(compute_thread);

  FlagExchange& exchange_;
  const Ending& ending_;
  const WorkloadIndex& index_;
  std::size_t depth_;
  int world_size_;
  FindUnused find_unused_ GUARDED_BY(compute_thread);
  std::vector<Row> rows_ GUARDED_BY(compute_thread);  // a ring by iteration
  std::int64_t last_left_out_ GUARDED_BY(compute_thread) = -1;
};

}  // namespace gradweave::run
