#include "run/fake.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <thread>
#include <utility>

#include "gradweave/error.h"

namespace gradweave::testing {
namespace {

using run::Execution;
using run::Part;

constexpr auto kPatience = std::chrono::seconds(20);
constexpr std::size_t kDeviceQueue = 0;  // of a network, where links return at once

std::uint32_t mixed(std::initializer_list<std::int64_t> numbers) {
  std::uint64_t hash = 0x9e3779b97f4a7c15;
  for (std::int64_t n : numbers) {
    hash = (hash ^ static_cast<std::uint64_t>(n)) * 0xbf58476d1ce4e5b9;
    hash ^= hash >> 29;
  }
  return static_cast<std::uint32_t>(hash >> 16);
}

void pause(std::mt19937& random) {
  switch (random() % 8) {
    case 0:
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 200));
      break;
    case 1:
      std::this_thread::yield();
      break;
    default:
      break;
  }
}

std::string identity(const Execution& execution) {
  return execution.op->label + " of iteration " + std::to_string(execution.iteration) + ", place " +
         std::to_string(execution.place);
}

}  // namespace

// ---- job

bool Job::used(int rank, std::int64_t iteration, std::int32_t tensor) const {
  if (!leaves_unused || tensor == 0) return true;
  if (one_program) rank = 0;
  if (mixed({seed, 1, tensor}) % 5 == 0) return false;  // on no rank, ever
  return mixed({seed, 2, rank, iteration, tensor}) % 3 != 0;
}

bool Job::accumulates_in(std::int64_t iteration) const {
  return accumulates && mixed({seed, 3, iteration}) % 3 == 0;
}

bool Job::overflows(int rank, std::int64_t iteration) const {
  return mixed({seed, 4, rank, iteration}) % 1000 < 1000 * spoilt;
}

int Job::drops(std::int64_t iteration) const {
  if (mixed({seed, 8, iteration}) % 1000 >= 1000 * dropped) return 0;
  return 1 + static_cast<int>(mixed({seed, 9, iteration}) % 3);
}

Values Job::gradient(int rank, std::int64_t iteration, int pass, std::int32_t tensor,
                     const Values& parameter) const {
  Values gradient(parameter.size());
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    const auto noise = mixed({seed, 5, rank, iteration, pass, tensor, static_cast<std::int64_t>(i)}) % 64;
    gradient[i] = parameter[i] / 8 + static_cast<double>(noise) / 16 - 2;
  }
  return gradient;
}

void step_elements(Values& parameter, Values& momentum, const Values& gradient, std::int64_t begin,
                   std::int64_t end) {
  for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
    momentum[i] = momentum[i] / 2 + gradient[i];
    parameter[i] -= momentum[i] / 4;
  }
}

// ---- network

Ranks all_ranks(int world_size) {
  Ranks ranks;
  for (int r = 0; r < world_size; ++r) ranks.push_back(r);
  return ranks;
}

template <typename Condition>
void Network::await(std::unique_lock<std::mutex>& lock, Condition condition) {
  came_.wait_for(lock, kPatience, [&] { return !verdict_.empty() || condition(); });
  if (!condition() && !verdict_.empty()) throw RuntimeFailure(verdict_);
}

void Network::contribute(std::size_t link, std::size_t sequence, int rank, const Ranks& group,
                         Contribution contribution) {
  const std::lock_guard lock(mutex_);
  ops_[link][{sequence, group.front()}].there.emplace(rank, std::move(contribution));
  came_.notify_all();
}

std::vector<Network::Contribution> Network::meet(std::size_t link, std::size_t sequence, const Ranks& group) {
  std::unique_lock lock(mutex_);
  Meeting& meeting = ops_[link][{sequence, group.front()}];
  const auto all = [&] { return meeting.there.size() == group.size(); };
  await(lock, [&] { return closed_ || all(); });
  if (!all()) throw std::runtime_error("a rank stays away");
  std::vector<Contribution> contributions;
  for (const auto& [rank, contribution] : meeting.there) {
    if (!contributions.empty() && contributions[0].what != contribution.what)
      throw std::runtime_error("ranks meet in different ops: " + contributions[0].what + " and " +
                               contribution.what);
    contributions.push_back(contribution);
  }
  return contributions;
}

