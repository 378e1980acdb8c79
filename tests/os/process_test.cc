#include "os/process.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <string>
#include <thread>

#include "gtest/gtest.h"

namespace prefixd::os {
namespace {

using std::chrono::milliseconds;

uint64_t Own() { return static_cast<uint64_t>(getpid()); }

TEST(ProcessTest, AProcessHasItsStartAsLongAsItLives) {
  const ProcessFacts own = FactsOf(Own());
  EXPECT_NE(own.start, 0u);
  EXPECT_EQ(FactsOf(Own()).start, own.start);
  EXPECT_FALSE(own.is_ending);
  EXPECT_EQ(FactsOf(uint64_t{1} << 40).start, 0u);
}

TEST(ProcessTest, AKilledProcessThatNobodyWaitedForIsEnding) {
  const pid_t child = fork();
  if (child == 0) {
    while (true) pause();
  }
  const auto pid = static_cast<uint64_t>(child);
  EXPECT_FALSE(FactsOf(pid).is_ending);
  kill(child, SIGKILL);
  siginfo_t info;
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  EXPECT_TRUE(FactsOf(pid).is_ending);
  waitpid(child, nullptr, 0);
  EXPECT_EQ(FactsOf(pid).start, 0u);
}

TEST(ProcessTest, APidNamespaceIsOneNumber) { EXPECT_EQ(PidNamespace(), PidNamespace()); }

TEST(ProcessTest, ItsVariablesAreListed) {
  ASSERT_EQ(setenv("PREFIXD_OS_TEST", "is set", 1), 0);
  bool listed = false;
  for (char** entry = Variables(); *entry != nullptr; ++entry) {
    listed = listed || std::string(*entry) == "PREFIXD_OS_TEST=is set";
  }
  EXPECT_TRUE(listed);
}

TEST(ProcessTest, WhatItUsesIsTold) {
  const auto use = UseOfThisProcess();
  ASSERT_TRUE(use.has_value());
  EXPECT_GE(use->cpu_s, 0);
  EXPECT_GT(use->started_s.value_or(0), 1.7e9);
  EXPECT_GT(use->resident_bytes, 1e5);
  EXPECT_GE(use->address_space_bytes, use->resident_bytes);
  EXPECT_GT(AnonymousBytes().value(), 0u);
}

TEST(ProcessTest, AThreadHasTheNameThatItGaveItself) {
  std::array<char, 32> name{};
  std::thread thread([&] {
    NameThisThread("prefixd test");
    pthread_getname_np(pthread_self(), name.data(), name.size());
  });
  thread.join();
  EXPECT_STREQ(name.data(), "prefixd test");
}

TEST(ProcessTest, TheHeapTellsWhatIsAllocated) {
  LimitHeap({.map_bytes = 2 << 20, .trim_bytes = 16 << 20, .heaps = 2});
  const uint64_t before = AllocatedBytes();
  if (before == 0) GTEST_SKIP() << "this library's heap, a sanitizer's, does not tell";
  auto* const block = new std::array<char, 1 << 20>;
  (*block)[0] = 1;
  EXPECT_GE(AllocatedBytes(), before + (1 << 20));
  delete block;
  TrimHeap();
  EXPECT_LT(AllocatedBytes(), before + (1 << 20));
}

sigset_t Signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  return signals;
}

class SignalTest : public testing::Test {
 protected:
  void SetUp() override {
    const sigset_t signals = Signals();
    pthread_sigmask(SIG_BLOCK, &signals, &before_);
  }
  void TearDown() override { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  sigset_t before_;
};

TEST_F(SignalTest, ASignalIsTakenOnceAndALimitPasses) {
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(WaitForSignal(Signals(), milliseconds(25)), 0);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, milliseconds(25));
  kill(getpid(), SIGINT);
  EXPECT_EQ(WaitForSignal(Signals(), milliseconds(60'000)), SIGINT);
  EXPECT_EQ(WaitForSignal(Signals(), milliseconds(1)), 0);
  kill(getpid(), SIGTERM);
  EXPECT_EQ(WaitForSignal(Signals(), std::nullopt), SIGTERM);
}

TEST_F(SignalTest, ASignalThatComesLaterEndsTheWait) {
  std::thread sender([] { kill(getpid(), SIGTERM); });
  EXPECT_EQ(WaitForSignal(Signals(), milliseconds(60'000)), SIGTERM);
  sender.join();
}

}  // namespace
}  // namespace prefixd::os
