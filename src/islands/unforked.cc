#include "islands/unforked.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <set>

#include "base/mutex.h"

namespace gradweave::islands {
namespace {

struct Descriptors {
  Mutex mutex;
  std::set<int> open GUARDED_BY(mutex);
};

Descriptors& descriptors();

// The lock is held from before the fork until after it, in both processes: no analysis sees that.
void before_fork() NO_THREAD_SAFETY_ANALYSIS { descriptors().mutex.lock(); }
void after_fork() NO_THREAD_SAFETY_ANALYSIS { descriptors().mutex.unlock(); }

// The numbers stay in use: what still has one here closes no other file. They are nobody's in the child's own children.
void in_child() NO_THREAD_SAFETY_ANALYSIS {
  const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int each : descriptors().open) {
    if (nothing >= 0) dup3(nothing, each, O_CLOEXEC);
  }
  if (nothing >= 0) close(nothing);
  descriptors().open.clear();
  after_fork();
}

// Lives as long as the process, as its handlers do.
Descriptors& descriptors() {
  static Descriptors* const all = [] {
    pthread_atfork(before_fork, after_fork, in_child);
    return new Descriptors;
  }();
  return *all;
}

}  // namespace

Unforked::Unforked(int descriptor) : descriptor_(descriptor) {
  fcntl(descriptor_, F_SETFD, FD_CLOEXEC);
  Descriptors& all = descriptors();
  const MutexLock lock(all.mutex);
  all.open.insert(descriptor_);
}

Unforked::~Unforked() {
  Descriptors& all = descriptors();
  const MutexLock lock(all.mutex);
  all.open.erase(descriptor_);
}

}  // namespace gradweave::islands
