// Islands in random orders, with epochs that they hear of at different times, connections that are lost with what was last sent,
// and islands that die, come again, or are left out and come back: those that go on land the same averages, in the same order,
// and in the end all train together.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>

#include "islands/council.h"

namespace gradweave::islands {
namespace {

using What = Command::What;
using Numbers = std::vector<std::int64_t>;

// A state is the list of averages that have landed in it; negative: without a step by it, as the island had finished.
std::int64_t last_of(const Numbers& state) { return state.empty() ? 0 : std::abs(state.back()); }
bool lacks_steps(const Numbers& state) {
  return std::ranges::any_of(state, [](std::int64_t number) { return number < 0; });
}

struct Handed {
  Numbers state, results;
};

// An island's process, and what its ranks do.
struct Process {
  Process(const std::string& name, std::string its_life, bool lockstep)
      : life(std::move(its_life)), council(name, lockstep) {}

  std::string life;
  Council council;
  Epoch epoch;
  std::deque<Command> to_do;
  std::string done;  // commands
  bool trains = false;
  Numbers state;
  std::optional<Command> under_way;
  std::set<std::string> members;  // lives of those it knows
  bool last_landed = false;       // what landed last was of islands that all finish
  bool finishes = false,
       supplied = false;  // in lockstep: until the last lands; a gradient, to what is under way
  std::map<std::int64_t, std::vector<std::string>> begun;
  std::set<std::int64_t> dropped;
  std::map<std::int64_t, Handed> gives;
  std::optional<Command> takes;
  std::optional<Numbers> taken;
  std::size_t results_taken = 0;
};

struct Place {
  std::string name;
  std::unique_ptr<Process> process;  // nothing: it is dead
};

// What two islands send each other. Either side knows the connection of number `seen`.
struct Side {
  int seen = 0;
  std::deque<std::pair<int, std::string>> to;  // with the number of its connection
};
struct Link {
  int number = 0;
  bool up = false;
  std::map<std::string, Side> sides;
};

class Job {
 public:
  explicit Job(int places, bool is_in_lockstep = false) : lockstep(is_in_lockstep) {
    for (int i = 0; i < places; ++i)
      places_.push_back({.name = std::string(1, static_cast<char>('a' + i)), .process = nullptr});
    for (const Place& a : places_) {
      for (const Place& b : places_) {
        if (a.name < b.name) links_[{a.name, b.name}].sides = {{a.name, {}}, {b.name, {}}};
      }
    }
  }
  std::vector<Place>& places() { return places_; }
  std::map<std::pair<std::string, std::string>, Link>& links() { return links_; }
  Process* at(const std::string& name) {
    return places_.at(static_cast<std::size_t>(name.front() - 'a')).process.get();
  }

  void start(Place& place) {
    place.process = std::make_unique<Process>(place.name, place.name + std::to_string(++lives_), lockstep);
  }
  // Of what is on its way, `kept` texts still come on each connection.
  void kill(Place& place, std::size_t kept) {
    post();
    place.process.reset();
    for (auto& [names, link] : links_) {
      if (!link.sides.contains(place.name)) continue;
      lose(link, kept);
      link.sides.at(place.name) = {.seen = link.number, .to = {}};
    }
  }
  void lose(Link& link, std::size_t kept) {
    post();
    link.up = false;
    for (auto& [name, side] : link.sides) side.to.resize(std::min(side.to.size(), kept));
  }
  void connect(const std::pair<std::string, std::string>& names) {
    Link& link = links_.at(names);
    if (link.up || !at(names.first) || !at(names.second)) return;
    link.up = true;
    ++link.number;
  }
  void see(Link& link, const std::string& name) {
    Side& side = link.sides.at(name);
    if (name == frozen || !link.up || side.seen == link.number || !at(name)) return;
    post();
    side.seen = link.number;
    std::erase_if(side.to, [&](const auto& entry) { return entry.first != link.number; });
    at(name)->council.connected(other(link, name));
    post();
  }
  void deliver(Link& link, const std::string& name) {
    Side& side = link.sides.at(name);
    if (name == frozen || !at(name) || side.to.empty() || side.to.front().first != side.seen) return;
    const std::string text = std::move(side.to.front().second);
    side.to.pop_front();
    if (garble) at(name)->council.take(other(link, name), garble(text));
    at(name)->council.take(other(link, name), text);
    post();
  }
  // What councils say goes on its way, where there is one.
  void post() {
    for (Place& place : places_) {
      if (!place.process) continue;
      for (auto& [to, text] : place.process->council.take_outgoing()) {
        if (!to.empty() && to.front() > place.name.front())
          send(links_.at({place.name, to}), place.name, to, std::move(text));
        else
          send(links_.at({to, place.name}), place.name, to, std::move(text));
      }
    }
  }

