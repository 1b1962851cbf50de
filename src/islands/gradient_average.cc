#include "islands/gradient_average.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/thread.h"
#include "gradweave/error.h"
#include "islands/part_round.h"

namespace gradweave::islands {
namespace {

constexpr std::uint32_t kFirstChannel = 4;

}  // namespace

class GradientAverage::Core {
 public:
  explicit Core(std::vector<std::int64_t> of_buckets)
      : counts(std::move(of_buckets)),
        thread([workshop = workshop] { workshop->queue.run(); }, [](const std::string&) {}) {}
  ~Core() {
    rounds.clear();
    landed.clear();
    workshop->queue.close();
    thread.join();
  }
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  const std::vector<std::int64_t> counts;
  const std::shared_ptr<Workshop> workshop = std::make_shared<Workshop>();
  std::int64_t number = 0;
  bool under_way = false;
  std::vector<std::optional<Peer>> members;
  std::vector<std::shared_ptr<Round>> rounds;  // of the buckets that were supplied
  std::vector<std::shared_ptr<Round>> landed;  // others may still wait for their means
  Thread thread;
};

GradientAverage::GradientAverage(std::vector<std::int64_t> counts)
    : core_(std::make_unique<Core>(std::move(counts))) {}
GradientAverage::~GradientAverage() = default;

void GradientAverage::begin(std::int64_t number, std::vector<std::optional<Peer>> members) {
  Core& core = *core_;
  const std::string where = "average " + std::to_string(number);
  if (core.under_way) throw InvalidInput("the one before is under way", where, "land or drop it first");
  check_average({.number = number, .members = members}, core.number);
  std::erase_if(core.landed, [](const auto& each) { return each->is_over(); });
  core.number = number;
  core.members = std::move(members);
  core.under_way = true;
}

void GradientAverage::supply(std::size_t bucket, double weight, std::span<const float> values) {
  Core& core = *core_;
  const std::string where = "bucket " + std::to_string(bucket);
  if (!core.under_way || bucket != core.rounds.size() || bucket >= core.counts.size())
    throw InvalidInput("is not the next one", where, "begin an average, and supply its buckets in order");
  const std::int64_t count = core.counts[bucket];
  check_count(values.size(), count, where);
  const Average average{.number = core.number,
                        .members = core.members,
                        .weight = weight,
                        .exact = true,
                        .channel = kFirstChannel + 2 * static_cast<std::uint32_t>(bucket)};
  check_average(average, core.number - 1);
  core.rounds.push_back(std::make_shared<Round>(core.workshop, PartOptions{.count = count}, average, nullptr,
                                                values, std::span<const float>{}));
  core.rounds.back()->start();
}

Progress GradientAverage::progress() const {
  if (!core_->under_way) return Progress::kNone;
  bool complete = core_->rounds.size() == core_->counts.size();
  for (const auto& round : core_->rounds) {
    const Progress progress = round->progress();
    if (progress == Progress::kFailed) return progress;
    complete &= progress == Progress::kComplete;
  }
  return complete ? Progress::kComplete : Progress::kUnderWay;
}

std::string GradientAverage::trouble() const {
  for (const auto& round : core_->rounds) {
    if (std::string why = round->trouble(); !why.empty()) return why;
  }
  return "";
}

std::int64_t GradientAverage::number() const { return core_->number; }

void GradientAverage::land(std::span<float> means) {
  Core& core = *core_;
  if (progress() != Progress::kComplete)
    throw InvalidInput("no average is complete", "land", "wait until progress() says so");
  check_count(means.size(), std::accumulate(core.counts.begin(), core.counts.end(), std::int64_t{0}),
              "land: means");
  auto to = means.begin();
  for (auto& round : core.rounds) {
    to = std::ranges::copy(round->mean(), to).out;
    round->retire();
    core.landed.push_back(std::move(round));
  }
  core.rounds.clear();
  core.under_way = false;
}

void GradientAverage::drop() {
  for (const auto& round : core_->rounds) round->end();
  core_->rounds.clear();
  core_->under_way = false;
}

std::int64_t GradientAverage::bytes_sent() const { return core_->workshop->bytes_sent; }

}  // namespace gradweave::islands