std::string Network::give_up(const std::string& verdict) {
  const std::lock_guard lock(mutex_);
  if (verdict_.empty()) verdict_ = verdict;
  came_.notify_all();
  return verdict_;
}

void Network::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  came_.notify_all();
}

void Network::bring(const std::string& name, int rank, Values values) {
  const std::lock_guard lock(mutex_);
  exchanges_[name].emplace(rank, std::move(values));
  came_.notify_all();
}

std::vector<Values> Network::exchange(const std::string& name, int rank, Values values) {
  bring(name, rank, std::move(values));
  std::unique_lock lock(mutex_);
  const auto& there = exchanges_[name];
  const auto all = [&] { return there.size() == static_cast<std::size_t>(world_size_); };
  await(lock, all);
  if (!all()) throw std::runtime_error("a rank stays away");
  std::vector<Values> result;
  for (const auto& [from, theirs] : there) result.push_back(theirs);
  return result;
}

std::vector<std::string> FakePeers::agree(const std::string& what, const std::string& post,
                                          std::chrono::milliseconds) {
  std::vector<std::string> posts;
  Values mine{static_cast<double>(iteration_)};
  mine.insert(mine.end(), post.begin(), post.end());
  for (const Values& theirs : network_.exchange("meeting " + std::to_string(meetings_++), rank_, mine)) {
    if (theirs.front() != mine.front())
      throw RuntimeFailure(what + ": ranks come after different iterations");
    posts.emplace_back(theirs.begin() + 1, theirs.end());
  }
  return posts;
}

// ---- channel

class FakeChannel::Started : public run::Pending {
 public:
  // The message's elements [begin, end) take part.
  Started(Network& network, const Execution& execution, std::size_t link, std::size_t sequence, int rank,
          Ranks group, std::size_t begin, std::size_t end, std::uint32_t seed, FakeMessage& message)
      : network_(network),
        execution_(execution),
        link_(link),
        sequence_(sequence),
        rank_(rank),
        group_(std::move(group)),
        begin_(begin),
        elements_(end - begin),
        random_(seed),
        message_(message) {
    const auto first = message.flat.begin() + static_cast<std::ptrdiff_t>(begin);
    network_.contribute(link, sequence, rank, group_,
                        {identity(execution), {first, first + static_cast<std::ptrdiff_t>(elements_)}});
  }

  // What takes no part, or isn't complete here, is undefined.
  void wait() override {
    const RunOp& op = *execution_.op;
    const auto contributions = network_.meet(link_, sequence_, group_);
    pause(random_);
    const auto edge = [&](std::size_t part) { return elements_ * part / group_.size(); };
    Values result(static_cast<std::size_t>(op.elements), std::numeric_limits<double>::quiet_NaN());
    for (std::size_t p = 0; p < group_.size(); ++p) {
      if (op.collective == Collective::kReduceScatter && group_[p] != rank_) continue;
      for (std::size_t i = edge(p); i < edge(p + 1); ++i) {
        double& to = result[begin_ + i];
        if (op.collective == Collective::kAllGather) {
          to = contributions[p].values[i];
        } else {
          to = 0;
          for (const Network::Contribution& contribution : contributions) to += contribution.values[i];
        }
      }
    }
    if (op.keep_own && op.payload == Payload::kGradient && !op.goes_on) {
      for (std::size_t i = 0; i < result.size(); ++i) result[i] -= message_.own[i];
    }
    message_.flat = std::move(result);
  }

 private:
  Network& network_;
  const Execution& execution_;
  std::size_t link_, sequence_;
  int rank_;
  Ranks group_;
  std::size_t begin_, elements_;
  std::mt19937 random_;
  FakeMessage& message_;
};

FakeChannel::FakeChannel(Network& network, const Plan& plan, std::size_t link, int rank, const Job& job,
                         std::shared_ptr<std::vector<FakeMessage>> messages,
                         std::shared_ptr<Launches> launches, bool ordered, std::shared_ptr<FakeDevice> device)
    : network_(network),
      link_(link),
      rank_(rank),
      group_(all_ranks(job.world_size)),
      ordered_(ordered),
      broken_(job.broken_threads),
      random_(mixed({job.seed, 6, rank, static_cast<std::int64_t>(link)})),
      messages_(std::move(messages)),
      launches_(std::move(launches)),
      device_(std::move(device)) {
  const auto of_node = static_cast<int>(plan.workers_per_node);
  const Level level = plan.links[link].level;
  std::erase_if(group_, [&](int other) {
    return (level == Level::kInside && other / of_node != rank / of_node) ||
           (level == Level::kBetween && other % of_node != rank % of_node);
  });
  if (level == Level::kBetween) shard_ = rank % of_node, shards_ = of_node;
}