  // The next epoch, of those that live; one at least was in the one before.
  void change(const std::set<std::string>& wanted) {
    Epoch next{.line = newest.line, .number = newest.number + 1, .by = "m"};
    const auto before = [&](const Place& place) {
      const auto found = std::ranges::find(newest.islands, place.name, &Island::name);
      return place.process && found != newest.islands.end() && found->life == place.process->life ? &*found
                                                                                                  : nullptr;
    };
    const bool goes_on = std::ranges::any_of(places_, before);
    if (!goes_on) next.line = "line" + std::to_string(next.number);
    bool follows = !goes_on;
    for (const Place& place : places_) {
      if (!place.process || !wanted.contains(place.name)) continue;
      const Island* stays = before(place);
      follows |= stays != nullptr;
      next.islands.push_back(
          {.name = place.name, .life = place.process->life, .since = stays ? stays->since : next.number});
    }
    if (next.islands.empty() || !follows) return;
    newest = next;
    epochs_.push_back(next);
  }
  void hear(Place& place, const Epoch& epoch) {
    Process& process = *place.process;
    const auto own = std::ranges::find(epoch.islands, place.name, &Island::name);
    if (epoch.number <= process.epoch.number || own == epoch.islands.end() || own->life != process.life)
      return;
    process.epoch = epoch;
    process.council.epoch(epoch);
    post();
  }
  const std::vector<Epoch>& epochs() const { return epochs_; }

  // The next command.
  void execute(Place& place) {
    if (place.name == frozen) return;
    Process& here = *place.process;
    for (Command& command : here.council.take_commands()) here.to_do.push_back(std::move(command));
    if (here.to_do.empty()) return;
    const Command command = std::move(here.to_do.front());
    here.to_do.pop_front();
    if (!garble) follow(place, command);
  }
  void complete(Place& place) {
    Process& here = *place.process;
    if (place.name == frozen || !here.under_way) return;
    const std::int64_t number = here.under_way->number;
    if (here.members.size() != here.under_way->members.size() ||
        !std::ranges::includes(sent_[number], here.members))
      return;
    completed_[number].insert(here.life);
    here.supplied = !here.finishes;
    if (here.supplied) supplied_.insert(number);
    if (here.finishes) here.council.wants(true);  // it may have lost and got the state since it said so
    here.council.complete(number);
    post();
  }
  // In lockstep a step ends before an island finishes, and it goes on finishing.
  void want(const Place& place, bool finishing) {
    Process& here = *place.process;
    if (lockstep && (here.supplied || here.finishes || !here.trains)) finishing = here.finishes;
    here.finishes = lockstep && finishing;
    here.council.wants(finishing);
    post();
  }
  void fail(Place& place) {
    if (!place.process->under_way) return;
    place.process->council.failed(place.process->under_way->number);
    post();
  }
  void take_more(Place& place) {
    Process& here = *place.process;
    if (!here.takes) return;
    const std::int64_t number = here.takes->number;
    Process* giver = at(here.takes->other);
    if (giver == nullptr || !giver->gives.contains(number)) return;
    const Handed& transfer = giver->gives.at(number);
    if (!here.taken) {
      here.taken = transfer.state;
    } else if (here.results_taken < transfer.results.size()) {
      here.taken->push_back(transfer.results.at(here.results_taken++));
    } else {
      return;
    }
    here.council.caught_up(number, last_of(*here.taken));
    post();
  }

