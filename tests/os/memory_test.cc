#include "os/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "gtest/gtest.h"

namespace prefixd::os {
namespace {

constexpr uint64_t kBytes = 1 << 20;

// A file on a tmpfs without a name.
class File {
 public:
  File() {
    std::string path = FolderForSharedMemory() + "/prefixd_os_test_XXXXXX";
    fd_ = mkstemp(path.data());
    if (fd_ < 0) ADD_FAILURE() << path;
    unlink(path.c_str());
  }
  ~File() { close(fd_); }
  int fd() const { return fd_; }
  uint64_t size() const { return static_cast<uint64_t>(Stat().st_size); }
  uint64_t allocated() const { return static_cast<uint64_t>(Stat().st_blocks) * 512; }

 private:
  struct stat Stat() const {
    struct stat status = {};
    fstat(fd_, &status);
    return status;
  }
  int fd_ = -1;
};

uint64_t AllocatedBytesOf(int fd) {
  struct stat status = {};
  fstat(fd, &status);
  return static_cast<uint64_t>(status.st_blocks) * 512;
}

TEST(LentMemoryTest, WhatTheBorrowerWritesIsRead) {
  LentMemory memory;
  ASSERT_EQ(memory.Make("prefixd-test", "", kBytes), nullptr);
  const int fd = memory.OpenForBorrower();
  ASSERT_GE(fd, 0);
  EXPECT_NE(fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_GE(AllocatedBytesOf(fd), kBytes) << "the memory is there";
  ASSERT_EQ(pwrite(fd, "codes", 5, 8192), 5);
  std::array<std::byte, 5> place{};
  const std::byte* const read = memory.Read(8192, 5, place.data());
  ASSERT_NE(read, nullptr);
  EXPECT_EQ(std::memcmp(read, "codes", 5), 0);
  close(fd);
}

TEST(LentMemoryTest, ABorrowerThatMakesItShorterRaisesNoSignal) {
  LentMemory memory;
  ASSERT_EQ(memory.Make("prefixd-test", "", kBytes), nullptr);
  const int fd = memory.OpenForBorrower();
  EXPECT_EQ(ftruncate(fd, 4096) == 0, !SealsMemory());
  std::array<std::byte, 4096> place{};
  const std::byte* const read = memory.Read(kBytes - 4096, 4096, place.data());
  ASSERT_EQ(read != nullptr, SealsMemory());
  EXPECT_TRUE(read == nullptr || read[4095] == std::byte{0});
  EXPECT_NE(memory.Read(0, 4096, place.data()), nullptr);
  close(fd);
}

TEST(LentMemoryTest, ItIsHeldAsLongAsTheBorrowerHasIt) {
  LentMemory memory;
  ASSERT_EQ(memory.Make("prefixd-test", "", kBytes), nullptr);
  EXPECT_FALSE(memory.IsHeld());
  const int fd = memory.OpenForBorrower();
  EXPECT_TRUE(memory.IsHeld());
  const int copy = dup(fd);
  close(fd);
  EXPECT_TRUE(memory.IsHeld());
  close(copy);
  EXPECT_FALSE(memory.IsHeld());
}

TEST(LentMemoryTest, ItsMemoryGoesBackThoughTheBorrowerHasItMapped) {
  auto* const memory = new LentMemory;
  ASSERT_EQ(memory->Make("prefixd-test", "", kBytes), nullptr);
  const int fd = memory->OpenForBorrower();
  void* const map = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ASSERT_NE(map, MAP_FAILED);
  std::memset(map, 7, kBytes);
  delete memory;
  EXPECT_EQ(AllocatedBytesOf(fd), 0u);
  EXPECT_EQ(static_cast<char*>(map)[kBytes - 1], 0) << "its size stays";
  munmap(map, kBytes);
  close(fd);
}

TEST(LentMemoryTest, ItLeavesNoNameAndSaysWhichCallFailed) {
  std::string folder = FolderForSharedMemory() + "/prefixd_os_test_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  {
    LentMemory memory;
    ASSERT_EQ(memory.Make("prefixd-test", folder, kBytes), nullptr);
    EXPECT_TRUE(std::filesystem::is_empty(folder));
  }
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none = {.rlim_cur = 0, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  LentMemory refused;
  const char* const call = refused.Make("prefixd-test", folder, kBytes);
  setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_STREQ(call, SealsMemory() ? "memfd_create" : "open");
  std::filesystem::remove_all(folder);
}

TEST(SealTest, AFileThatCanShrinkIsToldWhereTheSystemFixesSizes) {
  const File file;
  EXPECT_EQ(KeepsItsSize(file.fd()), !SealsMemory());
  LentMemory memory;
  ASSERT_EQ(memory.Make("prefixd-test", "", kBytes), nullptr);
  const int fd = memory.OpenForBorrower();
  EXPECT_TRUE(KeepsItsSize(fd));
  close(fd);
}

TEST(AllocateTest, ARangeGetsItsMemoryAndKeepsWhatIsThere) {
  const File file;
  ASSERT_EQ(pwrite(file.fd(), "kept", 4, 0), 4);
  ASSERT_TRUE(Allocate(file.fd(), 0, kBytes));
  EXPECT_EQ(file.size(), kBytes);
  EXPECT_GE(file.allocated(), kBytes);
  char kept[5] = {};
  ASSERT_EQ(pread(file.fd(), kept, 4, 0), 4);
  EXPECT_STREQ(kept, "kept");
}

TEST(AllocateTest, WhatIsRefusedSaysWhy) {
  const File file;
  EXPECT_FALSE(Allocate(file.fd(), 0, uint64_t{1} << 60));
  EXPECT_TRUE(errno == ENOSPC || errno == EFBIG) << errno;
  EXPECT_FALSE(Allocate(-1, 0, 4096));
  EXPECT_EQ(errno, EBADF);
}

TEST(AllocateTest, AFileThatNobodyElseWritesGetsItByAnyMeans) {
  const File file;
  ASSERT_EQ(pwrite(file.fd(), "kept", 4, 0), 4);
  ASSERT_TRUE(AllocateAnywhere(file.fd(), 0, kBytes));
  EXPECT_GE(file.allocated(), kBytes);
  EXPECT_FALSE(AllocateAnywhere(-1, 0, 4096));
  EXPECT_EQ(errno, EBADF);
}

TEST(PunchHoleTest, TheRangeReadsAsZerosAndItsMemoryGoesBack) {
  const File file;
  const std::string ones(kBytes, '\1');
  ASSERT_EQ(pwrite(file.fd(), ones.data(), ones.size(), 0), static_cast<ssize_t>(kBytes));
  ASSERT_TRUE(PunchHole(file.fd(), 4096, kBytes - 8192));
  EXPECT_EQ(file.size(), kBytes);
  EXPECT_LE(file.allocated(), 8192u);
  char bytes[3] = {};
  ASSERT_EQ(pread(file.fd(), bytes, 1, 4095), 1);
  ASSERT_EQ(pread(file.fd(), bytes + 1, 1, 4096), 1);
  ASSERT_EQ(pread(file.fd(), bytes + 2, 1, kBytes - 4096), 1);
  EXPECT_EQ(bytes[0], 1);
  EXPECT_EQ(bytes[1], 0);
  EXPECT_EQ(bytes[2], 1);
}

TEST(AllocateSmallPagesTest, AMappedRangeGetsItsMemoryAndNoMore) {
  const File file;
  ASSERT_EQ(ftruncate(file.fd(), 4 * kBytes), 0);
  void* const map = mmap(nullptr, 4 * kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.fd(), 0);
  ASSERT_NE(map, MAP_FAILED);
  auto* const bytes = static_cast<std::byte*>(map);
  AvoidHugePages(bytes, 4 * kBytes);
  EXPECT_TRUE(AllocateSmallPages(file.fd(), bytes, 0, 0));
  EXPECT_EQ(file.allocated(), 0u);
  ASSERT_TRUE(AllocateSmallPages(file.fd(), bytes, 4096, kBytes));
  if (BacksHoles()) {
    EXPECT_EQ(file.allocated(), kBytes);
  }
  EXPECT_EQ(file.size(), 4 * kBytes);
  Populate(bytes + 4096, kBytes);
  PreferHugePages(bytes, 4 * kBytes);
  EXPECT_EQ(bytes[4096], std::byte{0});
  munmap(map, 4 * kBytes);
}

// What the kernel says of a mapping's NUMA policy, such as "interleave:0"; empty if it does not.
std::string PolicyAt(const void* at) {
  std::ifstream lines("/proc/self/numa_maps");
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    uintptr_t begin = 0;
    std::string policy;
    if (words >> std::hex >> begin >> policy && begin == reinterpret_cast<uintptr_t>(at))
      return policy;
  }
  return "";
}

TEST(SpreadOverNodesTest, AMappedFilesMemoryComesFromTheNodesInTurn) {
  const File file;
  ASSERT_EQ(ftruncate(file.fd(), kBytes), 0);
  const auto map = [&] {
    return static_cast<std::byte*>(
        mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.fd(), 0));
  };
  std::byte* const bytes = map();
  ASSERT_NE(static_cast<void*>(bytes), MAP_FAILED);
  if (PolicyAt(bytes) != "default") GTEST_SKIP() << "policy here: " << PolicyAt(bytes);
  if (!SpreadOverNodes(bytes, kBytes, {0})) GTEST_SKIP() << strerror(errno);
  EXPECT_EQ(PolicyAt(bytes), "interleave:0");
  std::byte* const again = map();
  EXPECT_EQ(PolicyAt(again), "interleave:0") << "the file's, so of everybody who maps it";
  EXPECT_TRUE(SpreadOverNodes(again, kBytes, {1'023})) << "chosen already";
  EXPECT_EQ(PolicyAt(again), "interleave:0");
  munmap(bytes, kBytes);
  munmap(again, kBytes);
}

TEST(SpreadOverNodesTest, WithoutANodeTheSystemSaysWhyNot) {
  const File file;
  ASSERT_EQ(ftruncate(file.fd(), kBytes), 0);
  void* const map = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.fd(), 0);
  ASSERT_NE(map, MAP_FAILED);
  if (PolicyAt(map) == "default") {
    errno = 0;
    EXPECT_FALSE(SpreadOverNodes(static_cast<std::byte*>(map), kBytes, {2'000}));
    EXPECT_NE(errno, 0);
  }
  munmap(map, kBytes);
}

TEST(DropPrivatePagesTest, TheyReadAsZerosAndCanBeWrittenAgain) {
  void* const map =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(map, MAP_FAILED);
  auto* const bytes = static_cast<std::byte*>(map);
  std::memset(map, 9, kBytes);
  DropPrivatePages(bytes + 4096, kBytes - 8192);
  EXPECT_EQ(bytes[4095], std::byte{9});
  EXPECT_EQ(bytes[4096], std::byte{0});
  EXPECT_EQ(bytes[kBytes - 4097], std::byte{0});
  EXPECT_EQ(bytes[kBytes - 4096], std::byte{9});
  bytes[4096] = std::byte{1};
  EXPECT_EQ(bytes[4096], std::byte{1});
  munmap(map, kBytes);
}

}  // namespace
}  // namespace prefixd::os
