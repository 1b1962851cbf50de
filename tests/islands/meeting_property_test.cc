// Islands and meeting points in random orders, with connections that are lost, islands and meeting points that die and come
// again, and islands that are cut off: no two epochs of a line can both go on, no training is begun anew while an island that has
// it may go on, and in the end all are together.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "islands/meeting.h"

namespace gradweave::islands {
namespace {

using namespace std::chrono_literals;

constexpr Time kLease = 8s;

struct Here {
  std::string name, life;
  std::optional<Attendee> attendee;  // nothing: it is dead
  bool cut = false;                  // nothing comes through, and nobody is told
  bool connected = false;
  std::deque<std::string> to, from;  // on the way to the meeting point and back
  std::optional<Epoch> epoch;        // as its council has heard
  bool has_state = false;
  std::vector<Wait> waits;

  // Whether it can go on: one that has been told to leave can't.
  bool goes_on() const { return attendee && attendee->left_out().empty(); }
};

using EpochKey = std::tuple<std::string, std::int64_t, std::string>;
EpochKey epoch_key(const Epoch& epoch) { return {epoch.line, epoch.number, epoch.by}; }

std::int64_t since_of(const Epoch& epoch, const std::string& life) {
  const auto found = std::ranges::find(epoch.islands, life, &Island::life);
  RC_ASSERT(found != epoch.islands.end());
  return found->since;
}

class World {
 public:
  explicit World(int islands) : islands_(static_cast<std::size_t>(islands)) {
    for (std::size_t i = 0; i < islands_.size(); ++i)
      islands_[i].name = std::string(1, static_cast<char>('a' + i));
    begin_meeting();
  }

  void begin_meeting() {
    for (Here& here : islands_) lose_connection(here);
    lost_.clear();
    meeting = std::make_unique<Meeting>("m" + std::to_string(++meetings_), now, kLease,
                                        Patience{.slow = 2 * kLongWait});
  }
  void end_meeting() {
    for (Here& here : islands_) lose_connection(here);
    meeting.reset();
  }
  void start(Here& here) {
    here.life = here.name + std::to_string(++lives_);
    here.attendee.emplace(Island{.name = here.name, .life = here.life, .trains = {"x"}});
    here.epoch.reset();
    here.has_state = false;
    here.waits.clear();
  }
  void kill(Here& here) {
    lose_connection(here);
    here.attendee.reset();
  }
  void leave(Here& here) {
    if (here.connected && !here.cut && meeting)
      meeting->take(here.name, here.life, {.what = ToMeeting::What::kLeave}, now);
    here.attendee.reset();
    drop(here);
  }
  // Both sides see it; the meeting point waits a tenth of a lease for it to come back.
  void lose_connection(Here& here) {
    if (here.connected && !here.cut && meeting) lost_[{here.name, here.life}] = now;
    if (here.attendee) here.attendee->lost();
    drop(here);
  }
  void connect(Here& here) {
    if (!here.attendee || here.connected || here.cut) return;
    if (!meeting) return here.attendee->saw_it_dead(now);
    here.connected = true;
    lost_.erase({here.name, here.life});
    say(here, here.attendee->connected(now));
  }
  void carry_to(Here& here) {
    if (here.to.empty() || here.cut || !meeting) return;
    const auto message = decode_to_meeting(here.to.front());
    here.to.pop_front();
    ASSERT_TRUE(message);
    meeting->take(here.name, here.life, *message, now);
  }
  void carry_from(Here& here) {
    if (here.from.empty() || here.cut || !here.attendee) return;
    const auto message = decode_from_meeting(here.from.front());
    here.from.pop_front();
    ASSERT_TRUE(message);
    say(here, here.attendee->take(*message, now));
  }
  void pass(Time time) {
    now += time;
    for (Here& here : islands_) {
      if (here.attendee) say(here, here.attendee->tick(now));
    }
    std::erase_if(lost_, [&](const auto& entry) {
      const bool over = now >= entry.second + kLease / 10;
      if (over && meeting) meeting->lost(entry.first.first, entry.first.second, now);
      return over;
    });
    if (meeting) meeting->tick(now);
  }
  // It gets the state from another island of its epoch.
  void get_state(Here& here) {
    if (!here.epoch || here.has_state || !here.attendee) return;
    set_state(here, std::ranges::any_of(islands_, [&](const Here& other) {
                return other.goes_on() && other.has_state && other.epoch == here.epoch;
              }));
  }
  // What the meeting point says goes on its way.
  void post() {
    if (!meeting) return;
    for (const Outgoing& outgoing : meeting->take_outgoing()) {
      for (Here& here : islands_) {
        if (here.name == outgoing.to && here.life == outgoing.life && here.connected)
          here.from.push_back(encode(*outgoing.message));
      }
    }
  }