  // Islands that have the state and have not been left out have it alike, but for what one is about to land.
  void check() {
    std::vector<const Process*> with;
    for (const Place& place : places_) {
      if (goes_on(place)) with.push_back(place.process.get());
    }
    for (const Process* a : with) {
      for (const Process* b : with) {
        const Numbers &x = a->state, &y = b->state;
        if (x.size() > y.size()) continue;
        RC_ASSERT(y.size() - x.size() <= 1U);
        if (lacks_steps(x) || lacks_steps(y)) continue;
        RC_ASSERT(std::equal(x.begin(), x.end(), y.begin()));
        for (const std::int64_t number : y) RC_ASSERT(!a->dropped.contains(number));
        for (const auto& [number, members] : a->begun) {
          if (const auto found = b->begun.find(number); found != b->begun.end())
            RC_ASSERT(found->second == members);
        }
      }
    }
  }

  Epoch newest;
  const bool lockstep;
  bool all_train = false;  // nobody finishes
  std::string frozen;      // an island that does nothing more
  std::function<std::string(const std::string&)> garble;

 private:
  static bool contains(const std::vector<std::string>& names, const std::string& name) {
    return std::ranges::find(names, name) != names.end();
  }
  static const std::string& other(const Link& link, const std::string& name) {
    return link.sides.begin()->first == name ? link.sides.rbegin()->first : link.sides.begin()->first;
  }
  void send(Link& link, const std::string& from, const std::string& to, std::string text) {
    if (link.up && link.sides.at(from).seen == link.number)
      link.sides.at(to).to.emplace_back(link.number, std::move(text));
  }
  bool goes_on(const Place& place) const {
    if (!place.process || !place.process->trains || !place.process->council.has_state()) return false;
    const auto own = std::ranges::find(newest.islands, place.name, &Island::name);
    return own != newest.islands.end() && own->life == place.process->life &&
           place.process->epoch.line == newest.line && own->since <= place.process->epoch.number;
  }

  void follow(const Place& place, const Command& command) {
    Process& here = *place.process;
    const std::int64_t number = command.number;
    here.done += static_cast<char>(command.what);
    switch (command.what) {
      case What::kBegin:
        RC_ASSERT(here.trains);
        RC_ASSERT(!here.under_way);
        RC_ASSERT(lockstep || command.members.size() > 1U);
        RC_ASSERT(contains(command.members, place.name));
        RC_ASSERT(here.begun.upper_bound(number - 1) == here.begun.end());
        RC_ASSERT(last_of(here.state) < number);
        here.under_way = command;
        here.begun[number] = command.members;
        here.members.clear();
        for (const Island& island : here.epoch.islands) {
          if (contains(command.members, island.name)) here.members.insert(island.life);
        }
        sent_[number].insert(here.life);
        break;
      case What::kLand:
        RC_ASSERT(here.under_way);
        RC_ASSERT(here.under_way->number == number);
        RC_ASSERT(here.under_way->last == command.last);
        RC_ASSERT(here.members.size() == here.under_way->members.size());
        RC_ASSERT(std::ranges::includes(completed_[number], here.members));
        here.under_way.reset();
        here.last_landed = command.last;
        if (lockstep && !command.last) {
          RC_ASSERT(supplied_.contains(number));
          here.state.push_back(here.finishes ? -number : number);
          here.supplied = false;
          break;
        }
        here.state.push_back(number);
        here.finishes = false;
        for (auto& [transfer, each] : here.gives) each.results.push_back(number);
        break;
      case What::kDrop:
        RC_ASSERT(here.under_way);
        RC_ASSERT(here.under_way->number == number);
        here.under_way.reset();
        here.dropped.insert(number);
        here.supplied = false;
        break;
      case What::kGive:
        RC_ASSERT(here.trains);
        RC_ASSERT(command.landed == last_of(here.state));
        RC_ASSERT(here.gives.emplace(number, Handed{here.state, {}}).second);
        break;
      case What::kGiven:
        RC_ASSERT(here.gives.erase(number) == 1U);
        break;
      case What::kTake:
        RC_ASSERT(!here.under_way);
        here.trains = false;
        here.takes = command;
        if (here.taken) here.state = *std::exchange(here.taken, std::nullopt);
        here.results_taken = 0;
        break;
      case What::kTrain:
        if (!command.other.empty()) {
          RC_ASSERT(here.takes);
          RC_ASSERT(here.takes->number == number);
          RC_ASSERT(here.takes->other == command.other);
          RC_ASSERT(here.taken);
        }
        if (here.taken) here.state = *std::exchange(here.taken, std::nullopt);
        // What it has beyond that, if it took more by then, is its own.
        if (command.other.empty() && last_of(here.state) != command.landed) here.state = {command.landed};
        RC_ASSERT(last_of(here.state) == command.landed);
        here.takes.reset();
        here.dropped.clear();
        here.begun.clear();
        here.trains = true;
        break;
    }
  }

