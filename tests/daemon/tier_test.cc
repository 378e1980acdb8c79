// T6: whatever the disk is like, a start ends in service.
#include <sys/mount.h>

#include "tests/daemon/program_fixture.h"

namespace prefixd::testing {
namespace {

using ::testing::HasSubstr;

class TierTest : public ProgramTest {
 protected:
  ~TierTest() override { ::umount2(Disk().c_str(), MNT_DETACH); }
  std::string Disk() const { return dir_.path() + "/disk"; }
  std::string Store() const { return Disk() + "/ssd"; }
  std::vector<std::string> OnDisk() { return Plus(Args(), "--directory", Store()); }
  // False: this process may not mount.
  bool Mount(unsigned long flags) const {
    std::filesystem::create_directory(Disk());
    return ::mount("tmpfs", Disk().c_str(), "tmpfs", flags, "size=96m") == 0;
  }
  void Commit() {
    Worker worker(target());
    worker.Attach();
    v1::OpenSpaceReply space;
    ASSERT_TRUE(worker.OpenSpace(identity_, &space).ok());
    v1::CommitReply stored;
    ASSERT_TRUE(worker.Store(identity_, space.space(), tokens_, &stored).ok());
  }
  uint32_t Restorable() {
    Worker worker(target());
    worker.Attach();
    v1::OpenSpaceReply space;
    EXPECT_TRUE(worker.OpenSpace(identity_, &space).ok());
    v1::AcquireReply reply;
    EXPECT_TRUE(worker.Acquire(space.space(), tokens_, &reply).ok());
    return reply.answers(0).restorable_tokens();
  }
  uint64_t Counter(const std::string& name) { return Worker(target()).Counter(name); }
  // For 30 s at most.
  template <typename Condition>
  static bool Until(Condition holds) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!holds()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::yield();
    }
    return true;
  }
  bool Opens() {
    return Until([this] { return Counter("ssd.closed") == 0; });
  }
  void Stop(pid_t pid) {
    ::kill(pid, SIGTERM);
    EXPECT_EQ(Wait(pid), daemon::kExitOk) << Log();
  }
  static void FlipIn(const std::string& path, size_t byte) {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekg(static_cast<std::streamoff>(byte));
    const char old = static_cast<char>(file.get());
    file.seekp(static_cast<std::streamoff>(byte));
    file.put(static_cast<char>(old ^ 8));
  }
  void FlipInEach(const std::string& begin, const std::string& end, size_t byte) {
    size_t flipped = 0;
    for (const auto& entry : std::filesystem::directory_iterator(dir_.path() + "/ssd")) {
      const std::string name = entry.path().filename();
      if (!name.starts_with(begin) || !name.ends_with(end)) continue;
      FlipIn(entry.path(), byte);
      ++flipped;
    }
    EXPECT_GT(flipped, 0u);
  }

  const block::SpaceIdentity identity_ = SmallIdentity();
  const Tokens tokens_ = SomeTokens(1, 53);
};

TEST_F(TierTest, T6ADamagedManifestOrCurrentEndsInServiceWithWhatTheArenaHolds) {
  for (const std::string name : {"MANIFEST", "CURRENT"}) {
    const pid_t pid = Start(Args());
    ASSERT_TRUE(Serves()) << Log();
    Commit();
    const bool shared = Log().find("arena: shared") != std::string::npos;
    Stop(pid);
    FlipInEach(name, "", 9);
    const pid_t next = Start(Args());
    ASSERT_TRUE(Serves()) << Log();
    EXPECT_EQ(Counter("ssd.moved_aside"), 1u);
    EXPECT_THAT(Log(), HasSubstr("damaged and is now in " + dir_.path() + "/ssd/damaged-2"));
    EXPECT_EQ(Restorable(), shared ? 53u : 0u);
    Stop(next);
  }
}

