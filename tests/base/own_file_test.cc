// T5: what a daemon opens by a name that somebody else could have prepared is its own user's, and
// no link is followed.
#include "base/own_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace prefixd::base {
namespace {

using testing::HasSubstr;

constexpr uid_t kOther = 12345;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

class OwnFileTest : public testing::Test {
 protected:
  OwnFileTest() {
    std::string pattern = testing::TempDir() + "prefixd_own_XXXXXX";
    folder_ = mkdtemp(pattern.data());
    path_ = folder_ + "/file";
  }
  ~OwnFileTest() override { std::filesystem::remove_all(folder_); }
  static std::string TextOf(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void GiveAway(const std::string& path) const {
    ASSERT_EQ(lchown(path.c_str(), kOther, kOther), 0);
  }
  std::string folder_, path_;
};

TEST_F(OwnFileTest, T5WhatIsWrittenComesBackAndIsPrivate) {
  EXPECT_EQ(ReadOwnFile(path_, 100).value(), std::nullopt);
  ASSERT_TRUE(WriteOwnFile(path_, "one\n").ok());
  ASSERT_TRUE(WriteOwnFile(path_, "two\n").ok());
  EXPECT_EQ(ReadOwnFile(path_, 100).value(), "two\n");
  EXPECT_EQ(ReadOwnFile(path_, 2).value(), "tw");
  struct stat status = {};
  ASSERT_EQ(stat(path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
}

TEST_F(OwnFileTest, T5NothingIsReadOrWrittenThroughALink) {
  const std::string victim = folder_ + "/victim";
  std::ofstream(victim) << "precious";
  for (const char* name : {"", ".new"})
    ASSERT_EQ(symlink(victim.c_str(), (path_ + name).c_str()), 0);
  EXPECT_EQ(ReadOwnFile(path_, 100).status().code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(WriteOwnFile(path_, "ours").ok());
  EXPECT_EQ(TextOf(victim), "precious");
  EXPECT_EQ(ReadOwnFile(path_, 100).value(), "ours");
}

TEST_F(OwnFileTest, T5AFifoIsNotWaitedFor) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_THAT(Message(ReadOwnFile(path_, 100).status()), HasSubstr("not a plain file"));
}

TEST_F(OwnFileTest, T5AFileOfAnotherUserIsNotRead) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can make one";
  std::ofstream(path_) << "trap";
  GiveAway(path_);
  EXPECT_THAT(Message(ReadOwnFile(path_, 100).status()),
              HasSubstr(path_ + " belongs to user 12345, this is 0: run prefixd as that user"));
}

TEST_F(OwnFileTest, T5AFolderIsOpenedThroughALinkOfItsOwnUserOnly) {
  const std::string real = folder_ + "/real", link = folder_ + "/link";
  ASSERT_EQ(mkdir(real.c_str(), 0700), 0);
  ASSERT_EQ(symlink(real.c_str(), link.c_str()), 0);
  const absl::StatusOr<int> fd = OpenOwnFolder(link, "test");
  ASSERT_TRUE(fd.ok()) << fd.status();
  EXPECT_GE(*fd, 0);
  close(*fd);
  EXPECT_EQ(OpenOwnFolder(folder_ + "/none", "test").value(), -1);
  if (geteuid() != 0) GTEST_SKIP() << "only root can make another user's link";
  GiveAway(link);
  EXPECT_THAT(Message(OpenOwnFolder(link, "test").status()),
              HasSubstr("test: the link belongs to user 12345"));
  GiveAway(real);
  EXPECT_THAT(Message(OpenOwnFolder(real, "test").status()), HasSubstr("belongs to user 12345"));
}

TEST_F(OwnFileTest, T5RootGoesNoWayThatAnotherUserCanChange) {
  const std::string theirs = folder_ + "/theirs", link = folder_ + "/link";
  EXPECT_TRUE(CheckWay(theirs + "/a/b", "test").ok()) << "what does not exist is nobody's";
  ASSERT_EQ(mkdir(theirs.c_str(), 0755), 0);
  ASSERT_EQ(symlink(theirs.c_str(), link.c_str()), 0);
  EXPECT_TRUE(CheckWay(link + "/a", "test").ok());
  if (geteuid() != 0) GTEST_SKIP() << "the rest is about root";
  GiveAway(theirs);
  for (const std::string& path : {theirs + "/a", theirs + "/a/b", link + "/a"}) {
    EXPECT_THAT(Message(CheckWay(path, "test")),
                HasSubstr("test: the folder " + theirs + " belongs to user 12345, this is 0"));
  }
  GiveAway(link);
  EXPECT_THAT(Message(CheckWay(link, "test")), HasSubstr("the link " + link + " belongs to user"));
}

}  // namespace
}  // namespace prefixd::base
