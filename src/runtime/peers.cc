#include "runtime/peers.h"

#include <charconv>
#include <chrono>
#include <future>
#include <vector>

namespace gradweave::runtime {
namespace {

using namespace std::chrono_literals;

constexpr auto kBeat = 400ms;
constexpr auto kListen = 1000ms;  // more than two beats
constexpr auto kAnswer = 1600ms;

struct Sign {
  std::int64_t beat = -1;
  std::int64_t progress = -1;
};

std::string key_of(int rank) { return "gradweave/alive/" + std::to_string(rank); }

Sign read(c10d::Store& store, int rank) {
  const std::vector<std::string> keys{key_of(rank)};
  if (!store.check(keys)) return {};
  const std::vector<std::uint8_t> bytes = store.get(keys[0]);
  const std::string text(bytes.begin(), bytes.end());
  const std::size_t colon = text.find(':');
  Sign sign;
  std::from_chars(text.data(), text.data() + colon, sign.beat);
  std::from_chars(text.data() + colon + 1, text.data() + text.size(), sign.progress);
  return sign;
}

}  // namespace

struct PeerWatch::Shared {
  c10::intrusive_ptr<c10d::Store> store;
  int rank = 0;
  int world_size = 1;

  std::string listen() const {
    std::vector<Sign> before;
    for (int r = 0; r < world_size; ++r) before.push_back(read(*store, r));
    std::this_thread::sleep_for(kListen);
    std::string silent, behind;
    std::int64_t least = -1;
    for (int r = 0; r < world_size; ++r) {
      if (r == rank) continue;
      const Sign sign = read(*store, r);
      const std::string name = "rank " + std::to_string(r);
      if (sign.beat == before[static_cast<std::size_t>(r)].beat) {
        silent += (silent.empty() ? "" : ", ") + name;
      } else if (least < 0 || sign.progress < least) {
        least = sign.progress;
        behind = name;
      }
    }
    if (!silent.empty()) return silent + " (no sign of life)";
    return behind + " (alive, but furthest behind)";
  }
};

PeerWatch::PeerWatch(c10::intrusive_ptr<c10d::Store> store, int rank, int world_size)
    : shared_(std::make_shared<Shared>()) {
  if (!store || world_size < 2) return;
  // Connections of our own: the caller's may be held by a blocking wait, and a listener must not wait for a
  // beat.
  shared_->store = store->clone();
  shared_->rank = rank;
  shared_->world_size = world_size;
  thread_ = std::thread([this, rank, beats = store->clone()] {
    std::unique_lock lock(mutex_);
    for (std::int64_t beat = 0; !stop_; ++beat) {
      const std::string text = std::to_string(beat) + ":" + std::to_string(progress_.load());
      lock.unlock();
      try {
        beats->set(key_of(rank), std::vector<std::uint8_t>(text.begin(), text.end()));
      } catch (const std::exception&) {
        return;  // the store is gone; suspects() says so
      }
      lock.lock();
      wake_.wait_for(lock, kBeat, [&] { return stop_; });
    }
  });
}

PeerWatch::~PeerWatch() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::string PeerWatch::suspects() {
  if (!shared_->store) return "no peer";
  // A stopped store never answers and can't be interrupted, so a thread that may outlive us asks.
  auto answer = std::make_shared<std::promise<std::string>>();
  std::future<std::string> result = answer->get_future();
  std::thread([shared = shared_, answer] {
    try {
      answer->set_value(shared->listen());
    } catch (const std::exception&) {
      answer->set_value("the rank that hosts the store, rank 0 by default (the store is gone)");
    }
  }).detach();
  if (result.wait_for(kAnswer) == std::future_status::ready) return result.get();
  return "the rank that hosts the store, rank 0 by default (the store does not answer)";
}

}  // namespace gradweave::runtime
