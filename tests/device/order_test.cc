#include "device/order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gradweave::device {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr Bytes kAll{1000, 1100}, kLeft{1000, 1050}, kRight{1050, 1100};

class OrderTest : public testing::Test {
 protected:
  OrderTest() { order_.allocate(kAll, 0, "empty"); }
  void write(Stream stream, Bytes bytes, const char* name = "write") {
    order_.launch(stream, {.name = name, .writes = {&bytes, 1}});
  }
  void read(Stream stream, Bytes bytes, const char* name = "read") {
    order_.launch(stream, {.name = name, .reads = {&bytes, 1}});
  }
  void wait(Stream waits, Stream for_stream) { order_.wait(waits, order_.moment(for_stream)); }

  Order order_;
};

TEST_F(OrderTest, AReadBesideAWriteIsReportedWithBoth) {
  write(1, kAll, "fill_");
  read(2, kRight, "sum");
  EXPECT_THAT(
      order_.take_reports(),
      ElementsAre(AllOf(HasSubstr("sum on stream 2 reads"), HasSubstr("fill_ on stream 1, which wrote"),
                        HasSubstr("empty of 100 bytes, allocated on stream 0"))));
  EXPECT_THAT(order_.take_reports(), IsEmpty());
}

TEST_F(OrderTest, AWriteBesideAReadIsReported) {
  read(1, kAll);
  write(2, kAll);
  EXPECT_THAT(order_.take_reports(), ElementsAre(HasSubstr("write on stream 2 writes")));
}

TEST_F(OrderTest, ReadsOfOtherBytesAndReadsBesideReadsAreFine) {
  read(1, kAll);
  read(2, kAll);
  wait(3, 1);
  wait(3, 2);
  write(3, kLeft);
  write(4, {1200, 1300});  // nobody's
  EXPECT_THAT(order_.take_reports(), IsEmpty());
  read(5, kRight);
  EXPECT_THAT(order_.take_reports(), IsEmpty());
}

TEST_F(OrderTest, WaitsOrderOverOtherStreamsAndOverTheHost) {
  write(1, kAll);
  wait(2, 1);
  wait(3, 2);
  read(3, kAll);
  wait(kHost, 3);
  write(4, kAll);  // launched by the host, which knows all
  EXPECT_THAT(order_.take_reports(), IsEmpty());
}

TEST_F(OrderTest, AMomentDoesNotGrow) {
  const VectorClock before = order_.moment(1);
  write(1, kAll);
  order_.wait(2, before);
  read(2, kAll);
  EXPECT_THAT(order_.take_reports(), SizeIs(1));
}

TEST_F(OrderTest, AnOpMayReadWhatItWrites) {
  order_.launch(1, {.name = "add_", .reads = {&kAll, 1}, .writes = {&kAll, 1}});
  wait(2, 1);
  write(2, kAll);
  EXPECT_THAT(order_.take_reports(), IsEmpty());
}

TEST_F(OrderTest, AFreeWaitsForTheStreamsThatUsedTheMemory) {
  wait(1, 0);
  write(1, kAll, "mul_");
  order_.free(kAll.begin);
  EXPECT_THAT(order_.take_reports(),
              ElementsAre(AllOf(HasSubstr("may follow its being freed"), HasSubstr("mul_ on stream 1"))));
}

TEST_F(OrderTest, AFreeThatIsOrderedIsSilent) {
  write(1, kAll);
  wait(0, 1);
  order_.free(kAll.begin);
  order_.allocate(kAll, 0, "empty");
  write(1, kAll);
  order_.used_on(kAll.begin, 1);
  order_.free(kAll.begin);
  order_.allocate(kAll, 0, "empty");
  read(1, kAll);
  wait(kHost, 1);
  order_.free(kAll.begin);
  order_.allocate(kAll, 0, "empty");
  write(1, kAll);
  wait(2, 1);
  order_.used_on(kAll.begin, 2);
  order_.free(kAll.begin);
  order_.free(kAll.begin);  // nobody's
  EXPECT_THAT(order_.take_reports(), IsEmpty());
}

TEST_F(OrderTest, NewMemoryMayBeInUseByItsStream) {
  read(0, kAll);
  order_.free(kAll.begin);
  order_.allocate(kAll, 0, "empty");
  write(1, kAll);
  EXPECT_THAT(order_.take_reports(), ElementsAre(HasSubstr("what used the memory before on stream 0")));
}

TEST_F(OrderTest, TheSameReportComesOnce) {
  write(1, kAll);
  read(2, kLeft);
  read(2, kLeft);
  read(3, kLeft);
  EXPECT_THAT(order_.take_reports(), SizeIs(2));
}

}  // namespace
}  // namespace gradweave::device