  std::vector<Place> places_;
  std::map<std::pair<std::string, std::string>, Link> links_;
  std::vector<Epoch> epochs_;
  int lives_ = 0;
  std::map<std::int64_t, std::set<std::string>> sent_, completed_;  // lives, by average
  std::set<std::int64_t> supplied_;                                 // averages that have a gradient
};

// In small cases too anything may happen.
std::size_t below(std::size_t count) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange<std::size_t>(0, count));
}

bool chance(std::size_t of) { return below(of) == 0; }

Link& any_link(Job& job) {
  auto found = job.links().begin();
  std::advance(found, below(job.links().size()));
  return found->second;
}

// What may happen to an island on its own.
void act(Job& job, Place& place) {
  switch (below(6)) {
    case 0:
    case 1:
      job.execute(place);
      break;
    case 2:
      job.complete(place);
      break;
    case 3:
      job.want(place, !job.all_train && chance(4));
      break;
    default:
      job.take_more(place);
  }
}

// All go on a bit, some more than others.
void move(Job& job) {
  for (auto& [names, link] : job.links()) {
    if (chance(4)) job.connect(names);
    for (const std::string& name : {names.first, names.second}) {
      if (chance(4)) job.see(link, name);
      for (std::size_t texts = below(4); texts > 0; --texts) job.deliver(link, name);
    }
  }
  for (Place& place : job.places()) {
    if (!place.process) continue;
    if (chance(4)) job.hear(place, job.newest);
    for (std::size_t acts = below(6); acts > 0; --acts) act(job, place);
  }
}

// Anything may happen; something that hinders once in `faults` times.
void step(Job& job, std::size_t faults) {
  if (!chance(faults)) return move(job);
  Place& place = job.places()[below(job.places().size())];
  std::set<std::string> wanted;
  switch (below(8)) {
    case 0:
      if (place.process) job.kill(place, below(4));
      break;
    case 1:
      if (!place.process) job.start(place);
      break;
    case 2:
    case 3:
      for (const Place& each : job.places()) {
        if (!chance(6)) wanted.insert(each.name);
      }
      job.change(wanted);
      break;
    case 4:
      // One that is not in force any more.
      if (const auto& epochs = job.epochs(); place.process && !epochs.empty())
        job.hear(place, epochs[epochs.size() - std::min(epochs.size(), 1 + below(3))]);
      break;
    case 5:
      if (!job.links().empty()) job.lose(any_link(job), below(4));
      break;
    case 6:
      if (place.process) job.fail(place);
      break;
    case 7:
      if (place.process && place.process->takes)
        place.process->council.failed_to_take(place.process->takes->number);
      job.post();
  }
}

// All connect, hear each other and do what follows.
void talk(Job& job) {
  job.post();
  for (int round = 0; round < 3; ++round) {
    for (auto& [names, link] : job.links()) {
      job.connect(names);
      for (const std::string& name : {names.first, names.second}) {
        job.see(link, name);
        for (int texts = 20; texts > 0; --texts) job.deliver(link, name);
      }
    }
  }
  for (Place& place : job.places()) {
    for (int commands = 10; place.process && commands > 0; --commands) job.execute(place);
  }
  job.check();
}

// Nothing fails any more, and everything that can go on does.
void go_on(Job& job, int rounds, std::optional<bool> wants) {
  for (; rounds > 0; --rounds) {
    talk(job);
    for (Place& place : job.places()) {
      if (!place.process) continue;
      job.take_more(place);
      if (wants && place.name != job.frozen) job.want(place, *wants);
      job.complete(place);
    }
    job.post();
  }
  talk(job);
}

