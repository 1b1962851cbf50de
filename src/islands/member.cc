#include "islands/member.h"

#include <algorithm>
#include <deque>
#include <iterator>
#include <limits>
#include <map>
#include <set>
#include <thread>
#include <utility>

#include "base/mutex.h"
#include "gradweave/error.h"
#include "islands/endpoint.h"
#include "islands/gradient_average.h"
#include "islands/mailbox.h"
#include "islands/meeting_client.h"
#include "islands/meeting_text.h"
#include "peers/sign.h"

namespace gradweave::islands {
namespace {

constexpr std::size_t kLargestText = 4 << 20;
constexpr auto kLastWords = std::chrono::seconds(1);
constexpr auto kStatusEvery = std::chrono::milliseconds(100);

std::string name_of(const std::string& island, int rank) { return island + "/" + std::to_string(rank); }

std::vector<std::int64_t> numbers_of(const StepReport& report) {
  return {report.wants,    report.epoch,     report.complete,       report.failed,
          report.takes,    report.caught_up, report.failed_to_take, report.unconnected,
          report.left_out, report.agreed,    report.text_bytes};
}

StepReport report_of(std::span<const std::int64_t> numbers) {
  return {.wants = numbers[0],
          .epoch = numbers[1],
          .complete = numbers[2],
          .failed = numbers[3],
          .takes = numbers[4],
          .caught_up = numbers[5],
          .failed_to_take = numbers[6],
          .unconnected = numbers[7],
          .left_out = numbers[8],
          .agreed = numbers[9],
          .text_bytes = numbers[10]};
}

}  // namespace

class Member::Core {
 public:
  // Texts of the other islands' councils, from the threads that receive them to the one that trains.
  class Inbox {
   public:
    using Text = std::pair<std::string, std::string>;  // island, text

    void put(const std::string& from, std::string_view text) {
      const MutexLock lock(mutex_);
      texts_.emplace_back(from, text);
    }
    std::deque<Text> take() {
      const MutexLock lock(mutex_);
      return std::exchange(texts_, {});
    }

   private:
    Mutex mutex_;
    std::deque<Text> texts_ GUARDED_BY(mutex_);
  };

  Core(MemberOptions the_options, std::span<const float> values)
      : options(std::move(the_options)),
        endpoint({.key = options.key,
                  .name = name_of(options.island, options.rank),
                  .listen = exchanges() ? std::optional(options.listen) : std::nullopt,
                  .silence = options.silence}),
        council(options.island, options.gradients.has_value()),
        part(options.part, values),
        gradients(options.gradients.value_or(std::vector<std::int64_t>{})) {}