std::unique_ptr<run::Channel::Scope> FakeChannel::enter_thread() {
  if (broken_) throw std::runtime_error("no stream is left");
  return nullptr;
}

std::unique_ptr<run::Pending> FakeChannel::start(const Execution& execution, std::size_t sequence) {
  FakeMessage& message = (*messages_)[execution.slot];
  if (execution.before != nullptr) {
    FakeMessage& half = (*messages_)[execution.before->slot];
    half.settle();
    message = std::move(half);
  }
  {
    const std::lock_guard lock(launches_->mutex);
    launches_->order.emplace_back(execution.run_iteration, execution.place);
  }
  pause(random_);
  const auto edge = [&](int shard) {
    return static_cast<std::size_t>(execution.op->elements * shard / shards_);
  };
  const auto begin = edge(shard_), end = edge(shard_ + 1);
  if (!device_) {
    return std::make_unique<Started>(network_, execution, link_, sequence, rank_, group_, begin, end,
                                     random_(), message);
  }
  device_->launched(execution);
  message.under_way = std::make_shared<Started>(network_, execution, kDeviceQueue, device_->enqueue(), rank_,
                                                group_, begin, end, random_(), message);
  struct Enqueued : run::Pending {
    void wait() override {}
  };
  return std::make_unique<Enqueued>();
}

// ---- host

void FakeHost::install(const RunPlan& run_plan, std::size_t slots) {
  plan_ = &run_plan;
  messages_ = std::make_shared<std::vector<FakeMessage>>(slots);
  residuals_.assign(run_plan.blocks.size(), {});
  if (!parameters_.empty()) return;
  for (const TensorPlace& tensor : run_plan.index.tensors) {
    parameters_.emplace_back(static_cast<std::size_t>(tensor.numel), 1.0);
    momenta_.emplace_back(static_cast<std::size_t>(tensor.numel), 0.0);
  }
  gradients_.resize(parameters_.size());
  forwarded_ = parameters_;
}

void FakeHost::take_over(FakeHost& other) {
  for (FakeMessage& message : *other.messages_) message.settle();
  parameters_ = other.parameters_;
  momenta_ = other.momenta_;
  noted_ = other.noted_;
  residuals_ = other.residuals_;
  *messages_ = *other.messages_;
}

std::int64_t FakeHost::length_of(std::int32_t block) const {
  const Block& place = plan_->blocks[static_cast<std::size_t>(block)];
  return place.end - place.begin;
}

void FakeHost::zero_grad() { std::ranges::fill(gradients_, Gradient()); }

void FakeHost::accumulate(std::int32_t tensor, std::int64_t iteration) {
  const auto t = static_cast<std::size_t>(tensor);
  gradients_[t] = job_.gradient(rank_, iteration, 1, tensor, forwarded_[t]);
}

void FakeHost::compute(std::int32_t tensor, std::int64_t iteration) {
  const auto t = static_cast<std::size_t>(tensor);
  Values now = job_.gradient(rank_, iteration, 0, tensor, forwarded_[t]);
  if (!gradients_[t]) {
    gradients_[t] = std::move(now);
    return;
  }
  for (std::size_t i = 0; i < now.size(); ++i) (*gradients_[t])[i] += now[i];
}

bool FakeHost::begin_backward() {
  residuals_before_ = residuals_;
  return job_.spoilt > 0;
}

void FakeHost::take_gradient(std::int32_t tensor, run::Gradient kind) {
  compensated_block_ = -1;
  taken_ = kind == run::Gradient::kNone ? Gradient() : gradients_[static_cast<std::size_t>(tensor)];
}

