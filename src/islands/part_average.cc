#include "islands/part_average.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/thread.h"
#include "gradweave/error.h"
#include "islands/part_round.h"
#include "islands/part_state.h"

namespace gradweave::islands {
namespace {}  // namespace

class PartAverage::Core {
 public:
  Core(const PartOptions& options, std::span<const float> values)
      : options_(options),
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

  void begin(const Average& average, std::span<const float> values);
  void land(std::span<float> delta);
  void drop();
  void set_anchor(std::span<const float> values, std::optional<std::int64_t> landed);
  void give(const std::string& name, Peer to, std::int64_t transfer, const Extra& extra);
  void take(Peer from, std::int64_t transfer);
  std::optional<std::int64_t> catch_up();
  void taken();

  const PartOptions options_;
  const std::shared_ptr<Workshop> workshop_ = std::make_shared<Workshop>();
  Snapshot now_;
  std::shared_ptr<const Rest> rest_;
  std::int64_t begun_ = 0, landed_ = 0;  // the last averages that have
  std::shared_ptr<Round> round_;
  std::map<std::string, std::shared_ptr<Giver>> givers_;
  std::shared_ptr<Taker> taker_;
  std::vector<std::byte> extra_;

 private:
  void end_all();
  void check_settled(const char* what) const;
  void changed(const Change& change);

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
  check_count(values.size(), options_.count, "begin: values");
  drop();
  std::erase_if(landed_rounds_, [](const auto& each) { return each->is_over(); });
  begun_ = average.number;
  round_ = std::make_shared<Round>(workshop_, options_, average, rest_, values, now_.anchor);
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
  check_count(delta.size(), options_.count, "land: delta");
  round_->land(options_.outer.value_or(codec::Outer{}), delta.data(), now_.anchor.data(),
               options_.outer ? now_.momentum.data() : nullptr);
  rest_ = round_->rest_after();
  landed_ = begun_;
  changed({.what = round_->format() ? Change::What::kMean : Change::What::kFloatMean,
           .number = landed_,
           .bytes = round_->result()});
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
  rest_.reset();
  extra_.clear();
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
  core_ = std::make_unique<Core>(options, values);
}
PartAverage::~PartAverage() = default;

void PartAverage::begin(const Average& average, std::span<const float> values) {
  core_->begin(average, values);
}
Progress PartAverage::progress() const { return core_->round_ ? core_->round_->progress() : Progress::kNone; }
std::string PartAverage::trouble() const { return core_->round_ ? core_->round_->trouble() : ""; }
bool PartAverage::unlike() const { return core_->round_ && core_->round_->unlike(); }
std::int64_t PartAverage::number() const { return core_->begun_; }
void PartAverage::land(std::span<float> delta) { core_->land(delta); }
void PartAverage::drop() { core_->drop(); }

std::span<const float> PartAverage::anchor() const { return core_->now_.anchor; }
std::span<const float> PartAverage::momentum() const { return core_->now_.momentum; }
void PartAverage::set_anchor(std::span<const float> values, std::optional<std::int64_t> landed) {
  core_->set_anchor(values, landed);
}
bool PartAverage::has_rest() const { return core_->rest_ != nullptr; }

void PartAverage::give(const std::string& name, Peer to, std::int64_t transfer, const Extra& extra) {
  core_->give(name, std::move(to), transfer, extra);
}
void PartAverage::give_no_more(const std::string& name) { core_->givers_.erase(name); }
void PartAverage::take(Peer from, std::int64_t transfer) { core_->take(std::move(from), transfer); }
std::optional<std::int64_t> PartAverage::catch_up() { return core_->catch_up(); }
const std::vector<std::byte>& PartAverage::extra() const { return core_->extra_; }
void PartAverage::taken() { core_->taken(); }

std::int64_t PartAverage::bytes_sent() const { return core_->workshop_->bytes_sent; }
std::int64_t PartAverage::float_bytes_sent() const { return core_->workshop_->float_bytes_sent; }

}  // namespace gradweave::islands