// All live, and know the epoch that they are in: that one, if it has them all.
void all_together(Job& job) {
  std::set<std::string> names, lives;
  for (Place& place : job.places()) {
    if (!place.process) job.start(place);
    names.insert(place.name);
    lives.insert(place.process->life);
  }
  for (const Island& island : job.newest.islands) lives.erase(island.life);
  if (!lives.empty()) job.change(names);
  for (Place& place : job.places()) job.hear(place, job.newest);
}

RC_GTEST_PROP(Council, LandsTheSameOnAllThatGoOnAndBringsAllTogether, ()) {
  Job job(1 + static_cast<int>(below(5)), chance(2));
  if (chance(2)) {
    all_together(job);
    go_on(job, 10, false);
  }
  const std::size_t faults = 2 + below(20);
  for (std::size_t steps = 20 + below(300); steps > 0; --steps) {
    step(job, faults);
    job.check();
  }
  all_together(job);
  go_on(job, 40, std::nullopt);
  const auto state = [&](const Place& place) -> const Numbers& { return place.process->state; };
  const Numbers before = state(job.places().front());
  const bool all_finish =
      std::ranges::all_of(job.places(), [](const Place& each) { return each.process->finishes; });
  go_on(job, 40, false);
  for (const Place& place : job.places()) {
    RC_ASSERT(place.process->trains);
    RC_ASSERT(place.process->council.has_state());
    if (job.places().size() > 1 && !all_finish) RC_ASSERT(state(place).size() >= before.size() + 3);
  }
  go_on(job, 20, true);
  go_on(job, 20, std::nullopt);
  for (const Place& place : job.places()) {
    RC_ASSERT(state(place) == state(job.places().front()));
    RC_ASSERT(!place.process->under_way);
    RC_ASSERT(place.process->last_landed == (job.lockstep || job.places().size() > 1));
  }
}

RC_GTEST_PROP(Council, KnowsWhoKeepsAllOthersWaiting, ()) {
  Job job(2 + static_cast<int>(below(4)), chance(2));
  job.all_train = job.lockstep;  // who takes the state again is on its way, however long that takes
  all_together(job);
  go_on(job, 10, false);
  for (std::size_t steps = below(30); steps > 0; --steps) move(job);
  Place& one = job.places()[below(job.places().size())];
  for (int commands = 20; commands > 0; --commands) job.execute(one);  // as all of a step are
  job.frozen = one.name;
  go_on(job, 20, chance(2));
  std::set<std::string> waiting, awaited;
  for (const Place& place : job.places()) {
    if (place.name == job.frozen) continue;
    for (const auto& [name, number] : place.process->council.waits_for()) {
      waiting.insert(place.name);
      awaited.insert(name);
    }
  }
  for (const std::string& name : waiting) awaited.erase(name);
  RC_ASSERT(awaited == std::set<std::string>{job.frozen});
  job.frozen.clear();
  const std::size_t landed = job.places().front().process->state.size();
  go_on(job, 20, false);
  RC_ASSERT(job.places().front().process->state.size() > landed);
}

Command any_command() {
  return {.what = *rc::gen::element(What::kBegin, What::kLand, What::kDrop, What::kGive, What::kGiven,
                                    What::kTake, What::kTrain),
          .number = *rc::gen::inRange<std::int64_t>(0, 100),
          .members = *rc::gen::arbitrary<std::vector<std::string>>(),
          .other = *rc::gen::arbitrary<std::string>(),
          .landed = *rc::gen::inRange<std::int64_t>(0, 100),
          .last = *rc::gen::arbitrary<bool>()};
}