void FakeHost::compensate(std::int32_t block, double coefficient, bool sent) {
  const Block& place = plan_->blocks[static_cast<std::size_t>(block)];
  Gradient& residual = residuals_[static_cast<std::size_t>(block)];
  compensated_block_ = block;
  compensated_.reset();
  if (taken_) compensated_ = Values(taken_->begin() + place.begin, taken_->begin() + place.end);
  if (residual) {
    if (!compensated_) compensated_ = Values(residual->size(), 0.0);
    for (std::size_t i = 0; i < residual->size(); ++i) (*compensated_)[i] += coefficient * (*residual)[i];
  }
  residual = sent ? Gradient() : compensated_;
}

void FakeHost::restore_residuals() { residuals_ = residuals_before_; }

FakeMessage& FakeHost::opened(const Execution& execution) {
  FakeMessage& message = (*messages_)[execution.slot];
  message.flat.resize(static_cast<std::size_t>(execution.op->elements));
  message.own.resize(static_cast<std::size_t>(execution.op->elements));
  return message;
}

void FakeHost::write_gradient(const Execution& execution, std::size_t at, bool first,
                              std::int32_t iterations) {
  FakeMessage& message = opened(execution);
  const std::int32_t block = execution.op->blocks[at];
  const Block& place = plan_->blocks[static_cast<std::size_t>(block)];
  const bool compensated = compensated_block_ == block;
  const Gradient& from = compensated ? compensated_ : taken_;
  const auto begin = static_cast<std::size_t>(compensated ? 0 : place.begin);
  const auto offset = static_cast<std::size_t>(execution.op->offsets[at]);
  for (std::size_t i = 0; i < static_cast<std::size_t>(length_of(block)); ++i) {
    const double value = from ? (*from)[begin + i] : 0;
    double& to = message.flat[offset + i];
    double& own = message.own[offset + i];
    to = (first ? 0 : to) + value / (job_.world_size * iterations);
    own = (first ? 0 : own) + value;
  }
}

void FakeHost::read_parameter(const Execution& execution, std::size_t at) {
  FakeMessage& message = opened(execution);
  const Block& place = plan_->blocks[static_cast<std::size_t>(execution.op->blocks[at])];
  const auto tensor =
      static_cast<std::size_t>(plan_->block_tensor[static_cast<std::size_t>(execution.op->blocks[at])]);
  for (std::int64_t i = place.begin; i < place.end; ++i) {
    const auto to = static_cast<std::size_t>(execution.op->offsets[at] + i - place.begin);
    message.flat[to] = message.own[to] = parameters_[tensor][static_cast<std::size_t>(i)];
  }
  note_parameter(static_cast<std::int32_t>(tensor));
}

void FakeHost::landed(const Execution& execution) {
  if (!device_) return;
  device_->landed(execution);
  (*messages_)[execution.slot].settle();
}

void FakeHost::rescale(const Execution& execution, double factor) {
  for (double& value : (*messages_)[execution.slot].flat) value *= factor;
}

// What comes later must not depend on it.
void FakeHost::retire(const Execution& execution) { (*messages_)[execution.slot] = {}; }

Values FakeHost::part_of_message(const Values& message, const Part& part) const {
  const auto begin = static_cast<std::size_t>(part.offset);
  const auto length = static_cast<std::size_t>(length_of(part.block));
  if (begin + length > message.size()) throw std::logic_error("the message was given back too early");
  return {message.begin() + static_cast<std::ptrdiff_t>(begin),
          message.begin() + static_cast<std::ptrdiff_t>(begin + length)};
}

void FakeHost::put_gradient(std::int32_t tensor, std::span<const Part> parts, bool add) {
  Gradient& gradient = gradients_[static_cast<std::size_t>(tensor)];
  if (!gradient) gradient = Values(parameters_[static_cast<std::size_t>(tensor)].size(), 0.0);
  for (const Part& part : parts) {
    const Values values = part_of_message((*messages_)[part.from->slot].flat, part);
    const auto begin = static_cast<std::size_t>(plan_->blocks[static_cast<std::size_t>(part.block)].begin);
    for (std::size_t i = 0; i < values.size(); ++i)
      (*gradient)[begin + i] = (add ? (*gradient)[begin + i] : 0) + values[i];
  }
}

void FakeHost::drop_gradient(std::int32_t tensor) { gradients_[static_cast<std::size_t>(tensor)].reset(); }

