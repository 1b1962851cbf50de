#include "runtime/group_channel.h"

#include <ATen/ops/empty.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <array>
#include <thread>
#include <utility>

#include "gradweave/error.h"
#include "model/hash.h"
#include "runtime/transport/exchange.h"

namespace gradweave::runtime {

using Clock = std::chrono::steady_clock;

// An op under way, from its data to its result.
class GroupChannel::Started : public Pending {
 public:
  Started(const RunOp& op, Message& message, c10::Device device)
      : op_(op), message_(message), device_(device), range_(at::RecordScope::FUNCTION) {
    if (range_.isActive()) range_.before(op.label);
  }

  void begin(std::unique_ptr<Pending> work, Clock::time_point end) {
    work_ = std::move(work);
    end_ = end;
  }

  void wait() override {
    if (work_) work_->wait();
    if (op_.keep_own && op_.payload == Payload::kGradient && !op_.goes_on) message_.flat.sub_(message_.own);
    message_.gain ? message_.gain->land(message_.groups, message_.flat, message_.own)
                  : message_.result.record(device_);
    std::this_thread::sleep_until(end_);
  }

 private:
  const RunOp& op_;
  Message& message_;
  c10::Device device_;
  at::RecordFunction range_;
  std::unique_ptr<Pending> work_;
  Clock::time_point end_;
};

namespace {

bool has_ordered_launches(const LinkSpec& spec, const LinkOptions& options) {
  return spec.group && backend_of(*spec.group, options.device).ordered_launches;
}

}  // namespace

bool returns_at_once(const LinkSpec& spec, const LinkOptions& options) {
  return has_ordered_launches(spec, options) && !options.device.is_cpu() && !spec.emulation &&
         !options.staged;
}

GroupChannel::GroupChannel(LinkSpec spec, LinkOptions options, std::string hash,
                           std::shared_ptr<Messages> messages, std::shared_ptr<Coder> coder)
    : spec_(std::move(spec)),
      options_(std::move(options)),
      hash_(std::move(hash)),
      messages_(std::move(messages)),
      coder_(std::move(coder)) {
  if (spec_.emulation) emulated_.emplace(spec_.emulation);
}

GroupChannel::~GroupChannel() = default;

bool GroupChannel::ordered_launches() const { return has_ordered_launches(spec_, options_); }

bool GroupChannel::returns_at_once() const { return runtime::returns_at_once(spec_, options_); }

std::unique_ptr<run::Channel::Scope> GroupChannel::enter_thread() {
  struct ThreadsStream : Scope {
    explicit ThreadsStream(c10::Device device) : own(device) {}
    OwnStream own;
  };
  struct LinksStream : Scope {
    explicit LinksStream(c10::Stream stream) : own(stream) {}
    OwnStream own;
  };
  if (!returns_at_once()) return std::make_unique<ThreadsStream>(options_.device);
  if (!stream_) stream_ = OwnStream::new_stream(options_.device);
  return std::make_unique<LinksStream>(*stream_);
}

void GroupChannel::hold(const run::Execution& execution) {
  Message& message = (*messages_)[execution.slot];
  if (!message.timer) message.timer = OwnStream::new_stream(options_.device);
  const OwnStream timer(*message.timer);
  options_.pause(execution.op->release.delay_ns);
  message.released.record(options_.device);
}

void GroupChannel::await_data(const run::Execution& execution) {
  const Message& message = (*messages_)[execution.slot];
  message.released.wait(options_.device);
  // Another thread's stream may have reduced it.
  if (execution.before != nullptr) (*messages_)[execution.before->slot].result.wait(options_.device);
  message.gain ? message.gain->await() : message.data.wait(options_.device);
}

std::unique_ptr<Pending> GroupChannel::start(const run::Execution& execution, std::size_t sequence) {
  const RunOp& op = *execution.op;
  Message& message = (*messages_)[execution.slot];
  if (execution.before != nullptr) {
    Message& before = (*messages_)[execution.before->slot];
    message.flat = std::move(before.flat);
    message.own = std::move(before.own);
  }
  auto started = std::make_unique<Started>(op, message, options_.device);
  if (message.gain) message.gain->send(message.groups, message.flat, message.own);
  std::unique_ptr<Pending> work;
  if (spec_.group) {
    if (options_.check) check_before(op, sequence);
    const bool compressed = op.collective == Collective::kCompressed;
    const Call call{
        .group = message.gain ? on_host() : *spec_.group,
        .flat = spec_.shards == 1 ? message.flat : part_of(message.flat, spec_.shard, spec_.shards),
        .collective = compressed ? Collective::kAllReduce : op.collective,
        .sequence = kCollectivesPerOp * sequence,
        .timeout = options_.timeout};
    const Coder::Name name{execution.run_iteration, execution.place};
    if (message.groups) {
      work = exchange(call, *message.groups);
    } else if (compressed && op.anchored) {  // what is not sent stays in the parameters
      work = coder_->start_alone(call, op.compression, op.blocks, name, message.own);
    } else {
      work = coder_->start(call, op.compression, op.blocks, name);
    }
  }
  // Once the message is encoded.
  const auto end = emulated_ ? emulated_->end_of(op.collective, op.bytes, op.half_startups, Clock::now())
                             : Clock::time_point{};
  started->begin(std::move(work), end);
  return started;
}

// Compares plan, sequence and size of the next op across ranks. Errors: RuntimeFailure naming the ranks that
// differ.
void GroupChannel::check_before(const RunOp& op, std::size_t sequence) {
  c10d::ProcessGroup& group = on_host();
  const auto plan = static_cast<std::int64_t>(checksum(hash_));
  const std::array<std::int64_t, 3> mine{plan, static_cast<std::int64_t>(sequence), op.bytes};
  at::Tensor sent = at::empty({3}, at::kLong);
  std::copy(mine.begin(), mine.end(), sent.mutable_data_ptr<std::int64_t>());
  std::vector<std::vector<at::Tensor>> received(1);
  for (int r = 0; r < group.getSize(); ++r) received[0].push_back(at::empty({3}, at::kLong));
  std::vector<at::Tensor> inputs{sent};
  c10d::AllgatherOptions how;
  how.timeout = options_.timeout;
  group.allgather(received, inputs, how)->wait();
  static constexpr std::array kNames{"plan", "sequence number", "size in bytes"};
  for (int r = 0; r < group.getSize(); ++r) {
    const auto* theirs = received[0][static_cast<std::size_t>(r)].const_data_ptr<std::int64_t>();
    for (std::size_t i = 0; i < mine.size(); ++i) {
      if (theirs[i] == mine[i]) continue;
      throw RuntimeFailure("rank " + std::to_string(r) + " is about to start another op (" + kNames[i] + " " +
                           std::to_string(theirs[i]) + ", here " + std::to_string(mine[i]) +
                           "): give all ranks the same plan, model and loop");
    }
  }
}

}  // namespace gradweave::runtime
