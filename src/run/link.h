// A link's threads: they take its ops strictly in plan order and hand them to its channel.
#pragma once

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "run/channel.h"
#include "run/op_queue.h"
#include "run/peers.h"

namespace gradweave::run {

// What a plan's executions live in, and who works on them. Threads that are stuck after a failure keep it.
struct Tables {
  Calendar calendar;
  Ring ring;
  explicit Tables(Calendar&& compiled) : calendar(std::move(compiled)), ring(calendar) {}
};

// A link of concurrency k has k threads, and op s belongs to thread s mod k; ops are issued in order whatever
// k is.
class Link {
 public:
  Link(std::size_t number, std::shared_ptr<Tables> tables, std::shared_ptr<Channel> channel,
       std::shared_ptr<OpQueue> queue, std::shared_ptr<Peers> peers);
  // Waits for the ops that run, unless all has failed.
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
  std::vector<std::thread> threads_;
};

}  // namespace gradweave::run