void FakeHost::average_parameter(const Part& part) {
  const FakeMessage& message = (*messages_)[part.from->slot];
  const Values sum = part_of_message(message.flat, part), own = part_of_message(message.own, part);
  const Block& place = plan_->blocks[static_cast<std::size_t>(part.block)];
  const auto tensor = static_cast<std::size_t>(plan_->block_tensor[static_cast<std::size_t>(part.block)]);
  for (std::size_t i = 0; i < sum.size(); ++i) {
    double& to = parameters_[tensor][static_cast<std::size_t>(place.begin) + i];
    to = part.from->op->keep_own ? to + (sum[i] - job_.world_size * own[i]) / job_.world_size
                                 : sum[i] / job_.world_size;
  }
  note_parameter(static_cast<std::int32_t>(tensor));
}

void FakeHost::note_parameter(std::int32_t tensor) {
  noted_[tensor] = parameters_[static_cast<std::size_t>(tensor)];
}

bool FakeHost::parameter_changed(std::int32_t tensor) const {
  const auto noted = noted_.find(tensor);
  return noted != noted_.end() && noted->second != parameters_[static_cast<std::size_t>(tensor)];
}

void FakeHost::set_gradients_aside(std::span<const std::int32_t> tensors) {
  for (std::int32_t t : tensors)
    aside_.push_back(std::exchange(gradients_[static_cast<std::size_t>(t)], Gradient()));
}

void FakeHost::put_gradients_back(std::span<const std::int32_t> tensors) {
  for (std::size_t i = tensors.size(); i-- > 0;) {
    gradients_[static_cast<std::size_t>(tensors[i])] = std::move(aside_.back());
    aside_.pop_back();
  }
}

void FakeHost::step(const Stepped& stepped) {
  const auto step = [&](std::int32_t tensor, std::int64_t begin, std::int64_t end) {
    const auto t = static_cast<std::size_t>(tensor);
    if (gradients_[t]) step_elements(parameters_[t], momenta_[t], *gradients_[t], begin, end);
  };
  for (std::int32_t tensor : stepped.tensors)
    step(tensor, 0, std::ssize(parameters_[static_cast<std::size_t>(tensor)]));
  for (std::int32_t block : stepped.blocks) {
    const Block& place = plan_->blocks[static_cast<std::size_t>(block)];
    step(plan_->block_tensor[static_cast<std::size_t>(block)], place.begin, place.end);
  }
}

void FakeHost::begin_exchange(std::size_t slot, std::span<std::uint8_t> flags) {
  exchanges_[slot] = {exchanged_++, Values(flags.begin(), flags.end()), flags};
  const Exchange& begun = exchanges_.at(slot);
  network_.bring("flags " + std::to_string(begun.number), rank_, begun.mine);
}

void FakeHost::finish_exchange(std::size_t slot) {
  const Exchange& exchange = exchanges_.at(slot);
  for (const Values& theirs :
       network_.exchange("flags " + std::to_string(exchange.number), rank_, exchange.mine)) {
    for (std::size_t i = 0; i < theirs.size(); ++i)
      exchange.flags[i] = std::max(exchange.flags[i], static_cast<std::uint8_t>(theirs[i]));
  }
}

void FakeHost::average_over_ranks(std::span<const std::int32_t> tensors) {
  for (std::int32_t t : tensors) {
    Values& parameter = parameters_[static_cast<std::size_t>(t)];
    Values sum(parameter.size(), 0.0);
    for (const Values& theirs :
         network_.exchange("average " + std::to_string(exchanged_++), rank_, parameter)) {
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += theirs[i];
    }
    for (std::size_t i = 0; i < sum.size(); ++i) parameter[i] = sum[i] / job_.world_size;
  }
}

// ---- ranks

namespace {

class Rank {
 public:
  // `before`: goes on from there.
  Rank(const Plan& plan, const Workload& workload, Network& network, int rank, const Job& job, bool ordered,
       Rank* before = nullptr)
      : rank_(rank),
        job_(job),
        network_(network),
        device_(job.at_once ? std::make_shared<FakeDevice>() : nullptr),
        host_(network, rank, job, device_),
        run_(host_, std::make_shared<FakePeers>(network, rank),
             // Where links return at once the run waits for nothing.
             {.queue = {.timeout = job.at_once ? std::chrono::milliseconds(1) : kPatience,
                        .stall = std::chrono::milliseconds(5)},
              .find_unused = job.leaves_unused ? run::FindUnused::kOn : run::FindUnused::kAuto,
              .check = job.not_finite_rank >= 0,
              .world_size = job.world_size}),
        random_(mixed({job.seed, 7, rank})),
        program_(mixed({job.seed, 10, job.one_program ? 0 : rank})),
        launches_(std::make_shared<FakeChannel::Launches>()) {
    run_.install(run_plan_of(plan, workload));
    host_.install(run_.plan(), run_.slots());
    if (device_) device_->restart();
    if (before != nullptr) go_on(*before);
    std::vector<std::shared_ptr<run::Channel>> channels;
    for (std::size_t k = 0; k < plan.links.size(); ++k) {
      channels.push_back(std::make_shared<FakeChannel>(network, plan, k, rank, job, host_.messages(),
                                                       launches_, ordered, device_));
    }
    run_.start(std::move(channels));
  }