  void waits_for(Here& here, std::vector<Wait> waits) {
    here.waits = std::move(waits);
    if (here.attendee) say_status(here);
  }

  // No two epochs of a line can both go on; what has one name is the same.
  void check() {
    for (Here& here : islands_) hear(here);
    for (Here& here : islands_) begin_anew(here);
    std::map<std::string, std::set<EpochKey>> go_on;
    for (const Here& here : islands_) {
      if (!here.goes_on() || !here.epoch) continue;
      if (here.has_state) trained_.insert(epoch_key(*here.epoch));
      if (all_hold(*here.epoch)) go_on[here.epoch->line].insert(epoch_key(*here.epoch));
    }
    for (const auto& [line, epochs] : go_on) RC_ASSERT(epochs.size() == 1U);
  }

  std::vector<Here>& islands() { return islands_; }
  Time now = 100s;
  std::unique_ptr<Meeting> meeting;

 private:
  // As Council::epoch().
  void hear(Here& here) {
    if (!here.attendee || !here.attendee->epoch()) return;
    const Epoch& epoch = *here.attendee->epoch();
    const auto [known, first] = epochs_.try_emplace(epoch_key(epoch), epoch);
    RC_ASSERT(known->second == epoch);
    if (here.epoch == epoch) return;
    const bool same_line = here.epoch && here.epoch->line == epoch.line;
    RC_ASSERT(!same_line || here.epoch->number < epoch.number);
    const bool stays = same_line && since_of(epoch, here.life) <= here.epoch->number;
    here.epoch = epoch;
    here.waits.clear();
    set_state(here, stays && here.has_state);
  }
  void set_state(Here& here, bool has) {
    here.has_state = has;
    say_status(here);
  }
  void say_status(Here& here) {
    const std::int64_t number = here.epoch ? here.epoch->number : 0;
    say(here,
        here.attendee->set_status({.epoch = number, .has_state = here.has_state, .waits = here.waits}, now));
  }
  bool all_hold(const Epoch& epoch) const {
    return std::ranges::all_of(epoch.islands, [&](const Island& island) {
      return std::ranges::any_of(islands_, [&](const Here& other) {
        return other.goes_on() && other.life == island.life && other.epoch == epoch;
      });
    });
  }
  // As Council::supply() where no island has the state.
  void begin_anew(Here& here) {
    if (!here.goes_on() || !here.epoch) return;
    const Epoch& epoch = *here.epoch;
    const auto first = std::ranges::min_element(epoch.islands, {}, &Island::since);
    const bool first_epoch = std::ranges::all_of(
        epoch.islands, [&](const Island& island) { return island.since == epoch.number; });
    if (first->life != here.life || (!first_epoch && !all_hold(epoch))) return;
    if (std::ranges::any_of(islands_, [&](const Here& other) {
          return other.goes_on() && other.epoch == epoch && other.has_state;
        }))
      return;
    for (const Here& other : islands_) {
      if (!other.goes_on() || !other.has_state || other.epoch->line != epoch.line) continue;
      // It was left out by some that had the state.
      RC_ASSERT(std::ranges::any_of(trained_, [&](const EpochKey& key) {
        const Epoch& later = epochs_.at(key);
        return later.line == epoch.line && later.number > other.epoch->number &&
               later.number < epoch.number &&
               std::ranges::find(later.islands, other.life, &Island::life) == later.islands.end();
      }));
    }
    set_state(here, true);
  }