RC_GTEST_PROP(Council, TextsComeBackAsTheyWere, ()) {
  std::vector<Command> commands;
  for (int count = *rc::gen::inRange(0, 4); count > 0; --count) commands.push_back(any_command());
  RC_ASSERT(decode_commands(encode(commands)) == commands);
  const auto number = rc::gen::inRange<std::int64_t>(0, 100);
  Standing standing{.has_state = *rc::gen::arbitrary<bool>(),
                    .highest = *number,
                    .landed = *number,
                    .before = *number,
                    .complete = *rc::gen::arbitrary<bool>(),
                    .failed = *rc::gen::arbitrary<bool>(),
                    .takes = *number,
                    .from = *rc::gen::arbitrary<std::string>(),
                    .failed_to_take = *rc::gen::arbitrary<bool>(),
                    .gives = *rc::gen::container<std::map<std::string, std::int64_t>>(
                        rc::gen::arbitrary<std::string>(), number)};
  if (*rc::gen::arbitrary<bool>()) standing.wants = *rc::gen::arbitrary<bool>();
  if (*rc::gen::arbitrary<bool>()) standing.caught_up = *number;
  if (*rc::gen::arbitrary<bool>()) standing.under_way = {*number, {"a", "b"}, *rc::gen::arbitrary<bool>()};
  RC_ASSERT(decode_standing(encode(standing)) == standing);
}

// Nothing that comes breaks a council: texts of all kinds with bytes changed, and any others.
RC_GTEST_PROP(Council, TakesAnyText, ()) {
  Job job(3);
  job.garble = [](const std::string& text) {
    if (*rc::gen::inRange(0, 8) == 0) return *rc::gen::arbitrary<std::string>();
    std::string other = text;
    for (int changes = *rc::gen::inRange(1, 4); changes > 0; --changes)
      other[*rc::gen::inRange<std::size_t>(0, other.size())] =
          *rc::gen::element('0', '1', '2', '9', ':', 'a', 'b', 'g', 'l', 'q', '\0');
    return other;
  };
  for (int steps = *rc::gen::inRange(20, 400); steps > 0; --steps) step(job, 8);
}

// Three islands, of which nothing fails between two calls.
class Councils : public testing::Test {
 protected:
  explicit Councils(int islands = 3) : job(islands) {}
  Place& place(const std::string& name) {
    return job.places().at(static_cast<std::size_t>(name.front() - 'a'));
  }
  Process& at(const std::string& name) { return *place(name).process; }
  // Starts those that are dead. They are there in one epoch.
  void start(const std::set<std::string>& names) {
    for (const std::string& name : names) {
      if (!place(name).process) job.start(place(name));
    }
    change();
  }
  // Without those: an epoch that only the others hear of.
  void change(const std::set<std::string>& without = {}) {
    std::set<std::string> names;
    for (const Place& each : job.places()) {
      if (!without.contains(each.name)) names.insert(each.name);
    }
    job.change(names);
    for (Place& each : job.places()) {
      if (each.process) job.hear(each, job.newest);
    }
  }
  void want(const std::set<std::string>& names) {
    for (const std::string& name : names) at(name).council.wants(false);
    talk(job);
  }
  // All that is asked for since the last call.
  std::string done(const std::string& name) {
    talk(job);
    return std::exchange(at(name).done, "");
  }
  void complete(const std::set<std::string>& names) {
    for (const std::string& name : names) job.complete(place(name));
    talk(job);
  }
  void all_have_the_state() {
    std::set<std::string> names;
    for (const Place& each : job.places()) names.insert(each.name);
    start(names);
    go_on(job, 10, std::nullopt);
    for (Place& each : job.places()) each.process->done.clear();
    want(names);
    complete(names);
    for (Place& each : job.places()) ASSERT_EQ(std::exchange(each.process->done, ""), "bl");
  }

  Job job;
};

class FiveCouncils : public Councils {
 protected:
  FiveCouncils() : Councils(5) {}
};

TEST_F(Councils, OneAloneTrainsWithoutAverages) {
  start({"b"});
  EXPECT_EQ(done("b"), "a");
  want({"b"});
  change();
  go_on(job, 5, true);
  EXPECT_EQ(done("b"), "");
}

TEST_F(Councils, OthersTakeTheStateOfTheFirstAndTakePartAtOnce) {
  start({"a", "b", "c"});
  EXPECT_EQ(done("a"), "agg");
  EXPECT_EQ(done("b"), "t");
  want({"a"});
  EXPECT_EQ(done("a"), "");
  job.take_more(place("b"));
  EXPECT_EQ(done("a"), "hb");
  EXPECT_EQ(done("b"), "ab");
  EXPECT_EQ(at("a").under_way->members, (std::vector<std::string>{"a", "b"}));
  EXPECT_FALSE(at("a").under_way->last);
}

