// Who is still there: each rank writes a heartbeat to the store that the process group was made with.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace gradweave::runtime {

// Writes this rank's heartbeat and reads the others' from a thread of its own. When an op has failed it says
// whom to suspect, and the first rank that knows tells all others, so that every survivor ends with the same
// verdict and not with the loss of another survivor that ended before it.
class PeerWatch {
 public:
  // `store` may be null (one rank): then nobody is ever suspected. It must belong to this job alone: keys of
  // an earlier one would be taken for signs of life. `on_failure` gets the verdict of another rank, from the
  // watch's thread, at most once, perhaps when this object is gone: it must own what it uses.
  PeerWatch(c10::intrusive_ptr<c10d::Store> store, int rank, int world_size,
            std::function<void(const std::string&)> on_failure);
  ~PeerWatch();
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

  // How far this rank is; others see it.
  void set_progress(std::int64_t ops_done);

  // Returns whom to suspect, in words: "rank 2 (no sign of life for 3.1 s)", a rank that has ended, the rank
  // that is furthest behind, or that the store does not answer. Takes at most 1.7 s.
  std::string suspects();

  // Tells the other ranks why this one gives up, and stays until each of them knows or is silent: the store
  // may be in this process. Takes at most 0.8 s.
  void announce(const std::string& failure);

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;  // also of the thread, which a store that does not answer holds for ever
};

}  // namespace gradweave::runtime
