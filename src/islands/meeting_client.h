// An island at the meeting point: it joins, keeps its lease, and knows who is there.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "islands/address.h"
#include "islands/key.h"
#include "islands/meeting.h"

namespace gradweave::islands {

struct MeetingClientOptions {
  Key key{};
  Address meeting;
  Island island;  // its `life` is given to it
  // Another epoch is in force; on a thread of the client's, which must not wait.
  std::function<void(const Epoch&)> changed;
};

class MeetingClient {
 public:
  explicit MeetingClient(MeetingClientOptions options);
  // Leaves the meeting point.
  ~MeetingClient();
  MeetingClient(const MeetingClient&) = delete;
  MeetingClient& operator=(const MeetingClient&) = delete;

  // The epoch in force; nothing before the first. It stays while the meeting point is away.
  std::optional<Epoch> epoch() const;
  // Returns the first epoch with another number than `number`; nothing if there is none by then.
  std::optional<Epoch> wait_past(std::int64_t number, std::chrono::steady_clock::time_point until) const;
  // Why this island is not in, or the meeting point can't be reached; "" if all is well.
  std::string trouble() const;
  // An island says that an epoch is in force (Attendee).
  bool heard_in_force(const std::string& line, std::int64_t number, const std::string& by);
  // How this island gets on.
  void set_status(Status status);
  // Why this island has been left out, and must end; "" if it hasn't.
  std::string left_out() const;

 private:
  class Core;
  std::unique_ptr<Core> core_;
};

}  // namespace gradweave::islands
