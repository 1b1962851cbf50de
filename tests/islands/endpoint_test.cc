// Processes' ends of connections on the loopback: two in one process, but for those that are killed.
#include "islands/endpoint.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/read.hpp>
#include <asio/write.hpp>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "gradweave/error.h"
#include "keys.h"

namespace gradweave::islands {
namespace {

using namespace std::chrono_literals;
using asio::ip::tcp;
using Clock = std::chrono::steady_clock;

constexpr auto kLong = 20s;

EndpointOptions options_of(const std::string& name, bool listens) {
  EndpointOptions options{.key = key_of(1), .name = name};
  if (listens) options.listen = Address{"127.0.0.1", 0};
  return options;
}

Address address_of(const Endpoint& endpoint) { return {"127.0.0.1", endpoint.port()}; }

std::vector<std::byte> bytes_of(std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>((i * 31 + i / 257) & 255);
  return bytes;
}

std::string error_of(Message message) {
  try {
    message.wait();
  } catch (const RuntimeFailure& failure) {
    return failure.what();
  }
  return "";
}

// Carries bytes between those who connect to it and a port; its connections can be cut, or held up.
class Between {
 public:
  explicit Between(std::uint16_t port) : target_(asio::ip::address_v4::loopback(), port) {
    accept();
    thread_ = std::thread([this] { context_.run(); });
  }
  ~Between() {
    context_.stop();
    thread_.join();
  }
  Address address() const { return {"127.0.0.1", acceptor_.local_endpoint().port()}; }
  void cut(std::size_t after_bytes) {
    asio::post(context_, [this, after_bytes] { left_ = after_bytes; });
  }
  void hold() { held_ = true; }
  int cuts() const { return cuts_; }

 private:
  using Socket = std::shared_ptr<tcp::socket>;
  void accept() {
    acceptor_.async_accept([this](const asio::error_code& error, tcp::socket socket) {
      if (error) return;
      auto near = std::make_shared<tcp::socket>(std::move(socket)),
           far = std::make_shared<tcp::socket>(context_);
      asio::error_code failed;
      far->connect(target_, failed);
      if (!failed) {
        carry(near, far);
        carry(far, near);
      }
      accept();
    });
  }
  void carry(const Socket& from, const Socket& to) {
    auto room = std::make_shared<std::vector<char>>(16384);
    from->async_read_some(asio::buffer(*room), [=, this](const asio::error_code& error, std::size_t count) {
      if (held_) return kept_.push_back(from), kept_.push_back(to);
      asio::error_code failed = error;
      if (left_ && *left_ < count) {
        left_.reset();
        ++cuts_;
        failed = asio::error::connection_reset;
      } else if (left_) {
        *left_ -= count;
      }
      if (!failed) asio::write(*to, asio::buffer(*room, count), failed);
      if (!failed) return carry(from, to);
      from->close(failed);
      to->close(failed);
    });
  }

  asio::io_context context_;
  tcp::acceptor acceptor_{context_, {asio::ip::address_v4::loopback(), 0}};
  tcp::endpoint target_;
  std::optional<std::size_t> left_;
  std::atomic<bool> held_ = false;
  std::atomic<int> cuts_ = 0;
  std::vector<Socket> kept_;  // open, and nothing is carried
  std::thread thread_;
};

TEST(Endpoint, CarriesMessagesOfAnySizeBothWays) {
  Endpoint first(options_of("a", true)), second(options_of("b", false));
  Peer b = first.peer("b"), a = second.peer("a", address_of(first));
  std::uint64_t sequence = 0;
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{1}, std::size_t{65536}, std::size_t{5'000'001}}) {
    const std::vector<std::byte> sent = bytes_of(size);
    std::vector<std::byte> there(size), back(size);
    const Tag tag{.channel = 2, .sequence = ++sequence};
    Message sends = a.send(tag, sent), arrives = b.receive(tag, there);
    EXPECT_EQ(arrives.wait(), size);
    sends.wait();
    Message returns = b.send(tag, there), comes = a.receive(tag, back);
    EXPECT_EQ(comes.wait(), size);
    EXPECT_EQ(back, sent);
  }
  EXPECT_EQ(b.presence(), Presence::kHere);
  EXPECT_TRUE(a.seconds_for(1 << 20).has_value());
}

