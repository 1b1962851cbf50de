#include "runtime/fork.h"

#include <pthread.h>

#include <atomic>

namespace gradweave::runtime {
namespace {

std::atomic<int> forks = 0;

}  // namespace

int fork_generation() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] { ++forks; });
  static_cast<void>(registered);
  return forks;
}

}  // namespace gradweave::runtime
