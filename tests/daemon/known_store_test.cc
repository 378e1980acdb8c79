// A disk that is not mounted is reported, and what is below its mount point is not filled.
#include "daemon/known_store.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/daemon/fixture.h"

namespace prefixd::daemon {
namespace {

class KnownStoreTest : public ::testing::Test {
 protected:
  KnownStoreTest() { std::filesystem::create_directory(directory_); }
  // As if a store had been seen on the filesystem with that id.
  void Remember(const std::string& instance, uint64_t filesystem) {
    std::ofstream(known_) << instance << "\n" << filesystem << "\n";
  }
  std::string Missing() { return MissingStore(known_, directory_).value(); }

  testing::TempDir dir_;
  const std::string known_ = dir_.path() + "/known", directory_ = dir_.path() + "/ssd";
};

TEST_F(KnownStoreTest, AMountPointWithoutItsDiskIsReported) {
  Remember("0123abcd", 1);  // no filesystem has this id
  EXPECT_NE(Missing().find("0123abcd"), std::string::npos) << Missing();
  EXPECT_NE(Missing().find(known_), std::string::npos) << Missing();
  std::filesystem::remove(directory_);
  EXPECT_FALSE(Missing().empty());
}

TEST_F(KnownStoreTest, AStoreThatIsThereOrWasNeverSeenIsNotMissing) {
  EXPECT_EQ(Missing(), "");
  EXPECT_EQ(MissingStore("", directory_).value(), "");
  Remember("0123abcd", 1);
  std::ofstream(directory_ + "/prefixd.instance") << "4567\n";  // another disk
  EXPECT_EQ(Missing(), "");
}

TEST_F(KnownStoreTest, NothingIsRememberedOfTheRootFilesystemOrATmpfs) {
  Remember("0123abcd", 1);
  ASSERT_TRUE(RememberStore(known_, "/", "0123").ok());
  EXPECT_FALSE(std::filesystem::exists(known_));
}

// T5: the file stands in a folder that is shared on some hosts.
TEST_F(KnownStoreTest, T5NothingIsReadOrWrittenThroughALink) {
  const std::string victim = dir_.path() + "/victim";
  std::ofstream(victim) << "0123abcd\n1\n";
  std::filesystem::create_symlink(victim, known_);
  EXPECT_EQ(MissingStore(known_, directory_).status().code(),
            absl::StatusCode::kFailedPrecondition);
  // /proc may go away without the file: it is no tmpfs and not the root's filesystem.
  (void)RememberStore(known_, "/proc", "4567");
  std::string text;
  std::ifstream(victim) >> text;
  EXPECT_EQ(text, "0123abcd");
}

}  // namespace
}  // namespace prefixd::daemon