TEST(Endpoint, GoesOnAfterConnectionsWereCut) {
  Endpoint first(options_of("a", true)), second(options_of("b", false));
  Between between(first.port());
  Peer b = first.peer("b"), a = second.peer("a", between.address());
  const std::vector<std::byte> sent = bytes_of(30'000'000);
  std::vector<std::byte> there(sent.size());
  for (std::uint64_t sequence = 1; sequence <= 3; ++sequence) {
    std::ranges::fill(there, std::byte{});
    between.cut(5'000'000);
    Message sends = a.send({.sequence = sequence}, sent), arrives = b.receive({.sequence = sequence}, there);
    arrives.wait();
    sends.wait();
    EXPECT_EQ(there, sent);
  }
  EXPECT_EQ(between.cuts(), 3);
}

TEST(Endpoint, WhatIsUnderWayEndsAtOnceOnBothSides) {
  Endpoint first(options_of("a", true)), second(options_of("b", false));
  Peer b = first.peer("b"), a = second.peer("a", address_of(first));
  const std::vector<std::byte> sent = bytes_of(1000);
  std::vector<std::byte> there(1000);
  // A send without room, a receive that nothing is sent to: each waits for ever.
  Message sends = a.send({.channel = 1, .sequence = 1}, sent);
  std::thread ends([sends]() mutable {
    std::this_thread::sleep_for(20ms);
    sends.end();
  });
  EXPECT_EQ(error_of(sends), "peer 'a': ended here");
  ends.join();
  EXPECT_EQ(error_of(b.receive({.channel = 1, .sequence = 1}, there)),
            "peer 'b': message 1 of channel 1: the sender has ended it");
  Message receives = b.receive({.channel = 1, .sequence = 2}, there);
  receives.end();
  EXPECT_EQ(error_of(a.send({.channel = 1, .sequence = 2}, sent)),
            "peer 'a': message 2 of channel 1: the receiver has ended it");
  Message next = b.receive({.channel = 1, .sequence = 3}, there);
  a.send({.channel = 1, .sequence = 3}, sent).wait();
  EXPECT_EQ(next.wait(), 1000);  // and all else goes on
}

TEST(Endpoint, WhoHasAnotherKeyIsRefused) {
  bool arrived = false;
  EndpointOptions options = options_of("a", true);
  options.arrived = [&](const Peer&) { arrived = true; };
  Endpoint first(options);
  EndpointOptions other = options_of("b", false);
  other.key = key_of(2);
  Endpoint second(other);
  Peer a = second.peer("a", address_of(first));
  const auto until = Clock::now() + kLong;
  while (a.trouble().empty() && Clock::now() < until) std::this_thread::sleep_for(5ms);
  EXPECT_NE(a.trouble().find("the other side has another key"), std::string::npos) << a.trouble();
  EXPECT_EQ(a.presence(), Presence::kAway);
  EXPECT_FALSE(arrived);
}

