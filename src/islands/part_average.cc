#include "islands/part_average.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/thread.h"
#include "gradweave/error.h"
#include "islands/part_round.h"
#include "islands/part_state.h"

namespace gradweave::islands {
namespace {

// What all fragments have left, as of the whole part; nothing if that is nothing.
std::shared_ptr<const Rest> joined(const std::vector<std::shared_ptr<const Rest>>& rests,
                                   const std::vector<Elements>& fragments) {
  auto all = std::make_shared<Rest>();
  for (std::size_t f = 0; f < rests.size(); ++f) {
    if (!rests[f]) continue;
    const std::int64_t begin = fragments[f].begin + rests[f]->begin;
    if (all->values.empty()) all->begin = begin;
    all->values.resize(static_cast<std::size_t>(begin - all->begin));
    all->values.insert(all->values.end(), rests[f]->values.begin(), rests[f]->values.end());
  }
  return all->values.empty() ? nullptr : all;
}

// The same of one fragment.
std::shared_ptr<const Rest> cut(const std::shared_ptr<const Rest>& rest, const Elements& fragment) {
  if (!rest) return nullptr;
  const std::int64_t begin = std::max(rest->begin, fragment.begin);
  const std::int64_t end = std::min(rest->begin + std::ssize(rest->values), fragment.end);
  if (begin >= end) return nullptr;
  const auto first = rest->values.begin() - rest->begin;
  return std::make_shared<const Rest>(
      Rest{.begin = begin - fragment.begin, .values = {first + begin, first + end}});
}

}  // namespace

class PartAverage::Core {
 public:
  Core(const PartOptions& options, std::span<const float> values)
      : options_(options),
        fragments_(fragments_of(options)),
        now_{.anchor = {values.begin(), values.end()},
             .momentum = std::vector<float>(options.outer ? values.size() : 0, 0.0F)},
        thread_([workshop = workshop_] { workshop->queue.run(); }, [](const std::string&) {}) {}
  ~Core() {
    end_all();
    workshop_->queue.close();
    thread_.join();
  }
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  bool has_rest() const {
    return std::ranges::any_of(rests_, [](const auto& rest) { return rest != nullptr; });
  }
  void begin(const Average& average, std::span<const float> values);
  void land(std::span<float> delta);
  void drop();
  void set_anchor(std::span<const float> values, std::optional<std::int64_t> landed);
  void give(const std::string& name, Peer to, std::int64_t transfer, const Extra& extra);
  void take(Peer from, std::int64_t transfer);
  std::optional<std::int64_t> catch_up();
  void taken();

  const PartOptions options_;
  const std::vector<Elements> fragments_;
  const std::shared_ptr<Workshop> workshop_ = std::make_shared<Workshop>();
  Snapshot now_;
  std::vector<std::shared_ptr<const Rest>> rests_ =
      std::vector<std::shared_ptr<const Rest>>(fragments_.size());  // by fragment
  std::int64_t begun_ = 0, landed_ = 0;                             // the last averages that have
  std::shared_ptr<Round> round_;
  std::map<std::string, std::shared_ptr<Giver>> givers_;
  std::shared_ptr<Taker> taker_;
  Extra extra_;
  std::optional<SampleSquares> sampled_;

 private:
  void end_all();
  void check_settled(const char* what) const;
  void changed(const Change& change);
  // What an average is of.
  Elements elements(bool exact) const {
    return exact ? Elements{.begin = 0, .end = options_.count} : fragments_[now_.turn];
  }