TEST_F(TierTest, T6AReadOnlyFilesystemIsServedAroundAndUsedOnceItCanBeWritten) {
  if (!Mount(0)) GTEST_SKIP() << "only root may mount a disk";
  const pid_t before = Start(OnDisk());
  ASSERT_TRUE(Serves()) << Log();
  Commit();
  Stop(before);
  std::filesystem::remove(arena_path_);
  ASSERT_TRUE(Mount(MS_REMOUNT | MS_RDONLY));
  const pid_t pid = Start(OnDisk());
  ASSERT_TRUE(Serves()) << Log();
  EXPECT_EQ(Counter("ssd.closed"), 1u);
  EXPECT_GE(Counter("ssd.open_failed"), 1u);
  EXPECT_THAT(Log(), HasSubstr("the tier cannot be opened, serving goes on from RAM alone"));
  EXPECT_THAT(Log(), HasSubstr("Read-only file system"));
  EXPECT_EQ(Restorable(), 0u);
  ASSERT_TRUE(Mount(MS_REMOUNT));
  ASSERT_TRUE(Opens()) << Log();
  // Its index is loaded while it serves.
  EXPECT_TRUE(Until([this] { return Restorable() == 53; })) << "what an earlier daemon had there";
  Stop(pid);
}

TEST_F(TierTest, T6AFullDiskWithoutAFloorIsServedAroundAndUsedOnceItHasRoom) {
  if (!Mount(0)) GTEST_SKIP() << "only root may mount a disk";
  const std::string fill = Disk() + "/fill";
  std::ofstream(fill) << std::string(size_t{97} << 20, 'f');
  const pid_t pid = Start(OnDisk());
  ASSERT_TRUE(Serves()) << Log();
  EXPECT_EQ(Counter("ssd.closed"), 1u);
  Commit();
  EXPECT_EQ(Restorable(), 53u);
  std::filesystem::remove(fill);
  ASSERT_TRUE(Opens()) << Log();
  Stop(pid);
  EXPECT_THAT(Log(), HasSubstr("nothing unsaved"));
  std::filesystem::remove(arena_path_);
  Start(OnDisk());
  ASSERT_TRUE(Serves()) << Log();
  EXPECT_EQ(Restorable(), 53u);
}

TEST_F(TierTest, T6ADiskBelowTheFloorIsUsedOnceItIsAboveIt) {
  if (!Mount(0)) GTEST_SKIP() << "only root may mount a disk";
  const std::string fill = Disk() + "/fill";
  std::ofstream(fill) << std::string(size_t{60} << 20, 'f');
  Start(Plus(OnDisk(), "--ssd-floor", "50MiB"));
  ASSERT_TRUE(Serves()) << Log();
  EXPECT_THAT(Log(), HasSubstr("the floor is 50.0 MiB"));
  EXPECT_EQ(Counter("ssd.closed"), 1u);
  std::filesystem::remove(fill);
  EXPECT_TRUE(Opens()) << Log();
}

TEST_F(TierTest, T6WhatWasClearedStaysClearedWhenTheLogOfTheStoreIsDamaged) {
  const pid_t pid = Start(Args());
  ASSERT_TRUE(Serves()) << Log();
  Commit();
  {
    Worker worker(target());
    grpc::ClientContext flushing, clearing;
    v1::FlushReply flushed;
    ASSERT_TRUE(worker.admin->Flush(&flushing, {}, &flushed).ok());
    EXPECT_EQ(flushed.dirty_bytes(), 0u);
    v1::ClearReply cleared;
    ASSERT_TRUE(worker.admin->Clear(&clearing, {}, &cleared).ok());
    EXPECT_FALSE(cleared.border_waits());
  }
  ::kill(pid, SIGKILL);
  EXPECT_EQ(Wait(pid), -SIGKILL);
  FlipInEach("", ".log", 20);
  Start(Args());
  ASSERT_TRUE(Serves()) << Log();
  EXPECT_EQ(Restorable(), 0u);
  EXPECT_THAT(Log(), HasSubstr("lost its latest metadata"));
}

}  // namespace
}  // namespace prefixd::testing
