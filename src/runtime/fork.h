// A process that was forked from a rank is none: the engine's threads do not exist there, and locks that they held are never
// released.
#pragma once

namespace gradweave::runtime {

// Returns how many forks lie between this process and the first one that asked. What was made in another generation is
// neither used nor destroyed. Safe from any thread.
int fork_generation();

}  // namespace gradweave::runtime
