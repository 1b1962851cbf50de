#include "device/extension/collectives.h"

#include <ATen/core/ivalue.h>
#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "device/extension/accelerator.h"

namespace gradweave::device {
namespace {

using c10d::OpType;
using Works = c10::intrusive_ptr<c10d::Work>;

// Carries out what it is given, one after another, on a thread of its own.
class Queue {
 public:
  Queue() : thread_([this] { serve(); }) {}
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;
  ~Queue() {
    put({});
    thread_.join();
  }
  void put(std::function<void()> job) {
    {
      const std::lock_guard lock(mutex_);
      jobs_.push_back(std::move(job));
    }
    changed_.notify_one();
  }

 private:
  void serve() {
    for (;;) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return !jobs_.empty(); });
      const std::function<void()> job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      if (!job) return;
      job();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  std::thread thread_;
};

// What groups of a process share.
struct Shared {
  std::mutex mutex;
  Carriage carriage;
  std::vector<std::string> launches;
  std::shared_ptr<Queue> one_queue;
  static Shared& get() {
    static Shared& shared = *new Shared;  // threads use it until the process ends
    return shared;
  }
};

// Keeps its tensors until the stream of whoever waits is ordered after it, as NCCL's does.
class Work final : public c10d::Work {
 public:
  Work(int rank, OpType type, std::shared_ptr<Flight> flight, std::vector<at::Tensor> tensors,
       std::vector<at::Tensor> results, Stream stream)
      : c10d::Work(rank, type),
        flight_(std::move(flight)),
        tensors_(std::move(tensors)),
        results_(std::move(results)),
        stream_(stream),
        end_(Device::get().record(stream)) {
    const c10::StreamGuard there(torch_stream(stream));
    future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                       std::vector<c10::Device>{only_device()});
    future_->markCompleted(c10::IValue(results_));
  }
  ~Work() override {
    for (const at::Tensor& tensor : tensors_) Device::get().used_on(tensor.storage().data(), stream_);
  }