  static void drop(Here& here) {
    here.connected = false;
    here.to.clear();
    here.from.clear();
  }
  static void say(Here& here, const std::vector<ToMeeting>& messages) {
    if (!here.connected) return;
    for (const ToMeeting& message : messages) here.to.push_back(encode(message));
  }

  std::vector<Here> islands_;
  int meetings_ = 0, lives_ = 0;
  std::map<std::pair<std::string, std::string>, Time> lost_;  // connections, by name and life
  std::map<EpochKey, Epoch> epochs_;
  std::set<EpochKey> trained_;  // epochs in which an island had the state
};

RC_GTEST_PROP(Meeting, NeverMakesTwoHalvesAndBringsAllTogether, ()) {
  World world(*rc::gen::inRange(1, 5));
  for (int step = *rc::gen::inRange(20, 600); step > 0; --step) {
    Here& here = world.islands()[*rc::gen::inRange<std::size_t>(0, world.islands().size())];
    switch (*rc::gen::inRange(0, 32)) {
      case 0:
        if (here.attendee) world.kill(here);
        break;
      case 1:
        if (here.attendee) world.leave(here);
        break;
      case 2:
        world.lose_connection(here);
        break;
      case 3:
        here.cut = !here.cut;
        break;
      case 4:
        if (*rc::gen::inRange(0, 3) == 0) world.end_meeting();
        break;
      case 5:
      case 6:
        if (!world.meeting) world.begin_meeting();
        break;
      case 7:
      case 8:
      case 9:
        if (!here.attendee) world.start(here);
        break;
      case 10:
      case 11:
        world.pass(std::chrono::milliseconds(*rc::gen::inRange(1, 5000)));
        break;
      case 12:
      case 13:
      case 14:
        world.connect(here);
        break;
      case 15:
        world.get_state(here);
        break;
      case 16:
        world.waits_for(
            here, {{.island = world.islands()[*rc::gen::inRange<std::size_t>(0, world.islands().size())].name,
                    .time = *rc::gen::element(0 * kLongWait, kLongWait, 3 * kLongWait),
                    .connected = *rc::gen::arbitrary<bool>()}});
        break;
      case 17:
        if (here.attendee && !here.goes_on()) world.kill(here);
        break;
      default:
        world.carry_to(here);
        world.post();
        world.carry_from(here);
    }
    world.post();
    world.check();
  }
  // Now nothing fails any more.
  if (!world.meeting) world.begin_meeting();
  for (Here& here : world.islands()) {
    if (here.cut) {
      here.cut = false;
      world.lose_connection(here);
    }
    if (here.attendee && !here.goes_on()) world.kill(here);
    if (!here.attendee) world.start(here);
    world.waits_for(here, {});
  }
  for (int round = 0; round < 200; ++round) {
    for (Here& here : world.islands()) {
      world.connect(here);
      while (!here.to.empty()) world.carry_to(here);
      world.post();
      while (!here.from.empty()) world.carry_from(here);
      world.get_state(here);
      // It was on the way.
      if (!here.goes_on()) {
        world.kill(here);
        world.start(here);
      }
    }
    world.pass(500ms);
    world.post();
    world.check();
  }
  RC_ASSERT(world.meeting->waits_for().empty());
  std::set<std::string> in;
  for (const Here& here : world.islands()) {
    if (here.attendee->refused().empty()) in.insert(here.life);
    RC_LOG() << here.life << ": " << here.attendee->refused() << "\n";
  }
  RC_ASSERT(!in.empty());
  for (const Here& here : world.islands()) {
    if (!in.contains(here.life)) continue;
    RC_ASSERT(here.attendee->epoch().has_value());
    RC_ASSERT(here.attendee->epoch()->islands.size() == in.size());
  }
}

// A meeting point and islands that nothing happens to between two messages.
class Together : public testing::Test {
 protected:
  Here& island(std::size_t number) { return world.islands()[number]; }
  void start(std::size_t number) {
    world.start(island(number));
    settle();
  }
  void settle() {
    for (int round = 0; round < 20; ++round) {
      for (Here& here : world.islands()) {
        world.connect(here);
        world.post();
        while (!here.to.empty() && !here.cut) world.carry_to(here);
        world.post();
        while (!here.from.empty() && !here.cut) world.carry_from(here);
        world.check();
        if (hands_over) world.get_state(here);
      }
    }
  }
  void pass(Time time) {
    for (const Time end = world.now + time; world.now < end;) {
      world.pass(500ms);
      settle();
    }
  }
  std::string names_in(std::size_t number) {
    std::string names;
    const auto& epoch = island(number).attendee->epoch();
    for (const Island& each : epoch ? epoch->islands : std::vector<Island>{}) names += each.name;
    return names;
  }
  std::int64_t number_in(std::size_t number) { return island(number).attendee->epoch()->number; }

