#include "kernels/kept_threads.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <set>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

#include "base/mutex.h"

namespace prefixd::kernels {
namespace {

// Takes pieces until none is left, as every caller does; returns how often each was taken.
std::vector<uint32_t> TakePieces(uint32_t pieces, uint32_t threads) {
  std::vector<std::atomic<uint32_t>> taken(pieces);
  std::atomic<uint32_t> next{0};
  RunOnKeptThreads(threads, [&](uint32_t) {
    for (uint32_t i = next++; i < pieces; i = next++) ++taken[i];
  });
  return {taken.begin(), taken.end()};
}

TEST(KeptThreadsTest, EveryPieceIsTakenOnceWhateverTheNumberOfThreads) {
  for (uint32_t round = 0; round < 50; ++round) {
    for (const uint32_t threads : {1u, 2u, 3u, 9u}) {
      EXPECT_EQ(TakePieces(100, threads), std::vector<uint32_t>(100, 1));
    }
  }
}

TEST(KeptThreadsTest, CallsOfSeveralThreadsDoNotMix) {
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([] {
      for (int round = 0; round < 100; ++round) {
        EXPECT_EQ(TakePieces(20, 3), std::vector<uint32_t>(20, 1));
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
}

// All of them wait for each other: helpers come, each with a number of its own.
TEST(KeptThreadsTest, HelpersRunAtTheSameTimeAsTheCaller) {
  constexpr uint32_t kThreads = 4;
  base::Mutex mutex;
  base::CondVar all_came;
  std::set<uint32_t> came;
  RunOnKeptThreads(kThreads, [&](uint32_t index) {
    const base::MutexLock lock(mutex);
    came.insert(index);
    all_came.NotifyAll();
    while (came.size() < kThreads) all_came.Wait(mutex);
  });
  EXPECT_EQ(came, (std::set<uint32_t>{0, 1, 2, 3}));
}

TEST(KeptThreadsTest, AForkedChildHasHelpersOfItsOwn) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer ends a forked child that starts threads";
#endif
  EXPECT_EQ(TakePieces(10, 3), std::vector<uint32_t>(10, 1));
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    ::_exit(TakePieces(10, 3) == std::vector<uint32_t>(10, 1) ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
}

}  // namespace
}  // namespace prefixd::kernels
