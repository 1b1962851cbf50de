// Sockets that other processes don't get from this one. A worker that was forked, as torch's DataLoader does, would hold an island's
// connections and port: nobody would notice the island's end, and it could not come again, before the worker ends too.
#pragma once

namespace gradweave::islands {

// While it lives, processes that are forked have /dev/null in place of the descriptor, and those that run another program nothing.
// The descriptor stays open until after it.
class Unforked {
 public:
  explicit Unforked(int descriptor);
  ~Unforked();
  Unforked(const Unforked&) = delete;
  Unforked& operator=(const Unforked&) = delete;

 private:
  const int descriptor_;
};

}  // namespace gradweave::islands
