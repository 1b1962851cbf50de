// What a plan means, written plainly from docs/plan.md: all ranks of a slow synchronous loop at once, where
// nothing overlaps. To compare the run with.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <vector>

#include "gradweave/plan.h"
#include "gradweave/workload.h"
#include "run/fake.h"

namespace gradweave::testing {

class Reference {
 public:
  Reference(const Plan& plan, const Workload& workload, const Job& job);

  void iterate();
  void drain();
  // By rank, by tensor.
  const std::vector<std::vector<Values>>& parameters() const { return parameters_; }

 private:
  using Gradients = std::map<std::int32_t, Values>;  // by tensor, or by block where they step
  struct Delivered {
    Values sum;               // over ranks; of gradients the mean
    std::vector<Values> own;  // by rank
  };

  const Iteration& iteration(std::int64_t n) const { return iteration_at(plan_, n); }
  std::vector<std::int64_t> existing(std::int64_t n, const std::vector<std::int32_t>& merges) const;
  std::vector<std::int64_t> listed(std::int64_t n, const std::vector<std::int32_t>& merges) const;
  bool spoilt(const Apply& apply) const;
  bool applies_now(const Apply& apply) const;
  bool steps_locally(const Apply& apply) const;

  void compute_gradients();
  void compensate();
  Delivered run_op(const Op& op, const std::vector<std::int64_t>& merges) const;
  void run_applies(PointKind kind);
  void at_end();
  void read(const Apply& local);
  std::vector<Gradients> reduced(const Apply& apply, const std::vector<Gradients>& before, bool local);
  void step(const std::vector<Gradients>& gradients);
  void average(const Apply& apply);
  // The result of one block of an apply, and what each rank sent.
  std::pair<Values, std::vector<Values>> delivered(const Apply& apply, std::int32_t block) const;
  bool used_by_any(const Apply& apply, std::int32_t tensor) const;
  Values part(const Values& tensor, std::int32_t block) const;
  std::int32_t tensor_of(std::int32_t block) const { return block_tensor_[static_cast<std::size_t>(block)]; }
  int ranks() const { return job_.world_size; }

  const Plan& plan_;
  WorkloadIndex index_;
  Job job_;
  std::vector<std::int32_t> block_tensor_;
  bool keeps_own_ = false;
  std::int64_t reach_ = 0;  // iterations that an apply looks back at most
  std::set<std::int32_t> stepped_locally_;
  std::int64_t n_ = 0, base_ = 0;
  std::optional<std::int64_t> end_;  // while draining: the first iteration that does not exist
  std::vector<std::vector<Values>> parameters_, momenta_;     // by rank, by tensor
  std::map<std::int64_t, std::vector<Gradients>> gradients_;  // sent; by iteration, by rank
  std::vector<Gradients> local_;                              // of this iteration, by rank
  std::map<std::pair<std::int64_t, std::int32_t>, std::vector<Values>>
      read_;                                               // by iteration and block, by rank
  std::vector<std::map<std::int32_t, Values>> residuals_;  // by rank, by block
  std::set<std::pair<std::int64_t, std::int32_t>> owed_;   // iteration, tensor: a residual was sent
  std::set<std::int64_t> spoilt_;
};

}  // namespace gradweave::testing
