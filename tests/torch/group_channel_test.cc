#include "runtime/group_channel.h"

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "gradweave/error.h"
#include "runtime/fence.h"
#include "torch/fake_device.h"
#include "torch/fake_group.h"

namespace gradweave::runtime {
namespace {

// A reduce-scatter and its all-gather on links of their own: no group, so that only the order of streams counts.
TEST(GroupChannel, AnAllGatherWaitsForTheStreamOfItsOtherHalf) {
  FakeDevice& device = FakeDevice::get();
  const auto messages = std::make_shared<Messages>(2);
  const LinkOptions options{.device = FakeDevice::device()};
  const auto coder = std::make_shared<Coder>(std::vector<BlockShape>());
  GroupChannel first({.name = "a"}, options, "", messages, coder);
  GroupChannel second({.name = "b"}, options, "", messages, coder);
  RunOp scatter, gather;
  scatter.collective = Collective::kReduceScatter;
  gather.collective = Collective::kAllGather;
  const run::Execution half{.op = &scatter, .slot = 0};
  const run::Execution other{.op = &gather, .slot = 1, .before = &half};

  (*messages)[0].flat = at::zeros({4});
  {
    const c10::StreamGuard compute(FakeDevice::stream(11));
    device.work("gradient");
    (*messages)[0].data.record(FakeDevice::device());
  }
  {
    const auto thread = first.enter_thread();
    first.await_data(half);
    EXPECT_TRUE(device.is_after("gradient"));
    const auto pending = first.start(half, 0);
    device.work("reduced");
    pending->wait();
  }
  {
    const auto thread = second.enter_thread();
    EXPECT_FALSE(device.is_after("reduced"));
    second.await_data(other);
    EXPECT_TRUE(device.is_after("reduced"));
    second.start(other, 0)->wait();
    device.work("gathered");
    (*messages)[1].result.record(FakeDevice::device());
  }
  const c10::StreamGuard compute(FakeDevice::stream(12));
  (*messages)[1].result.wait(FakeDevice::device());
  EXPECT_TRUE(device.is_after("gathered"));
}

// A rank of another build of Gradweave, which says of the plan, the op's number and its size what all builds say.
class OtherBuild : public c10d::Backend {
 public:
  explicit OtherBuild(std::int64_t plan) : c10d::Backend(0, 2), plan_(plan) {}
  const std::string getBackendName() const override { return "other build"; }
  c10::intrusive_ptr<c10d::Work> allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                           std::vector<at::Tensor>& inputs,
                                           const c10d::AllgatherOptions&) override {
    for (at::Tensor& output : outputs[0]) output.copy_(inputs[0]);
    outputs[0][1][0] = plan_;
    return c10::make_intrusive<FakeWork>();
  }
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>&, const c10d::AllreduceOptions&) override {
    return c10::make_intrusive<FakeWork>();
  }

 private:
  std::int64_t plan_;
};

TEST(GroupChannel, ComparesPlansByAHashThatIsTheSameInEveryBuild) {
  const std::string hash = "0123456789abcdef0123456789abcdef";
  constexpr std::int64_t kXxh3 = 77156422110593109;  // of these 32 bytes, 64 bits
  const auto start_beside = [&](std::int64_t plan) {
    const auto group = c10::make_intrusive<c10d::ProcessGroup>(0, 2);
    group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::CUSTOM,
                      c10::make_intrusive<OtherBuild>(plan));
    const auto messages = std::make_shared<Messages>(1);
    (*messages)[0].flat = at::zeros({4});
    GroupChannel channel({.name = "a", .group = group}, {.check = true}, hash, messages,
                         std::make_shared<Coder>(std::vector<BlockShape>()));
    const RunOp op{.elements = 4, .bytes = 16};
    channel.start({.op = &op, .slot = 0}, 0)->wait();
  };
  EXPECT_NO_THROW(start_beside(kXxh3));
  EXPECT_THROW(start_beside(kXxh3 + 1), RuntimeFailure);
}

}  // namespace
}  // namespace gradweave::runtime
