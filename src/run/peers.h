// The other ranks, as a run needs to know them.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace gradweave::run {

class Peers {
 public:
  virtual ~Peers() = default;

  // Where this rank is: before the backward of an iteration, or from that backward on. Cheap.
  virtual void outside(std::int64_t iteration) = 0;
  virtual void training(std::int64_t iteration) = 0;
  virtual void set_progress(std::int64_t ops_done) = 0;

  // Waits until every rank has come to the same meeting (`what`: "finish()") after the same iteration, and
  // returns what each has posted, by rank. Errors: RuntimeFailure on every rank if some rank is elsewhere, or
  // does not come within `timeout`.
  virtual std::vector<std::string> agree(const std::string& what, const std::string& post,
                                         std::chrono::milliseconds timeout) = 0;

  // This rank can't go on because `what` failed for `cause`, `after` it began. Returns the verdict, which the
  // other ranks get too.
  virtual std::string give_up(const std::string& what, std::chrono::nanoseconds after,
                              const std::string& cause) = 0;
};

}  // namespace gradweave::run
