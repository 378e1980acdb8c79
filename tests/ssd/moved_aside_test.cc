// T6: a database whose metadata is damaged is moved aside, and the store opens with a new one.
#include <fstream>
#include <set>

#include "gmock/gmock.h"

#include "base/checksum.h"
#include "tests/ssd/store_fixture.h"

namespace prefixd::ssd {
namespace {

using ::testing::HasSubstr;

class MovedAsideTest : public StoreTest {
 protected:
  std::string Current() const { return directory_ + "/CURRENT"; }
  std::string Manifest() const {
    std::ifstream file(Current());
    std::string name;
    file >> name;
    return directory_ + "/" + name;
  }
  static std::string Bytes(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static void Overwrite(const std::string& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  }
  void WriteOne() {
    std::vector<uint64_t> sequences;
    pages_.push_back(MakePage(50'000));
    WriteSegment(Open(), {pages_.back()}, &sequences);
    sequences_.push_back(sequences[0]);
    store_.reset();
  }
  // Opens and stores a page, which the next life reads.
  void ExpectInService(const std::string& what) {
    const uint64_t before = sequences_.empty() ? 0 : sequences_.back();
    Open();
    EXPECT_GT(store_->last_sequence(), before) << what << ": sequences go on";
    const Page page = MakePage(3'000);
    std::vector<uint64_t> sequences;
    WriteSegment(*store_, {page}, &sequences);
    EXPECT_TRUE(Read(Open(), sequences[0], page).ok()) << what;
  }

  std::vector<Page> pages_;
  std::vector<uint64_t> sequences_;
};

TEST_F(MovedAsideTest, T6ADamagedManifestIsMovedAsideWithAllThatIsThereAndSaid) {
  WriteOne();
  std::string bytes = Bytes(Manifest());
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 4);
  Overwrite(Manifest(), bytes);
  const std::string manifest = std::filesystem::path(Manifest()).filename();
  Open();
  const SegmentStore::Findings& findings = store_->findings();
  EXPECT_THAT(findings.moved_aside, HasSubstr(directory_ + "/damaged-2"));
  EXPECT_THAT(findings.moved_why, HasSubstr("Corruption"));
  EXPECT_EQ(Bytes(findings.moved_aside + "/" + manifest), bytes) << "as it was";
  EXPECT_TRUE(store_->Segments().empty());
  EXPECT_TRUE(findings.cleared_why.empty());
  EXPECT_EQ(store_->DamagedCopies().count, 1u);
  EXPECT_GT(store_->DamagedCopies().bytes, 50'000u);
  EXPECT_GT(store_->FileBytes(), store_->DamagedCopies().bytes);
  store_.reset();
  ExpectInService("after it");
  EXPECT_TRUE(store_->findings().moved_aside.empty());
}

TEST_F(MovedAsideTest, T6AnyFlippedBitOfManifestOrCurrentEndsInService) {
  WriteOne();
  const std::string good = parent_ + "/good";
  std::filesystem::copy(directory_, good, std::filesystem::copy_options::recursive);
  std::mt19937_64 random(20261126);
  for (int i = 0; i < 120; ++i) {
    std::filesystem::remove_all(directory_);
    std::filesystem::copy(good, directory_, std::filesystem::copy_options::recursive);
    const std::string path = i % 3 == 0 ? Current() : Manifest();
    std::string bytes = Bytes(path);
    const size_t bit = random() % (bytes.size() * 8);
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ 1 << bit % 8);
    Overwrite(path, bytes);
    const std::string what = path + " bit " + std::to_string(bit);
    Open();
    const absl::Status read = Read(*store_, sequences_[0], pages_[0]);
    // A bad length at the end of the manifest looks to RocksDB like a write that was cut short:
    // what it said is not there, and nothing else.
    const bool cut_short = absl::IsNotFound(read) && store_->Segments().empty();
    EXPECT_TRUE(read.ok() || cut_short || !store_->findings().moved_aside.empty())
        << what << ": " << read;
    store_.reset();
    ExpectInService(what);
  }
}

TEST_F(MovedAsideTest, T6AnyTruncationOfManifestOrCurrentEndsInService) {
  WriteOne();
  const std::string good = parent_ + "/good";
  std::filesystem::copy(directory_, good, std::filesystem::copy_options::recursive);
  for (int i = 0; i < 40; ++i) {
    std::filesystem::remove_all(directory_);
    std::filesystem::copy(good, directory_, std::filesystem::copy_options::recursive);
    const std::string path = i % 2 == 0 ? Current() : Manifest();
    const size_t length = Bytes(path).size();
    std::filesystem::resize_file(path, i < 2 ? 0 : length * static_cast<size_t>(i) / 40);
    ExpectInService(path + " cut short");
  }
}

TEST_F(MovedAsideTest, T6AStoreThatLostAnyOneOfItsFilesEndsInService) {
  WriteOne();
  const std::string good = parent_ + "/good";
  std::filesystem::copy(directory_, good, std::filesystem::copy_options::recursive);
  std::set<std::string> names;
  for (const auto& file : std::filesystem::recursive_directory_iterator(good)) {
    if (file.is_regular_file()) names.insert(std::filesystem::relative(file.path(), good));
  }
  EXPECT_GT(names.count("prefixd.lock") + names.count("CURRENT"), 1u);
  for (const std::string& name : names) {
    std::filesystem::remove_all(directory_);
    std::filesystem::copy(good, directory_, std::filesystem::copy_options::recursive);
    std::filesystem::remove(directory_ + "/" + name);
    ExpectInService(name + " removed");
  }
}

TEST_F(MovedAsideTest, T6TheLastTwoDamagedCopiesAreKeptUntilTheyAreRemoved) {
  std::vector<std::string> folders;
  for (int i = 0; i < 4; ++i) {
    WriteOne();
    Overwrite(Current(), "");
    folders.push_back(Open().findings().moved_aside);
    EXPECT_EQ(store_->DamagedCopies().count, std::min<uint64_t>(2, static_cast<uint64_t>(i) + 1));
  }
  EXPECT_FALSE(std::filesystem::exists(folders[1]));
  EXPECT_TRUE(std::filesystem::exists(folders[2]));
  ASSERT_TRUE(store_->RemoveDamaged().ok());
  EXPECT_FALSE(std::filesystem::exists(folders[2]));
  ASSERT_TRUE(store_->RemoveDamaged().ok());
  EXPECT_TRUE(absl::IsNotFound(store_->RemoveDamaged()));
  EXPECT_EQ(store_->DamagedCopies().bytes, 0u);
}

// What is not damaged but somebody else's stays where it is.
TEST_F(MovedAsideTest, T6AStoreOfALaterFormatIsRefusedAlsoWhenItsMetadataIsDamaged) {
  WriteOne();
  for (const char* const name : {"/prefixd.borders", "/prefixd.borders.2"}) {
    std::string text = Bytes(directory_ + name);
    text[8] = 99;  // the store's format version
    text.resize(text.size() - 8);
    const uint64_t sum = base::Xxh3(base::AsBytes(text));
    text.append(reinterpret_cast<const char*>(&sum), sizeof(sum));
    Overwrite(directory_ + name, text);
  }
  Overwrite(Current(), "");
  const absl::Status status = SegmentStore::Open({.directory = directory_}).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("format version 99"));
  EXPECT_TRUE(std::filesystem::exists(Current()));
}

}  // namespace
}  // namespace prefixd::ssd
