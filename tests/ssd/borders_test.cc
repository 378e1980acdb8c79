// T6: what was cleared stays cleared, whatever happens to the database's log or to the files that
// say so.
#include <fstream>

#include "gmock/gmock.h"

#include "base/checksum.h"
#include "ssd/table_db.h"
#include "tests/ssd/store_fixture.h"
#include "tests/support/fault_files.h"

namespace prefixd::ssd {
namespace {

using ::testing::HasSubstr;

class BordersTest : public StoreTest {
 protected:
  static block::SpaceId Space(int number) {
    block::SpaceId id{};
    id[0] = static_cast<std::byte>(number);
    return id;
  }
  std::string First() const { return directory_ + "/prefixd.borders"; }
  std::string Second() const { return directory_ + "/prefixd.borders.2"; }
  static std::string Bytes(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static void Overwrite(const std::string& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  }
  static void Flip(const std::string& path, size_t bit) {
    std::string bytes = Bytes(path);
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ 1 << bit % 8);
    Overwrite(path, bytes);
  }
  // One segment, and a border at its end for space 1.
  uint64_t WriteAndClear() {
    std::vector<uint64_t> sequences;
    const SegmentInfo segment = WriteSegment(*store_, {MakePage(5'000)}, &sequences);
    EXPECT_TRUE(store_->AddBorders({.spaces = {{Space(1), segment.last_sequence}}}).ok());
    return segment.last_sequence;
  }
};

TEST_F(BordersTest, T6ABorderSurvivesTheNextOpenAndCoversWhatWasBeforeItOnly) {
  Open();
  const uint64_t border = WriteAndClear();
  const ClearedBorders borders = Open().Borders();
  EXPECT_TRUE(borders.Cover(Space(1), border));
  EXPECT_FALSE(borders.Cover(Space(1), border + 1));
  EXPECT_FALSE(borders.Cover(Space(2), border));
  ASSERT_TRUE(store_->AddBorders({.all = border}).ok());
  EXPECT_TRUE(Open().Borders().Cover(Space(2), border));
  EXPECT_FALSE(store_->Borders().Cover(Space(2), border + 1));
}

TEST_F(BordersTest, T6AnyFlippedBitOfOneFileOfBordersCostsNothingAndIsSaid) {
  Open();
  const uint64_t border = WriteAndClear();
  store_.reset();
  for (const std::string& path : {First(), Second()}) {
    const size_t bits = Bytes(path).size() * 8;
    for (size_t bit = 0; bit < bits; bit += 37) {
      Flip(path, bit);
      Open();
      ASSERT_TRUE(store_->Borders().Cover(Space(1), border)) << path << " bit " << bit;
      ASSERT_FALSE(store_->Borders().Cover(Space(2), border)) << path << " bit " << bit;
      ASSERT_EQ(store_->findings().notes.size(), 1u);
      store_.reset();
    }
    std::filesystem::remove(path);
    EXPECT_TRUE(Open().Borders().Cover(Space(1), border));
    store_.reset();
    EXPECT_EQ(Bytes(First()), Bytes(Second())) << "both are whole again";
  }
}

TEST_F(BordersTest, T6WhereBothFilesOfBordersAreGoneNothingOlderCounts) {
  for (const bool removed : {true, false}) {
    directory_ = parent_ + "/store" + std::to_string(removed);
    Open();
    const uint64_t border = WriteAndClear();
    store_.reset();
    for (const std::string& path : {First(), Second()}) {
      removed ? (void)std::filesystem::remove(path) : Flip(path, 100);
    }
    EXPECT_THAT(Open().findings().cleared_why, HasSubstr("gone or damaged"));
    EXPECT_TRUE(store_->Borders().Cover(Space(2), border)) << "drop rather than serve";
    std::vector<uint64_t> sequences;
    const SegmentInfo later = WriteSegment(*store_, {MakePage(5'000)}, &sequences);
    EXPECT_TRUE(Open().findings().cleared_why.empty());
    EXPECT_TRUE(store_->Borders().Cover(Space(2), border));
    EXPECT_FALSE(store_->Borders().Cover(Space(2), later.first_sequence));
  }
}

// What an earlier prefixd left has no such files, and says nothing of them.
TEST_F(BordersTest, T6AStoreFromBeforeThereWereFilesOfBordersIsServed) {
  Open();
  std::vector<uint64_t> sequences;
  WriteSegment(*store_, {MakePage(5'000)}, &sequences);
  auto table = TableDb::Open({.directory = directory_}).status();  // the lock is ours
  EXPECT_FALSE(table.ok());
  store_.reset();
  {
    auto raw = TableDb::Open({.directory = directory_}).value();
    rocksdb::WriteBatch batch;
    batch.Delete("store/borders");
    ASSERT_TRUE(raw->WriteMeta(&batch, "forget").ok());
  }
  std::filesystem::remove(First());
  std::filesystem::remove(Second());
  EXPECT_TRUE(Open().findings().cleared_why.empty());
  EXPECT_FALSE(store_->Borders().Cover(Space(1), sequences[0]));
}

// Whatever of the log is lost: the border holds, no sequence is given out twice.
TEST_F(BordersTest, T6ADamagedOrMissingLogOfTheDatabaseBringsNothingBack) {
  for (const bool removed : {true, false}) {
    directory_ = parent_ + "/store" + std::to_string(removed);
    Open();
    const uint64_t border = WriteAndClear();
    store_.reset();
    for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
      if (entry.path().extension() != ".log") continue;
      removed ? (void)std::filesystem::remove(entry.path()) : Flip(entry.path(), 20 * 8);
    }
    Open();
    EXPECT_TRUE(store_->Borders().Cover(Space(1), border));
    EXPECT_GT(store_->last_sequence(), border);
    ASSERT_EQ(store_->findings().notes.size(), 1u);
    EXPECT_THAT(store_->findings().notes[0], HasSubstr("lost its latest metadata"));
  }
}

TEST_F(BordersTest, T6SequencesGoOnBehindTheBordersOfADatabaseThatIsGone) {
  Open();
  const uint64_t border = WriteAndClear();
  store_.reset();
  for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with("prefixd.") && name != "incoming") std::filesystem::remove(entry.path());
  }
  EXPECT_GT(Open().last_sequence(), border) << "what is stored now would count as cleared";
}

TEST_F(BordersTest, T6ALaterFormatOfTheBordersIsRefusedAndLeftAlone) {
  Open();
  store_.reset();
  std::string text = Bytes(First());
  text[4] = 9;
  text.resize(text.size() - 8);
  const uint64_t sum = base::Xxh3(base::AsBytes(text));
  text.append(reinterpret_cast<const char*>(&sum), sizeof(sum));
  Overwrite(First(), text);
  const absl::Status status = SegmentStore::Open({.directory = directory_}).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("version 9"));
  EXPECT_EQ(Bytes(First()), text);
}

TEST_F(BordersTest, T6ABorderThatTheDiskRefusesCountsAtOnceAndIsWrittenWhenItTakesIt) {
  const auto disk = std::make_shared<testing::FaultDisk>(20261124);
  files_ = testing::FilesOn(disk);
  Open();
  for (int step = 0; step < 12; ++step) {
    std::vector<uint64_t> sequences;
    const SegmentInfo segment = WriteSegment(*store_, {MakePage(5'000)}, &sequences);
    disk->FailWrites(ENOSPC, static_cast<uint64_t>(step) % 8, ~uint64_t{0});
    const absl::Status status = store_->AddBorders({.spaces = {{Space(1), segment.last_sequence}}});
    EXPECT_EQ(status.ok(), store_->BordersSaved());
    EXPECT_FALSE(store_->SaveBorders().ok());
    EXPECT_TRUE(store_->Borders().Cover(Space(1), segment.last_sequence));
    disk->FailWrites(0);
    EXPECT_TRUE(store_->SaveBorders().ok());
    EXPECT_TRUE(store_->BordersSaved());
    EXPECT_TRUE(Open().Borders().Cover(Space(1), segment.last_sequence));
  }
}

TEST_F(BordersTest, T6ABorderThatWasAcknowledgedSurvivesAPowerCutAndOneDamagedFile) {
  const auto disk = std::make_shared<testing::FaultDisk>(20261125);
  files_ = testing::FilesOn(disk);
  uint64_t last = 0;
  for (uint64_t cut = 0; cut < 60; ++cut) {
    Open();
    ASSERT_TRUE(store_->findings().cleared_why.empty()) << cut;
    ASSERT_TRUE(store_->Borders().Cover(Space(1), last)) << cut;
    disk->CutAfter(cut % 20);
    const uint64_t border = store_->last_sequence();
    if (store_->AddBorders({.spaces = {{Space(1), border}}}).ok()) last = border;
    store_.reset();
    disk->PowerCycle();
    if (cut % 3 == 0) Flip(cut % 2 == 0 ? First() : Second(), 200);
  }
  EXPECT_GT(last, 0u);
}

TEST_F(BordersTest, T6BordersOfWhatIsNoLongerThereAreForgotten) {
  Open();
  for (int i = 1; i < 100; ++i) {
    std::vector<uint64_t> sequences;
    const SegmentInfo segment = WriteSegment(*store_, {MakePage(500)}, &sequences);
    ASSERT_TRUE(store_->AddBorders({.spaces = {{Space(i), segment.last_sequence}}}).ok());
    EXPECT_TRUE(store_->Borders().Cover(Space(i), segment.last_sequence));
    ASSERT_TRUE(store_->DropSegment(segment).ok());
    EXPECT_LE(store_->Borders().spaces.size(), 2u);
  }
}

}  // namespace
}  // namespace prefixd::ssd
