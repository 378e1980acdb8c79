#include "base/combiner.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

namespace prefixd::base {
namespace {

using std::chrono::steady_clock;

constexpr int kThreads = 8, kSteps = 20'000;

// By whether threads that wait look or sleep.
class CombinerTest : public testing::TestWithParam<bool> {
 protected:
  Mutex mutex_;
  Combiner combiner_{&mutex_, GetParam()};
};
INSTANTIATE_TEST_SUITE_P(LooksAndSleeps, CombinerTest, testing::Bool());

// Starts all threads at one time and waits for their end.
template <typename Work>
void OnThreads(Work work) {
  std::atomic<int> waiting{kThreads};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      for (--waiting; waiting > 0;) std::this_thread::yield();
      work(i);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_P(CombinerTest, RunsEachStepOnceAndOneAtATime) {
  int in_step = 0, sum = 0;  // the mutex guards them
  OnThreads([&](int) {
    for (int step = 0; step < kSteps; ++step) {
      bool ran = false;
      combiner_.Run([&] {
        EXPECT_EQ(++in_step, 1);
        EXPECT_FALSE(ran);
        ran = true;
        ++sum;
        --in_step;
      });
      ASSERT_TRUE(ran) << "Run returns after its step";
    }
  });
  EXPECT_EQ(sum, kThreads * kSteps);
}

TEST_P(CombinerTest, StepsAndOthersThatLockTheMutexNeverMeet) {
  int in_step = 0, sum = 0;
  OnThreads([&](int thread) {
    for (int step = 0; step < kSteps; ++step) {
      const auto count = [&] {
        EXPECT_EQ(++in_step, 1);
        ++sum;
        --in_step;
      };
      if (thread % 2 == 0) {
        combiner_.Run(count);
      } else {
        const MutexLock lock(mutex_);
        count();
      }
    }
  });
  EXPECT_EQ(sum, kThreads * kSteps);
}

TEST_P(CombinerTest, AStepThatCameWhileSomebodyHeldTheMutexRunsWhenItIsFree) {
  int ran = 0;
  std::thread waits;
  std::atomic<bool> began{false};
  {
    const MutexLock lock(mutex_);
    waits = std::thread([&] {
      began = true;
      combiner_.Run([&] { ++ran; });
    });
    while (!began) std::this_thread::yield();
    EXPECT_EQ(ran, 0);
  }
  waits.join();
  EXPECT_EQ(ran, 1);
}

TEST_P(CombinerTest, AllThatWaitedRunWhenTheMutexIsFree) {
  std::vector<std::thread> threads;
  std::atomic<int> began{0};
  std::vector<int> order;
  {
    const MutexLock lock(mutex_);
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&, i] {
        ++began;
        combiner_.Run([&] { order.push_back(i); });
      });
    }
    while (began < kThreads) std::this_thread::yield();
    EXPECT_TRUE(order.empty());
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(order.size(), static_cast<size_t>(kThreads));
}

// Else who looks, and who runs the steps of others, would keep it from one that must be woken.
TEST(CombinerFairnessTest, WhoHasWaitedForTheMutexItselfComesBeforeStepsThatWait) {
  for (int round = 0; round < 20; ++round) {
    Mutex mutex;
    Combiner combiner{&mutex, /*looks=*/true};
    std::vector<std::string> order;
    std::atomic<bool> began{false};
    steady_clock::time_point asked, ran;
    mutex.lock();
    std::thread locks([&] {
      const MutexLock lock(mutex);
      order.emplace_back("lock");
    });
    while (!mutex.IsOverdue()) std::this_thread::yield();
    std::thread waits([&] {
      asked = steady_clock::now();
      began = true;
      combiner.Run([&] {
        ran = steady_clock::now();
        order.emplace_back("step");
      });
    });
    while (!began) std::this_thread::yield();
    mutex.unlock();
    locks.join();
    waits.join();
    // A step that waits for 5 ms takes the mutex as others do: on a busy machine maybe before them.
    if (ran - asked < std::chrono::milliseconds(5)) {
      EXPECT_EQ(order, (std::vector<std::string>{"lock", "step"}));
    }
    EXPECT_FALSE(mutex.IsOverdue());
  }
}

TEST(CombinerFairnessTest, AThreadThatSleepsReturnsAfterItsStep) {
  Mutex mutex;
  Combiner combiner{&mutex, /*looks=*/true};
  std::atomic<bool> ran{false}, returned{false};
  std::thread sleeps;
  combiner.Run([&] {
    sleeps = std::thread([&] {
      combiner.Run([&] { ran = true; });
      returned = true;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // past the looks
  });
  sleeps.join();
  EXPECT_TRUE(ran && returned);
}

}  // namespace
}  // namespace prefixd::base