  World world{3};
  bool hands_over = true;  // islands get the state from each other
};

TEST_F(Together, AMeetingPointThatBeginsWaitsALeaseForWhoMayGoOn) {
  start(0);
  EXPECT_EQ(names_in(0), "");
  pass(kLease);
  EXPECT_EQ(names_in(0), "a");
  start(1);
  EXPECT_EQ(names_in(0), "ab");
  EXPECT_EQ(names_in(1), "ab");
  EXPECT_LT(island(1).attendee->epoch()->islands[0].since, island(1).attendee->epoch()->islands[1].since);
}

TEST_F(Together, WhoDiesIsLeftOutAtOnceAndWhoIsSilentAfterItsLease) {
  pass(kLease);
  for (const std::size_t number : {0, 1, 2}) start(number);
  EXPECT_EQ(names_in(0), "abc");
  world.kill(island(2));
  pass(1s);
  EXPECT_EQ(names_in(0), "ab");
  island(1).cut = true;
  pass(kLease / 2);
  EXPECT_EQ(names_in(0), "ab");
  pass(kLease);
  EXPECT_EQ(names_in(0), "a");
  EXPECT_EQ(names_in(1), "ab");  // it goes on with what it has, and can't: `a` has gone on
  island(1).cut = false;
  world.lose_connection(island(1));
  pass(1s);
  EXPECT_EQ(names_in(1), "ab");
  EXPECT_EQ(number_in(0), number_in(1));
}

TEST_F(Together, AllGoOnWithoutAMeetingPointAndWithTheNextOne) {
  pass(kLease);
  for (const std::size_t number : {0, 1, 2}) start(number);
  const std::int64_t before = number_in(0);
  world.end_meeting();
  pass(10 * kLease);
  EXPECT_EQ(names_in(1), "abc");
  EXPECT_EQ(number_in(1), before);
  world.begin_meeting();
  settle();  // all have reported: no lease to wait for
  EXPECT_EQ(names_in(1), "abc");
  EXPECT_EQ(number_in(1), before + 1);
}

TEST_F(Together, AStaleReportMakesNoSecondHalf) {
  pass(kLease);
  for (const std::size_t number : {0, 1, 2}) start(number);
  island(1).cut = island(2).cut = true;  // most of the epoch
  pass(2 * kLease);
  EXPECT_EQ(names_in(0), "a");
  world.end_meeting();
  island(0).cut = true;
  island(1).cut = island(2).cut = false;
  for (const std::size_t number : {1, 2}) world.lose_connection(island(number));
  world.begin_meeting();
  pass(3 * kLease);
  EXPECT_EQ(names_in(1), "abc");  // the old one, in which nothing can go on without `a`
  EXPECT_EQ(world.meeting->waits_for(), std::vector<std::string>{"a"});
  island(0).cut = false;
  settle();
  EXPECT_EQ(names_in(0), "abc");
  EXPECT_EQ(number_in(0), number_in(2));
}

TEST_F(Together, OneThatSawTheMeetingPointDieGoesOnWithoutThoseThatDiedToo) {
  pass(kLease);
  for (const std::size_t number : {0, 1, 2}) start(number);
  pass(kLease);
  world.end_meeting();
  island(2).attendee.reset();
  settle();  // their connections are refused
  world.begin_meeting();
  pass(kLease / 2);
  EXPECT_EQ(names_in(0), "abc");
  pass(kLease);
  EXPECT_EQ(names_in(0), "ab");
}

TEST_F(Together, OneThatSawItTooLongAgoWaitsUntilToldOtherwise) {
  pass(kLease);
  for (const std::size_t number : {0, 1, 2}) start(number);
  pass(kLease);
  world.end_meeting();
  island(2).attendee.reset();
  settle();
  pass(3 * kLease);
  world.begin_meeting();
  pass(3 * kLease);
  EXPECT_EQ(world.meeting->waits_for(), std::vector<std::string>{"c"});
  world.meeting->go_on_without("c");
  pass(1s);
  EXPECT_EQ(names_in(0), "ab");
}

TEST_F(Together, ANewcomerWithoutTheStateDoesNotGoOnAloneWhileOneWithItMay) {
  hands_over = false;
  pass(kLease);
  start(0);
  start(1);
  EXPECT_EQ(names_in(1), "ab");
  EXPECT_TRUE(island(0).has_state);
  world.lose_connection(island(0));
  island(0).cut = true;
  pass(3 * kLease);
  EXPECT_EQ(names_in(1), "ab");
  EXPECT_EQ(world.meeting->waits_for(), std::vector<std::string>{"a"});
  world.end_meeting();
  world.begin_meeting();
  pass(3 * kLease);
  EXPECT_EQ(world.meeting->waits_for(), std::vector<std::string>{"a"});
  island(0).cut = false;
  settle();
  EXPECT_TRUE(island(0).has_state);
  hands_over = true;
  settle();
  EXPECT_TRUE(island(1).has_state);
  world.kill(island(0));
  pass(1s);
  EXPECT_EQ(names_in(1), "b");
  EXPECT_TRUE(island(1).has_state);
}

TEST_F(Together, ANewcomerBeginsAnewWhereTheOneWithTheStateHasEnded) {
  hands_over = false;
  pass(kLease);
  start(0);
  start(1);
  world.leave(island(0));
  settle();
  EXPECT_EQ(names_in(1), "b");
  EXPECT_TRUE(island(1).has_state);
}

TEST_F(Together, OneThatLostItsConnectionBeforeTheMeetingPointDiedIsNotSureOfTheLastEpoch) {
  pass(kLease);
  for (const std::size_t number : {0, 1, 2}) start(number);
  pass(kLease);
  world.lose_connection(island(0));
  island(0).cut = true;
  pass(1s);
  EXPECT_EQ(names_in(1), "bc");
  world.end_meeting();
  island(0).cut = false;
  island(1).cut = island(2).cut = true;
  settle();  // a's connections are refused
  world.begin_meeting();
  pass(3 * kLease);
  EXPECT_EQ(names_in(0), "abc");
  EXPECT_EQ(world.meeting->waits_for(), (std::vector<std::string>{"b", "c"}));
}

TEST_F(Together, OfTwoThatCannotConnectTheLastThatCameIsLeftOut) {
  pass(kLease);
  for (const std::size_t number : {0, 1, 2}) start(number);
  world.waits_for(island(1), {{.island = "c", .time = kLongWait - 1s}});
  pass(kLease);
  EXPECT_EQ(names_in(0), "abc");
  world.waits_for(island(1), {{.island = "c", .time = kLongWait}});
  pass(kLease / 2);
  EXPECT_THAT(island(2).attendee->left_out(), testing::HasSubstr("can't connect to each other"));
  EXPECT_EQ(names_in(0), "ab");
  pass(2 * kLease);
  EXPECT_EQ(names_in(0), "ab");
  EXPECT_EQ(names_in(1), "ab");
}

TEST_F(Together, OneThatLacksMostConnectionsIsLeftOut) {
  pass(kLease);
  for (const std::size_t number : {0, 1, 2}) start(number);
  world.waits_for(island(0), {{.island = "b", .time = kLongWait}, {.island = "c", .time = kLongWait}});
  pass(kLease / 2);
  EXPECT_EQ(names_in(1), "bc");
  EXPECT_NE(island(0).attendee->left_out(), "");
}

TEST_F(Together, WhoKeepsOthersWaitingIsToldAndThenLeftOut) {
  pass(kLease);
  for (const std::size_t number : {0, 1, 2}) start(number);
  // `a` leads and waits for `c`; `b` waits for `a`.
  const auto wait = [&](Time time) {
    world.waits_for(island(0), {{.island = "c", .time = time, .connected = true}});
    world.waits_for(island(1), {{.island = "a", .time = time, .connected = true}});
    pass(kLease / 2);
  };
  wait(kLongWait - 1s);
  EXPECT_FALSE(island(2).attendee->awaited());
  wait(kLongWait);
  EXPECT_TRUE(island(2).attendee->awaited());
  EXPECT_FALSE(island(0).attendee->awaited());
  EXPECT_EQ(world.meeting->awaited(), std::vector<std::string>{"c"});
  EXPECT_EQ(names_in(0), "abc");
  wait(2 * kLongWait);
  EXPECT_THAT(island(2).attendee->left_out(), testing::HasSubstr("--leave-out-after"));
  EXPECT_EQ(names_in(0), "ab");
  world.kill(island(2));
  start(2);
  EXPECT_EQ(names_in(0), "abc");
}

TEST_F(Together, MostOfThemAreNotLeftOutNorTheOneWithTheState) {
  pass(kLease);
  for (const std::size_t number : {0, 1, 2}) start(number);
  world.waits_for(island(0), {{.island = "b", .time = 5 * kLongWait, .connected = true},
                              {.island = "c", .time = 5 * kLongWait, .connected = true}});
  pass(kLease);
  EXPECT_EQ(names_in(0), "abc");
  world.waits_for(island(0), {});
  for (const std::size_t number : {1, 2}) {
    world.kill(island(number));
    pass(1s);
  }
  hands_over = false;
  start(1);
  world.waits_for(island(1), {{.island = "a", .time = 5 * kLongWait, .connected = true}});
  pass(kLease);
  EXPECT_EQ(names_in(0), "ab");
  EXPECT_EQ(names_in(1), "ab");
}

TEST_F(Together, WhoTrainsSomethingElseIsRefusedWithTheReason) {
  pass(kLease);
  start(0);
  const auto refusal = [&](std::size_t number, std::vector<std::string> trains) {
    Here& other = island(number);
    other.life = other.name + "1";
    other.attendee.emplace(Island{.name = other.name, .life = other.life, .trains = std::move(trains)});
    settle();
    return other.attendee->refused();
  };
  EXPECT_NE(refusal(1, {"y"}).find("something different from island 'a': 'y', not 'x'"), std::string::npos);
  EXPECT_EQ(names_in(0), "a");
  EXPECT_NE(refusal(2, {"x", "moments local"}).find("something different from island 'a': 'moments local'"),
            std::string::npos);
}

TEST_F(Together, OneThatStartsAgainIsANewcomerAndTheLineEndsWithItsLast) {
  pass(kLease);
  start(0);
  const std::string line = island(0).attendee->epoch()->line;
  start(1);
  world.kill(island(1));
  start(1);
  pass(2s);
  EXPECT_EQ(names_in(1), "ab");
  EXPECT_EQ(island(1).attendee->epoch()->line, line);
  world.kill(island(0));
  world.kill(island(1));
  start(1);
  pass(2s);
  EXPECT_EQ(names_in(1), "");  // the other may go on
  start(0);
  pass(2s);
  EXPECT_EQ(names_in(1), "ab");
  EXPECT_NE(island(1).attendee->epoch()->line, line);
}

TEST_F(Together, WhatTheMeetingPointDiedOverIsHeardFromAnother) {
  pass(kLease);
  start(0);
  world.start(island(1));
  world.connect(island(1));
  world.carry_to(island(1));
  world.post();
  for (const std::size_t number : {0, 1}) {
    world.carry_from(island(number));
    world.carry_to(island(number));
  }
  world.post();
  world.carry_from(island(1));  // in force there; `a` has agreed
  world.end_meeting();
  EXPECT_EQ(names_in(0), "a");
  const Epoch epoch = *island(1).attendee->epoch();
  EXPECT_FALSE(island(0).attendee->heard_in_force(epoch.line, epoch.number, "another"));
  EXPECT_TRUE(island(0).attendee->heard_in_force(epoch.line, epoch.number, epoch.by));
  EXPECT_EQ(names_in(0), "ab");
}

}  // namespace
}  // namespace gradweave::islands
