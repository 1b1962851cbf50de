#include "islands/council.h"

#include <algorithm>

#include "peers/sign.h"

namespace gradweave::islands {
namespace {

using What = Command::What;

// Texts are of an epoch and of the chair's asking, so that none counts where it is too late.
constexpr const char* kAsk = "q";       // the chair: how far are you?
constexpr const char* kCommands = "c";  // the chair
constexpr const char* kStanding = "s";  // to the chair: after so many lists of commands

struct Text {
  std::string kind;
  EpochName epoch;
  std::int64_t settling = 0;
  std::vector<std::string> rest;
};

std::optional<Text> parse(std::string_view text) {
  std::vector<std::string> fields = peers::split(text);
  if (fields.size() < 5) return std::nullopt;
  const auto number = peers::number_of(fields[2]), settling = peers::number_of(fields[4]);
  const std::size_t rest = fields[0] == kAsk        ? 0
                           : fields[0] == kCommands ? 1
                           : fields[0] == kStanding ? 2
                                                    : fields.size();
  if (!number || !settling || fields.size() != 5 + rest) return std::nullopt;
  return Text{.kind = fields[0],
              .epoch = {.line = fields[1], .number = *number, .by = fields[3]},
              .settling = *settling,
              .rest = {fields.begin() + 5, fields.end()}};
}

// The first of those islands by `since` and then by name; "" of none.
template <typename Wanted>
std::string first_of(const Epoch& epoch, Wanted wanted) {
  const Island* first = nullptr;
  for (const Island& island : epoch.islands) {
    if (wanted(island) && (first == nullptr || island.since < first->since)) first = &island;
  }
  return first == nullptr ? "" : first->name;
}

std::int64_t last_landed(const std::map<std::string, Standing>& all) {
  std::int64_t landed = 0;
  for (const auto& [name, each] : all) {
    if (each.has_state) landed = std::max(landed, each.landed);
  }
  return landed;
}

}  // namespace

std::optional<EpochName> epoch_of(std::string_view text) {
  auto whole = parse(text);
  if (!whole) return std::nullopt;
  return std::move(whole->epoch);
}

bool Standing::can(const Command& command) const {
  switch (command.what) {
    case What::kBegin:
      return has_state && !under_way && command.number > highest;
    case What::kLand:
    case What::kDrop:
      return under_way && under_way->number == command.number;
    case What::kGive:
      return has_state && command.number > highest;
    case What::kGiven: {
      const auto found = gives.find(command.other);
      return found != gives.end() && found->second == command.number;
    }
    case What::kTake:
      return (!has_state || missed > 0) && command.number > highest;
    case What::kTrain:
      return !has_state;
  }
  return false;
}

void Standing::follow(const Command& command, bool lockstep) {
  highest = std::max(highest, command.number);
  switch (command.what) {
    case What::kBegin:
      under_way = {.number = command.number, .members = command.members, .last = command.last};
      complete = failed = false;
      wants.reset();
      break;
    case What::kLand:
      before = std::exchange(landed, command.number);
      under_way.reset();
      if (!lockstep) break;
      missed = wants == true && !command.last ? missed + 1 : 0;
      wants = command.last ? std::nullopt : std::optional(wants.value_or(false));
      break;
    case What::kDrop:
      under_way.reset();
      break;
    case What::kGive:
      gives[command.other] = command.number;
      break;
    case What::kGiven:
      gives.erase(command.other);
      break;
    case What::kTake:
      landed = whole();
      has_state = false;
      missed = 0;
      wants.reset();
      takes = command.number;
      from = command.other;
      caught_up.reset();
      failed_to_take = false;
      break;
    case What::kTrain:
      has_state = true;
      if (caught_up) before = 0;
      landed = command.landed;
      // Others don't wait until one that has just come has trained.
      if (!command.other.empty()) wants = false;
      takes = 0;
      from.clear();
      caught_up.reset();
      failed_to_take = false;
      break;
  }
}

bool Council::is_here(const std::string& name) const {
  return std::ranges::find(epoch_.islands, name, &Island::name) != epoch_.islands.end();
}

void Council::epoch(const Epoch& epoch) {
  const auto own = std::ranges::find(epoch.islands, name_, &Island::name);
  const bool same_line = epoch.line == epoch_.line;
  if (own == epoch.islands.end() || (same_line && epoch.number < epoch_.number)) return;
  const EpochName name{epoch.line, epoch.number, epoch.by};
  if (name == now()) return;
  if (!same_line || own->since > epoch_.number) lose_state();
  epoch_ = epoch;
  chair_ = first_of(epoch_, [](const Island&) { return true; });
  settling_ = lists_ = 0;
  seats_.clear();
  needed_.clear();
  if (leads()) {
    for (const Island& island : epoch_.islands) {
      if (island.since < epoch_.number && island.name != name_) needed_.insert(island.name);
    }
    settle();
  } else if (const auto asked = asked_.find(chair_); asked != asked_.end() && asked->second.epoch == now()) {
    settling_ = asked->second.settling;
    answer();
  }
  std::erase_if(asked_, [&](const auto& entry) {
    return entry.second.epoch.line == epoch_.line && entry.second.epoch.number <= epoch_.number;
  });
}

// Others have gone on without this island.
void Council::lose_state() {
  if (own_.under_way) carry_out({.what = What::kDrop, .number = own_.under_way->number});
  for (const auto& [other, number] : std::map(own_.gives))
    carry_out({.what = What::kGiven, .number = number, .other = other});
  own_ = {.highest = own_.highest, .landed = own_.whole()};
}

void Council::connected(const std::string& other) {
  if (!leads() || !is_here(other) || other == name_) return;
  if (seats_.contains(other)) {
    settle();
  } else {
    ask(other);
  }
}

void Council::take(const std::string& from, std::string_view text) {
  const auto whole = parse(text);
  if (!whole) return;
  const auto& [kind, epoch, settling, rest] = *whole;
  if (epoch != now()) {
    // Before it has this island's answer the chair only asks, and only the last time counts.
    const bool older = epoch.line == epoch_.line && epoch.number < epoch_.number;
    if (kind == kAsk && !older) asked_[from] = {epoch, settling};
    return;
  }
  if (kind == kStanding) {
    const auto lists = peers::number_of(rest[0]);
    auto standing = decode_standing(rest[1]);
    if (leads() && from != name_ && is_here(from) && settling == settling_ && lists && standing)
      hear(from, *lists, *std::move(standing));
    return;
  }
  if (leads() || from != chair_) return;
  if (kind == kAsk && settling >= settling_) {
    settling_ = settling;
    lists_ = 0;
    answer();
  } else if (kind == kCommands && settling == settling_) {
    const auto commands = decode_commands(rest[0]);
    if (!commands) return;
    for (const Command& command : *commands) carry_out(command);
    ++lists_;
    answer();
  }
}

void Council::carry_out(const Command& command) {
  const bool without_this =
      command.what == What::kBegin && std::ranges::find(command.members, name_) == command.members.end();
  if (without_this || !own_.can(command)) return;
  own_.follow(command, lockstep_);
  commands_.push_back(command);
}

void Council::wants(bool finishing) {
  const bool early = own_.under_way && !(lockstep_ && finishing);
  if (!own_.has_state || early || own_.wants == finishing) return;
  own_.wants = finishing;
  changed();
}

void Council::trains_on() {
  if (own_.wants != true || own_.under_way) return;
  own_.wants.reset();
  changed();
}

void Council::complete(std::int64_t number) {
  if (number != under_way() || number == 0 || own_.complete) return;
  own_.complete = true;
  changed();
}

void Council::failed(std::int64_t number) {
  if (number != under_way() || number == 0 || own_.failed) return;
  own_.failed = true;
  changed();
}

void Council::caught_up(std::int64_t transfer, std::int64_t number) {
  if (transfer != own_.takes || transfer == 0 || own_.caught_up == number) return;
  own_.caught_up = number;
  own_.highest = std::max(own_.highest, number);
  changed();
}

void Council::failed_to_take(std::int64_t transfer) {
  if (transfer != own_.takes || transfer == 0 || own_.failed_to_take) return;
  own_.failed_to_take = true;
  changed();
}

bool Council::agreed() const {
  if (!leads()) return true;
  return std::ranges::all_of(seats_, [](const auto& entry) { return entry.second.heard; }) &&
         std::ranges::all_of(needed_, [&](const std::string& name) { return seats_.contains(name); });
}

std::vector<std::pair<std::string, std::int64_t>> Council::waits_for() const {
  std::vector<std::pair<std::string, std::int64_t>> found;
  if (!leads()) {
    const bool ready = own_.under_way   ? own_.complete || own_.failed
                       : own_.has_state ? own_.wants.has_value()
                                        : own_.takes == 0 || own_.caught_up;
    if (ready && !chair_.empty()) found.emplace_back(chair_, lists_);
    return found;
  }
  for (const std::string& name : needed_) {
    const auto seat = seats_.find(name);
    if (seat == seats_.end() || !seat->second.heard)
      found.emplace_back(name, seat == seats_.end() ? 0 : seat->second.sent);
  }
  if (!found.empty()) return found;
  const auto ready = [&](const Standing& each) {
    return own_.under_way   ? each.complete
           : each.has_state ? each.wants.has_value()
                            : each.caught_up.has_value();
  };
  bool any = ready(own_);
  for (const auto& [name, seat] : seats_) {
    const Standing& each = seat.standing;
    if (own_.under_way ? each.under_way != own_.under_way : !each.has_state && !lockstep_) continue;
    if (ready(each)) {
      any = true;
    } else {
      found.emplace_back(name, seat.sent);
    }
  }
  if (!any) found.clear();
  return found;
}

void Council::changed() {
  if (leads()) {
    lead();
  } else if (settling_ != 0) {
    answer();
  }
}

void Council::say(const std::string& to, const char* kind, const std::vector<std::string>& rest) {
  std::vector<std::string> fields{kind, epoch_.line, std::to_string(epoch_.number), epoch_.by,
                                  std::to_string(settling_)};
  fields.insert(fields.end(), rest.begin(), rest.end());
  outgoing_.emplace_back(to, peers::join(fields));
}

void Council::answer() { say(chair_, kStanding, {std::to_string(lists_), encode(own_)}); }

void Council::ask(const std::string& name) { say(name, kAsk); }

void Council::settle() {
  ++settling_;
  seats_.clear();
  for (const Island& island : epoch_.islands) {
    if (island.name != name_) ask(island.name);
  }
  lead();
}

// What an island says before it has all commands is as good as unsaid: it says more once it has them.
void Council::hear(const std::string& from, std::int64_t lists, Standing standing) {
  const auto found = seats_.find(from);
  if (lists != (found == seats_.end() ? 0 : found->second.sent)) return;
  own_.highest = std::max(own_.highest, standing.highest);
  seats_[from].standing = std::move(standing);
  seats_[from].heard = true;
  // From now on it may get the state.
  needed_.insert(from);
  lead();
}

void Council::lead() {
  if (!std::ranges::all_of(needed_, [&](const std::string& name) { return seats_.contains(name); })) return;
  end_average();
  supply();
  begin();
  for (auto& [name, seat] : seats_) {
    if (seat.commands.empty()) continue;
    say(name, kCommands, {encode(std::exchange(seat.commands, {}))});
    ++seat.sent;
    seat.heard = false;
  }
}

void Council::order(const std::string& to, const Command& command) {
  if (to == name_) return carry_out(command);
  Seat& seat = seats_.at(to);
  seat.standing.follow(command, lockstep_);
  seat.commands.push_back(command);
}

std::map<std::string, Standing> Council::standings() const {
  std::map<std::string, Standing> all{{name_, own_}};
  for (const auto& [name, seat] : seats_) all.emplace(name, seat.standing);
  return all;
}

// Lands or drops what is under way, if it is time.
void Council::end_average() {
  const auto all = standings();
  const std::int64_t landed = last_landed(all);
  std::optional<Standing::Average> going;
  for (const auto& [name, each] : all) {
    if (each.under_way && (!going || each.under_way->number > going->number)) going = each.under_way;
  }
  if (!going) return;
  const auto all_members = [&](auto holds) {
    return std::ranges::all_of(going->members, [&](const std::string& name) {
      const auto found = all.find(name);
      return found != all.end() && found->second.under_way == going && holds(found->second);
    });
  };
  const bool goes_on = all_members([](const Standing& each) { return !each.failed; });
  const bool complete = goes_on && all_members([](const Standing& each) { return each.complete; });
  // In lockstep one that finishes has supplied nothing.
  const bool empty = complete && lockstep_ && !going->last &&
                     all_members([](const Standing& each) { return each.wants == true; });
  const bool lands = complete && !empty;
  for (const auto& [name, each] : all) {
    if (!each.under_way) continue;
    const auto& [number, members, last] = *each.under_way;
    if (number == landed || (lands && number == going->number)) {
      order(name, {.what = What::kLand, .number = number, .last = last});
    } else if (!goes_on || empty || number != going->number) {
      order(name, {.what = What::kDrop, .number = number});
    }
  }
}

// Of those that have the whole state the one that gives it to the fewest, and of these the first. Returns its name, and the last
// average that is in its state.
std::pair<std::string, std::int64_t> Council::next_giver() const {
  const auto all = standings();
  const auto cost = [](const Standing& each) { return std::pair(each.missed, each.gives.size()); };
  std::optional<std::pair<std::int64_t, std::size_t>> least;
  for (const auto& [name, each] : all) {
    if (each.has_state && (!least || cost(each) < *least)) least = cost(each);
  }
  std::string giver = first_of(epoch_, [&](const Island& island) {
    const auto found = all.find(island.name);
    return found != all.end() && found->second.has_state && cost(found->second) == least;
  });
  const std::int64_t landed = all.at(giver).landed;
  return {std::move(giver), landed};
}

// Sees to it that all get the state.
void Council::supply() {
  const auto with = standings();
  if (std::ranges::none_of(with, [](const auto& entry) { return entry.second.has_state; })) {
    // One that was left out may have trained.
    const bool begins = std::ranges::all_of(
        epoch_.islands, [&](const Island& island) { return island.since == epoch_.number; });
    if (!begins && with.size() < epoch_.islands.size()) return;
    std::int64_t most = 0;
    for (const auto& [name, each] : with) most = std::max(most, each.whole());
    const std::string name = first_of(epoch_, [&](const Island& island) {
      const auto found = with.find(island.name);
      return found != with.end() && found->second.whole() == most;
    });
    order(name, {.what = What::kTrain, .landed = most});
  }
  const auto before = standings();
  for (const auto& [giver, standing] : before) {
    for (const auto& [taker, number] : standing.gives) {
      const auto found = before.find(taker);
      // One that has yet to answer may go on taking.
      const bool goes_on =
          is_here(taker) &&
          (found == before.end() ||
           (found->second.from == giver && found->second.takes == number && !found->second.failed_to_take));
      if (!goes_on) order(giver, {.what = What::kGiven, .number = number, .other = taker});
    }
  }
  const auto all = standings();
  const std::int64_t landed = last_landed(all);
  const bool idle =
      std::ranges::none_of(all, [](const auto& entry) { return entry.second.under_way.has_value(); });
  bool all_finish = true;
  std::optional<std::int64_t> missed;  // by the one that has made the most steps
  for (const auto& [name, each] : all) {
    if (!each.has_state) continue;
    all_finish &= each.wants == true;
    missed = std::min(each.missed, missed.value_or(each.missed));
  }
  for (const auto& [name, taker] : all) {
    if (taker.has_state && !(idle && all_finish && taker.missed > missed)) continue;
    const auto giver = all.find(taker.from);
    const bool given = giver != all.end() && giver->second.gives.contains(name);
    if (!given) {
      if (lockstep_ && !idle) continue;
      const std::int64_t number = own_.highest + 1;
      const auto [from, landed_there] = next_giver();
      order(from, {.what = What::kGive, .number = number, .other = name, .landed = landed_there});
      order(name, {.what = What::kTake, .number = number, .other = from});
      own_.highest = number;
    } else if (idle && taker.caught_up == landed) {
      order(name, {.what = What::kTrain, .number = taker.takes, .other = taker.from, .landed = landed});
      order(taker.from, {.what = What::kGiven, .number = taker.takes, .other = name});
    }
  }
}

// Begins the next average, if it is time.
void Council::begin() {
  const auto all = standings();
  const std::int64_t landed = last_landed(all);
  std::int64_t before = 0;
  Command command{
      .what = What::kBegin, .number = own_.highest + 1, .last = all.size() == epoch_.islands.size()};
  for (const auto& [name, each] : all) {
    if (each.has_state) {
      if (each.under_way || !each.wants) return;
      if (each.landed == landed) before = std::max(before, each.before);
      command.members.push_back(name);
      command.last &= *each.wants;
    } else {
      command.last = false;
    }
  }
  const bool held = std::ranges::any_of(all, [&](const auto& entry) {
    return !entry.second.has_state && (lockstep_ || entry.second.caught_up == before);
  });
  if (held || command.members.size() < (lockstep_ ? 1U : 2U)) return;
  for (const std::string& name : command.members) order(name, command);
  own_.highest = command.number;
}

}  // namespace gradweave::islands
