// prefixd and its workers killed at random points under load (issue 3, deliverable 9). 50 and 100
// kills here; PREFIXD_CRASH_KILLS=1000 and PREFIXD_WORKER_KILLS=10000 by hand.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/vfs.h>

#include <cstdio>
#include <filesystem>
#include <string>

#include "absl/synchronization/mutex.h"

#include "tests/crash/load.h"
#include "tests/crash/loop.h"

namespace prefixd::bench {
namespace {

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* const text = ::getenv(name);
  return text == nullptr ? otherwise : std::stoull(text);
}

std::string TemporaryDirectory(std::string path) {
  path += "/prefixd-crash-XXXXXX";
  return ::mkdtemp(path.data()) == nullptr ? std::string() : path;
}

class Crash : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = TemporaryDirectory(std::filesystem::temp_directory_path());
    arena_directory_ = TemporaryDirectory("/dev/shm");
    if (arena_directory_.empty()) GTEST_SKIP() << "no tmpfs at /dev/shm";
    struct statfs room {};
    ::statfs(arena_directory_.c_str(), &room);
    if (room.f_bavail * static_cast<uint64_t>(room.f_bsize) < (uint64_t{256} << 20)) {
      GTEST_SKIP() << "/dev/shm has less than 256 MiB free";
    }
  }
  void TearDown() override {
    if (HasFailure()) std::printf("what is left stands in %s\n", directory_.c_str());
    std::error_code ignored;
    std::filesystem::remove_all(arena_directory_, ignored);
    if (!HasFailure()) std::filesystem::remove_all(directory_, ignored);
  }
  CrashOptions Options(uint64_t kills) const {
    return {.directory = directory_,
            .arena = arena_directory_ + "/arena",
            .kills = kills,
            .seed = FromEnvironment("PREFIXD_CRASH_SEED", 1)};
  }

  std::string directory_, arena_directory_;
};

void ExpectRightBytes(const CrashWork& work) {
  EXPECT_EQ(work.wrong, 0u) << work.first_wrong;
  EXPECT_GT(work.cached_tokens, 0u);
  EXPECT_GT(work.in_place_tokens, 0u);
  EXPECT_GT(work.committed_tokens, 0u);
  EXPECT_GT(work.outlived, 0u);
}

TEST_F(Crash, PagesSurviveAnyNumberOfKillsOfTheDaemonAndAreNeverWrong) {
  const auto report = RunCrashLoop(Options(FromEnvironment("PREFIXD_CRASH_KILLS", 50)));
  ASSERT_TRUE(report.ok()) << report.status();
  ExpectRightBytes(report->work);
  EXPECT_EQ(report->leaks.total(), 0u) << ToText(report->leaks);
  EXPECT_GT(report->resident_tokens, 0u);
  EXPECT_GT(report->ram_bytes, 0u);
  EXPECT_GE(static_cast<double>(report->hit_tokens),
            0.99 * static_cast<double>(report->resident_tokens));
  EXPECT_GE(static_cast<double>(report->ram_bytes_after),
            0.99 * static_cast<double>(report->ram_bytes));
}

TEST_F(Crash, WorkersThatAreKilledLeaveNothingBehind) {
  const auto report = RunWorkerDeaths(Options(FromEnvironment("PREFIXD_WORKER_KILLS", 100)));
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->work.wrong, 0u) << report->work.first_wrong;
  EXPECT_GT(report->work.in_place_tokens, 0u);
  EXPECT_EQ(report->leaks.total(), 0u) << ToText(report->leaks);
}

}  // namespace
}  // namespace prefixd::bench

// Its workers are processes of this program too.
int main(int argc, char** argv) {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);  // as prefixd
  if (argc == 3 && std::string(argv[1]) == prefixd::bench::kCrashWorker) {
    return prefixd::bench::RunCrashWorker(argv[2]);
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
