#include "base/secret_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace prefixd::base {
namespace {

using testing::HasSubstr;

class SecretFileTest : public testing::Test {
 protected:
  SecretFileTest() {
    char name[] = "/tmp/prefixd_secret_XXXXXX";
    folder_ = mkdtemp(name);
    path_ = folder_ + "/secret";
  }
  ~SecretFileTest() override { std::filesystem::remove_all(folder_); }
  std::string Why() const { return std::string(ReadSecret(path_).status().message()); }
  std::string Text() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void Overwrite(const std::string& text) const {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << text;
  }

  std::string folder_, path_;
};

TEST_F(SecretFileTest, WhatWasWrittenIsReadAndIsItsOwnersAlone) {
  EXPECT_EQ(ReadSecret(path_).value(), std::nullopt);
  const Secret secret = RandomSecret().value(), other = RandomSecret().value();
  EXPECT_NE(secret, other);
  ASSERT_TRUE(WriteSecret(path_, secret).ok());
  EXPECT_EQ(ReadSecret(path_).value(), secret);
  struct stat status = {};
  ASSERT_EQ(stat(path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  ASSERT_TRUE(WriteSecret(path_, other).ok());
  EXPECT_EQ(ReadSecret(path_).value(), other);
  EXPECT_FALSE(std::filesystem::exists(path_ + ".new"));
}

TEST_F(SecretFileTest, EveryChangedByteAndEveryCutIsFound) {
  ASSERT_TRUE(WriteSecret(path_, RandomSecret().value()).ok());
  const std::string text = Text();
  for (size_t i = 0; i < text.size(); ++i) {
    std::string changed = text;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    Overwrite(changed);
    EXPECT_TRUE(absl::IsDataLoss(ReadSecret(path_).status())) << i;
    Overwrite(text.substr(0, i));
    EXPECT_TRUE(absl::IsDataLoss(ReadSecret(path_).status())) << i;
  }
  Overwrite(text + "x");
  EXPECT_TRUE(absl::IsDataLoss(ReadSecret(path_).status()));
}

TEST_F(SecretFileTest, AFileThatOthersCanReadOrChooseIsRefused) {
  ASSERT_TRUE(WriteSecret(path_, RandomSecret().value()).ok());
  chmod(path_.c_str(), 0640);
  EXPECT_THAT(Why(), HasSubstr("may be read or written by others"));
  std::filesystem::rename(path_, path_ + ".real");
  chmod((path_ + ".real").c_str(), 0600);
  std::filesystem::create_symlink(path_ + ".real", path_);
  EXPECT_THAT(Why(), HasSubstr("is a link"));
  std::filesystem::remove(path_);
  std::filesystem::create_directory(path_);
  EXPECT_THAT(Why(), HasSubstr("not a plain file"));
  std::filesystem::remove(path_);
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  ASSERT_TRUE(WriteSecret(path_, RandomSecret().value()).ok());
  ASSERT_EQ(chown(path_.c_str(), 12345, 0), 0);
  EXPECT_THAT(Why(), HasSubstr("belongs to user 12345"));
}

// Whoever may write in the folder could lay a trap there.
TEST_F(SecretFileTest, NothingIsWrittenThroughALink) {
  Overwrite("precious");
  std::filesystem::rename(path_, path_ + ".victim");
  std::filesystem::create_symlink(path_ + ".victim", path_ + ".new");
  std::filesystem::create_symlink(path_ + ".victim", path_);
  ASSERT_TRUE(WriteSecret(path_, RandomSecret().value()).ok());
  EXPECT_TRUE(ReadSecret(path_).ok());
  std::filesystem::rename(path_ + ".victim", path_);
  EXPECT_EQ(Text(), "precious");
}

// T5
TEST(SecretTest, SecretsAreEqualInEveryByteOrNot) {
  const auto secret = RandomSecret();
  ASSERT_TRUE(secret.ok());
  EXPECT_TRUE(Equal(*secret, *secret));
  for (size_t i = 0; i < secret->size(); ++i) {
    Secret other = *secret;
    other[i] ^= std::byte{1};
    EXPECT_FALSE(Equal(*secret, other)) << i;
  }
}

}  // namespace
}  // namespace prefixd::base
