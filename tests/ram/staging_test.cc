#include "ram/staging.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <span>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

#include "os/memory.h"
#include "tests/ram/shared_arena.h"

namespace prefixd::ram {
namespace {

TEST(StagingTest, WhatTheWorkerWritesTheDaemonReads) {
  StagingPool pool(8 * kMiB);
  const auto staging = pool.Grant(kMiB).value();
  const int fd = staging->OpenForWorker().value();
  void* const map = mmap(nullptr, kMiB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ASSERT_NE(map, MAP_FAILED);
  std::memcpy(static_cast<char*>(map) + 4096, "codes", 5);
  std::array<std::byte, 5> place;
  EXPECT_EQ(std::memcmp(staging->Read(4096, place), "codes", 5), 0);
  munmap(map, kMiB);
  close(fd);
}

TEST(StagingTest, TheMemoryIsThereAndItsSizeSealed) {
  StagingPool pool(8 * kMiB);
  const auto staging = pool.Grant(kMiB).value();
  const int fd = staging->OpenForWorker().value();
  struct stat status = {};
  ASSERT_EQ(fstat(fd, &status), 0);
  EXPECT_EQ(status.st_size, static_cast<off_t>(kMiB));
  EXPECT_GE(status.st_blocks * 512, static_cast<off_t>(kMiB)) << "nothing can raise SIGBUS";
  EXPECT_NE(fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
  if (os::SealsMemory()) {
    EXPECT_EQ(fcntl(fd, F_GET_SEALS), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    EXPECT_EQ(ftruncate(fd, 4096), -1);
    EXPECT_EQ(errno, EPERM);
    EXPECT_EQ(ftruncate(fd, 2 * kMiB), -1);
    EXPECT_EQ(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1) << "nor can it be sealed against writing";
  }
  close(fd);
}

// T5: a worker that cuts its memory off ends neither itself nor the daemon.
TEST(StagingTest, T5AWorkerThatMakesItShorterIsNoticed) {
  StagingPool pool(8 * kMiB);
  const auto staging = pool.Grant(kMiB).value();
  const int fd = staging->OpenForWorker().value();
  EXPECT_EQ(ftruncate(fd, 4096) == 0, !os::SealsMemory());
  std::vector<std::byte> place(8192);
  EXPECT_NE(staging->Read(0, std::span(place).first(4096)), nullptr);
  EXPECT_EQ(staging->Read(0, place) != nullptr, os::SealsMemory());
  EXPECT_EQ(staging->Read(kMiB - 8192, place) != nullptr, os::SealsMemory());
  close(fd);
}

TEST(StagingTest, GrantsComeOutOfTheBudgetAndGoBack) {
  StagingPool pool(kMiB);
  EXPECT_EQ(pool.Grant(5000).value()->bytes(), 8192u) << "whole pages";
  EXPECT_EQ(pool.granted_bytes(), 0u);
  std::vector<std::unique_ptr<Staging>> grants;
  for (uint64_t left = kMiB; left >= 32 * kKiB; left /= 2) {
    grants.push_back(pool.Grant(kMiB).value());
    EXPECT_EQ(grants.back()->bytes(), left / 2) << "half of what is left";
  }
  EXPECT_EQ(pool.Grant(kMiB).status(),
            absl::ResourceExhaustedError("staging: 1.0 MiB wanted, 1008.0 KiB of 1.0 MiB in use"));
  EXPECT_EQ(pool.Grant(4096).value()->bytes(), 4096u) << "who wants less has use for it";
  grants.erase(grants.begin());
  EXPECT_EQ(pool.Grant(kMiB).value()->bytes(), (kMiB / 2 + 16 * kKiB) / 2);
}

TEST(StagingTest, OneSessionGetsWhatIsEnoughOrAnEighth) {
  StagingPool small(64 * kMiB), large(256 * kMiB);
  EXPECT_EQ(small.Grant(64 * kMiB).value()->bytes(), 16 * kMiB);
  EXPECT_EQ(large.Grant(64 * kMiB).value()->bytes(), 32 * kMiB);
}

TEST(StagingTest, ItIsHeldForAsLongAsSomebodyHasTheDescriptorOrAMapping) {
  StagingPool pool(8 * kMiB);
  const auto staging = pool.Grant(kMiB).value();
  EXPECT_FALSE(staging->held()) << "nobody was given it";
  const int fd = staging->OpenForWorker().value();
  EXPECT_TRUE(staging->held());
  void* const map = mmap(nullptr, kMiB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ASSERT_NE(map, MAP_FAILED);
  close(fd);
  EXPECT_TRUE(staging->held()) << "a mapping is enough";
  munmap(map, kMiB);
  EXPECT_FALSE(staging->held());
}

// T3: who keeps the descriptor does not keep the memory.
TEST(StagingTest, ItsMemoryGoesBackWhoeverHasItMapped) {
  StagingPool pool(8 * kMiB);
  auto staging = pool.Grant(kMiB).value();
  const int fd = staging->OpenForWorker().value();
  void* const map = mmap(nullptr, kMiB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ASSERT_NE(map, MAP_FAILED);
  std::memset(map, 7, kMiB);
  staging = nullptr;
  struct stat status = {};
  ASSERT_EQ(fstat(fd, &status), 0);
  EXPECT_EQ(status.st_blocks, 0);
  EXPECT_EQ(status.st_size, static_cast<off_t>(kMiB)) << "a worker that is there reads zeros";
  EXPECT_EQ(static_cast<char*>(map)[kMiB - 1], 0);
  munmap(map, kMiB);
  close(fd);
}

TEST(StagingTest, NothingIsGrantedForNothingOrFromNothing) {
  EXPECT_TRUE(absl::IsResourceExhausted(StagingPool(0).Grant(4096).status()));
  EXPECT_TRUE(absl::IsResourceExhausted(StagingPool(4 * kKiB).Grant(4096).status()));
  EXPECT_TRUE(absl::IsResourceExhausted(StagingPool(kMiB).Grant(0).status()));
}

TEST(StagingTest, AGrantThatTheKernelRefusesGivesItsBytesBack) {
  StagingPool pool(kMiB);
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none = {.rlim_cur = 0, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const absl::Status status = pool.Grant(4096).status();
  setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(pool.granted_bytes(), 0u);
}

TEST(StagingTest, ThreadsNeverGetMoreThanTheBudget) {
  StagingPool pool(256 * kKiB);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 200; ++round) {
        const auto one = pool.Grant(64 * kKiB), two = pool.Grant(20 * kKiB);
        EXPECT_LE(pool.granted_bytes(), pool.budget_bytes());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pool.granted_bytes(), 0u);
}

}  // namespace
}  // namespace prefixd::ram
