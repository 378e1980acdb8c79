#include "kernels/common/pieces.h"

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

// Returns how often each piece was taken.
std::vector<uint32_t> TakePieces(uint32_t pieces, uint32_t threads) {
  std::vector<std::atomic<uint32_t>> taken(pieces);
  ForEachPiece(threads, pieces, [&](uint64_t i, uint32_t thread) {
    EXPECT_LT(thread, threads);
    ++taken[i];
  });
  return {taken.begin(), taken.end()};
}

TEST(PiecesTest, EveryPieceIsTakenOnceWhateverTheNumberOfThreads) {
  for (uint32_t round = 0; round < 50; ++round) {
    for (const uint32_t threads : {1u, 2u, 3u, 9u}) {
      EXPECT_EQ(TakePieces(100, threads), std::vector<uint32_t>(100, 1));
    }
  }
}

TEST(PiecesTest, CallsOfSeveralThreadsDoNotMix) {
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
TEST(PiecesTest, HelpersRunAtTheSameTimeAsTheCaller) {
  constexpr uint32_t kThreads = 4;
  base::Mutex mutex;
  base::CondVar all_came;
  std::set<uint32_t> came;
  ForEachPiece(kThreads, kThreads, [&](uint64_t, uint32_t thread) {
    const base::MutexLock lock(mutex);
    came.insert(thread);
    all_came.NotifyAll();
    while (came.size() < kThreads) all_came.Wait(mutex);
  });
  EXPECT_EQ(came, (std::set<uint32_t>{0, 1, 2, 3}));
}

TEST(PiecesTest, AForkedChildHasHelpersOfItsOwn) {
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
