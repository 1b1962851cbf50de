#include "islands/connection.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "base/text.h"

namespace gradweave::islands {
namespace {

using asio::ip::tcp;

constexpr int kUnsent = 256 * 1024;           // of the kernel's: what is said next waits for no more
constexpr std::size_t kBatch = 256 * 1024;    // written before others have their turn
constexpr std::uint64_t kRecord = 17 * 1024;  // of TLS, with all that is around it
constexpr int kReads = 16;                    // in a row

}  // namespace

void tell_ended(Party& party) {
  std::vector<std::function<void()>> calls;
  {
    const MutexLock lock(party.mutex);
    const auto ended = party.conversation.take_ended();
    if (ended.empty()) return;
    for (const auto& transfer : ended) {
      auto& told = transfer->sends ? party.send_ended : party.receive_ended;
      if (const auto found = told.find(transfer->tag); found != told.end()) {
        calls.push_back(std::move(found->second));
        told.erase(found);
      }
    }
    party.changed.notify_all();
  }
  for (const auto& call : calls) call();
}

Connection::Connection(tcp::socket socket, const TlsContext& context, Owner& owner,
                       std::optional<Greeting> mine)
    : socket_(std::move(socket)),
      unforked_(std::in_place, socket_.native_handle()),
      tls_(context, socket_.native_handle(), mine.has_value()),
      owner_(owner),
      made_here_(mine.has_value()),
      mine_(std::move(mine)),
      heard_(steady_now()),
      wrote_(heard_) {
  asio::error_code ignored;
  socket_.non_blocking(true, ignored);
  socket_.set_option(tcp::no_delay(true), ignored);
  setsockopt(socket_.native_handle(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &kUnsent, sizeof kUnsent);
}

void Connection::start() { advance(); }

void Connection::advance() {
  if (stage_ == Stage::kHandshake) shake_hands();
  if (stage_ == Stage::kHandshake || stage_ == Stage::kClosed) return;
  read();
  write();
}

void Connection::shake_hands() {
  if (!done(tls_.handshake())) return;
  stage_ = Stage::kGreeting;
  if (!mine_) return;
  const GreetingBytes bytes = encode(*mine_);
  out_.assign(bytes.begin(), bytes.end());
}

// Whether TLS has done what it was asked. Else this waits for the socket, or is closed.
bool Connection::done(TlsStream::Status status) {
  switch (status) {
    case TlsStream::Status::kDone:
      return true;
    case TlsStream::Status::kWantsRead:
      wait_to_read();
      return false;
    case TlsStream::Status::kWantsWrite:
      wait_to_write();
      return false;
    case TlsStream::Status::kClosed:
      close(tls_.why());
      return false;
  }
  return false;
}

void Connection::read() {
  for (int i = 0; i < kReads; ++i) {
    if (reads_ || stage_ == Stage::kClosed) return;
    std::size_t count = 0;
    const std::span<std::byte> scratch = owner_.scratch();
    if (!done(tls_.read(scratch, count))) return;
    heard_ = steady_now();
    if (const std::string fault = take(scratch.first(count)); !fault.empty()) return close(fault);
  }
  // TLS may hold bytes of which the socket knows nothing.
  reads_ = true;
  asio::post(socket_.get_executor(), [self = shared_from_this()] {
    self->reads_ = false;
    self->advance();
  });
}

// Returns "", or what no peer sends.
std::string Connection::take(std::span<const std::byte> bytes) {
  std::string fault;
  if (!theirs_) take_greeting(bytes, fault);
  if (!fault.empty() || !party_ || bytes.empty()) return fault;
  {
    const MutexLock lock(party_->mutex);
    fault = party_->conversation.take(line_, bytes);
    const std::chrono::nanoseconds now = steady_now();
    if (line_.echoed) {
      const std::chrono::nanoseconds sent(
          static_cast<std::int64_t>(*std::exchange(line_.echoed, std::nullopt)));
      if (sent <= now && now - sent < std::chrono::hours(1)) party_->rate.round_trip(now - sent);
    }
    note_rate();
  }
  tell_ended(*party_);
  return fault;
}

void Connection::take_greeting(std::span<const std::byte>& bytes, std::string& fault) {
  const std::size_t count = std::min(bytes.size(), kGreetingBytes - greeting_bytes_);
  std::copy_n(bytes.begin(), count, greeting_.begin() + static_cast<std::ptrdiff_t>(greeting_bytes_));
  bytes = bytes.subspan(count);
  greeting_bytes_ += count;
  if (greeting_bytes_ < kGreetingBytes) return;
  theirs_ = decode(greeting_);
  if (!theirs_) {
    fault = "its greeting is not that of this release: run the same release everywhere";
    return;
  }
  Greeting answer;
  party_ = owner_.greeted(shared_from_this(), *theirs_, answer, fault);
  const GreetingBytes mine = encode(answer);
  if (!party_) {
    std::size_t written = 0;
    if (!answer.name.empty()) tls_.write(mine, written);
    return;
  }
  stage_ = Stage::kOpen;
  line_.beat = static_cast<std::uint64_t>(steady_now().count());
  if (made_here_) return;
  out_.insert(out_.end(), mine.begin(), mine.end());
}

void Connection::note_rate() {
  party_->rate.note(steady_now(), party_->conversation.acknowledged_bytes(),
                    party_->conversation.bytes_on_way() > 0);
}

// Has bytes to write in `out_`, if there are any.
bool Connection::fill() {
  if (written_ < out_.size()) return true;
  out_.clear();
  written_ = 0;
  if (stage_ != Stage::kOpen) return false;
  bool last = false;
  {
    const MutexLock lock(party_->mutex);
    while (out_.size() < kBatch && party_->conversation.next(line_, out_)) {
    }
    if (!out_.empty()) note_rate();
    last = out_.empty() && party_->leaving;
  }
  if (last) {
    stage_ = Stage::kEnding;
    tls_.end();
    asio::error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
  }
  if (out_.empty() && out_.capacity() > kFrameBytes * 8) out_ = {};
  return !out_.empty();
}

void Connection::write() {
  if (stage_ == Stage::kHandshake || stage_ == Stage::kClosed) return;
  std::size_t budget = kBatch;
  while (!writes_ && stage_ != Stage::kClosed && fill()) {
    // After a batch, the kernel says when it has less than kUnsent to send.
    if (budget == 0) return wait_to_write();
    std::size_t count = 0;
    if (!done(tls_.write(std::span<const std::byte>(out_).subspan(written_), count))) return;
    written_ += count;
    budget -= std::min(budget, count);
    wrote_ = steady_now();
  }
}

// A piece that is not all there wakes nobody for each packet: at most one record of it may be in TLS's hands, and the rest is
// still to come.
void Connection::wait_to_read() {
  if (std::exchange(reads_, true)) return;
  const std::uint64_t rest = line_.frame ? line_.frame->length - line_.frame_bytes : 0;
  wake_after(rest > 2 * kRecord ? static_cast<int>(kRecord) : 1);
  socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this()](const asio::error_code& error) {
    self->reads_ = false;
    if (!error) self->advance();
  });
}

