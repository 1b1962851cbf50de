// islands_bench: what bench/islands.py runs in each host, and bench/meeting.py on one.
//   islands_bench make-key FILE
//   islands_bench line PID PID MBPS DELAY_MS   joins the hosts of two processes by one line, interfaces `far0`
//   islands_bench receive|send KEY ADDRESS LINES MBYTES COUNT   messages one after another; prints one JSON object
//   islands_bench end-receive|end-send KEY ADDRESS LINES MBYTES   ends a message under way
//   islands_bench crowd KEY ADDRESS NAME COUNT   islands at a meeting point (crowd.h)
#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "crowd.h"
#include "islands/endpoint.h"
#include "line.h"

namespace {

using namespace gradweave::islands;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

double seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
}

double processor_seconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

double now_seconds() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

int carry(const std::string& what, const std::string& key, const Address& address, int lines,
          std::size_t megabytes, int count) {
  const bool sends = what.ends_with("send"), ends = what.starts_with("end-");
  Endpoint here({.key = read_key_file(key),
                 .name = sends ? "b" : "a",
                 .listen = sends ? std::nullopt : std::optional(address),
                 .lines = lines});
  Peer there = here.peer(sends ? "a" : "b", sends ? std::optional(address) : std::nullopt);
  if (there.wait_while(Presence::kAway, Clock::now() + 20s) != Presence::kHere) {
    std::fprintf(stderr, "%s\n", there.trouble().c_str());
    return 1;
  }
  std::vector<std::byte> bytes(megabytes << 20, std::byte{1});
  std::uint64_t sequence = 0;
  const auto next = [&] {
    const Tag tag{.channel = 0, .sequence = ++sequence};
    return sends ? there.send(tag, bytes) : there.receive(tag, bytes);
  };
  next().wait();  // until windows are open
  if (ends) {
    Message message = next();
    double began = 0, ended = 0;
    std::thread waits([&] {
      try {
        message.wait();
      } catch (const std::exception&) {
        ended = now_seconds();
      }
    });
    if (sends) std::this_thread::sleep_for(300ms);
    began = now_seconds();
    if (sends) message.end();
    waits.join();
    std::printf("{\"began\": %.6f, \"ended\": %.6f}\n", began, ended);
    return 0;
  }
  const double begin = now_seconds(), used = processor_seconds();
  for (int i = 0; i < count; ++i) next().wait();
  std::printf("{\"seconds\": %.6f, \"processor\": %.6f}\n", now_seconds() - begin,
              processor_seconds() - used);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  try {
    if (words.size() == 2 && words[0] == "make-key") {
      make_key_file(words[1]);
      return 0;
    }
    if (words.size() == 5 && words[0] == "line")
      return run_line(words[1], words[2], std::stod(words[3]), std::stod(words[4]));
    if (words.size() == 5 && words[0] == "crowd")
      return run_crowd(words[1], words[2], words[3], std::stoi(words[4]));
    if (words.size() >= 5)
      return carry(words[0], words[1], parse_address(words[2], "address"), std::stoi(words[3]),
                   static_cast<std::size_t>(std::stoul(words[4])),
                   words.size() > 5 ? std::stoi(words[5]) : 1);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "islands_bench: %s\n", error.what());
    return 1;
  }
  std::fprintf(stderr, "islands_bench: see the head of bench/islands/carry.cc\n");
  return 2;
}
