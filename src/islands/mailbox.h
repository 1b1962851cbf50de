// Texts to a peer and back, in their order, on channel 0 of its messages.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/mutex.h"
#include "islands/endpoint.h"

namespace gradweave::islands {

class Mailbox : public std::enable_shared_from_this<Mailbox> {
 public:
  // `most`: bytes of a text that comes. `came` is called on the endpoint's thread, with one text after the other.
  static std::shared_ptr<Mailbox> open(Peer peer, std::size_t most,
                                       std::function<void(std::string_view)> came);
  // Leaves a peer that has not read a thousand texts, so that one which reads nothing fills no memory here.
  void send(std::shared_ptr<const std::string> text);
  void send(std::string text) { send(std::make_shared<const std::string>(std::move(text))); }
  // Returns whether the peer has all that was sent.
  bool delivered() const;
  const Peer& peer() const { return peer_; }
  void leave() { peer_.leave(); }

 private:
  Mailbox(Peer peer, std::size_t most, std::function<void(std::string_view)> came);
  void expect();

  Peer peer_;
  const std::size_t most_;
  const std::function<void(std::string_view)> came_;
  const std::unique_ptr<std::byte[]> room_;
  std::uint64_t received_ = 0;  // of the endpoint's thread, once open
  mutable Mutex mutex_;
  std::uint64_t sent_ GUARDED_BY(mutex_) = 0;
  std::map<std::uint64_t, std::shared_ptr<const std::string>> on_way_ GUARDED_BY(mutex_);
};

}  // namespace gradweave::islands
