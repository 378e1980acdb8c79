// Who still has a file: holds, and files that children must not have.
#include "os/holds.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <string>

#include "gtest/gtest.h"

#include "os/files.h"
#include "os/held_file.h"
#include "os/memory.h"

namespace prefixd::os {
namespace {

class HoldsTest : public testing::Test {
 protected:
  void SetUp() override {
    path_ = FolderForSharedMemory() + "/prefixd_os_test_XXXXXX";
    fd_ = mkstemp(path_.data());
    ASSERT_GE(fd_, 0) << path_;
    ASSERT_EQ(ftruncate(fd_, 4096), 0);
  }
  void TearDown() override {
    close(fd_);
    unlink(path_.c_str());
  }
  // A description that has a hold.
  int OpenHeld() const {
    const int fd = OpenAgain(fd_, AT_FDCWD, path_, O_RDONLY);
    EXPECT_TRUE(Hold(fd));
    return fd;
  }
  std::string path_;
  int fd_ = -1;
};

// Runs `body` in a child and returns its exit status.
template <typename Body>
int InChild(Body body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST_F(HoldsTest, AHoldIsSeenUntilTheLastDescriptorOfItsDescriptionIsClosed) {
  EXPECT_FALSE(IsHeld(fd_));
  const int fd = OpenHeld();
  EXPECT_TRUE(IsHeld(fd_));
  const int copy = dup(fd);
  close(fd);
  EXPECT_TRUE(IsHeld(fd_));
  close(copy);
  EXPECT_FALSE(IsHeld(fd_));
}

TEST_F(HoldsTest, SeveralMayHoldAFile) {
  const int first = OpenHeld(), second = OpenHeld();
  close(first);
  EXPECT_TRUE(IsHeld(fd_));
  close(second);
  EXPECT_FALSE(IsHeld(fd_));
}

// A lock of processes would fall when any descriptor of the file is closed.
TEST_F(HoldsTest, AnotherDescriptorOfTheFileMayBeClosed) {
  const int fd = OpenHeld();
  close(open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  EXPECT_TRUE(IsHeld(fd_));
  close(fd);
}

TEST_F(HoldsTest, LookingForAHoldKeepsNobodyFromTakingOne) {
  EXPECT_FALSE(IsHeld(fd_));
  const int fd = OpenHeld();
  EXPECT_TRUE(IsHeld(fd_));
  EXPECT_TRUE(IsHeld(fd_));
  close(fd);
}

TEST_F(HoldsTest, AKilledHolderHoldsNothing) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    const int fd = OpenAgain(fd_, AT_FDCWD, path_, O_RDONLY);
    if (!Hold(fd) || write(ready[1], "x", 1) != 1) _exit(1);
    while (true) pause();
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  EXPECT_TRUE(IsHeld(fd_));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_FALSE(IsHeld(fd_));
  close(ready[0]);
  close(ready[1]);
}

TEST_F(HoldsTest, WhatCannotBeLookedAtIsHeld) { EXPECT_TRUE(IsHeld(-1)); }

TEST_F(HoldsTest, AHeldFileKeepsTheHoldUntilItGoes) {
  std::optional<HeldFile> held(std::in_place);
  ASSERT_TRUE(held->Take(OpenHeld()));
  EXPECT_TRUE(IsHeld(fd_));
  held.reset();
  EXPECT_FALSE(IsHeld(fd_));
}

TEST_F(HoldsTest, AMappingKeepsTheHoldUntilItGoes) {
  std::optional<HeldMapping> held(std::in_place);
  ASSERT_EQ(held->Map(OpenHeld(), 4096, HeldMapping::Access::kRead), nullptr);
  held->MakeLarge();
  EXPECT_TRUE(IsHeld(fd_));
  ASSERT_EQ(pwrite(fd_, "seen", 4, 0), 4);
  EXPECT_EQ(held->data()[0], std::byte{'s'});
  held.reset();
  EXPECT_FALSE(IsHeld(fd_));
}

TEST_F(HoldsTest, AMappingThatIsWrittenIsSeenInTheFile) {
  HeldMapping held;
  ASSERT_EQ(
      held.Map(OpenAgain(fd_, AT_FDCWD, path_, O_RDWR), 4096, HeldMapping::Access::kReadAndWrite),
      nullptr);
  held.data()[4095] = std::byte{7};
  char byte = 0;
  ASSERT_EQ(pread(fd_, &byte, 1, 4095), 1);
  EXPECT_EQ(byte, 7);
}

TEST_F(HoldsTest, WhatCannotBeMappedIsSaidAndClosed) {
  const int fd = OpenHeld();
  {
    HeldMapping held;
    EXPECT_STREQ(held.Map(fd, uint64_t{1} << 60, HeldMapping::Access::kRead), "mmap");
    EXPECT_EQ(held.data(), nullptr);
  }
  EXPECT_FALSE(IsHeld(fd_));
}

// T5: a child that goes on holds nothing, and does not touch what is mapped where the parent's was.
TEST_F(HoldsTest, T5AChildHasNeitherTheHoldNorTheMapping) {
  std::optional<HeldFile> file(std::in_place);
  std::optional<HeldMapping> mapping(std::in_place);
  ASSERT_TRUE(file->Take(OpenHeld()));
  ASSERT_EQ(mapping->Map(OpenHeld(), 4096, HeldMapping::Access::kRead), nullptr);
  int go[2], begun[2];
  ASSERT_EQ(pipe(go), 0);
  ASSERT_EQ(pipe(begun), 0);
  std::byte* const at = mapping->data();
  const pid_t child = fork();
  if (child == 0) {
    char byte = 0;
    (void)!write(begun[1], &byte, 1);
    (void)!read(go[0], &byte, 1);
    const bool is_free = mmap(at, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                              0) == at;  // the kernel follows the hint where nothing is mapped
    if (is_free) *at = std::byte{5};
    mapping.reset();
    file.reset();
    _exit(is_free && *at == std::byte{5} ? 0 : 1);
  }
  char byte = 0;
  ASSERT_EQ(read(begun[0], &byte, 1), 1);
  file.reset();
  mapping.reset();
  EXPECT_FALSE(IsHeld(fd_)) << "the child is still there";
  ASSERT_EQ(write(go[1], "x", 1), 1);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  for (const int end : {go[0], go[1], begun[0], begun[1]}) close(end);
}

TEST_F(HoldsTest, AChildsOwnFilesAndMappingsReachItsChild) {
  HeldFile file;
  HeldMapping mapping;
  const int held = OpenHeld();
  ASSERT_TRUE(file.Take(held));
  ASSERT_EQ(mapping.Map(OpenHeld(), 4096, HeldMapping::Access::kRead), nullptr);
  const int status = InChild([&] {
    // In the places of what the fork took away.
    if (dup2(fd_, held) != held) return 1;
    auto* const at = static_cast<char*>(mmap(mapping.data(), 4096, PROT_READ | PROT_WRITE,
                                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
    *at = 5;
    return InChild([&] { return fcntl(held, F_GETFD) >= 0 && *at == 5 ? 0 : 2; });
  });
  EXPECT_EQ(status, 0);
}

TEST_F(HoldsTest, AChildHoldsWhatItTookItself) {
  HeldFile parents;
  ASSERT_TRUE(parents.Take(OpenHeld()));
  const int status = InChild([&] {
    HeldFile own;
    if (!own.Take(OpenHeld()) || !IsHeld(fd_)) return 1;
    return InChild([&] { return 0; });
  });
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(IsHeld(fd_));
}

TEST_F(HoldsTest, AFileOpensAgainAsADescriptionOfItsOwn) {
  ASSERT_EQ(pwrite(fd_, "text", 4, 0), 4);
  const int fd = OpenAgain(fd_, AT_FDCWD, path_, O_RDONLY);
  ASSERT_GE(fd, 0);
  EXPECT_EQ(lseek(fd, 2, SEEK_SET), 2);
  EXPECT_EQ(lseek(fd_, 0, SEEK_CUR), 0);
  EXPECT_EQ(pwrite(fd, "x", 1, 0), -1);
  EXPECT_NE(fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
  close(fd);
}

// T5: never the file that somebody put in its place.
TEST_F(HoldsTest, T5AFileThatWasReplacedIsNotMistakenForTheOther) {
  ASSERT_EQ(unlink(path_.c_str()), 0);
  const int other = open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  ASSERT_GE(other, 0);
  const int fd = OpenAgain(fd_, AT_FDCWD, path_, O_RDONLY);
  if (fd < 0) {
    EXPECT_EQ(errno, ESTALE);
  } else {
    struct stat own = {}, again = {};
    fstat(fd_, &own);
    fstat(fd, &again);
    EXPECT_EQ(again.st_ino, own.st_ino);
    close(fd);
  }
  close(other);
}

TEST_F(HoldsTest, AForkBesideOthersThatMapDoesNotHang) {
  for (int i = 0; i < 20; ++i) {
    HeldFile held;
    ASSERT_TRUE(held.Take(OpenHeld()));
    EXPECT_EQ(InChild([] { return 0; }), 0);
  }
  EXPECT_FALSE(IsHeld(fd_));
}

}  // namespace
}  // namespace prefixd::os