TEST_F(Councils, TheNextAverageIsHeldForOneThatLacksOnlyTheLast) {
  all_have_the_state();
  job.kill(place("c"), 0);
  start({"c"});
  EXPECT_EQ(done("c"), "t");
  for (int i = 0; i < 2; ++i) {
    want({"a", "b"});
    complete({"a", "b"});
    EXPECT_EQ(done("b"), "bl");  // it lacks all
  }
  job.take_more(place("c"));
  want({"a", "b"});
  EXPECT_EQ(done("b"), "b");  // two
  job.take_more(place("c"));
  complete({"a", "b"});
  want({"a", "b"});
  EXPECT_EQ(done("b"), "lb");  // still two
  for (int results = 0; results < 2; ++results) job.take_more(place("c"));
  complete({"a", "b"});
  want({"a", "b"});
  EXPECT_EQ(done("b"), "l");  // one
  job.take_more(place("c"));
  EXPECT_EQ(done("b"), "b");
  EXPECT_EQ(done("c"), "ab");
}

TEST_F(Councils, ANewcomerAndALostConnectionStopNothing) {
  start({"a", "b"});
  go_on(job, 5, std::nullopt);
  start({"c"});
  done("c");
  want({"a", "b"});
  for (const std::string name : {"a", "b"}) done(name);
  job.kill(place("c"), 0);
  change();
  job.lose(job.links().at({"a", "b"}), 0);
  EXPECT_EQ(done("a"), "h");
  EXPECT_EQ(done("b"), "");
  start({"c"});
  EXPECT_EQ(done("c"), "t");
  EXPECT_EQ(done("a"), "g");
  change();
  complete({"a", "b"});
  EXPECT_EQ(done("b"), "l");
  EXPECT_EQ(done("a"), "l");
  EXPECT_EQ(done("c"), "");
}

TEST_F(Councils, WhatTheChairHasToldOneToLandIsAllOnesWhenItDies) {
  all_have_the_state();
  want({"a", "b", "c"});
  for (const std::string name : {"a", "b", "c"}) job.complete(place(name));
  for (const std::string name : {"b", "c"}) job.deliver(job.links().at({"a", name}), "a");
  job.deliver(job.links().at({"a", "b"}), "b");
  job.kill(place("a"), 0);
  EXPECT_EQ(done("b"), "bl");
  EXPECT_EQ(done("c"), "b");
  change();
  EXPECT_EQ(done("b"), "");
  EXPECT_EQ(done("c"), "l");
}

TEST_F(Councils, WhatTheChairHasToldNobodyIsNobodys) {
  all_have_the_state();
  want({"a", "b", "c"});
  complete({"b", "c"});
  job.kill(place("a"), 0);
  change();
  EXPECT_EQ(done("b"), "bd");
  EXPECT_EQ(done("c"), "bd");
  want({"b", "c"});
  EXPECT_EQ(done("c"), "b");
}

TEST_F(Councils, OneThatFailsDropsItForAllAndItBeginsAnew) {
  all_have_the_state();
  want({"a", "b", "c"});
  job.fail(place("c"));
  for (const std::string name : {"a", "b", "c"}) EXPECT_EQ(done(name), "bd");
  want({"a", "b"});
  EXPECT_EQ(done("a"), "");
  want({"c"});
  EXPECT_EQ(done("a"), "b");
}

TEST_F(Councils, OneThatWasLeftOutTakesTheStateAnewThoughItHasTrained) {
  all_have_the_state();
  change({"a"});
  EXPECT_EQ(job.newest.islands.size(), 2U);
  talk(job);
  EXPECT_TRUE(at("a").council.has_state());  // it knows nothing of that
  change();
  EXPECT_FALSE(at("a").council.has_state());
  EXPECT_EQ(done("b"), "g");
  EXPECT_EQ(done("a"), "t");
  go_on(job, 3, std::nullopt);
  EXPECT_EQ(done("a"), "a");
}

