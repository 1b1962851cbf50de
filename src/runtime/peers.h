// Who is still there: each rank writes a heartbeat to the store that the process group was made with.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace gradweave::runtime {

// Writes this rank's heartbeat twice a second from a thread of its own, and names suspects when an op failed.
class PeerWatch {
 public:
  // `store` may be null (one rank): then nobody is ever suspected.
  PeerWatch(c10::intrusive_ptr<c10d::Store> store, int rank, int world_size);
  ~PeerWatch();
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

  // How far this rank is; others see it.
  void set_progress(std::int64_t ops_done) { progress_ = ops_done; }

  // Returns whom to suspect, in words: "rank 2 (no sign of life)", or the rank that is furthest behind, or
  // that the store does not answer. Takes at most 1.7 s.
  std::string suspects();

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
  std::atomic<std::int64_t> progress_{0};
  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
};

}  // namespace gradweave::runtime
