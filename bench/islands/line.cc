#include "line.h"

#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <stdexcept>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
using Nanoseconds = std::chrono::nanoseconds;

struct Packet {
  Clock::time_point due;
  std::vector<char> bytes;
};

struct Way {
  int from, to;
  Clock::time_point free{};  // when the last packet has left
  std::deque<Packet> packets{};
};

void check(bool good, const std::string& what) {
  if (!good) throw std::runtime_error(what + ": " + std::strerror(errno));
}

int interface_in(const std::string& process, int number, int mtu) {
  const int space = open(("/proc/" + process + "/ns/net").c_str(), O_RDONLY | O_CLOEXEC);
  check(space >= 0 && setns(space, CLONE_NEWNET) == 0, "host of process " + process);
  close(space);
  const int tun = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  ifreq request{};
  std::strcpy(request.ifr_name, "far0");
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  check(tun >= 0 && ioctl(tun, TUNSETIFF, &request) == 0, "/dev/net/tun");
  const std::string make = "ip addr add 10.232.0." + std::to_string(number) +
                           "/24 dev far0 && ip link set far0 mtu " + std::to_string(mtu) +
                           " txqueuelen 4000 up";
  if (std::system(make.c_str()) != 0) throw std::runtime_error("'" + make + "' failed");
  return tun;
}

}  // namespace

int run_line(const std::string& first, const std::string& second, double mbps, double delay_ms) {
  prctl(PR_SET_TIMERSLACK, 1000);
  const int mtu = mbps > 2000 ? 65000 : mbps > 200 ? 9000 : 1500;
  const int ends[] = {interface_in(first, 1, mtu), interface_in(second, 2, mtu)};
  Way ways[] = {{.from = ends[0], .to = ends[1]}, {.from = ends[1], .to = ends[0]}};
  const auto delay = Nanoseconds(static_cast<std::int64_t>(delay_ms * 1e6));
  const auto queue = std::max<Nanoseconds>(std::chrono::milliseconds(50), 2 * delay);
  std::vector<char> room(66000);
  std::puts("ready");
  std::fflush(stdout);
  while (true) {
    Clock::time_point now = Clock::now();
    Clock::time_point soonest = now + std::chrono::seconds(1);
    for (Way& way : ways) {
      while (!way.packets.empty() && way.packets.front().due <= now) {
        const std::vector<char>& bytes = way.packets.front().bytes;
        if (write(way.to, bytes.data(), bytes.size()) < 0 && errno == EAGAIN) break;
        way.packets.pop_front();
      }
      if (!way.packets.empty()) soonest = std::min(soonest, way.packets.front().due);
    }
    const Nanoseconds left = std::max<Nanoseconds>(soonest - Clock::now(), Nanoseconds(0));
    const timespec patience{.tv_sec = left.count() / 1'000'000'000, .tv_nsec = left.count() % 1'000'000'000};
    pollfd ready[] = {{ends[0], POLLIN, 0}, {ends[1], POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}};
    ppoll(ready, 3, &patience, nullptr);
    if (ready[2].revents != 0) return 0;
    now = Clock::now();
    for (Way& way : ways) {
      for (int i = 0; i < 64; ++i) {
        const ssize_t count = read(way.from, room.data(), room.size());
        if (count <= 0) break;
        if (way.free > now + queue) continue;  // its queue is full
        way.free = std::max(way.free, now) +
                   Nanoseconds(static_cast<std::int64_t>(static_cast<double>(count) * 8e3 / mbps));
        way.packets.push_back({way.free + delay, {room.begin(), room.begin() + count}});
      }
    }
  }
}
