// One connection to a peer: TLS over TCP, a greeting, then the frames of a conversation.
#pragma once

#include <asio/ip/tcp.hpp>
#include <asio/post.hpp>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "islands/frame.h"
#include "islands/party.h"
#include "islands/tls.h"
#include "islands/unforked.h"

namespace gradweave::islands {

// All calls are of the thread that runs the socket's io_context.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  // Who makes and accepts connections. Outlives them.
  class Owner {
   public:
    virtual ~Owner() = default;
    // The other side has shown that it has the key and has greeted. Returns whose connection it is, and what this side
    // answers if it did not make the connection; nothing if it is to be closed, with `why`, after an answer that has a name.
    virtual std::shared_ptr<Party> greeted(const std::shared_ptr<Connection>& connection,
                                           const Greeting& greeting, Greeting& answer, std::string& why) = 0;
    // Told once.
    virtual void closed(const std::shared_ptr<Connection>& connection, const std::string& why) = 0;
    // A place for bytes between two calls.
    virtual std::span<std::byte> scratch() = 0;
  };

  // `mine`: the greeting of the side that connects; nothing on the other.
  Connection(asio::ip::tcp::socket socket, const TlsContext& context, Owner& owner,
             std::optional<Greeting> mine);

  void start();
  // There may be something to send.
  void write();
  // Closes at once; the owner is told, by a call of its own.
  void close(const std::string& why);
  // A sign of life if nothing was sent for `rest`; closes if nothing came for `silence`, or no greeting.
  void look(std::chrono::nanoseconds now, std::chrono::nanoseconds rest, std::chrono::nanoseconds silence);

  // Nothing before the greeting.
  const std::shared_ptr<Party>& party() const { return party_; }
  const std::optional<Greeting>& greeting() const { return theirs_; }
  bool made_here() const { return made_here_; }

 private:
  enum class Stage { kHandshake, kGreeting, kOpen, kEnding, kClosed };

  void advance();
  void shake_hands();
  void read();
  std::string take(std::span<const std::byte> bytes);
  void take_greeting(std::span<const std::byte>& bytes, std::string& fault);
  bool fill();
  bool done(TlsStream::Status status);
  void note_rate() REQUIRES(party_->mutex);
  void wait_to_read();
  void wake_after(int bytes);
  void wait_to_write();

  asio::ip::tcp::socket socket_;
  std::optional<Unforked> unforked_;  // until it is closed
  TlsStream tls_;
  Owner& owner_;
  const bool made_here_;
  std::optional<Greeting> mine_, theirs_;
  std::shared_ptr<Party> party_;
  Stage stage_ = Stage::kHandshake;
  Line line_;
  GreetingBytes greeting_;
  std::size_t greeting_bytes_ = 0;
  std::vector<std::byte> out_;
  std::size_t written_ = 0;
  bool reads_ = false, writes_ = false;  // waits for the socket
  int wakes_after_ = 1;                  // bytes
  std::chrono::nanoseconds heard_, wrote_;
};

}  // namespace gradweave::islands
