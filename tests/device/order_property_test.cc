// Beside a reference that keeps every access and walks every path.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <vector>

#include "device/order.h"

namespace gradweave::device {
namespace {

// A graph of all that has happened: what comes before what, by its paths.
class Reference {
 public:
  explicit Reference(Stream streams) : last_(static_cast<std::size_t>(streams) + 1, -1) {}

  int happens(Stream stream) {
    const int node = add();
    follow(node, last(stream));
    if (stream != kHost) follow(node, last(kHost));
    last(stream) = node;
    return node;
  }
  int last_of(Stream stream) { return last(stream); }
  // What comes on `stream` from now on follows `node`.
  void wait(Stream stream, int node) { follow(happens(stream), node); }
  bool is_before(int early, int late) const {
    if (early == late) return true;
    for (const int node : before_[static_cast<std::size_t>(late)])
      if (node >= 0 && is_before(early, node)) return true;
    return false;
  }

 private:
  int add() {
    before_.emplace_back();
    return static_cast<int>(before_.size()) - 1;
  }
  void follow(int node, int earlier) { before_[static_cast<std::size_t>(node)].push_back(earlier); }
  int& last(Stream stream) { return last_[static_cast<std::size_t>(stream + 1)]; }

  std::vector<std::vector<int>> before_;
  std::vector<int> last_;
};

struct Access {
  int node = 0;
  Bytes bytes;
  bool writes = false;
};

bool conflict(const Access& a, const Access& b) {
  return (a.writes || b.writes) && a.bytes.begin < b.bytes.end && b.bytes.begin < a.bytes.end;
}

// Up to the first conflict that is out of order, both see the same; what follows one is nobody's promise.
RC_GTEST_PROP(OrderProperty, ReportsWhatNoPathOrders, ()) {
  const Stream streams = *rc::gen::inRange<Stream>(2, 5);
  constexpr std::uintptr_t kBegin = 64, kEnd = 72;
  Order order;
  Reference reference(streams);
  std::vector<std::pair<VectorClock, int>> events;
  std::vector<Access> accesses;
  order.allocate({kBegin, kEnd}, 0, "memory");
  const auto any_stream = [&] { return *rc::gen::inRange<Stream>(-1, streams); };
  const int steps = *rc::gen::inRange(1, 60);
  for (int step = 0; step < steps; ++step) {
    const int what = *rc::gen::inRange(0, 4);
    const Stream stream = any_stream();
    if (what == 0) {
      events.emplace_back(order.moment(stream), reference.last_of(stream));
    } else if (what == 1 && !events.empty()) {
      const auto& [clock, node] = events[*rc::gen::inRange<std::size_t>(0, events.size())];
      order.wait(stream, clock);
      reference.wait(stream, node);
    } else {
      const auto begin = *rc::gen::inRange<std::uintptr_t>(kBegin, kEnd);
      const Bytes bytes{begin, *rc::gen::inRange<std::uintptr_t>(begin + 1, kEnd + 1)};
      const bool writes = *rc::gen::inRange(0, 3) == 0;
      const std::span<const Bytes> touched{&bytes, 1};
      order.launch(stream, {.name = "op",
                            .reads = writes ? std::span<const Bytes>() : touched,
                            .writes = writes ? touched : std::span<const Bytes>()});
      const Access now{reference.happens(stream), bytes, writes};
      bool in_order = true;
      for (const Access& before : accesses)
        in_order = in_order && (!conflict(before, now) || reference.is_before(before.node, now.node));
      RC_ASSERT(order.take_reports().empty() == in_order);
      if (!in_order) return;
      accesses.push_back(now);
    }
  }
}

}  // namespace
}  // namespace gradweave::device
