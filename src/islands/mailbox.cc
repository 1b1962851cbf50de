#include "islands/mailbox.h"

#include <utility>

#include "gradweave/error.h"

namespace gradweave::islands {
namespace {

constexpr std::size_t kMostUnread = 1024;  // texts

}  // namespace

Mailbox::Mailbox(Peer peer, std::size_t most, std::function<void(std::string_view)> came)
    : peer_(std::move(peer)),
      most_(most),
      came_(std::move(came)),
      room_(std::make_unique_for_overwrite<std::byte[]>(most)) {}

std::shared_ptr<Mailbox> Mailbox::open(Peer peer, std::size_t most,
                                       std::function<void(std::string_view)> came) {
  std::shared_ptr<Mailbox> mailbox(new Mailbox(std::move(peer), most, std::move(came)));
  mailbox->expect();
  return mailbox;
}

void Mailbox::expect() {
  // The message is known to its own end only: `over` runs on the endpoint's thread, which may come before it is returned.
  auto message = std::make_shared<std::optional<Message>>();
  const MutexLock lock(mutex_);
  *message = peer_.receive({.channel = 0, .sequence = ++received_}, {room_.get(), most_},
                           [self = shared_from_this(), message] {
                             std::size_t size = 0;
                             {
                               const MutexLock locked(self->mutex_);  // until it is returned
                             }
                             try {
                               size = (*message)->wait();
                             } catch (const RuntimeFailure&) {
                               return;  // the peer is lost, which its owner is told
                             }
                             self->came_({reinterpret_cast<const char*>(self->room_.get()), size});
                             self->expect();
                           });
}

bool Mailbox::delivered() const {
  const MutexLock lock(mutex_);
  return on_way_.empty();
}

void Mailbox::send(std::shared_ptr<const std::string> text) {
  const MutexLock lock(mutex_);
  if (on_way_.size() >= kMostUnread) return peer_.leave();
  const std::uint64_t number = ++sent_;
  const std::span bytes(*text);
  on_way_[number] = std::move(text);
  peer_.send({.channel = 0, .sequence = number}, std::as_bytes(bytes), [self = shared_from_this(), number] {
    const MutexLock locked(self->mutex_);
    self->on_way_.erase(number);
  });
}

}  // namespace gradweave::islands
