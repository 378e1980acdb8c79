#include "os/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "os/memory.h"

namespace prefixd::os {
namespace {

class FilesTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "prefixd_os_test_XXXXXX";
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string folder_;
};

TEST_F(FilesTest, AnUncachedFileTakesWholePagesWhereTheFilesystemHasSuchFiles) {
  const std::string path = folder_ + "/direct";
  const int fd = OpenUncached(path, O_RDWR | O_CREAT | O_EXCL, 0600);
  if (fd < 0) {
    EXPECT_EQ(errno, EINVAL) << "a filesystem without direct I/O";
    EXPECT_TRUE(OpensUncached());
    return;
  }
  EXPECT_NE(fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
  void* page = nullptr;
  ASSERT_EQ(posix_memalign(&page, 4096, 4096), 0);
  std::fill_n(static_cast<char*>(page), 4096, 'p');
  EXPECT_EQ(pwrite(fd, page, 4096, 0), 4096);
  EXPECT_TRUE(Sync(fd));
  EXPECT_TRUE(SyncData(fd));
  DropCache(fd);
  EXPECT_EQ(pread(fd, page, 4096, 0), 4096);
  EXPECT_EQ(static_cast<char*>(page)[4095], 'p');
  std::free(page);
  close(fd);
}

TEST_F(FilesTest, FoldersAreSyncedAndWhatIsNotOpenIsNot) {
  const int fd = open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  EXPECT_TRUE(Sync(fd));
  close(fd);
  EXPECT_FALSE(Sync(-1));
  EXPECT_EQ(errno, EBADF);
}

TEST_F(FilesTest, AMountTellsItsSizeAndWhetherItIsMemory) {
  const auto memory = MountOf(FolderForSharedMemory());
  ASSERT_TRUE(memory.has_value());
  EXPECT_TRUE(memory->may_hold_memory);
  const auto root = MountOf("/");
  ASSERT_TRUE(root.has_value());
  EXPECT_LE(root->free_bytes, root->bytes);
  if (BacksHoles()) {  // not on Darwin, where memory stands on disks
    EXPECT_TRUE(memory->in_memory);
    EXPECT_EQ(root->may_hold_memory, root->in_memory);
  }
  const int fd = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  EXPECT_EQ(MountOf(fd).value().bytes, root->bytes);
  close(fd);
  EXPECT_FALSE(MountOf(folder_ + "/nowhere").has_value());
  EXPECT_EQ(errno, ENOENT);
  EXPECT_FALSE(MountOf(-1).has_value());
}

TEST_F(FilesTest, TimesAreThoseThatTheFileHas) {
  const std::string path = folder_ + "/timed";
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  const timespec times[2] = {{.tv_sec = 1'000, .tv_nsec = 1}, {.tv_sec = 2'000, .tv_nsec = 22}};
  ASSERT_EQ(futimens(fd, times), 0);
  struct stat status = {};
  ASSERT_EQ(fstat(fd, &status), 0);
  EXPECT_EQ(WrittenAt(status).tv_sec, 2'000);
  EXPECT_EQ(WrittenAt(status).tv_nsec, 22);
  EXPECT_GT(ChangedAt(status).tv_sec, 2'000) << "now";
  close(fd);
}

TEST_F(FilesTest, OpenDescriptorsAreListed) {
  const int fd = open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  EXPECT_THAT(OpenDescriptors().value(), testing::Contains(fd));
  close(fd);
}

}  // namespace
}  // namespace prefixd::os
