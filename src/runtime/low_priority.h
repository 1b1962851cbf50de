// Long calculations beside work that must not wait for them.
#pragma once

#include <sys/resource.h>

#include <future>

namespace gradweave::runtime {

// Returns calculate(), done on a thread of its own that gets a tenth of a processor where others want all of it. The
// caller waits; what calculate() throws, it throws.
template <class Calculate>
auto at_low_priority(const Calculate& calculate) {
  constexpr int kNice = 10;
  return std::async(std::launch::async,
                    [&calculate] {
                      setpriority(PRIO_PROCESS, 0, kNice);  // of this thread alone, on Linux
                      return calculate();
                    })
      .get();
}

}  // namespace gradweave::runtime
