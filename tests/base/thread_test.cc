#include "base/thread.h"

#include <gtest/gtest.h>

#include <future>
#include <stdexcept>

namespace gradweave {
namespace {

using namespace std::chrono_literals;

TEST(Thread, TellsWhatItsMainLetsOut) {
  std::string why;
  const auto tell = [&](const std::string& text) { why = text; };
  {
    Thread thread([] { throw std::runtime_error("no memory for a stream"); }, tell);
  }
  EXPECT_EQ(why, "no memory for a stream");
  {
    Thread thread([] { throw 7; }, tell);
  }
  EXPECT_EQ(why, "an exception of an unknown kind");
}

TEST(Thread, IsWaitedForByItsOwner) {
  bool done = false;
  {
    Thread thread([&] { done = true; }, [](const std::string&) {});
    Thread other = std::move(thread);
    EXPECT_FALSE(thread.joinable());
    other = Thread([] {}, [](const std::string&) {});
    EXPECT_TRUE(done);
  }
}

TEST(Thread, OneThatIsHeldIsGivenUpAndJoinedOnceItHasEnded) {
  std::promise<void> answer;
  const auto owned = std::make_shared<int>(7);
  Thread thread([held = answer.get_future().share(), owned] { held.wait(); }, [](const std::string&) {});
  EXPECT_FALSE(thread.join_for(1ms));
  thread.give_up();
  EXPECT_EQ(Thread::given_up(), 1U);
  answer.set_value();
  while (Thread::given_up() > 0) std::this_thread::yield();
  EXPECT_EQ(owned.use_count(), 1);  // what it owned went with it
  EXPECT_TRUE(thread.join_for(0ms));
}

}  // namespace
}  // namespace gradweave
