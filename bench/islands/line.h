// A line with a rate and a delay between two hosts (network namespaces) of this machine, for kernels that have no netem.
#pragma once

#include <string>

// Makes the interface `far0` in the hosts of two processes, 10.232.0.1 and 10.232.0.2, and carries packets between them until
// standard input closes: `mbps` each way, `delay_ms` on the way, a queue of 50 ms or one round trip. Needs to be root. Returns
// the exit code.
int run_line(const std::string& first, const std::string& second, double mbps, double delay_ms);
