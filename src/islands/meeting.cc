#include "islands/meeting.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/quoted.h"
#include "gradweave/error.h"
#include "islands/address.h"

namespace gradweave::islands {
namespace {

// Its island of that name, or nullptr. O(log n).
const Island* find(const Epoch& epoch, const std::string& name) {
  const auto found = std::ranges::lower_bound(epoch.islands, name, {}, &Island::name);
  return found != epoch.islands.end() && found->name == name ? &*found : nullptr;
}

bool has(const Epoch& epoch, const Island& island) {
  const Island* const found = find(epoch, island.name);
  return found != nullptr && found->life == island.life;
}

const char* const kOtherTraining =
    "it belongs to another training than the one that runs here; end one of the two, and start its islands "
    "again without their state";

// Returns, as one text, what only `these` have.
std::string only_in(const std::vector<std::string>& these, const std::vector<std::string>& those) {
  std::string only;
  for (const std::string& each : these) {
    if (std::ranges::find(those, each) == those.end()) only += (only.empty() ? "" : ", ") + each;
  }
  return only;
}

bool same(const Epoch& a, const Epoch& b) { return a.line == b.line && a.number == b.number && a.by == b.by; }

}  // namespace

Meeting::Meeting(std::string random, Time now, Time lease, Patience patience)
    : random_(std::move(random)), began_(now), lease_(lease), patience_(patience) {}

void Meeting::send(const Member& member, std::shared_ptr<const FromMeeting> message) {
  outgoing_.push_back({member.island.name, member.island.life, std::move(message)});
}

void Meeting::send(const Member& member, FromMeeting message) {
  send(member, std::make_shared<const FromMeeting>(std::move(message)));
}

std::vector<Outgoing> Meeting::take_outgoing() { return std::exchange(outgoing_, {}); }

void Meeting::take(const std::string& from, const std::string& life, const ToMeeting& message, Time now) {
  if (message.what == ToMeeting::What::kJoin) {
    if (message.report.island.name == from && message.report.island.life == life) join(message.report, now);
    propose(now);
    return;
  }
  const auto found = members_.find(from);
  if (found == members_.end() || found->second.island.life != life) {
    if (message.what == ToMeeting::What::kLeave) {
      ended_.insert(life);
      return propose(now);
    }
    send({.island = {.name = from, .life = life}}, {.what = FromMeeting::What::kUnknown});
    return;
  }
  Member& member = found->second;
  if (member.left_out && message.what != ToMeeting::What::kLeave) return;
  member.lease_until = now + lease_;
  switch (message.what) {
    case ToMeeting::What::kRenew: {
      const bool is_new =
          message.status.has_state != member.status.has_state || message.status.epoch != member.status.epoch;
      member.status = message.status;
      send(member, {.what = FromMeeting::What::kRenewed,
                    .beat = message.beat,
                    .lease = lease_,
                    .awaited = std::ranges::find(awaited_, from) != awaited_.end()});
      if (!is_new || settled_) return;
      break;
    }
    case ToMeeting::What::kAgree:
      agree(member, message.number);
      if (proposed_) return;
      break;
    case ToMeeting::What::kLeave:
      ended_.insert(life);
      members_.erase(found);
      break;
    case ToMeeting::What::kJoin:
      break;
  }
  propose(now);
}

// Returns why an island can't join, or "".
std::string Meeting::refusal_of(const Report& report, Time now) const {
  const Island& island = report.island;
  const auto found = members_.find(island.name);
  if (found != members_.end() && found->second.island.life != island.life &&
      now < found->second.lease_until) {
    return "an island called " + in_quotes(island.name) +
           " is there already; give this one another name, or wait until that one's lease has run out";
  }
  for (const std::string& address : island.addresses) {
    try {
      parse_address(address, "its address");  // the others could not, and must not end for it
    } catch (const InvalidInput& error) {
      return error.what();
    }
  }
  for (const auto& [name, member] : members_) {
    if (name == island.name || member.island.trains == island.trains) continue;
    const bool alike = member.island.addresses.size() == island.addresses.size();
    return "it trains something different from island " + in_quotes(name) + ": " +
           in_quotes(only_in(island.trains, member.island.trains)) + ", not " +
           in_quotes(only_in(member.island.trains, island.trains)) +
           "; start all islands with the same model and options" +
           (alike ? ""
                  : ": " + std::to_string(island.addresses.size()) +
                        " of its ranks exchange with other islands, and " +
                        std::to_string(member.island.addresses.size()) +
                        " of that one's (between={'ranks': N} lets N of each, however many it has)");
  }
  if (recovering_ || !report.epoch || !report.has_trained) return "";
  if (report.epoch->line != in_force_.line) return kOtherTraining;
  if (report.epoch->number > last_number_) {
    return "it knows epoch " + std::to_string(report.epoch->number) + ", and this meeting point has made " +
           std::to_string(last_number_) +
           ": its islands have gone on by another meeting point; end those islands or these";
  }
  return "";
}

void Meeting::join(const Report& report, Time now) {
  Member member{.island = report.island,
                .reported = report.epoch,
                .has_trained = report.has_trained,
                .status = report.status,
                .lease_until = now + lease_};
  member.sure = report.epoch && report.saw_dead && began_ < now - *report.saw_dead + lease_ / 2;
  if (std::string why = refusal_of(report, now); !why.empty())
    return send(member, {.what = FromMeeting::What::kRefused, .why = std::move(why)});
  const auto before = members_.find(report.island.name);
  if (before != members_.end() && before->second.island.life != report.island.life)
    ended_.insert(before->second.island.life);
  for (const Island& island : in_force_.islands) {
    if (island.name == report.island.name && island.life != report.island.life) ended_.insert(island.life);
  }
  without_.erase(report.island.name);
  Member& here = members_[report.island.name] = std::move(member);
  // To one that comes again: what was said to it may be lost, and what it said.
  if (here.reported && same(*here.reported, in_force_) && has(in_force_, here.island)) {
    here.knows = in_force_.number;
    send(here, {.what = FromMeeting::What::kInForce, .number = in_force_.number});
  }
  if (!proposed_ || !has(*proposed_, here.island)) return;
  if (here.reported && same(*here.reported, *proposed_)) return agree(here, proposed_->number);
  send(here, {.what = FromMeeting::What::kProposed, .epoch = *proposed_});
}

void Meeting::agree(Member& member, std::int64_t number) {
  if (!proposed_ || proposed_->number != number || !has(*proposed_, member.island)) return;
  missing_.erase(member.island.name);
  // One that has agreed and is out may not know that it is in force: it might go on with the one before.
  if (!missing_.empty() || !all_here(*proposed_)) return;
  in_force_ = *std::exchange(proposed_, std::nullopt);
  ended_.clear();
  const auto told = std::make_shared<const FromMeeting>(
      FromMeeting{.what = FromMeeting::What::kInForce, .number = in_force_.number});
  for (const Island& island : in_force_.islands) {
    Member& each = members_.at(island.name);
    each.knows = in_force_.number;
    each.island.since = island.since;
    send(each, told);
  }
}

void Meeting::lost(const std::string& name, const std::string& life, Time now) {
  const auto found = members_.find(name);
  if (found == members_.end() || found->second.island.life != life) return;
  members_.erase(found);
  propose(now);
}

void Meeting::tick(Time now) {
  std::erase_if(members_, [&](const auto& entry) { return now >= entry.second.lease_until; });
  propose(now);
  judge();
}

// Returns (who waits, for what) in the epoch in force.
std::vector<std::pair<std::string, Wait>> Meeting::waits() const {
  std::vector<std::pair<std::string, Wait>> found;
  for (const Island& island : in_force_.islands) {
    if (!is_here(island)) continue;
    const Status& status = members_.at(island.name).status;
    if (status.epoch != in_force_.number) continue;
    for (const Wait& wait : status.waits) {
      const Island* const other = find(in_force_, wait.island);
      if (other != nullptr && is_here(*other)) found.emplace_back(island.name, wait);
    }
  }
  return found;
}

// Returns those that wait for nobody, and for which others have waited that long; none where they are more than those others.
std::vector<std::string> Meeting::awaited_for(Time time) const {
  std::set<std::string> waiting, awaited;
  for (const auto& [name, wait] : waits()) {
    if (wait.time < time || !wait.connected) continue;
    waiting.insert(name);
    awaited.insert(wait.island);
  }
  std::vector<std::string> names;
  std::ranges::set_difference(awaited, waiting, std::back_inserter(names));
  if (names.size() > waiting.size()) names.clear();
  return names;
}

// Of islands that have not been connected for too long: that which lacks most others, and of several the last that came.
std::optional<std::string> Meeting::least_connected() const {
  std::map<std::string, std::set<std::string>> lacks;
  for (const auto& [name, wait] : waits()) {
    if (wait.connected || wait.time < patience_.unconnected) continue;
    lacks[name].insert(wait.island);
    lacks[wait.island].insert(name);
  }
  const Island* least = nullptr;
  const auto rank = [&](const Island& island) { return std::pair(lacks[island.name].size(), island.since); };
  for (const Island& island : in_force_.islands) {
    if (lacks.contains(island.name) && (least == nullptr || rank(island) >= rank(*least))) least = &island;
  }
  if (least == nullptr) return std::nullopt;
  return least->name;
}

void Meeting::judge() {
  awaited_.clear();
  if (recovering_ || proposed_) return;
  if (const auto name = least_connected()) {
    return tell_to_leave(
        *name,
        "it and another island can't connect to each other; let one of the two listen where the "
        "other can reach it (listen=)");
  }
  // One that lacks a connection keeps others waiting, and is not slow.
  if (std::ranges::any_of(waits(), [](const auto& each) { return !each.second.connected; })) return;
  awaited_ = awaited_for(kLongWait);
  if (!patience_.slow) return;
  for (const std::string& each : awaited_for(*patience_.slow)) {
    tell_to_leave(
        each,
        "the others have waited for it longer than `gradweave meet --leave-out-after` allows; give it "
        "less to do in each step");
  }
}

void Meeting::tell_to_leave(const std::string& name, std::string why) {
  const bool others_have_state = std::ranges::any_of(in_force_.islands, [&](const Island& island) {
    return island.name != name && has_state(island) && !members_.at(island.name).left_out;
  });
  Member& member = members_.at(name);
  if (member.left_out || !others_have_state) return;
  member.left_out = true;
  send(member, {.what = FromMeeting::What::kLeftOut, .why = std::move(why)});
}

bool Meeting::is_here(const Island& island) const {
  const auto found = members_.find(island.name);
  return found != members_.end() && found->second.island.life == island.life;
}

// Of an island of the last epoch that is here.
bool Meeting::has_state(const Island& island) const {
  const Status& status = members_.at(island.name).status;
  return status.has_state && status.epoch >= island.since;
}

bool Meeting::all_here(const Epoch& epoch) const {
  return std::ranges::all_of(epoch.islands, [&](const Island& island) { return is_here(island); });
}

// Of the line in which somebody has trained.
const Epoch* Meeting::highest_reported() const {
  const Member* highest = nullptr;
  const auto rank = [](const Member& member) {
    return std::pair(member.has_trained, member.reported->number);
  };
  for (const auto& [name, member] : members_) {
    if (member.reported && (highest == nullptr || rank(member) > rank(*highest))) highest = &member;
  }
  if (highest == nullptr) return nullptr;
  const Epoch* last = &*highest->reported;
  for (const auto& [name, member] : members_) {
    if (member.reported && member.reported->line == last->line && member.reported->number > last->number)
      last = &*member.reported;
  }
  return last;
}

std::vector<std::string> Meeting::waits_for() const {
  const Epoch* last = recovering_ ? highest_reported() : &in_force_;
  if (last == nullptr) return {};
  std::vector<std::string> names;
  for (const Island& island : last->islands) {
    const auto found = members_.find(island.name);
    if (is_here(island)) {
      // With the state here a meeting point that made the epoch may go on without the others.
      const bool is_last = !recovering_ || (found->second.sure && same(*found->second.reported, *last));
      if (is_last && has_state(island)) return {};
    } else if (found == members_.end() && !ended_.contains(island.life) && !without_.contains(island.name)) {
      names.push_back(island.name);
    }
  }
  return names;
}

// Returns whether it is known from which epoch to go on.
bool Meeting::recover(Time now) {
  if (!recovering_) return true;
  const Epoch* highest = highest_reported();
  const bool reported = highest != nullptr && all_here(*highest);
  if (!reported && (now < began_ + lease_ || !waits_for().empty())) return false;
  recovering_ = false;
  if (highest == nullptr) return true;
  in_force_ = *highest;
  last_number_ = highest->number;
  std::erase_if(members_, [&](const auto& entry) {
    const Member& member = entry.second;
    const bool other = member.has_trained && member.reported && member.reported->line != in_force_.line;
    if (other) send(member, {.what = FromMeeting::What::kRefused, .why = kOtherTraining});
    return other;
  });
  return true;
}

void Meeting::propose(Time now) {
  settled_ = false;
  if (members_.empty() || !recover(now) || !waits_for().empty()) return;
  const Epoch& current = proposed_ ? *proposed_ : in_force_;
  // While a proposal is under way, only a loss makes another one.
  settled_ = all_here(current) &&
             (proposed_ || (current.islands.size() == members_.size() && current.by == random_));
  if (settled_) return;
  const bool goes_on =
      std::ranges::any_of(in_force_.islands, [&](const Island& island) { return is_here(island); });
  if (!goes_on) in_force_ = {};
  Epoch next{.number = ++last_number_, .by = random_};
  next.line = goes_on ? in_force_.line : random_ + '.' + std::to_string(next.number);
  for (const auto& [name, member] : members_) {
    const Island* const before = find(in_force_, name);
    const bool stays = before != nullptr && before->life == member.island.life;
    next.islands.push_back(member.island);
    next.islands.back().since = stays ? before->since : next.number;
  }
  change(std::move(next));
}

// Proposes it: only what is different to those who know what it follows.
void Meeting::change(Epoch next) {
  const auto change = std::make_shared<FromMeeting>(
      FromMeeting{.what = FromMeeting::What::kProposed,
                  .epoch = {.line = next.line, .number = next.number, .by = next.by},
                  .base = in_force_.number});
  std::ranges::copy_if(next.islands, std::back_inserter(change->epoch.islands),
                       [&](const Island& island) { return !has(in_force_, island); });
  for (const Island& island : in_force_.islands) {
    if (!has(next, island)) change->left.push_back(island.name);
  }
  const auto whole =
      std::make_shared<const FromMeeting>(FromMeeting{.what = FromMeeting::What::kProposed, .epoch = next});
  missing_.clear();
  for (const auto& [name, member] : members_) {
    missing_.insert(name);
    const bool knows = member.knows == in_force_.number && in_force_.number > 0;
    send(member, knows ? std::shared_ptr<const FromMeeting>(change) : whole);
  }
  proposed_ = std::move(next);
}

std::vector<ToMeeting> Attendee::connected(Time now) {
  connected_ = true;
  if (!left_out_.empty()) return {{.what = ToMeeting::What::kLeave}};
  out_ = false;
  beats_.clear();
  renewed_at_ = now;
  ToMeeting join{
      .what = ToMeeting::What::kJoin,
      .report = {
          .island = island_, .epoch = agreed_, .has_trained = in_force_.has_value(), .status = status_}};
  if (saw_dead_) join.report.saw_dead = now - *saw_dead_;
  return {std::move(join)};
}

std::vector<ToMeeting> Attendee::take(const FromMeeting& message, Time now) {
  switch (message.what) {
    case FromMeeting::What::kRefused:
      refused_ = message.why;
      return {};
    case FromMeeting::What::kRenewed:
      if (const auto sent = beats_.find(message.beat); sent != beats_.end()) {
        lease_ = message.lease;
        answered_ = sent->second;
        awaited_ = message.awaited;
        beats_.erase(beats_.begin(), std::next(sent));
        saw_dead_.reset();
      }
      return {};
    case FromMeeting::What::kInForce:
      if (agreed_ && agreed_->number == message.number) in_force_ = *agreed_;
      return {};
    case FromMeeting::What::kUnknown:
      out_ = true;
      return {};
    case FromMeeting::What::kLeftOut:
      left_out_ = message.why;
      return {{.what = ToMeeting::What::kLeave}};
    case FromMeeting::What::kProposed:
      break;
  }
  Epoch epoch = message.epoch;
  if (message.base != 0) {
    if (!in_force_ || in_force_->number != message.base) return connected(now);  // asks for all of it
    for (const Island& island : in_force_->islands) {
      const bool stays = std::ranges::find(message.left, island.name) == message.left.end() &&
                         find(message.epoch, island.name) == nullptr;
      if (stays) epoch.islands.push_back(island);
    }
    std::ranges::sort(epoch.islands, {}, &Island::name);
  }
  if (!has(epoch, island_)) return {};
  refused_.clear();
  const std::int64_t number = epoch.number;
  agreed_ = std::move(epoch);
  saw_dead_.reset();
  return {{.what = ToMeeting::What::kAgree, .number = number}};
}

std::vector<ToMeeting> Attendee::tick(Time now) {
  if (!connected_ || !left_out_.empty() || now - renewed_at_ < lease_ / 8) return {};
  if (out_ || !refused_.empty()) return connected(now);  // the reason may have gone
  return renew(now);
}

std::vector<ToMeeting> Attendee::renew(Time now) {
  renewed_at_ = now;
  beats_[++beat_] = now;
  return {{.what = ToMeeting::What::kRenew, .beat = beat_, .status = status_}};
}

std::vector<ToMeeting> Attendee::set_status(Status status, Time now) {
  const Status before = std::exchange(status_, std::move(status));
  const bool has_it_now = status_.has_state && !before.has_state;
  if (!has_it_now || !connected_ || out_ || !refused_.empty() || !left_out_.empty()) return {};
  return renew(now);
}

void Attendee::saw_it_dead(Time now) {
  if (in_force_ && left_out_.empty() && answered_ && now < *answered_ + lease_ / 10) saw_dead_ = now;
}

bool Attendee::heard_in_force(const std::string& line, std::int64_t number, const std::string& by) {
  if (!agreed_ || agreed_->line != line || agreed_->number != number || agreed_->by != by) return false;
  in_force_ = agreed_;
  return true;
}

}  // namespace gradweave::islands
