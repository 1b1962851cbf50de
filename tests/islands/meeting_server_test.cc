// The meeting point and islands as they are: sockets, leases and processes on the loopback.
#include "islands/meeting_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <thread>

#include "islands/endpoint.h"
#include "islands/meeting_client.h"
#include "keys.h"

namespace gradweave::islands {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kPatience = 30s;

std::unique_ptr<MeetingServer> server_at(std::uint16_t port, Time lease = 500ms) {
  return std::make_unique<MeetingServer>(MeetingServerOptions{
      .key = key_of(1), .listen = {"127.0.0.1", port}, .lease = lease, .tell = [](const std::string&) {}});
}

std::unique_ptr<MeetingClient> island(const std::string& name, std::uint16_t port,
                                      const std::string& trains = "x", unsigned char key = 1,
                                      const std::string& address = "127.0.0.1:2") {
  return std::make_unique<MeetingClient>(MeetingClientOptions{
      .key = key_of(key),
      .meeting = {"127.0.0.1", port},
      .island = {.name = name, .ranks = 2, .addresses = {"127.0.0.1:1", address}, .trains = {trains}}});
}

// Returns the names of the first epoch that has so many islands; what there was last, if none comes.
std::string names_of(const MeetingClient& client, std::size_t many) {
  const auto until = Clock::now() + kPatience;
  std::optional<Epoch> epoch = client.epoch();
  while ((!epoch || epoch->islands.size() != many) && Clock::now() < until) {
    if (const auto next = client.wait_past(epoch ? epoch->number : 0, until)) epoch = next;
  }
  std::string names;
  for (const Island& each : epoch ? epoch->islands : std::vector<Island>{}) names += each.name;
  return names;
}

std::string trouble_of(const MeetingClient& client) {
  const auto until = Clock::now() + kPatience;
  while (client.trouble().empty() && Clock::now() < until) std::this_thread::sleep_for(10ms);
  return client.trouble();
}

TEST(MeetingServer, IslandsComeAndGo) {
  const auto server = server_at(0);
  const auto a = island("a", server->port());
  auto b = island("b", server->port());
  EXPECT_EQ(names_of(*a, 2), "ab");
  EXPECT_EQ(names_of(*b, 2), "ab");
  EXPECT_EQ(a->epoch(), b->epoch());
  EXPECT_EQ(b->epoch()->islands[0].addresses, (std::vector<std::string>{"127.0.0.1:1", "127.0.0.1:2"}));
  b.reset();
  EXPECT_EQ(names_of(*a, 1), "a");
  b = island("b", server->port());
  EXPECT_EQ(names_of(*a, 2), "ab");
}

TEST(MeetingServer, AProcessThatIsKilledIsLeftOutAndOneThatIsStoppedAfterItsLease) {
  const auto server = server_at(0, 1s);
  const std::uint16_t port = server->port();
  const auto child_of = [&](const std::string& name) {
    const pid_t child = fork();
    if (child != 0) return child;
    const auto there = island(name, port);
    std::this_thread::sleep_for(60s);
    _exit(0);
  };
  const pid_t b = child_of("b"), c = child_of("c");
  const auto a = island("a", port);
  EXPECT_EQ(names_of(*a, 3), "abc");
  a->set_status({.epoch = a->epoch()->number, .has_state = true, .waits = {}});
  kill(b, SIGKILL);
  EXPECT_EQ(names_of(*a, 2), "ac");
  kill(c, SIGSTOP);
  EXPECT_EQ(names_of(*a, 1), "a");
  kill(c, SIGCONT);
  EXPECT_EQ(names_of(*a, 2), "ac");
  for (const pid_t child : {b, c}) {
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
}

TEST(MeetingServer, ItDiesAndComesBackEmpty) {
  auto server = server_at(0);
  const std::uint16_t port = server->port();
  const auto a = island("a", port), b = island("b", port);
  EXPECT_EQ(names_of(*a, 2), "ab");
  EXPECT_EQ(names_of(*b, 2), "ab");
  const Epoch before = *a->epoch();
  server.reset();
  const std::string trouble = trouble_of(*a);
  EXPECT_NE(trouble, "");
  EXPECT_EQ(a->epoch(), before);  // all go on with what they have
  server = server_at(port);
  for (const auto* each : {&a, &b}) {
    const auto after = (*each)->wait_past(before.number, Clock::now() + kPatience);
    ASSERT_TRUE(after);
    EXPECT_EQ(after->line, before.line);
    EXPECT_GT(after->number, before.number);
    EXPECT_EQ(names_of(**each, 2), "ab");
  }
}

TEST(MeetingServer, WhoDoesNotFitIsRefusedWithTheReason) {
  const auto server = server_at(0);
  const auto a = island("a", server->port());
  EXPECT_EQ(names_of(*a, 1), "a");
  const auto other = island("b", server->port(), "y");
  EXPECT_THAT(trouble_of(*other), testing::HasSubstr("it trains something different from island 'a'"));
  const auto nowhere = island("d", server->port(), "x", 1, "::1:29600");
  EXPECT_THAT(trouble_of(*nowhere), testing::HasSubstr("'::1:29600'"));
  const auto stranger = island("c", server->port(), "x", 2);
  EXPECT_THAT(trouble_of(*stranger), testing::HasSubstr("the other side has another key"));
  EXPECT_EQ(names_of(*a, 1), "a");
}

// It renews, and has no room for the answers.
TEST(MeetingServer, WhoReadsNoAnswersIsLeft) {
  const auto server = server_at(0, 10s);
  Endpoint endpoint({.key = key_of(1), .name = "a", .lines = 1});
  Peer meeting = endpoint.peer("meeting", Address{"127.0.0.1", server->port()});
  ASSERT_EQ(meeting.wait_while(Presence::kAway, Clock::now() + kPatience), Presence::kHere);
  const std::string text = encode(ToMeeting{.what = ToMeeting::What::kRenew, .beat = 1});
  std::vector<Message> sent;
  for (std::uint64_t i = 1; i <= 1100; ++i)
    sent.push_back(meeting.send({.channel = 0, .sequence = i}, std::as_bytes(std::span(text))));
  EXPECT_EQ(meeting.wait_while(Presence::kHere, Clock::now() + kPatience), Presence::kLeft);
}

}  // namespace
}  // namespace gradweave::islands