TEST_F(Councils, TheNextGivesWhenTheFirstDies) {
  all_have_the_state();
  job.kill(place("c"), 0);
  start({"c"});
  EXPECT_EQ(done("c"), "t");
  EXPECT_EQ(at("c").takes->other, "a");
  at("c").council.failed_to_take(at("c").takes->number);
  EXPECT_EQ(done("a"), "ghg");
  EXPECT_EQ(done("c"), "t");
  job.kill(place("a"), 0);
  change();
  EXPECT_EQ(done("b"), "g");
  EXPECT_EQ(done("c"), "t");
  EXPECT_EQ(at("c").takes->other, "b");
  job.kill(place("b"), 0);
  change();
  EXPECT_EQ(done("c"), "a");  // nobody else has one
}

TEST_F(FiveCouncils, ThoseThatHaveTheStateShareTheWorkOfGivingIt) {
  all_have_the_state();
  for (const std::string name : {"c", "d", "e"}) job.kill(place(name), 0);
  start({"c", "d", "e"});
  EXPECT_EQ(done("a"), "gg");
  EXPECT_EQ(done("b"), "g");
  for (const std::string name : {"c", "d", "e"}) EXPECT_EQ(done(name), "t");
  EXPECT_EQ(at("c").takes->other, "a");
  EXPECT_EQ(at("d").takes->other, "b");
  EXPECT_EQ(at("e").takes->other, "a");
}

TEST_F(Councils, WhatOneThatWasLeftOutHasIsBetterThanNothing) {
  all_have_the_state();
  change({"a"});
  job.kill(place("c"), 0);
  start({"c"});
  change({"a"});
  EXPECT_EQ(done("c"), "t");
  job.kill(place("b"), 0);
  change();
  EXPECT_EQ(at("a").council.chair(), "c");
  EXPECT_EQ(done("a"), "ag");
  EXPECT_EQ(done("c"), "t");
}

TEST_F(Councils, NumbersOfAveragesInAStateThatWasTakenAreNotUsedAgain) {
  all_have_the_state();
  job.kill(place("c"), 0);
  start({"c"});
  done("c");
  for (int i = 0; i < 2; ++i) {
    want({"a", "b"});
    complete({"a", "b"});
  }
  for (int parts = 0; parts < 3; ++parts) job.take_more(place("c"));
  EXPECT_EQ(done("c"), "a");
  for (const std::string name : {"a", "b"}) job.kill(place(name), 0);
  start({"a"});
  go_on(job, 5, false);
  EXPECT_EQ(done("c").substr(0, 4), "ghbl");
  EXPECT_EQ(at("a").state, at("c").state);
}

TEST_F(Councils, ItIsTheLastIfAllFinishAndNoneIsWithoutTheState) {
  all_have_the_state();
  for (const std::string name : {"a", "b", "c"}) at(name).council.wants(name != "c");
  done("a");
  EXPECT_FALSE(at("a").under_way->last);
  complete({"a", "b", "c"});
  for (const std::string name : {"a", "b", "c"}) at(name).council.wants(true);
  done("a");
  EXPECT_TRUE(at("a").under_way->last);
  complete({"a", "b", "c"});
  job.kill(place("c"), 0);
  start({"c"});
  for (const std::string name : {"a", "b"}) at(name).council.wants(true);
  done("a");
  EXPECT_FALSE(at("a").under_way->last);
}

TEST_F(Councils, OneThatTrainsOnNoLongerFinishes) {
  all_have_the_state();
  for (const std::string name : {"a", "b"}) at(name).council.wants(true);
  done("a");
  for (const std::string name : {"a", "b"}) at(name).council.trains_on();
  at("c").council.wants(true);
  EXPECT_EQ(done("a"), "");
  want({"a", "b"});
  EXPECT_EQ(done("a"), "b");
  EXPECT_FALSE(at("a").under_way->last);
}

TEST_F(Councils, SaysOfWhichEpochATextIs) {
  start({"a", "b"});
  for (const std::string name : {"a", "b"}) job.see(job.links().at({"a", "b"}), name);
  at("a").council.connected("b");
  const auto texts = at("a").council.take_outgoing();
  ASSERT_FALSE(texts.empty());
  EXPECT_EQ(epoch_of(texts.front().second), (EpochName{job.newest.line, job.newest.number, "m"}));
  EXPECT_EQ(epoch_of("1:2:qq"), std::nullopt);
}

}  // namespace
}  // namespace gradweave::islands
