// Threads when the system gives no more of them.
#include "base/threads.h"

#include <sys/resource.h>

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <system_error>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace prefixd::base {
namespace {

// While it lives, no thread can be started: there is no address space for its stack, and stacks of
// threads that ended are taken.
class NoMoreThreads {
 public:
  NoMoreThreads() {
    getrlimit(RLIMIT_AS, &before_);
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    return;  // the sanitizer itself ends a process that has no address space
#endif
    const rlimit none{.rlim_cur = 1 << 20, .rlim_max = before_.rlim_max};
    setrlimit(RLIMIT_AS, &none);
    try {
      while (idle_.size() < idle_.capacity()) idle_.emplace_back([this] { end_.wait(false); });
    } catch (const std::system_error&) {
      holds_ = true;
    }
  }
  ~NoMoreThreads() {
    setrlimit(RLIMIT_AS, &before_);
    end_ = true;
    end_.notify_all();
    for (std::thread& thread : idle_) thread.join();
  }
  NoMoreThreads(const NoMoreThreads&) = delete;
  NoMoreThreads& operator=(const NoMoreThreads&) = delete;
  bool holds() const { return holds_; }

 private:
  static std::vector<std::thread> Room() {
    std::vector<std::thread> room;
    room.reserve(256);
    return room;
  }
  rlimit before_{};
  std::vector<std::thread> idle_ = Room();  // has its memory before there is none
  std::atomic<bool> end_ = false;
  bool holds_ = false;
};

// T7: stress saw sessions that never ended, as the thread that was to end them could not start.
TEST(ThreadsTest, T7WhatIsPostedIsDoneThoughNoThreadCanBeStarted) {
  std::atomic<int> done = 0;
  {
    Threads threads("test", 8);
    {
      const NoMoreThreads none;
      if (!none.holds()) GTEST_SKIP() << "this build starts threads all the same";
      for (int i = 0; i < 3; ++i) threads.Post([&] { ++done; });
    }
  }
  EXPECT_EQ(done, 3);
}

TEST(ThreadsTest, T7WhatIsToBeginAtOnceIsRefusedWhenNoThreadCanBeStarted) {
  Threads threads("test", 8);
  std::promise<void> go;
  std::shared_future<void> gone = go.get_future().share();
  ASSERT_TRUE(threads.TryRun([gone] { gone.wait(); }));
  {
    const NoMoreThreads none;
    if (none.holds()) {
      EXPECT_FALSE(threads.TryRun([] {}));
    }
  }
  EXPECT_TRUE(threads.TryRun([] {})) << "there are threads again";
  go.set_value();
}

// LongRequests starts the next request when one ends, also while the destructor waits.
TEST(ThreadsTest, WhatWorkPostsWhileTheDestructorWaitsIsDoneToo) {
  std::atomic<int> done = 0;
  std::promise<void> go;  // outlives the threads that wait for it
  const std::shared_future<void> gone = go.get_future().share();
  std::thread ender;
  {
    auto threads = std::make_unique<Threads>("test", 2);
    Threads* const pool = threads.get();
    std::function<void()> next = [&, pool] {
      gone.wait();
      while (pool->TryRun([] {})) std::this_thread::yield();  // until the destructor has begun
      if (++done < 5) {
        EXPECT_TRUE(pool->Post(next));
      }
    };
    ASSERT_TRUE(pool->Post(next));
    ender = std::thread([&threads] { threads.reset(); });
    go.set_value();
    ender.join();
  }
  EXPECT_EQ(done, 5);
}

TEST(ThreadsTest, StopDropsWhatHasNotBegunWaitsForTheRestAndRefusesMore) {
  Threads threads("test", 1, 0);
  std::promise<void> begun, go;
  std::atomic<int> done = 0;
  ASSERT_TRUE(threads.Post([&] {
    begun.set_value();
    go.get_future().wait();
    ++done;
  }));
  ASSERT_TRUE(threads.Post([&] { done += 10; }));
  begun.get_future().wait();
  std::thread stopper([&] { threads.Stop(); });
  while (threads.Post([] {})) std::this_thread::yield();
  EXPECT_EQ(done, 0) << "Stop() waits";
  go.set_value();
  stopper.join();
  EXPECT_EQ(done, 1);
  EXPECT_FALSE(threads.TryRun([] {}));
}

TEST(ThreadsTest, WithdrawDropsTheWorkOfOneOwner) {
  std::atomic<int> done = 0;
  {
    std::promise<void> go;  // outlives the threads that wait for it
    const std::shared_future<void> gone = go.get_future().share();
    const int a = 0, b = 0;
    Threads threads("test", 1);
    ASSERT_TRUE(threads.TryRun([gone] { gone.wait(); }));
    ASSERT_TRUE(threads.Post([&] { done += 1; }, &a));
    ASSERT_TRUE(threads.Post([&] { done += 10; }, &b));
    threads.Withdraw(&a);
    go.set_value();
  }
  EXPECT_EQ(done, 10);
}

}  // namespace
}  // namespace prefixd::base
