// Files on their way between prefixd-llama and a server.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "client/llama/state_file.h"

namespace prefixd::llama {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class StateFolderTest : public ::testing::Test {
 protected:
  StateFolderTest() {
    std::string name = fs::temp_directory_path() / "prefixd_llama_XXXXXX";
    path_ = mkdtemp(name.data());
  }
  ~StateFolderTest() override { fs::remove_all(path_); }
  void Write(const std::string& name, const std::string& text) {
    std::ofstream(path_ / name) << text;
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(path_)) {
      names.push_back(entry.path().filename());
    }
    return names;
  }
  fs::path path_;
};

TEST_F(StateFolderTest, AFileIsWrittenAgainAndKeepsItsMemory) {
  StateFolder folder(path_);
  std::string name;
  uint64_t longest = 0;
  for (const uint64_t bytes : {10'000, 100, 50'000, 4096}) {
    const absl::StatusOr<StateFile> file = folder.Create(bytes);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(file->bytes().size(), bytes);
    for (std::byte& byte : file->bytes()) byte = std::byte{7};
    longest = std::max(longest, bytes);
    EXPECT_EQ(fs::file_size(path_ / file->name()), longest);
    if (name.empty()) name = file->name();
    EXPECT_EQ(file->name(), name);
  }
  EXPECT_THAT(Names(), ElementsAre(name));
}

TEST_F(StateFolderTest, TheShortestFileThatIsLongEnoughIsWritten) {
  StateFolder folder(path_);
  std::string small, middle, large;
  {
    const auto one = folder.Create(10'000), two = folder.Create(60'000),
               three = folder.Create(30'000);
    small = one->name(), large = two->name(), middle = three->name();
  }
  EXPECT_EQ(folder.Create(20'000)->name(), middle);
  EXPECT_EQ(folder.Create(40'000)->name(), large);
  EXPECT_EQ(folder.Create(9'000)->name(), small);
  EXPECT_EQ(folder.Create(90'000)->name(), large);  // it grows least
}

TEST_F(StateFolderTest, TwoAtATimeAreTwoFiles) {
  StateFolder folder(path_);
  const absl::StatusOr<StateFile> one = folder.Create(10), two = folder.Create(10);
  EXPECT_NE(one->name(), two->name());
}

TEST_F(StateFolderTest, AFileThatAServerMayStillReadIsNotWrittenAgain) {
  StateFolder folder(path_);
  std::string name;
  {
    absl::StatusOr<StateFile> file = folder.Create(10);
    name = file->name();
    file->Retire();
  }
  EXPECT_THAT(Names(), IsEmpty());
  EXPECT_NE(folder.Create(10)->name(), name);
}

TEST_F(StateFolderTest, WhatAServerWroteIsReadOnceAndRemoved) {
  StateFolder folder(path_);
  const std::string name = folder.NewName();
  Write(name, "state");
  {
    const absl::StatusOr<StateFile> file = folder.Open(name);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(std::to_integer<char>(file->bytes()[0]), 's');
    EXPECT_EQ(file->bytes().size(), 5u);
  }
  EXPECT_THAT(Names(), IsEmpty());
  EXPECT_TRUE(absl::IsNotFound(folder.Open(name).status()));
  Write(name, "");
  EXPECT_TRUE(absl::IsDataLoss(folder.Open(name).status()));
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(StateFolderTest, NothingIsLeftBehindAndWhatTheDeadLeftIsRemoved) {
  Write("prefixd-999999999-4.bin", "of a process that is gone");
  Write(absl::StrCat("prefixd-", getppid(), "-4.bin"), "of one that lives");
  Write("mine.bin", "of the user");
  {
    StateFolder folder(path_);
    EXPECT_TRUE(folder.Create(1000).ok());
  }
  EXPECT_THAT(Names(), ::testing::UnorderedElementsAre(
                           absl::StrCat("prefixd-", getppid(), "-4.bin"), "mine.bin"));
}

TEST_F(StateFolderTest, AFileThatHasNoRoomIsNotThereAndSaysSo) {
  StateFolder folder(path_);
  const absl::StatusOr<StateFile> file = folder.Create(uint64_t{1} << 60);
  EXPECT_FALSE(file.ok());
  EXPECT_THAT(std::string(file.status().message()), ::testing::HasSubstr("1152921504606846976"));
  EXPECT_THAT(Names(), IsEmpty());
}

}  // namespace
}  // namespace prefixd::llama
