// T6: a store on a disk without room: refused in words, never by the end of the process, and open
// once there is room.
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "tests/ssd/store_fixture.h"
#include "tests/support/fault_files.h"

namespace prefixd::ssd {
namespace {

// A small tmpfs at `path`; skips the test where this process may not mount one.
class SmallDisk {
 public:
  explicit SmallDisk(std::string path) : path_(std::move(path)) {
    std::filesystem::create_directories(path_);
  }
  ~SmallDisk() { umount2(path_.c_str(), MNT_DETACH); }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

  bool Mount(uint64_t kib) { return Do(kib, 0); }
  bool Resize(uint64_t kib) { return Do(kib, MS_REMOUNT); }

 private:
  bool Do(uint64_t kib, unsigned long flags) {
    const std::string size = "size=" + std::to_string(kib) + "k";
    return mount("tmpfs", path_.c_str(), "tmpfs", flags, size.c_str()) == 0;
  }
  const std::string path_;
};

class FullDiskTest : public StoreTest {
 protected:
  absl::Status TryOpen() {
    store_.reset();
    auto opened = SegmentStore::Open({.directory = directory_, .files = files_});
    if (opened.ok()) store_ = *std::move(opened);
    return store_ != nullptr ? absl::OkStatus() : opened.status();
  }
  // In a child: 0 = opened, 1 = refused as it should be, 2 = otherwise; -1 = the process ended.
  int OpensInAChild() {
    const pid_t child = fork();
    if (child == 0) {
      const absl::Status status = SegmentStore::Open({.directory = directory_}).status();
      _exit(status.ok() ? 0 : absl::IsUnavailable(status) ? 1 : 2);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
};

TEST_F(FullDiskTest, T6AStartOnAFullDiskIsRefusedInWordsWhateverRoomIsLeft) {
  SmallDisk disk(parent_ + "/disk");
  if (!disk.Mount(64)) GTEST_SKIP() << "only root may mount a small disk";
  directory_ = parent_ + "/disk/store";
  bool refused = false;
  for (const uint64_t kib : {4, 8, 12, 16, 32, 64, 96, 128, 160, 192, 256, 512, 1024, 2048, 8192}) {
    ASSERT_TRUE(disk.Resize(kib));
    const int came = OpensInAChild();
    EXPECT_TRUE(came == 0 || came == 1) << came << " with " << kib << " KiB";
    refused = refused || came == 1;
    EXPECT_TRUE(kib < 8192 || came == 0);
  }
  EXPECT_TRUE(refused);
}

TEST_F(FullDiskTest, T6AStoreThatIsThereOpensOnceTheFullDiskHasRoomAgain) {
  SmallDisk disk(parent_ + "/disk");
  if (!disk.Mount(32 << 10)) GTEST_SKIP() << "only root may mount a small disk";
  directory_ = parent_ + "/disk/store";
  const Page page = MakePage(100'000);
  std::vector<uint64_t> sequences;
  WriteSegment(Open(), {page}, &sequences);
  ASSERT_TRUE(store_->PutMeta("k", std::string(50'000, 'v')).ok());
  store_.reset();
  const std::string fill = parent_ + "/disk/fill";
  std::ofstream(fill) << std::string(uint64_t{32} << 20, 'f');
  for (const uint64_t left : {0, 4, 16, 48, 96, 128, 160, 256, 512}) {
    std::filesystem::resize_file(fill, std::filesystem::file_size(fill) - (left << 10));
    const int came = OpensInAChild();
    EXPECT_TRUE(came == 0 || came == 1) << came << " with about " << left << " KiB more";
  }
  std::filesystem::remove(fill);
  EXPECT_TRUE(Read(Open(), sequences[0], page).ok());
}

// Without root: errors as a full disk gives them, at every byte count.
TEST_F(FullDiskTest, T6AnOpenThatRunsOutOfSpaceAnywhereSaysSoAndTheNextOneSucceeds) {
  const auto disk = std::make_shared<testing::FaultDisk>(20261123);
  files_ = testing::FilesOn(disk);
  const Page page = MakePage(20'000);
  std::vector<uint64_t> sequences;
  WriteSegment(Open(), {page}, &sequences);
  for (uint64_t free : {0, 1, 100, 2'000, 5'000, 20'000, 100'000, 900'000, 1'100'000, 1'150'000}) {
    disk->SetFreeBytes(free);
    const absl::Status status = TryOpen();
    EXPECT_TRUE(status.ok() || absl::IsUnavailable(status)) << status;
    EXPECT_TRUE(status.ok() || status.message().find(directory_) != std::string::npos) << status;
    disk->SetFreeBytes(std::nullopt);
    EXPECT_TRUE(Read(Open(), sequences[0], page).ok()) << free;
  }
}

// Every single change that an open makes to the disk fails once.
TEST_F(FullDiskTest, T6AnOpenThatFailsAtAnyStepIsMadeUpForByTheNext) {
  const auto disk = std::make_shared<testing::FaultDisk>(20261123);
  files_ = testing::FilesOn(disk);
  const Page page = MakePage(20'000);
  std::vector<uint64_t> sequences;
  WriteSegment(Open(), {page}, &sequences);
  for (const int error : {EIO, ENOSPC}) {
    bool failed = true;
    for (uint64_t step = 0; failed; ++step) {
      ASSERT_LT(step, 300u);
      store_.reset();
      disk->FailWrites(error, step, 1);
      const uint64_t before = disk->errors();
      const absl::Status status = TryOpen();
      failed = disk->errors() > before;
      disk->FailWrites(0);
      EXPECT_TRUE(status.ok() || absl::IsUnavailable(status)) << step << ": " << status;
      ASSERT_TRUE(Read(Open(), sequences[0], page).ok()) << step;
    }
  }
}

}  // namespace
}  // namespace prefixd::ssd
