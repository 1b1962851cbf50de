#include "islands/endpoint.h"

#include <signal.h>  // NOLINT(modernize-deprecated-headers): pthread_sigmask

#include <algorithm>
#include <asio/connect.hpp>
#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/quoted.h"
#include "base/thread.h"
#include "gradweave/error.h"
#include "islands/connection.h"
#include "islands/random.h"
#include "islands/unforked.h"

namespace gradweave::islands {
namespace {

using asio::ip::tcp;
using namespace std::chrono_literals;
using Nanoseconds = std::chrono::nanoseconds;

constexpr Nanoseconds kFirstPause = 50ms, kLongestPause = 1s;  // between two attempts to connect
constexpr Nanoseconds kTimeToLeave = 1s;
constexpr std::size_t kMostUnknown = 1024;  // connections that have not shown the key

Id random_id() {
  Id id;
  fill_randomly(id);
  return id;
}

bool is_over(Presence presence) { return presence == Presence::kLost || presence == Presence::kLeft; }

void check_name(const std::string& name, const char* where) {
  if (name.empty() || name.size() > kLongestName) {
    throw InvalidInput("has " + std::to_string(name.size()) + " bytes", where,
                       "give it 1 to " + std::to_string(kLongestName) + " bytes");
  }
}

void check(const EndpointOptions& options) {
  check_name(options.name, "island= (with its rank)");
  if (options.lines < 1 || options.lines > kMostLines)
    throw InvalidInput("is " + std::to_string(options.lines), "lines",
                       "give 1 to " + std::to_string(kMostLines) + " connections");
  if (options.silence < 100ms || options.silence > 1h || options.return_within < 0s ||
      options.return_within > 1h)
    throw InvalidInput("is out of range", "timeout (silence, return_within)", "give 0.1 s to one hour");
}

}  // namespace

class EndpointCore : public std::enable_shared_from_this<EndpointCore>, public Connection::Owner {
 public:
  explicit EndpointCore(EndpointOptions options);

  void run();
  void stop();
  std::uint16_t port() const { return port_; }
  Peer add(const std::string& name, std::optional<Address> address);
  // There may be something to send to it, or somebody to tell.
  void pump_soon(const std::shared_ptr<Party>& party);

  std::shared_ptr<Party> greeted(const std::shared_ptr<Connection>& connection, const Greeting& greeting,
                                 Greeting& answer, std::string& why) override;
  void closed(const std::shared_ptr<Connection>& connection, const std::string& why) override;
  std::span<std::byte> scratch() override { return scratch_; }

 private:
  // One of the connections that this side makes to a peer.
  struct Slot {
    explicit Slot(asio::io_context& context) : timer(context) {}
    asio::steady_timer timer;
    Nanoseconds pause{};
    std::shared_ptr<tcp::socket> dialling;
    Nanoseconds dialled_at{};
    std::shared_ptr<Connection> connection;
  };
  struct Entry {
    std::shared_ptr<Party> party;
    std::optional<Address> address;
    std::optional<Id> theirs;
    std::vector<std::unique_ptr<Slot>> slots;
    std::set<std::shared_ptr<Connection>> open;  // that have greeted
    Nanoseconds broken_at{}, leaves_at{};
  };

  void listen();
  void accept();
  void tick();
  void look_at(Entry& entry, Nanoseconds now);
  Entry* entry_of(const std::shared_ptr<Party>& party);
  Entry& enter(std::shared_ptr<Party> party, std::optional<Address> address);
  void dial(const std::shared_ptr<Party>& party, std::size_t number);
  void dial_later(const std::shared_ptr<Party>& party, std::size_t number);
  void connect(const std::shared_ptr<Party>& party, std::size_t number,
               const std::vector<tcp::endpoint>& places);
  void failed_to_dial(const std::shared_ptr<Party>& party, std::size_t number, const asio::error_code& error);
  void set_presence(Party& party, Presence presence, const std::string& trouble);
  void lose(const std::shared_ptr<Party>& party, Presence presence, const std::string& why);
  void pump(const std::shared_ptr<Party>& party);

