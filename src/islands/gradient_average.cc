#include "islands/gradient_average.h"

#include <algorithm>
#include <cmath>
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
  if (number <= core.number) {
    throw InvalidInput("follows average " + std::to_string(core.number), where,
                       "number averages upwards from 1");
  }
  if (std::ranges::count_if(members, [](const auto& each) { return !each; }) != 1)
    throw InvalidInput("this rank is not one of its members, once", where, "put nothing in its place");
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
  if (values.size() != static_cast<std::size_t>(count)) {
    throw InvalidInput("has " + std::to_string(values.size()) + " elements and not " + std::to_string(count),
                       where, "give one for each element");
  }
  if (!std::isfinite(weight) || weight < 0) {
    throw InvalidInput("has weight " + std::to_string(weight), where,
                       "give one that is finite and not negative");
  }
  const Average average{.number = core.number,
                        .members = core.members,
                        .weight = weight,
                        .exact = true,
                        .channel = kFirstChannel + 2 * static_cast<std::uint32_t>(bucket)};
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
  std::size_t at = 0;
  for (const auto& round : core.rounds) at += round->mean().size();
  if (means.size() != at) {
    throw InvalidInput("has " + std::to_string(means.size()) + " elements and not " + std::to_string(at),
                       "land: means", "give one for each element of all buckets");
  }
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
