// The meeting point as a server: `gradweave meet`. It knows who is there, and holds no data of the training.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "islands/address.h"
#include "islands/key.h"
#include "islands/meeting.h"

namespace gradweave::islands {

struct MeetingServerOptions {
  Key key{};
  Address listen;
  Time lease = std::chrono::seconds(10);
  Patience patience;
  std::vector<std::string> without;  // names of islands that have ended: they are not waited for
  // Told of each change, in one line; on a thread of the server.
  std::function<void(const std::string&)> tell;
};

class MeetingServer {
 public:
  // Errors: InvalidInput if it can't listen there.
  explicit MeetingServer(MeetingServerOptions options);
  ~MeetingServer();
  MeetingServer(const MeetingServer&) = delete;
  MeetingServer& operator=(const MeetingServer&) = delete;

  std::uint16_t port() const;

 private:
  class Core;
  std::unique_ptr<Core> core_;
};

}  // namespace gradweave::islands
