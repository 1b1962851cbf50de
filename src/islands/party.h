// One side's end of what it has with a peer: the conversation, and how those who wait for it are told.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "base/mutex.h"
#include "islands/conversation.h"
#include "islands/rate.h"

namespace gradweave::islands {

enum class Presence {
  kAway,    // has not been here yet
  kHere,    // at least one connection is open
  kBroken,  // all connections are lost; they are being made again
  kLost,    // for good
  kLeft     // has said so, for good
};

// Shared by the threads that send and receive and the one that serves the connections.
struct Party {
  Party(std::string peer, const Id& own) : name(std::move(peer)), id(own) {}

  const std::string name;  // of the peer
  const Id id;             // of this side

  Mutex mutex;
  CondVar changed;  // a transfer has ended, or the presence is another one
  Conversation conversation GUARDED_BY(mutex);
  MeasuredRate rate GUARDED_BY(mutex);
  Presence presence GUARDED_BY(mutex) = Presence::kAway;
  std::string trouble GUARDED_BY(mutex);  // why it is not here, or the last thing that went wrong
  bool leaving GUARDED_BY(mutex) = false;
  bool refuses GUARDED_BY(mutex) = false;  // its host said so when it was last connected to
  // By transfers that want to be told, on the thread that serves the connections.
  std::map<Tag, std::function<void()>> send_ended GUARDED_BY(mutex), receive_ended GUARDED_BY(mutex);
};

inline std::chrono::nanoseconds steady_now() { return std::chrono::steady_clock::now().time_since_epoch(); }

// Wakes who waits for transfers that have ended, and calls what they asked for. Without the lock.
void tell_ended(Party& party) EXCLUDES(party.mutex);

}  // namespace gradweave::islands
