#include "daemon/whole_file.h"

#include <unistd.h>

#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace prefixd::daemon {
namespace {

using ::testing::HasSubstr;

TEST(WholeFileTest, GivesEveryByteOrSaysWhoCannotReadItAndWhy) {
  const std::string path = ::testing::TempDir() + "whole_file_" + std::to_string(getpid());
  const std::string bytes("a\0b\n\r\n", 6);
  EXPECT_EQ(std::string(ReadWholeFile(path).status().message()), path + " cannot be read by user " +
                                                                     std::to_string(geteuid()) +
                                                                     ": No such file or directory");
  std::ofstream(path, std::ios::binary).flush();
  EXPECT_THAT(std::string(ReadWholeFile(path).status().message()), HasSubstr(": it is empty"));
  std::ofstream(path, std::ios::binary) << bytes;
  const absl::StatusOr<std::string> read = ReadWholeFile(path);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, bytes);
  EXPECT_THAT(std::string(ReadWholeFile(::testing::TempDir()).status().message()),
              HasSubstr("Is a directory"));
  unlink(path.c_str());
}

}  // namespace
}  // namespace prefixd::daemon