  const EndpointOptions options_;
  const TlsContext tls_;
  asio::io_context context_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_ = asio::make_work_guard(context_);
  tcp::acceptor acceptor_{context_};
  std::optional<Unforked> unforked_;  // the acceptor, until it is closed
  tcp::resolver resolver_{context_};
  asio::steady_timer ticks_{context_};
  std::uint16_t port_ = 0;
  bool accepts_ = false;
  Nanoseconds ticked_{};
  std::map<std::string, Entry> entries_;
  std::set<std::shared_ptr<Connection>> unknown_;  // not greeted yet
  std::vector<std::byte> scratch_ = std::vector<std::byte>(64 * 1024);
  Mutex mutex_;
  CondVar emptied_;
  bool stopping_ GUARDED_BY(mutex_) = false, empty_ GUARDED_BY(mutex_) = true;
  Thread thread_;
};

EndpointCore::EndpointCore(EndpointOptions options) : options_(std::move(options)), tls_(options_.key) {
  if (options_.listen) listen();
}

void EndpointCore::listen() {
  asio::error_code error;
  const std::string port = std::to_string(options_.listen->port);
  const auto places = resolver_.resolve(options_.listen->host, port, tcp::resolver::passive, error);
  if (!error) {
    const tcp::endpoint place = *places.begin();
    acceptor_.open(place.protocol(), error);
    if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor_.bind(place, error);
    if (!error) acceptor_.listen(4096, error);
    if (!error) acceptor_.non_blocking(true, error);
  }
  if (error) {
    throw InvalidInput("can't listen: " + error.message(), to_text(*options_.listen),
                       "give an address of this machine and a port that is free");
  }
  unforked_.emplace(acceptor_.native_handle());
  port_ = acceptor_.local_endpoint().port();
}

void EndpointCore::run() {
  thread_ = Thread(
      [this] {
        sigset_t broken_pipe;  // OpenSSL writes to sockets that may be closed
        sigemptyset(&broken_pipe);
        sigaddset(&broken_pipe, SIGPIPE);
        pthread_sigmask(SIG_BLOCK, &broken_pipe, nullptr);
        ticked_ = steady_now();
        accept();
        tick();
        context_.run();
      },
      [this](const std::string& why) {
        while (!entries_.empty())
          lose(entries_.begin()->second.party, Presence::kLost, "the thread has failed: " + why);
      });
}

void EndpointCore::stop() {
  asio::post(context_, [this] {
    asio::error_code ignored;
    unforked_.reset();
    acceptor_.close(ignored);
    std::vector<std::shared_ptr<Party>> parties;
    for (const auto& [name, entry] : entries_) parties.push_back(entry.party);
    for (const auto& party : parties) Peer(shared_from_this(), party).leave();
    const MutexLock lock(mutex_);
    stopping_ = true;
    emptied_.notify_all();
  });
  {
    const auto until = std::chrono::steady_clock::now() + kTimeToLeave;
    const MutexLock lock(mutex_);
    while ((!stopping_ || !empty_) && emptied_.wait_until(mutex_, until)) {
    }
  }
  context_.stop();
  thread_.join();
  while (!entries_.empty()) lose(entries_.begin()->second.party, Presence::kLost, "this side has ended");
}

void EndpointCore::accept() {
  if (!acceptor_.is_open()) return;
  accepts_ = true;
  acceptor_.async_accept([this](const asio::error_code& error, tcp::socket socket) {
    accepts_ = false;
    if (error) return;  // the next tick tries again
    if (unknown_.size() < kMostUnknown) {
      auto connection = std::make_shared<Connection>(std::move(socket), tls_, *this, std::nullopt);
      unknown_.insert(connection);
      connection->start();
    }
    accept();
  });
}

void EndpointCore::tick() {
  const Nanoseconds now = steady_now();
  if (!accepts_) accept();
  // This process may have been stopped: what has come meanwhile is read before anybody is judged.
  const bool late = now - ticked_ > options_.silence / 2;
  ticked_ = now;
  if (!late) {
    const auto unknown = std::vector(unknown_.begin(), unknown_.end());
    for (const auto& connection : unknown) connection->look(now, options_.silence, options_.silence);
    std::vector<std::string> names;
    for (const auto& [name, entry] : entries_) names.push_back(name);
    for (const std::string& name : names) {
      if (const auto found = entries_.find(name); found != entries_.end()) look_at(found->second, now);
    }
  }
  ticks_.expires_after(std::min<Nanoseconds>(options_.silence / 8, 500ms));
  ticks_.async_wait([this](const asio::error_code& error) {
    if (!error) tick();
  });
}

void EndpointCore::look_at(Entry& entry, Nanoseconds now) {
  const std::shared_ptr<Party> party = entry.party;
  for (const auto& slot : entry.slots) {
    if (slot->dialling && now - slot->dialled_at > options_.silence) slot->dialling->cancel();
  }
  const auto open = std::vector(entry.open.begin(), entry.open.end());
  for (const auto& connection : open) connection->look(now, options_.silence / 4, options_.silence);
  Presence presence{};
  std::string trouble;
  bool leaves = false;
  {
    const MutexLock lock(party->mutex);
    presence = party->presence;
    trouble = party->trouble;
    leaves = party->leaving;
  }
  if (leaves && now - entry.leaves_at > kTimeToLeave) {
    lose(party, Presence::kLost, "this side has left");
  } else if (presence == Presence::kBroken && now - entry.broken_at > options_.return_within) {
    lose(party, Presence::kLost, trouble + "; it has not come back");
  }
}

EndpointCore::Entry* EndpointCore::entry_of(const std::shared_ptr<Party>& party) {
  const auto found = entries_.find(party->name);
  return found != entries_.end() && found->second.party == party ? &found->second : nullptr;
}

EndpointCore::Entry& EndpointCore::enter(std::shared_ptr<Party> party, std::optional<Address> address) {
  Entry& entry = entries_[party->name];
  entry.party = std::move(party);
  entry.address = std::move(address);
  const MutexLock lock(mutex_);
  empty_ = false;
  return entry;
}

Peer EndpointCore::add(const std::string& name, std::optional<Address> address) {
  check_name(name, "name of a peer");
  auto party = std::make_shared<Party>(name, random_id());
  asio::post(context_, [this, party, address = std::move(address)] {
    if (entries_.contains(party->name)) {
      set_presence(*party, Presence::kLost, "there is a peer of that name already");
      const MutexLock lock(party->mutex);
      party->conversation.close("there is a peer of that name already");
      return;
    }
    Entry& entry = enter(party, address);
    if (!address) return;
    for (int i = 0; i < options_.lines; ++i) entry.slots.push_back(std::make_unique<Slot>(context_));
    for (std::size_t i = 0; i < entry.slots.size(); ++i) dial(party, i);
  });
  return {shared_from_this(), party};
}

void EndpointCore::dial(const std::shared_ptr<Party>& party, std::size_t number) {
  Entry* entry = entry_of(party);
  if (entry == nullptr) return;
  asio::error_code error;
  const asio::ip::address numeric = asio::ip::make_address(entry->address->host, error);
  if (!error) return connect(party, number, {tcp::endpoint(numeric, entry->address->port)});
  resolver_.async_resolve(
      entry->address->host, std::to_string(entry->address->port),
      [this, party, number](const asio::error_code& failed, const tcp::resolver::results_type& found) {
        if (failed) return failed_to_dial(party, number, failed);
        connect(party, number, {found.begin(), found.end()});
      });
}

void EndpointCore::connect(const std::shared_ptr<Party>& party, std::size_t number,
                           const std::vector<tcp::endpoint>& places) {
  Entry* entry = entry_of(party);
  if (entry == nullptr) return;
  Slot& slot = *entry->slots[number];
  auto socket = std::make_shared<tcp::socket>(context_);
  slot.dialling = socket;
  slot.dialled_at = steady_now();
  asio::async_connect(
      *socket, places, [this, party, number, socket](const asio::error_code& error, const tcp::endpoint&) {
        Entry* same = entry_of(party);
        if (same == nullptr) return;
        Slot& dialled = *same->slots[number];
        dialled.dialling = nullptr;
        if (error) return failed_to_dial(party, number, error);
        dialled.connection = std::make_shared<Connection>(std::move(*socket), tls_, *this,
                                                          Greeting{.name = options_.name,
                                                                   .id = party->id,
                                                                   .line = static_cast<std::uint16_t>(number),
                                                                   .to = mark_of(party->name)});
        unknown_.insert(dialled.connection);
        const std::shared_ptr<Connection> started = dialled.connection;
        started->start();
      });
}

void EndpointCore::failed_to_dial(const std::shared_ptr<Party>& party, std::size_t number,
                                  const asio::error_code& error) {
  Entry* entry = entry_of(party);
  if (entry == nullptr) return;
  const std::string what = to_text(*entry->address) + ": " + error.message();
  Presence presence{};
  {
    const MutexLock lock(party->mutex);
    presence = party->presence;
    party->refuses = error == asio::error::connection_refused;
    if (presence == Presence::kAway) party->trouble = what;
    party->changed.notify_all();
  }
  if (presence == Presence::kBroken && error == asio::error::connection_refused)
    return lose(party, Presence::kLost, what + ": nobody listens there any more");
  dial_later(party, number);
}

void EndpointCore::dial_later(const std::shared_ptr<Party>& party, std::size_t number) {
  Entry* entry = entry_of(party);
  if (entry == nullptr) return;
  Slot& slot = *entry->slots[number];
  slot.timer.expires_after(slot.pause);
  slot.pause = std::clamp(2 * slot.pause, kFirstPause, kLongestPause);
  slot.timer.async_wait([this, party, number](const asio::error_code& cancelled) {
    if (!cancelled) dial(party, number);
  });
}

std::shared_ptr<Party> EndpointCore::greeted(const std::shared_ptr<Connection>& connection,
                                             const Greeting& greeting, Greeting& answer, std::string& why) {
  Entry* entry = nullptr;
  bool arrives = false;
  const Greeting here{.name = options_.name, .line = greeting.line, .to = mark_of(greeting.name)};
  if (connection->made_here()) {
    Slot* dialled = nullptr;
    for (auto& [name, each] : entries_) {
      for (const auto& slot : each.slots) {
        if (slot->connection != connection) continue;
        entry = &each;
        dialled = slot.get();
      }
    }
    if (entry != nullptr && entry->party->name != greeting.name) {
      why = "another peer answers there: " + in_quotes(greeting.name);
      return nullptr;
    }
    if (dialled != nullptr) dialled->pause = {};
  } else if (greeting.to != mark_of(options_.name)) {
    answer = here;  // it learns who is there
    why = in_quotes(greeting.name) + " looks for another peer here";
    return nullptr;
  } else if (const auto found = entries_.find(greeting.name); found != entries_.end()) {
    entry = &found->second;
  }
  if (entry != nullptr && entry->theirs && *entry->theirs != greeting.id) {
    lose(entry->party, Presence::kLost, "it has begun anew");
    entry = nullptr;
  }
  if (entry == nullptr && !connection->made_here() && options_.arrived) {
    entry = &enter(std::make_shared<Party>(greeting.name, random_id()), std::nullopt);
    arrives = true;
  }
  if (entry == nullptr) {
    why = "nobody called " + in_quotes(greeting.name) + " is waited for";
    return nullptr;
  }
  std::shared_ptr<Party> party = entry->party;
  entry->theirs = greeting.id;
  // One that it makes again while this side has not seen the loss.
  const auto same = std::ranges::find_if(entry->open, [&](const auto& each) {
    return each->made_here() == connection->made_here() && each->greeting()->line == greeting.line;
  });
  if (same != entry->open.end()) {
    const auto old = entry->open.extract(same);
    old.value()->close("made again by the other side");
  }
  unknown_.erase(connection);
  entry->open.insert(connection);
  answer = here;
  answer.id = party->id;
  set_presence(*party, Presence::kHere, "");
  if (arrives) options_.arrived(Peer(shared_from_this(), party));
  return party;
}

void EndpointCore::closed(const std::shared_ptr<Connection>& connection, const std::string& why) {
  unknown_.erase(connection);
  for (auto& [name, entry] : entries_) {
    const bool was_open = entry.open.erase(connection) > 0;
    std::optional<std::size_t> number;
    for (std::size_t i = 0; i < entry.slots.size(); ++i) {
      if (entry.slots[i]->connection == connection) number = i;
    }
    if (!was_open && !number) continue;
    const std::shared_ptr<Party> party = entry.party;
    if (number) entry.slots[*number]->connection = nullptr;
    bool other_left = false, leaving = false;
    {
      const MutexLock lock(party->mutex);
      other_left = party->conversation.other_left();
      leaving = party->leaving;
      if (party->presence == Presence::kAway) party->trouble = why;
    }
    if (entry.open.empty() && other_left) return lose(party, Presence::kLeft, "it has left");
    if (entry.open.empty() && leaving) return lose(party, Presence::kLost, "this side has left");
    if (was_open && entry.open.empty()) {
      entry.broken_at = steady_now();
      set_presence(*party, Presence::kBroken, why);
    }
    if (number && !other_left && !leaving) dial_later(party, *number);
    return pump(party);
  }
}

void EndpointCore::set_presence(Party& party, Presence presence, const std::string& trouble) {
  const MutexLock lock(party.mutex);
  party.presence = presence;
  party.trouble = trouble;
  party.changed.notify_all();
}

void EndpointCore::lose(const std::shared_ptr<Party>& lost, Presence presence, const std::string& why) {
  Entry* entry = entry_of(lost);
  if (entry == nullptr) return;
  const Entry gone = std::move(*entry);  // `lost` may be in there
  const std::shared_ptr<Party>& party = gone.party;
  entries_.erase(party->name);
  {
    const MutexLock lock(party->mutex);
    party->conversation.close(why);
  }
  set_presence(*party, presence, why);
  for (const auto& connection : gone.open) connection->close(why);
  for (const auto& slot : gone.slots) {
    if (slot->dialling) slot->dialling->cancel();
    if (slot->connection) slot->connection->close(why);
  }
  tell_ended(*party);
  if (options_.ended) options_.ended(Peer(shared_from_this(), party));
  const MutexLock lock(mutex_);
  empty_ = entries_.empty();
  emptied_.notify_all();
}

void EndpointCore::pump(const std::shared_ptr<Party>& party) {
  tell_ended(*party);
  Entry* entry = entry_of(party);
  if (entry == nullptr) return;
  bool leaving = false;
  {
    const MutexLock lock(party->mutex);
    leaving = party->leaving;
  }
  if (leaving && entry->open.empty()) return lose(party, Presence::kLost, "this side has left");
  if (leaving && entry->leaves_at == Nanoseconds{}) entry->leaves_at = steady_now();
  const auto open = std::vector(entry->open.begin(), entry->open.end());
  for (const auto& connection : open) connection->write();
}

void EndpointCore::pump_soon(const std::shared_ptr<Party>& party) {
  asio::post(context_, [this, party] { pump(party); });
}

Message::Message(std::shared_ptr<EndpointCore> core, std::shared_ptr<Party> party,
                 std::shared_ptr<Transfer> transfer)
    : core_(std::move(core)), party_(std::move(party)), transfer_(std::move(transfer)) {}

std::size_t Message::wait() {
  const MutexLock lock(party_->mutex);
  while (transfer_->state == Transfer::State::kUnderWay) party_->changed.wait(party_->mutex);
  if (transfer_->state == Transfer::State::kFailed)
    throw RuntimeFailure("peer " + in_quotes(party_->name) + ": " + transfer_->why);
  return transfer_->size;
}

bool Message::wait_until(std::chrono::steady_clock::time_point until) {
  const MutexLock lock(party_->mutex);
  while (transfer_->state == Transfer::State::kUnderWay && party_->changed.wait_until(party_->mutex, until)) {
  }
  return transfer_->state != Transfer::State::kUnderWay;
}

void Message::end() {
  {
    const MutexLock lock(party_->mutex);
    party_->conversation.end(transfer_, "ended here");
    party_->changed.notify_all();
  }
  core_->pump_soon(party_);
}

Peer::Peer(std::shared_ptr<EndpointCore> core, std::shared_ptr<Party> party)
    : core_(std::move(core)), party_(std::move(party)) {}

Message Peer::posted(std::shared_ptr<Transfer> transfer) const {
  core_->pump_soon(party_);
  return {core_, party_, std::move(transfer)};
}

Message Peer::send(Tag tag, std::span<const std::byte> data, std::function<void()> over) {
  const MutexLock lock(party_->mutex);
  auto transfer = party_->conversation.send(tag, data);
  if (over) party_->send_ended[tag] = std::move(over);
  return posted(std::move(transfer));
}

Message Peer::receive(Tag tag, std::span<std::byte> room, std::function<void()> over) {
  const MutexLock lock(party_->mutex);
  auto transfer = party_->conversation.receive(tag, room);
  if (over) party_->receive_ended[tag] = std::move(over);
  return posted(std::move(transfer));
}

const std::string& Peer::name() const { return party_->name; }

Presence Peer::presence() const {
  const MutexLock lock(party_->mutex);
  return party_->presence;
}

std::string Peer::trouble() const {
  const MutexLock lock(party_->mutex);
  return party_->trouble;
}

bool Peer::refuses_connections() const {
  const MutexLock lock(party_->mutex);
  return party_->refuses;
}

Presence Peer::wait_while(Presence old, std::chrono::steady_clock::time_point until) const {
  const MutexLock lock(party_->mutex);
  while (party_->presence == old && party_->changed.wait_until(party_->mutex, until)) {
  }
  return party_->presence;
}

std::optional<double> Peer::seconds_for(std::uint64_t bytes) const {
  const MutexLock lock(party_->mutex);
  return party_->rate.seconds_for(bytes);
}

void Peer::leave() {
  {
    const MutexLock lock(party_->mutex);
    if (party_->leaving || is_over(party_->presence)) return;
    party_->leaving = true;
    party_->conversation.say_bye();
    party_->conversation.close("this side has left");
    party_->changed.notify_all();
  }
  core_->pump_soon(party_);
}

Endpoint::Endpoint(EndpointOptions options) {
  check(options);
  core_ = std::make_shared<EndpointCore>(std::move(options));
  core_->run();
}

Endpoint::~Endpoint() { core_->stop(); }

std::uint16_t Endpoint::port() const { return core_->port(); }

Peer Endpoint::peer(const std::string& name, std::optional<Address> address) {
  return core_->add(name, std::move(address));
}

}  // namespace gradweave::islands