TEST(Endpoint, WhoSpeaksNoTlsIsClosedAndOthersGoOn) {
  Endpoint first(options_of("a", true));
  asio::io_context context;
  tcp::socket socket(context);
  socket.connect({asio::ip::address_v4::loopback(), first.port()});
  asio::error_code error;
  asio::write(socket, asio::buffer(std::string(10'000, 'x')), error);
  std::vector<char> answer(100'000);
  asio::read(socket, asio::buffer(answer), error);
  EXPECT_TRUE(error);
  Endpoint second(options_of("b", false));
  Peer b = first.peer("b"), a = second.peer("a", address_of(first));
  EXPECT_EQ(a.wait_while(Presence::kAway, Clock::now() + kLong), Presence::kHere);
}

TEST(Endpoint, AProcessThatIsKilledIsLostAtOnce) {
  Endpoint first(options_of("a", true));
  const std::uint16_t port = first.port();
  EndpointOptions options = options_of("c", false);
  const pid_t child = fork();
  if (child == 0) {
    // The parent's endpoint and thread are not this process's.
    Endpoint second(options_of("b", true));
    Peer a = second.peer("a", Address{"127.0.0.1", port});
    std::vector<std::byte> room(1);
    a.receive({.sequence = 1}, room).wait_until(Clock::now() + 60s);
    _exit(0);
  }
  Peer b = first.peer("b");
  ASSERT_EQ(b.wait_while(Presence::kAway, Clock::now() + kLong), Presence::kHere);
  const std::vector<std::byte> data = bytes_of(100);
  Message waits = b.send({.sequence = 2}, data);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_EQ(b.wait_while(Presence::kHere, Clock::now() + kLong), Presence::kBroken);
  EXPECT_NE(error_of(waits).find("it has not come back"), std::string::npos);
  EXPECT_EQ(b.presence(), Presence::kLost);
}

// As where it had a data loader's.
TEST(Endpoint, AProcessThatIsKilledIsLostAndItsPortFreeThoughItsWorkerLives) {
  std::array<int, 2> pipes{};
  ASSERT_EQ(pipe(pipes.data()), 0);
  const pid_t child = fork();
  if (child == 0) {
    Endpoint second(options_of("b", true));
    Peer a = second.peer("a");
    std::uint16_t port = second.port();
    if (write(pipes[1], &port, sizeof port) != sizeof port) _exit(1);
    a.wait_while(Presence::kAway, Clock::now() + kLong);
    const pid_t worker = fork();
    if (worker != 0 && write(pipes[1], &worker, sizeof worker) != sizeof worker) _exit(1);
    std::this_thread::sleep_for(60s);
    _exit(0);
  }
  EndpointOptions options = options_of("b", true);
  ASSERT_EQ(read(pipes[0], &options.listen->port, sizeof options.listen->port), 2);
  Endpoint first(options_of("a", false));
  Peer b = first.peer("b", options.listen);
  pid_t worker = 0;
  ASSERT_EQ(read(pipes[0], &worker, sizeof worker), ssize_t{sizeof worker});
  ASSERT_EQ(b.wait_while(Presence::kAway, Clock::now() + kLong), Presence::kHere);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_NE(b.wait_while(Presence::kHere, Clock::now() + 5s), Presence::kHere);  // silent after 10 s
  EXPECT_NO_THROW(Endpoint{options});
  kill(worker, SIGKILL);
  for (const int each : pipes) close(each);
}

TEST(Endpoint, OneThatIsTakenForAnotherDisturbsNobody) {
  Endpoint first(options_of("a", false)), second(options_of("b", true));
  Peer b = first.peer("b", address_of(second)), a = second.peer("a");
  ASSERT_EQ(b.wait_while(Presence::kAway, Clock::now() + kLong), Presence::kHere);
  Peer c = first.peer("c", address_of(second));
  for (const auto until = Clock::now() + kLong; c.trouble().empty() && Clock::now() < until;)
    std::this_thread::sleep_for(1ms);
  EXPECT_EQ(c.trouble(), "another peer answers there: 'b'");
  std::this_thread::sleep_for(300ms);
  EXPECT_EQ(a.presence(), Presence::kHere);
  EXPECT_EQ(b.presence(), Presence::kHere);
}

TEST(Endpoint, OneThatListensAndIsGoneRefusesAndIsLost) {
  auto first = std::make_unique<Endpoint>(options_of("a", true));
  EndpointOptions options = options_of("b", false);
  options.return_within = 1h;
  Endpoint second(options);
  Between between(first->port());
  Peer b = first->peer("b"), a = second.peer("a", address_of(*first));
  ASSERT_EQ(a.wait_while(Presence::kAway, Clock::now() + kLong), Presence::kHere);
  first.reset();  // in order: it says so
  EXPECT_EQ(a.wait_while(Presence::kHere, Clock::now() + kLong), Presence::kLeft);
  EXPECT_EQ(b.presence(), Presence::kLost);
}

TEST(Endpoint, APeerThatIsSilentIsLostWithinTheBoundAndASlowOneIsNot) {
  EndpointOptions quick = options_of("a", true), other = options_of("b", false);
  quick.silence = other.silence = 400ms;
  quick.return_within = other.return_within = 100ms;
  Endpoint first(quick), second(other);
  Between between(first.port());
  Peer b = first.peer("b"), a = second.peer("a", between.address());
  ASSERT_EQ(a.wait_while(Presence::kAway, Clock::now() + kLong), Presence::kHere);
  EXPECT_EQ(a.wait_while(Presence::kHere, Clock::now() + 1200ms),
            Presence::kHere);  // nothing is sent: signs of life are
  between.hold();
  EXPECT_NE(a.wait_while(Presence::kHere, Clock::now() + kLong), Presence::kHere);
  EXPECT_NE(b.wait_while(Presence::kHere, Clock::now() + kLong), Presence::kHere);
  // Who sees it first closes, so the other may see that.
  std::vector<std::byte> room(1);
  const std::string whys =
      error_of(a.receive({.sequence = 1}, room)) + error_of(b.receive({.sequence = 1}, room));
  EXPECT_NE(whys.find("silent for 400 ms"), std::string::npos) << whys;
}

TEST(Endpoint, OneThatBeganAnewIsAnotherPeer) {
  Endpoint first(options_of("a", true));
  EndpointOptions options = options_of("b", false);
  options.lines = 1;  // no other greeting of the old one comes late
  auto second = std::make_unique<Endpoint>(options);
  Between between(first.port());
  Peer b = first.peer("b"), a = second->peer("a", between.address());
  ASSERT_EQ(b.wait_while(Presence::kAway, Clock::now() + kLong), Presence::kHere);
  between.hold();  // no word of its end comes
  Endpoint third(options_of("b", false));
  Peer again = third.peer("a", address_of(first));
  EXPECT_EQ(b.wait_while(Presence::kHere, Clock::now() + kLong), Presence::kLost);
  EXPECT_EQ(b.trouble(), "it has begun anew");
  Peer anew = first.peer("b");
  EXPECT_EQ(anew.wait_while(Presence::kAway, Clock::now() + kLong), Presence::kHere);
}

TEST(Endpoint, WhatIsUnderWayEndsWithTheEndpoint) {
  std::vector<std::byte> room(1);
  auto alone = std::make_unique<Endpoint>(options_of("a", true));
  Peer nobody = alone->peer("b");
  Message waits = nobody.receive({.sequence = 1}, room);
  alone.reset();
  EXPECT_EQ(error_of(waits), "peer 'b': this side has left");
}

TEST(Endpoint, SaysWhereItCantListen) {
  Endpoint first(options_of("a", true));
  EndpointOptions options = options_of("b", true);
  options.listen->port = first.port();
  try {
    Endpoint second(options);
    FAIL();
  } catch (const InvalidInput& error) {
    EXPECT_NE(std::string(error.what()).find("can't listen: Address already in use"), std::string::npos);
  }
}

TEST(Address, IsReadAndWritten) {
  EXPECT_EQ(parse_address("10.0.0.1:29600", "x"), (Address{"10.0.0.1", 29600}));
  EXPECT_EQ(to_text(parse_address("[::1]:7", "x")), "[::1]:7");
  for (const char* wrong :
       {"", ":", "host", "host:", ":1", "host:65536", "host:x", "::1:80", "host:-1", "host:1 "})
    EXPECT_THROW(parse_address(wrong, "--listen"), InvalidInput) << wrong;
}

class KeyFile : public testing::Test {
 protected:
  ~KeyFile() override { std::filesystem::remove(path_); }
  std::filesystem::path path_ =
      std::filesystem::temp_directory_path() / ("gradweave-key-" + std::to_string(getpid()) + ".key");
};

TEST_F(KeyFile, IsMadeOnceForItsOwnerAlone) {
  make_key_file(path_);
  EXPECT_EQ(std::filesystem::status(path_).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  const Key key = read_key_file(path_);
  EXPECT_NE(key, Key{});
  EXPECT_EQ(read_key_file(path_), key);
  EXPECT_THROW(make_key_file(path_), InvalidInput);
  EXPECT_EQ(read_key_file(path_), key);
  std::filesystem::permissions(path_, std::filesystem::perms::group_read, std::filesystem::perm_options::add);
  EXPECT_THROW(read_key_file(path_), InvalidInput);
}

TEST_F(KeyFile, IsRefusedWithoutAKey) {
  EXPECT_THROW(read_key_file(path_), InvalidInput);
  std::ofstream(path_) << "gradweave-key-1 00ff\n";
  std::filesystem::permissions(path_, std::filesystem::perms::owner_read);
  EXPECT_THROW(read_key_file(path_), InvalidInput);
}

TEST(MeasuredRate, IsThatOfTheLastMessagesAndASlowPeersIsNotNothing) {
  MeasuredRate rate;
  EXPECT_FALSE(rate.seconds_for(1));
  rate.round_trip(100ms);
  rate.note(0s, 0, true);
  rate.note(1s, 10'000'000, false);
  EXPECT_NEAR(*rate.seconds_for(10'000'000), 1.1, 1e-9);
  rate.note(5s, 10'000'000, false);  // a pause says nothing
  EXPECT_NEAR(*rate.seconds_for(10'000'000), 1.1, 1e-9);
  rate.note(6s, 10'000'000, true);
  rate.note(8s, 10'000'000, true);  // nothing yet
  rate.note(16s, 20'000'000, false);
  EXPECT_NEAR(*rate.seconds_for(10'000'000), 0.1 + 10 / 5.5, 1e-9);
}

}  // namespace
}  // namespace gradweave::islands