void Connection::wake_after(int bytes) {
  if (std::exchange(wakes_after_, bytes) == bytes) return;
  setsockopt(socket_.native_handle(), SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof bytes);
}

void Connection::wait_to_write() {
  if (std::exchange(writes_, true)) return;
  socket_.async_wait(tcp::socket::wait_write, [self = shared_from_this()](const asio::error_code& error) {
    self->writes_ = false;
    if (!error) self->advance();
  });
}

void Connection::close(const std::string& why) {
  if (stage_ == Stage::kClosed) return;
  stage_ = Stage::kClosed;
  asio::error_code ignored;
  unforked_.reset();
  socket_.close(ignored);
  out_ = {};
  if (party_) {
    const MutexLock lock(party_->mutex);
    party_->conversation.lost(line_);
  }
  asio::post(socket_.get_executor(), [self = shared_from_this(), why] { self->owner_.closed(self, why); });
}

void Connection::look(std::chrono::nanoseconds now, std::chrono::nanoseconds rest,
                      std::chrono::nanoseconds silence) {
  if (stage_ == Stage::kClosed) return;
  if (now - heard_ > silence) return close("silent for " + time_text(static_cast<double>(silence.count())));
  if (stage_ != Stage::kOpen || now - wrote_ < rest) return;
  line_.beat = static_cast<std::uint64_t>(now.count());
  write();
}

}  // namespace gradweave::islands
