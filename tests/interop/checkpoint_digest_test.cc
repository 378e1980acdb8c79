#include "interop/checkpoint_digest.h"

#include <sys/stat.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "gtest/gtest.h"

#include "base/bytes.h"
#include "tests/interop/checkpoint_files.h"

namespace prefixd::interop {
namespace {

constexpr char kHeader[] = R"({"w":{"dtype":"F16","shape":[2,2],"data_offsets":[2,10]},)"
                           R"("b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})";
constexpr char kData[] = "bbwwwwwwww";

class CheckpointDigestTest : public CheckpointTest {
 protected:
  void SetUp() override {
    CheckpointTest::SetUp();
    WriteSafetensors("model.safetensors", kHeader, kData);
    later_.Advance((int64_t{std::time(nullptr)} + 3600) * 1'000'000);
  }
  std::string Forgetful() const { return Hex(DigestCheckpoint(directory(), {.file = ""})); }
  std::string Remembering(const base::Clock& clock) const {
    return Hex(DigestCheckpoint(directory(), {.file = MemoryFile(), .clock = &clock}));
  }
  std::string MemoryFile() const { return PathOf("cache/prefixd/digests"); }
  std::string MemoryText() const {
    std::ifstream in(MemoryFile(), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  // Makes a memory that is obeyed visible: whoever answers this digest has read it there.
  void TamperWithMemory() const {
    std::string text = MemoryText();
    ASSERT_EQ(text.size(), 130u);
    text.replace(65, 64, std::string(64, '7'));
    WriteText("cache/prefixd/digests", text);
  }
  static std::string Hex(const absl::StatusOr<base::Digest256>& digest) {
    return digest.ok() ? base::ToHex(*digest) : digest.status().ToString();
  }

  base::FakeClock later_;  // long after the files were written
};

// The value was computed in Python from the encoding in checkpoint_digest.h.
TEST_F(CheckpointDigestTest, DigestIsTheGoldenVector) {
  EXPECT_EQ(Forgetful(), "92ed0ac8bc959bd83c773992390c6a66182b1919680237d7927922c1c0900db2");
}

TEST_F(CheckpointDigestTest, WhoeverWaitsIsToldHowMuchWasReadAndNothingIfItIsRemembered) {
  std::vector<std::pair<uint64_t, uint64_t>> told;
  const auto digest = [&] {
    return Hex(DigestCheckpoint(
        directory(),
        {.file = MemoryFile(), .clock = &later_, .on_read = [&](uint64_t read, uint64_t whole) {
           told.emplace_back(read, whole);
         }}));
  };
  EXPECT_EQ(digest(), Forgetful());
  EXPECT_EQ(told, (std::vector<std::pair<uint64_t, uint64_t>>{{2, 10}, {10, 10}}));
  EXPECT_EQ(digest(), Forgetful());
  EXPECT_EQ(told.size(), 2u);
}

TEST_F(CheckpointDigestTest, TheShippedModelHasTheGoldenDigest) {
  EXPECT_EQ(Hex(DigestCheckpoint(PREFIXD_TEST_DATA "/model", {.file = ""})),
            "05e924abf37e5f79fc8cc68089c1c3246b2ee67fc4dec0b2bb8d317278b72dd9");
}

TEST_F(CheckpointDigestTest, ShardingAndMetadataDoNotChangeTheDigest) {
  const std::string whole = Forgetful();
  WriteSafetensors("model.safetensors",
                   R"({"__metadata__":{"format":"pt"},)" + std::string(kHeader).substr(1), kData);
  EXPECT_EQ(Forgetful(), whole);
  std::filesystem::remove(PathOf("model.safetensors"));
  WriteSafetensors("x", R"({"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", "bb");
  WriteSafetensors("y", R"({"w":{"dtype":"F16","shape":[2,2],"data_offsets":[0,8]}})", "wwwwwwww");
  WriteText("model.safetensors.index.json", R"({"weight_map":{"b":"x","w":"y"}})");
  EXPECT_EQ(Forgetful(), whole);
}

TEST_F(CheckpointDigestTest, NameDtypeShapeAndEveryByteCount) {
  std::set<std::string> digests = {Forgetful()};
  const auto expect_new = [&](const std::string& header, const std::string& data) {
    WriteSafetensors("model.safetensors", header, data);
    EXPECT_TRUE(digests.insert(Forgetful()).second) << header << data;
  };
  const auto with = [](const std::string& from, const std::string& to) {
    std::string header = kHeader;
    return header.replace(header.find(from), from.size(), to);
  };
  expect_new(with("\"w\"", "\"v\""), kData);
  expect_new(with("F16", "BF16"), kData);
  expect_new(with("[2,2]", "[4]"), kData);
  expect_new(with("[2,2]", "[4,1]"), kData);
  for (size_t i = 0; i < 10; ++i) {
    std::string data = kData;
    data[i] ^= 1;
    expect_new(kHeader, data);
  }
}

TEST_F(CheckpointDigestTest, TheDigestIsRememberedPrivately) {
  const std::string digest = Remembering(later_);
  EXPECT_EQ(digest, Forgetful());
  struct stat facts;
  ASSERT_EQ(stat(MemoryFile().c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0600u);
  ASSERT_EQ(stat(PathOf("cache/prefixd").c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0700u);
  TamperWithMemory();
  EXPECT_EQ(Remembering(later_), std::string(64, '7'));
}

TEST_F(CheckpointDigestTest, AChangedFileIsDigestedAgain) {
  const std::string before = Remembering(later_);
  TamperWithMemory();
  // Same size, and the modification time put back: the inode's change time still tells.
  const auto modified = std::filesystem::last_write_time(PathOf("model.safetensors"));
  WriteSafetensors("model.safetensors", kHeader, "bbwwwwwwwW");
  std::filesystem::last_write_time(PathOf("model.safetensors"), modified);
  const std::string after = Remembering(later_);
  EXPECT_EQ(after, Forgetful());
  EXPECT_NE(after, before);
  EXPECT_EQ(Remembering(later_), after);
}

TEST_F(CheckpointDigestTest, AFileThatChangedJustNowIsNotRemembered) {
  EXPECT_EQ(Remembering(base::SystemClock::Get()), Forgetful());
  EXPECT_FALSE(std::filesystem::exists(MemoryFile()));
}

TEST_F(CheckpointDigestTest, ADamagedOrForeignMemoryIsIgnored) {
  const std::string digest = Remembering(later_);
  const std::string memory = MemoryText();
  for (const std::string& damaged :
       {std::string(), memory.substr(0, 70), memory.substr(1), std::string(100'000, 'a')}) {
    WriteText("cache/prefixd/digests", damaged);
    EXPECT_EQ(Remembering(later_), digest);
  }
  WriteText("cache/prefixd/digests", memory);
  TamperWithMemory();
  ASSERT_EQ(chmod(MemoryFile().c_str(), 0666), 0);  // anybody could have written it
  EXPECT_EQ(Remembering(later_), digest);
}

TEST_F(CheckpointDigestTest, AMemoryThatCannotBeWrittenIsNoError) {
  WriteText("file", "not a directory");
  EXPECT_EQ(Hex(DigestCheckpoint(directory(), {.file = PathOf("file/x"), .clock = &later_})),
            Forgetful());
}

TEST_F(CheckpointDigestTest, TheMemoryStaysSmall) {
  for (int i = 0; i < 70; ++i) {
    const std::string name = "m" + std::to_string(i);
    std::filesystem::create_directory(PathOf(name));
    WriteSafetensors(name + "/model.safetensors", kHeader, kData);
    ASSERT_TRUE(DigestCheckpoint(PathOf(name), {.file = MemoryFile(), .clock = &later_}).ok());
  }
  EXPECT_EQ(MemoryText().size(), 64u * 130);
}

TEST_F(CheckpointDigestTest, TheDefaultMemoryFollowsTheXdgCacheDirectory) {
  setenv("XDG_CACHE_HOME", PathOf("xdg").c_str(), 1);
  // The shipped model is older than the seconds that a file needs to settle.
  EXPECT_TRUE(DigestCheckpoint(PREFIXD_TEST_DATA "/model").ok());
  EXPECT_TRUE(std::filesystem::exists(PathOf("xdg/prefixd/checkpoint_digests")));
  unsetenv("XDG_CACHE_HOME");
}

TEST_F(CheckpointDigestTest, ADirectoryWithoutAModelIsAnError) {
  EXPECT_TRUE(absl::IsNotFound(DigestCheckpoint(PathOf("nowhere"), {.file = ""}).status()));
}

}  // namespace
}  // namespace prefixd::interop