  void iterate() {
    const std::int64_t n = done_++;
    if (run_.taken_away()) run_.skip();
    host_.set_iteration(n);
    host_.zero_grad();
    const std::vector<std::int32_t> tensors = in_backward_order(n);
    if (job_.accumulates_in(n)) {
      run_.set_communicating(false);
      forward(n);
      backward_start();
      for (std::int32_t t : tensors) {
        host_.accumulate(t, n);
        run_.gradient(t);
        own_collective();
      }
      run_.set_communicating(true);
    }
    forward(n);
    backward_start();
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      pause(random_);
      host_.compute(tensors[i], n);
      backward_ends_above(i + 1 < tensors.size() ? layer_of(tensors[i + 1]) : -1);
      run_.gradient(tensors[i]);
      own_collective();
    }
    backward_ends_above(-1);
    run_.finish_backward();
    own_collective();
    end_iteration(job_.drops(n));
    own_collective();
  }

  FakeHost& host() { return host_; }
  std::int64_t done() const { return done_; }
  void drain() {
    if (device_) device_->drain();
    run_.drain("finish()");
    if (device_) device_->restart();
    now_ = 0;
  }

  void add_to(Outcome& outcome) const {
    outcome.parameters.push_back(host_.parameters());
    const std::lock_guard lock(launches_->mutex);  // after an error links go on for a while
    outcome.launches.push_back(launches_->order);
    outcome.counters.push_back(run_.counters());
  }

 private:
  void go_on(Rank& before) {
    if (device_) before.device_->drain();
    before.run_.rest();
    run::Archive written;
    before.run_.archive(written);
    run::Archive read(written.numbers());
    run_.archive(read);
    read.end();
    host_.take_over(before.host_);
    done_ = before.done_;
    now_ = before.now_;
    if (!device_) return;
    device_->go_on_from(*before.device_, now_);
    for (std::size_t l = 0; l < run_.plan().layers;
         ++l) {  // rest() has applied what the coming forward would
      if (!run_.plan()[now_].at_forward[l].empty()) forward_starts(static_cast<std::int32_t>(l));
    }
  }

  // ---- what the device is told of the loop, before the run is

  void pass(PointKind kind, std::int32_t layer = 0) {
    if (device_) device_->pass(kind, layer, now_);
  }
  void forward_starts(std::int32_t layer) {
    for (const std::int32_t before : run_.plan()[now_].updated_before[static_cast<std::size_t>(layer)])
      pass(PointKind::kForwardStart, before);
    pass(PointKind::kForwardStart, layer);
  }
  // Of these layers all gradients have come.
  void backward_ends_above(std::int32_t layer) {
    for (auto l = static_cast<std::int32_t>(run_.plan().layers); --l > layer;)
      pass(PointKind::kBackwardEnd, l);
  }

  // Now and then, where links return at once: a collective beside the plan's.
  void own_collective() {
    if (!device_ || program_() % 4 != 0) return;
    const std::size_t sequence = device_->enqueue();
    const Ranks all = all_ranks(job_.world_size);
    network_.contribute(kDeviceQueue, sequence, rank_, all, {"the loop's own " + std::to_string(own_++), {}});
    if (program_() % 2 == 0) network_.meet(kDeviceQueue, sequence, all);
  }

  void backward_start() {
    pass(PointKind::kBackwardStart);
    run_.backward_start();
  }

  void end_iteration(int drops) {
    if (drops > 1) host_.zero_grad();
    if (drops > 2) return;
    pass(PointKind::kIterationEnd);
    ++now_;
    pass(PointKind::kIterationStart);
    drops == 1 ? run_.skip() : run_.end_iteration();
  }

