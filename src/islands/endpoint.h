// Messages between processes that are far from each other, over connections that may be lost and made again, encrypted and
// authenticated by the job's key. All that is under way can be ended at once.
//
//   Endpoint here({.key = key, .name = "a"});
//   Peer there = here.peer("b", Address{"10.0.0.2", 29601});  // on the other side: peer("a"), and listen
//   Message average = there.receive({.channel = 0, .sequence = 7}, buffer);
//   average.wait();  // or, from another thread, average.end()
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "islands/address.h"
#include "islands/frame.h"
#include "islands/key.h"
#include "islands/party.h"

namespace gradweave::islands {

class EndpointCore;

// A message on its way. Its bytes stay where they are until it is over; then nobody touches them any more.
class Message {
 public:
  // Waits until it is over; returns its bytes. A send is over once its receiver has all of it. Errors: RuntimeFailure, with
  // the peer's name, if it was ended, here or there, or the peer is lost.
  std::size_t wait();
  // Returns whether it is over by then.
  bool wait_until(std::chrono::steady_clock::time_point until);
  bool over() { return wait_until({}); }
  // Ends it at once, from any thread: who waits for it gets an error, here and there. Nothing if it is over.
  void end();

 private:
  friend class Peer;
  Message(std::shared_ptr<EndpointCore> core, std::shared_ptr<Party> party,
          std::shared_ptr<Transfer> transfer);
  std::shared_ptr<EndpointCore> core_;
  std::shared_ptr<Party> party_;
  std::shared_ptr<Transfer> transfer_;
};

// A process at the other end. Copies are the same peer. Any thread may call.
class Peer {
 public:
  // Both sides number the messages of a channel upwards, each direction for itself; numbers may be left out. `over`, if
  // given, is called on the endpoint's thread once the message is over; it must not wait. Errors: InvalidInput for a
  // number that is not higher than the last. One that is lost gives messages that are over, with an error.
  Message send(Tag tag, std::span<const std::byte> data, std::function<void()> over = {});
  // Of a message that is larger than `room` nothing comes, and both sides get an error.
  Message receive(Tag tag, std::span<std::byte> room, std::function<void()> over = {});

  const std::string& name() const;
  Presence presence() const;
  // Why it is not here; of one that never came, what went wrong when it was last tried. May be "".
  std::string trouble() const;
  // Whether its host said, when it was last tried, that nobody listens there.
  bool refuses_connections() const;
  // Returns its presence as soon as it is another one than `old`, or at `until`.
  Presence wait_while(Presence old, std::chrono::steady_clock::time_point until) const;
  // Returns how long a message of so many bytes should take at the rate that was measured; nothing before enough was sent.
  std::optional<double> seconds_for(std::uint64_t bytes) const;

  // All that is under way ends; the other side is told that this one has left.
  void leave();

  friend bool operator==(const Peer&, const Peer&) = default;

 private:
  friend class EndpointCore;
  Peer(std::shared_ptr<EndpointCore> core, std::shared_ptr<Party> party);
  Message posted(std::shared_ptr<Transfer> transfer) const;
  std::shared_ptr<EndpointCore> core_;
  std::shared_ptr<Party> party_;
};

struct EndpointOptions {
  Key key{};
  std::string name;               // of this side, 1 to kLongestName bytes
  std::optional<Address> listen;  // port 0: any that is free
  int lines = 4;                  // connections to each peer that this side connects to, 1 to kMostLines
  // A peer from which nothing comes for so long is lost, however slow it may be: signs of life come four times as often.
  std::chrono::nanoseconds silence = std::chrono::seconds(10);
  // So is one whose connections were closed and that has not come back in this time, or refuses to be connected to.
  std::chrono::nanoseconds return_within = std::chrono::seconds(3);
  // Called on the endpoint's thread; they must not wait. A peer that nobody has asked for has come; nothing: it is refused.
  std::function<void(const Peer&)> arrived;
  // A peer is lost or has left.
  std::function<void(const Peer&)> ended;
};

class Endpoint {
 public:
  // Errors: InvalidInput if it can't listen there, or an option is out of range.
  explicit Endpoint(EndpointOptions options);
  // Leaves all peers, in a second at most. What is under way ends.
  ~Endpoint();
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  // The port on which it listens.
  std::uint16_t port() const;
  // Returns a peer. It is connected to at `address`, if given, again and again, and else waited for; both sides may do both.
  // Once it is lost, ask for it anew: it may come as another process. One that is asked for twice is lost at once.
  Peer peer(const std::string& name, std::optional<Address> address = std::nullopt);

 private:
  std::shared_ptr<EndpointCore> core_;
};

}  // namespace gradweave::islands