  bool exact_ = false;  // of the average that has begun last
  bool has_state_ = true;
  std::vector<std::shared_ptr<Round>> landed_rounds_;  // others may still wait for their means
  std::weak_ptr<const Snapshot> snapshot_;             // of now, if it is given to somebody
  Thread thread_;
};

void PartAverage::Core::end_all() {
  drop();
  landed_rounds_.clear();
  givers_.clear();
  taker_.reset();
}

// No average is under way, or complete.
void PartAverage::Core::check_settled(const char* what) const {
  if (!round_ || round_->progress() == Progress::kFailed) return;
  throw InvalidInput("average " + std::to_string(begun_) + " has begun", what, "land or drop it first");
}

void PartAverage::Core::begin(const Average& average, std::span<const float> values) {
  check_settled("begin");
  if (taker_) throw InvalidInput("the state is being taken", "begin", "call taken() first");
  check_average(average, std::max(begun_, landed_));
  const auto [first, last] = elements(average.exact);
  check_count(values.size(), last - first, "begin: values");
  drop();
  std::erase_if(landed_rounds_, [](const auto& each) { return each->is_over(); });
  begun_ = average.number;
  exact_ = average.exact;
  round_ = std::make_shared<Round>(
      workshop_, options_, average, exact_ ? joined(rests_, fragments_) : rests_[now_.turn], values,
      std::span(now_.anchor).subspan(static_cast<std::size_t>(first), values.size()));
  round_->start();
}

void PartAverage::Core::drop() {
  if (!round_) return;
  round_->end();
  round_.reset();
}

void PartAverage::Core::land(std::span<float> delta) {
  if (!round_ || round_->progress() != Progress::kComplete)
    throw InvalidInput("no average is complete", "land", "wait until progress() says so");
  const auto [first, last] = elements(exact_);
  check_count(delta.size(), last - first, "land: delta");
  round_->land(options_.outer.value_or(codec::Outer{}), fragments_.back().end - first, delta.data(),
               now_.anchor.data() + first, options_.outer ? now_.momentum.data() + first : nullptr);
  const Change change{.what = exact_ ? Change::What::kExactMean : Change::What::kMean,
                      .number = begun_,
                      .fragment = now_.turn,
                      .bytes = round_->result()};
  const auto rest = round_->rest_after();
  if (exact_) {
    for (std::size_t f = 0; f < fragments_.size(); ++f) rests_[f] = cut(rest, fragments_[f]);
  } else {
    rests_[now_.turn] = rest;
    now_.turn = (now_.turn + 1) % fragments_.size();
  }
  landed_ = begun_;
  sampled_ = round_->sampled();
  changed(change);
  round_->retire();
  landed_rounds_.push_back(std::move(round_));
}

void PartAverage::Core::changed(const Change& change) {
  snapshot_.reset();
  for (const auto& [name, giver] : givers_) giver->add(change);
}

void PartAverage::Core::set_anchor(std::span<const float> values, std::optional<std::int64_t> landed) {
  check_settled("set_anchor");
  check_count(values.size(), options_.count, "set_anchor: values");
  std::ranges::copy(values, now_.anchor.begin());
  landed_ = landed.value_or(landed_);
  snapshot_.reset();
  if (givers_.empty()) return;
  const Bytes bytes = room_for(bytes_of(std::nullopt, options_.count));
  std::ranges::copy(std::as_bytes(values), bytes.get());
  changed({.what = Change::What::kAnchor, .number = landed_, .bytes = bytes});
}

void PartAverage::Core::give(const std::string& name, Peer to, std::int64_t transfer, const Extra& extra) {
  if (!has_state_)
    throw InvalidInput("this rank has no state yet", "give", "wait until catch_up() returns a number");
  givers_.erase(name);
  auto snapshot = snapshot_.lock();
  if (!snapshot) snapshot_ = snapshot = std::make_shared<const Snapshot>(now_);
  auto giver = std::make_shared<Giver>(workshop_, options_, std::move(to), transfer);
  giver->start(snapshot, landed_, extra);
  givers_[name] = std::move(giver);
}

void PartAverage::Core::take(Peer from, std::int64_t transfer) {
  end_all();
  std::ranges::fill(rests_, nullptr);
  extra_ = {};
  has_state_ = false;
  taker_ = std::make_shared<Taker>(workshop_, options_, std::move(from), transfer);
  taker_->start();
}

std::optional<std::int64_t> PartAverage::Core::catch_up() {
  if (!taker_) throw InvalidInput("no state is being taken", "catch_up", "call take() first");
  if (const std::string why = taker_->trouble(); !why.empty()) throw RuntimeFailure(why);
  if (auto state = taker_->take_state()) {
    now_ = std::move(state->snapshot);
    extra_ = std::move(state->extra);
    landed_ = state->number;
    has_state_ = true;
  }
  if (!has_state_) return std::nullopt;
  while (const auto change = taker_->take_change()) {
    apply(*change, options_, now_);
    landed_ = change->number;
    changed(*change);
  }
  return landed_;
}

void PartAverage::Core::taken() {
  taker_.reset();
  has_state_ = true;
}

PartAverage::PartAverage(const PartOptions& options, std::span<const float> values) {
  check_count(values.size(), options.count, "part: values");
  if (fragments_of(options).back().end > options.count)
    throw InvalidInput("are larger than the part", "fragments", "give so many elements as it has");
  core_ = std::make_unique<Core>(options, values);
}
PartAverage::~PartAverage() = default;

void PartAverage::begin(const Average& average, std::span<const float> values) {
  core_->begin(average, values);
}
Progress PartAverage::progress() const { return core_->round_ ? core_->round_->progress() : Progress::kNone; }
std::string PartAverage::trouble() const { return core_->round_ ? core_->round_->trouble() : ""; }
bool PartAverage::unlike() const { return core_->round_ && core_->round_->unlike(); }
std::size_t PartAverage::turn() const { return core_->now_.turn; }
void PartAverage::set_turn(std::size_t fragment) {
  if (fragment >= core_->fragments_.size())
    throw InvalidInput("there is no fragment " + std::to_string(fragment), "set_turn",
                       "give one that there is");
  core_->now_.turn = fragment;
}
std::int64_t PartAverage::number() const { return core_->begun_; }
void PartAverage::land(std::span<float> delta) { core_->land(delta); }
std::optional<SampleSquares> PartAverage::sampled() const { return core_->sampled_; }
void PartAverage::drop() { core_->drop(); }

std::span<const float> PartAverage::anchor() const { return core_->now_.anchor; }
std::span<const float> PartAverage::momentum() const { return core_->now_.momentum; }
void PartAverage::set_anchor(std::span<const float> values, std::optional<std::int64_t> landed) {
  core_->set_anchor(values, landed);
}
bool PartAverage::has_rest() const { return core_->has_rest(); }

void PartAverage::give(const std::string& name, Peer to, std::int64_t transfer, const Extra& extra) {
  core_->give(name, std::move(to), transfer, extra);
}
void PartAverage::give_no_more(const std::string& name) { core_->givers_.erase(name); }
void PartAverage::take(Peer from, std::int64_t transfer) { core_->take(std::move(from), transfer); }
std::optional<std::int64_t> PartAverage::catch_up() { return core_->catch_up(); }
std::span<const std::byte> PartAverage::extra() const { return core_->extra_.bytes; }
void PartAverage::taken() { core_->taken(); }
void PartAverage::begin_anew(std::span<const float> values) {
  core_->taken();
  core_->now_.turn = 0;
  std::ranges::fill(core_->now_.momentum, 0.0F);
  core_->set_anchor(values, std::nullopt);
}

std::int64_t PartAverage::bytes_sent() const { return core_->workshop_->bytes_sent; }
std::int64_t PartAverage::float_bytes_sent() const { return core_->workshop_->float_bytes_sent; }

}  // namespace gradweave::islands