  // Layers in about their order: the real one may differ from the plan's. Unused layers do not run.
  void forward(std::int64_t n) {
    const WorkloadIndex& index = run_.plan().index;
    std::vector<std::int32_t> layers;
    for (std::size_t l = 0; l < index.layer_count; ++l) {
      bool used = index.first_tensor[l] == index.first_tensor[l + 1];
      for (std::size_t t = index.first_tensor[l]; t < index.first_tensor[l + 1]; ++t)
        used |= job_.used(rank_, n, static_cast<std::int32_t>(t));
      if (used) layers.push_back(static_cast<std::int32_t>(l));
    }
    if (job_.reorders && layers.size() > 1 && program_() % 2 == 0) {
      const std::size_t i = program_() % (layers.size() - 1);
      std::swap(layers[i], layers[i + 1]);
    }
    const std::vector<std::int32_t> hooked = run_.forward_layers();
    for (std::int32_t l : layers) {
      const bool calls = std::ranges::find(hooked, l) != hooked.end();
      if (calls) {
        forward_starts(l);
        run_.forward_start(l);
      }
      for (std::size_t t = index.first_tensor[static_cast<std::size_t>(l)];
           t < index.first_tensor[static_cast<std::size_t>(l) + 1]; ++t)
        host_.forward(static_cast<std::int32_t>(t));
      pause(random_);
      if (calls) {
        if (run_.communicating()) pass(PointKind::kForwardEnd, l);
        run_.forward_end(l);
      }
      own_collective();
    }
  }

  std::int32_t layer_of(std::int32_t tensor) const {
    return static_cast<std::int32_t>(run_.plan().index.tensors[static_cast<std::size_t>(tensor)].layer);
  }
  // Those that the rank uses.
  std::vector<std::int32_t> in_backward_order(std::int64_t n) const {
    std::vector<std::int32_t> tensors;
    for (auto t = static_cast<std::int32_t>(run_.plan().index.tensors.size()); t-- > 0;) {
      if (job_.used(rank_, n, t)) tensors.push_back(t);
    }
    return tensors;
  }

  int rank_;
  Job job_;
  Network& network_;
  std::shared_ptr<FakeDevice> device_;  // null: links have threads
  FakeHost host_;
  run::Run run_;
  std::mt19937 random_;
  std::mt19937 program_;  // of what the loop does: alike on all ranks where they run one program
  std::shared_ptr<FakeChannel::Launches> launches_;
  std::int64_t done_ = 0;
  std::int64_t now_ = 0;  // iteration of the plan
  std::int64_t own_ = 0;  // collectives of the loop
};

}  // namespace

Outcome train(const Plan& plan, const Workload& workload, const Job& job,
              const std::vector<std::int64_t>& stops, bool ordered_launches,
              const std::function<void(FakeHost&, std::int64_t)>& after) {
  Network network(job.world_size, plan.links.size()), later(job.world_size, plan.links.size());
  Outcome outcome;
  outcome.errors.resize(static_cast<std::size_t>(job.world_size));
  std::vector<std::unique_ptr<Rank>> ranks(static_cast<std::size_t>(job.world_size));
  std::vector<std::thread> threads;
  for (int r = 0; r < job.world_size; ++r) {
    threads.emplace_back([&, r] {
      const auto place = static_cast<std::size_t>(r);
      try {
        ranks[place] = std::make_unique<Rank>(plan, workload, network, r, job, ordered_launches);
        for (std::int64_t stop : stops) {
          for (std::int64_t n = 0; n < stop; ++n) {
            ranks[place]->iterate();
            if (ranks[place]->done() == job.resumed_after) {
              ranks[place] =
                  std::make_unique<Rank>(plan, workload, later, r, job, ordered_launches, ranks[place].get());
            }
            if (after) after(ranks[place]->host(), n);
          }
          ranks[place]->drain();
        }
      } catch (const std::exception& error) {
        outcome.errors[place] = error.what();
        if (!job.at_once) return;  // the links' threads tell the others
        network.give_up(error.what());
        later.give_up(error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  network.close();
  later.close();
  for (const auto& rank : ranks) rank->add_to(outcome);
  return outcome;
}

}  // namespace gradweave::testing