  ~Core() {
    // The last thing that this island has said may be what another one waits for.
    const auto until = std::chrono::steady_clock::now() + kLastWords;
    while (!std::ranges::all_of(others, [](const auto& each) { return each.second.has_all(); }) &&
           std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    client.reset();
    for (auto& [name, other] : others) other.peer.leave();
  }

  // The rank of this number on another island.
  struct Other {
    Island island;
    Peer peer;
    std::shared_ptr<Mailbox> mailbox;  // rank 0's
    bool connected = false;            // and its council has been told
    bool left = false;                 // it has said so, and has not been here since

    bool has_all() const { return !connected || peer.presence() != Presence::kHere || mailbox->delivered(); }
  };

  bool exchanges() const { return options.rank < options.exchanging; }
  void come_in_force(const Epoch& epoch);
  void meet(const Island& island);
  void look_after_connections();
  void take_reports(std::vector<StepReport> reports);
  void hear();
  void hear_wants();
  void speak();
  void tell_status();
  std::int64_t unconnected() const;
  Peer peer_of(const std::string& island) const;
  std::vector<std::optional<Peer>> members_of(const Command& command) const;
  // Of the average that has begun last: its number and progress.
  std::pair<std::int64_t, Progress> average() const;

  const MemberOptions options;
  const std::shared_ptr<Inbox> inbox = std::make_shared<Inbox>();  // outlives mailboxes
  Endpoint endpoint;
  Council council;
  PartAverage part;
  GradientAverage gradients;
  std::optional<MeetingClient> client;
  std::map<std::string, Other> others;  // by island
  Epoch epoch;                          // in force here
  Epoch heard;                          // rank 0: told the council, to be told the other ranks
  std::string text;                     // rank 0's
  bool spoke_commands = false;    // rank 0: the last text had commands, which the last reports are older than
  std::vector<StepReport> ranks;  // as they have last reported
  std::int64_t takes = 0, failed_to_take = 0;  // transfers
  bool have_taken = false;                     // all ranks of the island have the state by that transfer
  bool shares_nothing = false;                 // was alone, and has neither given nor taken the state since
  bool agreed = false;
  Status status;  // rank 0: as the meeting point was last told
  Time status_at{};
  std::pair<std::int64_t, std::int64_t> progress;
  // For whom, and with what number if it is connected (Council::waits_for()); since when.
  std::map<std::pair<std::string, std::optional<std::int64_t>>, Time> waits;
};

Member::Member(MemberOptions options, std::span<const float> values)
    : core_(std::make_unique<Core>(std::move(options), values)) {}
Member::~Member() = default;

std::uint16_t Member::port() const { return core_->endpoint.port(); }

void Member::join(const std::vector<std::string>& addresses) {
  const MemberOptions& options = core_->options;
  core_->client.emplace(MeetingClientOptions{
      .key = options.key,
      .meeting = options.meeting,
      .island = {
          .name = options.island, .ranks = options.ranks, .addresses = addresses, .trains = options.trains}});
}

std::vector<std::int64_t> Member::report(StepReport::Wants wants) {
  Core& core = *core_;
  core.look_after_connections();
  StepReport report{.wants = wants};
  report.unconnected = core.unconnected();
  if (core.epoch.number > 0 && report.unconnected == 0) report.epoch = core.epoch.number;
  const auto [number, progress] = core.average();
  if (progress == Progress::kComplete) report.complete = number;
  if (progress == Progress::kFailed) report.failed = number;
  if (core.part.unlike()) throw RuntimeFailure("islands: " + core.part.trouble());
  if (core.takes != 0 && !core.exchanges()) {
    report.caught_up = std::numeric_limits<std::int64_t>::max();  // as the others are
  } else if (core.takes != 0 && core.failed_to_take != core.takes) {
    try {
      report.caught_up = core.part.catch_up().value_or(-1);
    } catch (const RuntimeFailure&) {
      core.failed_to_take = core.takes;
    }
  }
  report.takes = core.takes;
  report.failed_to_take = core.failed_to_take;
  if (core.options.ranks == 1) core.take_reports({report});  // else as all ranks have last seen them
  if (core.options.rank == 0) {
    core.hear();
    core.tell_status();
    if (core.text = core.client ? core.client->left_out() : ""; core.text.empty()) {
      core.speak();
    } else {
      report.left_out = 1;
    }
    report.agreed = core.council.agreed() ? 1 : 0;
    report.text_bytes = static_cast<std::int64_t>(core.text.size());
  }
  return numbers_of(report);
}

const std::string& Member::text() const { return core_->text; }

std::vector<Command> Member::proceed(std::span<const std::int64_t> reports, const std::string& text) {
  Core& core = *core_;
  if (reports.size() != StepReport::kNumbers * static_cast<std::size_t>(core.options.ranks))
    throw RuntimeFailure("islands: reports of other ranks than there are");
  if (report_of(reports).left_out != 0)
    throw RuntimeFailure("islands: island '" + core.options.island + "' has been left out: " + text +
                         ". It may start again, and takes the state from the others");
  std::vector<Command> commands;
  if (!text.empty()) {
    const std::vector<std::string> fields = peers::split(text);
    std::optional<std::vector<Command>> told;
    if (fields.size() == 2) told = decode_commands(fields[1]);
    if (!told) throw RuntimeFailure("islands: rank 0's message can't be read");
    if (const auto epoch = decode_epoch(fields[0])) core.come_in_force(*epoch);
    commands = *std::move(told);
  }
  std::vector<StepReport> ranks;
  for (std::size_t at = 0; at < reports.size(); at += StepReport::kNumbers)
    ranks.push_back(report_of(reports.subspan(at, StepReport::kNumbers)));
  core.agreed = ranks.front().agreed != 0;
  core.take_reports(std::move(ranks));
  return commands;
}

void Member::Core::take_reports(std::vector<StepReport> reports) {
  ranks = std::move(reports);
  have_taken |= takes != 0 && std::ranges::all_of(ranks, [&](const StepReport& each) {
                  return each.takes == takes && each.caught_up >= 0;
                });
}

// Of rank 0.
void Member::Core::hear() {
  if (const auto in_force = client ? client->epoch() : std::nullopt; in_force && *in_force != heard) {
    heard = *in_force;
    council.epoch(heard);
  }
  for (auto& [name, other] : others) {
    if (other.connected || other.peer.presence() != Presence::kHere) continue;
    other.connected = true;
    council.connected(name);
  }
  hear_wants();
  for (const auto& [from, said] : inbox->take()) {
    if (const auto name = epoch_of(said); name && client)
      client->heard_in_force(name->line, name->number, name->by);
    council.take(from, said);
  }
  const auto least = [&](std::int64_t StepReport::*number) {
    return std::ranges::min(ranks, {}, number).*number;
  };
  const auto most = [&](std::int64_t StepReport::*number) {
    return std::ranges::max(ranks, {}, number).*number;
  };
  if (ranks.empty()) return;  // the first step
  // Of averages that are over: the council knows.
  if (const std::int64_t failed = most(&StepReport::failed); failed > 0) council.failed(failed);
  if (const std::int64_t all = least(&StepReport::complete); all > 0) council.complete(all);
  if (const std::int64_t all = least(&StepReport::caught_up); all >= 0)
    council.caught_up(least(&StepReport::takes), all);
  if (const std::int64_t transfer = most(&StepReport::failed_to_take); transfer > 0)
    council.failed_to_take(transfer);
}

// Before the others' texts, whose commands the ranks have not carried out: one that lands the last average ends what they want.
void Member::Core::hear_wants() {
  if (ranks.empty() || epoch != heard) return;
  const bool current = options.ranks == 1 || !spoke_commands;
  const auto all = [&](auto holds) { return std::ranges::all_of(ranks, holds); };
  if (!all([&](const StepReport& each) { return each.epoch == heard.number; })) return;
  if (all([](const StepReport& each) { return each.wants == StepReport::kFinish; })) {
    if (current) council.wants(true);
  } else if (all([](const StepReport& each) { return each.wants != StepReport::kNothing; })) {
    council.wants(false);
  } else if (current) {
    council.trains_on();
  }
}

void Member::Core::speak() {
  for (auto& [to, said] : council.take_outgoing()) {
    const auto other = others.find(to);
    if (other != others.end() && other->second.connected) other->second.mailbox->send(std::move(said));
  }
  const std::vector<Command> commands = council.take_commands();
  spoke_commands = !commands.empty();
  text.clear();
  if (commands.empty() && epoch == heard) return;
  text = peers::join({encode(heard), encode(commands)});
}

// What one waits for counts from the first look that saw it, up to the last: training may take long between two.
void Member::Core::tell_status() {
  const Time now = steady_now();
  const bool is_new = council.has_state() != status.has_state || heard.number != status.epoch;
  if (!client || (!is_new && now < status_at + kStatusEvery)) return;
  status_at = now;
  if (is_new || council.progress() != progress) waits.clear();
  progress = council.progress();
  std::set<std::pair<std::string, std::optional<std::int64_t>>> waits_now;
  for (const StepReport& rank : ranks) {
    const auto at = static_cast<std::size_t>(rank.unconnected);
    if (at > 0 && at <= epoch.islands.size()) waits_now.emplace(epoch.islands[at - 1].name, std::nullopt);
  }
  for (auto& [name, number] : council.waits_for()) waits_now.emplace(std::move(name), number);
  std::erase_if(waits, [&](const auto& wait) { return !waits_now.contains(wait.first); });
  status = {.epoch = heard.number, .has_state = council.has_state(), .waits = {}};
  for (const auto& wait : waits_now) {
    const Time since = waits.try_emplace(wait, now).first->second;
    status.waits.push_back({.island = wait.first, .time = now - since, .connected = wait.second.has_value()});
  }
  client->set_status(status);
}

void Member::Core::come_in_force(const Epoch& next) {
  if (next == epoch) return;
  epoch = next;
  shares_nothing |= epoch.islands.size() == 1;
  for (auto other = others.begin(); other != others.end();) {
    const Island& had = other->second.island;
    const bool stays = std::ranges::any_of(epoch.islands, [&](const Island& island) {
      return island.name == had.name && island.life == had.life;
    });
    if (!stays) other->second.peer.leave();
    other = stays ? std::next(other) : others.erase(other);
  }
  for (const Island& island : epoch.islands) {
    if (exchanges() && island.name != options.island && !others.contains(island.name)) meet(island);
  }
}

void Member::Core::meet(const Island& island) {
  const auto rank = static_cast<std::size_t>(options.rank);
  std::optional<Address> address;
  if (rank < island.addresses.size())
    address = parse_address(island.addresses[rank], "address of island '" + island.name + "'");
  const Peer peer = endpoint.peer(name_of(island.name, options.rank), address);
  Other other{.island = island, .peer = peer, .mailbox = {}};
  if (options.rank == 0) {
    other.mailbox =
        Mailbox::open(peer, kLargestText,
                      [inbox = inbox, name = island.name](std::string_view said) { inbox->put(name, said); });
  }
  others.insert_or_assign(island.name, std::move(other));
}

// One that is lost and still in the epoch may come back: another connection, another beginning. So may one that has left: it may
// not have known that this is another life of this island's.
void Member::Core::look_after_connections() {
  std::vector<Other> gone;
  for (auto& [name, other] : others) {
    const Presence presence = other.peer.presence();
    if (presence == Presence::kHere) other.left = false;
    if (presence == Presence::kLeft) other.left = true;
    if (presence == Presence::kLost || presence == Presence::kLeft) gone.push_back(other);
  }
  for (const Other& other : gone) {
    meet(other.island);
    others.at(other.island.name).left = other.left;
  }
}

std::int64_t Member::Core::unconnected() const {
  for (std::size_t at = 0; at < epoch.islands.size(); ++at) {
    const auto other = others.find(epoch.islands[at].name);
    if (other == others.end()) continue;
    const Presence presence = other->second.peer.presence();
    if (presence != Presence::kHere && presence != Presence::kBroken)
      return static_cast<std::int64_t>(at + 1);
  }
  return 0;
}

Peer Member::Core::peer_of(const std::string& island) const {
  const auto found = others.find(island);
  if (found == others.end()) throw RuntimeFailure("islands: island '" + island + "' is not there");
  return found->second.peer;
}

std::vector<std::optional<Peer>> Member::Core::members_of(const Command& command) const {
  if (!exchanges()) return {std::nullopt};
  std::vector<std::optional<Peer>> members;
  for (const std::string& island : command.members)
    members.push_back(island == options.island ? std::nullopt : std::optional(peer_of(island)));
  return members;
}

std::pair<std::int64_t, Progress> Member::Core::average() const {
  if (gradients.number() > part.number()) return {gradients.number(), gradients.progress()};
  return {part.number(), part.progress()};
}

void Member::begin(const Command& command, double weight, std::span<const float> values,
                   std::vector<float> sample) {
  core_->part.begin({.number = command.number,
                     .members = core_->members_of(command),
                     .weight = weight,
                     .exact = command.last,
                     .sample = std::move(sample)},
                    values);
}

void Member::land(std::span<float> delta) { core_->part.land(delta); }

void Member::drop() {
  core_->part.drop();
  core_->gradients.drop();
}

void Member::begin_gradients(const Command& command) {
  core_->gradients.begin(command.number, core_->members_of(command));
}

void Member::supply(std::size_t bucket, double weight, std::span<const float> values) {
  core_->gradients.supply(bucket, weight, values);
}

void Member::land_gradients(std::span<float> means) { core_->gradients.land(means); }
void Member::set_anchor(std::span<const float> values) { core_->part.set_anchor(values); }

bool Member::alone_with(const std::string& island) const {
  return core_->shares_nothing || std::ranges::all_of(core_->epoch.islands, [&](const Island& each) {
           return each.name == core_->options.island || each.name == island;
         });
}

void Member::give(const Command& command, std::optional<std::span<const float>> values, const Extra& extra) {
  if (values) core_->part.set_anchor(*values, command.landed);
  core_->shares_nothing = false;
  if (!core_->exchanges()) return;
  core_->part.give(command.other, core_->peer_of(command.other), command.number, extra);
}

void Member::give_no_more(const std::string& island) { core_->part.give_no_more(island); }

void Member::take(const Command& command) {
  core_->takes = command.number;
  core_->have_taken = core_->shares_nothing = false;
  if (!core_->exchanges()) return;
  core_->part.take(core_->peer_of(command.other), command.number);
}

bool Member::train(std::span<const float> values) {
  const bool took = std::exchange(core_->takes, 0) != 0;
  const bool taken = std::exchange(core_->have_taken, false);
  if (taken) {
    core_->part.taken();
  } else if (took) {
    core_->part.begin_anew(values);
  } else {
    core_->part.set_anchor(values);
  }
  return taken;
}

void Member::set_turn(std::size_t fragment) { core_->part.set_turn(fragment); }

const PartAverage& Member::part() const { return core_->part; }
std::int64_t Member::bytes_sent() const { return core_->part.bytes_sent() + core_->gradients.bytes_sent(); }
std::vector<Island> Member::islands() const { return core_->epoch.islands; }
bool Member::agreed() const { return core_->agreed; }

bool Member::deserted() const {
  return !core_->others.empty() &&
         std::ranges::all_of(core_->others, [](const auto& each) { return each.second.left; });
}

std::int64_t Member::epoch() const { return core_->epoch.number; }

std::string Member::trouble() const {
  if (core_->client) {
    if (std::string why = core_->client->trouble(); !why.empty()) return why;
  }
  for (const auto& [name, other] : core_->others) {
    if (other.peer.presence() == Presence::kHere) continue;
    const std::string why = other.peer.trouble();
    return "no connection to island '" + name + "'" + (why.empty() ? "" : ": " + why);
  }
  const std::string why = core_->part.trouble();
  return why.empty() ? core_->gradients.trouble() : why;
}

}  // namespace gradweave::islands
