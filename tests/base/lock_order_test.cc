#include "base/lock_order.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace prefixd::base {
namespace {

// Takes the mutexes in this order and gives them back. Classes are kept for the whole process, so
// each test names its own.
void Take(const std::vector<const char*>& names) {
  std::vector<CheckedLockClass> classes;
  for (const char* name : names) classes.emplace_back(name, "", 0);
  for (const CheckedLockClass& lock : classes) lock.Locking();
  for (const CheckedLockClass& lock : classes) lock.Unlocked();
}

TEST(LockOrderTest, AllowsOneOrderHoweverOftenAndOnWhicheverThread) {
  for (int i = 0; i < 3; ++i) {
    Take({"one.a", "one.b", "one.c"});
    std::thread([] { Take({"one.a", "one.c"}); }).join();
  }
  Take({"one.c"});
  Take({"one.a"});
}

TEST(LockOrderTest, EndsTheProcessWhereTwoThreadsOnceTookTwoMutexesInBothOrders) {
  std::thread([] { Take({"two.a", "two.b"}); }).join();
  EXPECT_DEATH(Take({"two.b", "two.a"}),
               "two.a is taken while two.b is held; taken before in this order: two.a, then two.b");
}

TEST(LockOrderTest, FindsACycleThroughOthers) {
  Take({"ring.a", "ring.b"});
  Take({"ring.b", "ring.c"});
  EXPECT_DEATH(Take({"ring.c", "ring.a"}), "ring.a, then ring.b, then ring.c");
}

TEST(LockOrderTest, EndsTheProcessWhereAThreadHoldsTwoMutexesOfOneClass) {
  EXPECT_DEATH(Take({"same", "same"}), "two mutexes of same are held by one thread");
}

TEST(LockOrderTest, EndsTheProcessWhereAThreadUnlocksWhatItDoesNotHold) {
  const CheckedLockClass lock("foreign", "", 0);
  lock.Locking();
  EXPECT_DEATH(std::thread([&] { lock.Unlocked(); }).join(), "does not hold it");
  lock.Unlocked();
}

TEST(LockOrderTest, KnowsThatNothingIsHeldWhenMutexesWereGivenBackInAnotherOrder) {
  const CheckedLockClass a("out.a", "", 0), b("out.b", "", 0);
  a.Locking();
  b.Locking();
  a.Unlocked();
  b.Unlocked();
  Take({"out.c"});
  Take({"out.c", "out.a"});
  Take({"out.c", "out.b"});
}

TEST(LockOrderTest, TellsClassesWithoutANameApartByWhereTheyAreMade) {
  const CheckedLockClass a(nullptr, "a.h", 1), b(nullptr, "a.h", 2);
  a.Locking();
  b.Locking();
  b.Unlocked();
  a.Unlocked();
  const CheckedLockClass again(nullptr, "a.h", 1);
  EXPECT_DEATH(
      {
        b.Locking();
        again.Locking();
      },
      "a.h:1 is taken while a.h:2 is held");
}

}  // namespace
}  // namespace prefixd::base