  bool isCompleted() override { return flight_->ended(); }
  bool isSuccess() const override { return flight_->ended(); }
  std::vector<at::Tensor> result() override { return results_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  bool wait(std::chrono::milliseconds) override {
    order(passes(engine_site("wait")));
    return true;
  }
  void synchronize() override { order(passes(engine_site("synchronize"))); }
  void blockCurrentStream() override { synchronize(); }

 private:
  void order(bool ordered) {
    Device::get().block(current_stream(), end_, ordered);
    if (ordered) tensors_.clear();
  }

  std::shared_ptr<Flight> flight_;
  std::vector<at::Tensor> tensors_, results_;
  Stream stream_;
  Event end_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

// What has become of a group. As on NCCL, an op that fails does not end on the device before somebody aborts the group, and then
// without a result; where nobody asks for errors, it fails.
class Fate {
 public:
  c10d::ErrorType error() {
    const std::lock_guard lock(mutex_);
    watched_ = true;
    return error_;
  }
  void abort() {
    {
      const std::lock_guard lock(mutex_);
      aborted_ = true;
    }
    changed_.notify_all();
  }
  bool aborted() const {
    const std::lock_guard lock(mutex_);
    return aborted_;
  }
  // Returns whether the group has been aborted, which it waits for; else nobody asks.
  bool failed(const std::string& why) {
    std::unique_lock lock(mutex_);
    const bool late = why.find("imed out") != std::string::npos;
    error_ = late ? c10d::ErrorType::TIMEOUT : c10d::ErrorType::COMM_ERROR;
    changed_.wait(lock, [this] { return aborted_ || !watched_; });
    return aborted_;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  c10d::ErrorType error_ = c10d::ErrorType::SUCCESS;
  bool watched_ = false, aborted_ = false;
};

class Collectives final : public c10d::Backend {
 public:
  Collectives(c10::intrusive_ptr<Backend> processor, int rank, int size)
      : Backend(rank, size), processor_(std::move(processor)), stream_(Device::get().new_stream()) {
    Shared& shared = Shared::get();
    const std::lock_guard lock(shared.mutex);
    if (shared.carriage.one_queue && !shared.one_queue) shared.one_queue = std::make_shared<Queue>();
    queue_ = shared.carriage.one_queue ? shared.one_queue : std::make_shared<Queue>();
  }

  ~Collectives() override { fate_->abort(); }

  const std::string getBackendName() const override { return "sim"; }
  c10d::ErrorType getError() override { return fate_->error(); }
  void abort() override { fate_->abort(); }
  void setSequenceNumberForGroup() override {}
  std::uint64_t getSequenceNumberForGroup() override { return launched_; }

  Works allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& how) override {
    return launch(OpType::ALLREDUCE, {}, tensors, 2,
                  [p = processor_, t = views(tensors), how]() mutable { return p->allreduce(t, how); });
  }
  Works broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& how) override {
    return launch(OpType::BROADCAST, {}, tensors, 1,
                  [p = processor_, t = views(tensors), how]() mutable { return p->broadcast(t, how); });
  }
  Works allgather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                  const c10d::AllgatherOptions& how) override {
    std::vector<std::vector<at::Tensor>> to;
    for (const auto& each : outputs) to.push_back(views(each));
    return launch(OpType::ALLGATHER, inputs, outputs.at(0), 1,
                  [p = processor_, to = std::move(to), from = views(inputs), how]() mutable {
                    return p->allgather(to, from, how);
                  });
  }
  Works _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& how) override {
    return launch(OpType::_ALLGATHER_BASE, {input}, {output}, 1,
                  [p = processor_, to = for_kernels(output), from = for_kernels(input), how]() mutable {
                    return p->_allgather_base(to, from, how);
                  });
  }
  Works _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                             const c10d::ReduceScatterOptions& how) override {
    return launch(OpType::_REDUCE_SCATTER_BASE, {input}, {output}, 1,
                  [p = processor_, to = for_kernels(output), from = for_kernels(input), how]() mutable {
                    return p->_reduce_scatter_base(to, from, how);
                  });
  }
  Works alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& to_sizes,
                      std::vector<std::int64_t>& from_sizes, const c10d::AllToAllOptions& how) override {
    return launch(OpType::ALLTOALL_BASE, {input}, {output}, 1,
                  [p = processor_, to = for_kernels(output), from = for_kernels(input), to_sizes, from_sizes,
                   how]() mutable { return p->alltoall_base(to, from, to_sizes, from_sizes, how); });
  }
  // The host waits, as with NCCL.
  Works barrier(const c10d::BarrierOptions& how) override {
    Works work = launch(OpType::BARRIER, {}, {}, 2,
                        [p = processor_, how = of_processor(how)] { return p->barrier(how); });
    work->wait();
    Device::get().wait(Device::get().record(current_stream()));
    return work;
  }

 private:
  using Start = std::function<Works()>;

  static std::vector<at::Tensor> views(const std::vector<at::Tensor>& tensors) {
    std::vector<at::Tensor> found;
    for (const at::Tensor& tensor : tensors) found.push_back(for_kernels(tensor));
    return found;
  }
  static c10d::BarrierOptions of_processor(c10d::BarrierOptions how) {
    how.device = std::nullopt;
    how.device_ids.clear();
    return how;
  }

  // `halves`: what it takes, in halves of an all-reduce's time.
  Works launch(OpType type, const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& outputs,
               int halves, Start start) {
    const std::vector<Bytes> reads = bytes_of(inputs), writes = bytes_of(outputs);
    std::int64_t bytes = 0;  // of what each rank has in the end, or had
    for (const std::vector<Bytes>* all : {&reads, &writes}) {
      std::int64_t sum = 0;
      for (const Bytes& each : *all) sum += static_cast<std::int64_t>(each.end - each.begin);
      bytes = std::max(bytes, sum);
    }
    const std::string name =
        c10d::opTypeToString(type) + ' ' + std::to_string(++launched_) + " of group " + getGroupUid();
    Device& device = Device::get();
    Shared& shared = Shared::get();
    const std::lock_guard lock(shared.mutex);  // launches are in the order of the queue
    shared.launches.push_back(name + ", " + std::to_string(bytes) + " bytes");
    device.block(stream_, device.record(current_stream()));
    const Device::Launched launched =
        device.launch_collective(stream_, {.name = name, .reads = reads, .writes = writes});
    std::optional<Cost> cost = shared.carriage.cost;
    const auto own = shared.carriage.cost_of_group.find(getGroupUid());
    if (own != shared.carriage.cost_of_group.end()) cost = own->second;
    if (cost) cost = Cost{cost->startup_ns * halves / 2, cost->ns_per_byte * halves / 2};
    queue_->put([launched, cost, bytes, start = std::move(start), processor = processor_, fate = fate_,
                 size = getSize()] { carry_out(launched, cost, bytes, start, *processor, *fate, size); });
    std::vector<at::Tensor> tensors = inputs;
    tensors.insert(tensors.end(), outputs.begin(), outputs.end());
    return c10::make_intrusive<Work>(getRank(), type, launched.flight, std::move(tensors), outputs, stream_);
  }

  static void carry_out(const Device::Launched& launched, const std::optional<Cost>& cost, std::int64_t bytes,
                        const Start& start, Backend& processor, Fate& fate, int size) {
    std::int64_t end = 0;
    try {
      Moment moment = launched.start;
      end = moment.settle();
      if (fate.aborted()) return launched.flight->land(end);
      start()->wait();
      if (cost) {
        std::vector<at::Tensor> mine{at::scalar_tensor(end, at::kLong).reshape({1})};
        std::vector<std::vector<at::Tensor>> all(1);
        for (int rank = 0; rank < size; ++rank) all[0].push_back(at::empty({1}, at::kLong));
        processor.allgather(all, mine)->wait();
        std::vector<std::int64_t> arrivals;
        for (const at::Tensor& each : all[0]) arrivals.push_back(each.item<std::int64_t>());
        end = end_of(arrivals, *cost, bytes);
      }
      launched.flight->land(end);
    } catch (const std::exception& error) {
      fate.failed(error.what()) ? launched.flight->land(end) : launched.flight->fail(error.what());
    }
  }

  c10::intrusive_ptr<Backend> processor_;
  Stream stream_;
  std::shared_ptr<Queue> queue_;
  std::shared_ptr<Fate> fate_ = std::make_shared<Fate>();
  std::uint64_t launched_ = 0;
};

}  // namespace

void carry_by(const Carriage& carriage) {
  Shared& shared = Shared::get();
  const std::lock_guard lock(shared.mutex);
  shared.carriage = carriage;
}

std::vector<std::string> take_launches() {
  Shared& shared = Shared::get();
  const std::lock_guard lock(shared.mutex);
  return std::exchange(shared.launches, {});
}

c10::intrusive_ptr<c10d::Backend> make_collectives(c10::intrusive_ptr<c10d::Backend> processor, int rank,
                                                   int size) {
  return c10::make_intrusive<Collectives>(std::move(processor), rank, size);
}

}  // namespace gradweave::device
