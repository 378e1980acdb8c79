// Damaged and missing files: found, never wrong bytes, never a store that cannot be opened.
#include <fstream>

#include "tests/ssd/store_fixture.h"

namespace prefixd::ssd {
namespace {

class DamageTest : public StoreTest {
 protected:
  // The table file that holds `text`, and where.
  struct Place {
    std::string path;
    size_t offset = std::string::npos;
  };
  Place Find(const std::string& text) {
    store_.reset();
    for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
      if (entry.path().extension() != ".sst") continue;
      const size_t offset = Load(entry.path().string()).find(text);
      if (offset != std::string::npos) return {entry.path().string(), offset};
    }
    ADD_FAILURE() << "no table file holds the text";
    return {};
  }
  static std::string Load(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static void FlipBit(const Place& place) {
    std::string bytes = Load(place.path);
    bytes[place.offset] = static_cast<char>(bytes[place.offset] ^ 0x10);
    std::ofstream(place.path, std::ios::binary) << bytes;
  }
  static std::string Text(const Page& page) {
    return std::string(base::AsText(std::span(page.bytes).first(48)));
  }

  void WriteThreePages() {
    for (int i = 0; i < 3; ++i) pages_.push_back(MakePage(20'000));
    segment_ = WriteSegment(Open(), pages_, &sequences_);
  }

  std::vector<Page> pages_;
  std::vector<uint64_t> sequences_;
  SegmentInfo segment_;
};

TEST_F(DamageTest, AFlippedBitInAPageIsDataLossAndItsNeighboursAreReadable) {
  WriteThreePages();
  Place place = Find(Text(pages_[1]));
  place.offset += 12'345;
  FlipBit(place);
  Open();
  EXPECT_TRUE(Read(*store_, sequences_[0], pages_[0]).ok());
  EXPECT_TRUE(absl::IsDataLoss(Read(*store_, sequences_[1], pages_[1])));
  EXPECT_TRUE(Read(*store_, sequences_[2], pages_[2]).ok());
}

TEST_F(DamageTest, AFlippedBitInTheHeaderOfAPageIsDataLoss) {
  WriteThreePages();
  Place place = Find(Text(pages_[1]));
  place.offset -= 8 + 8;  // the check ends the key, RocksDB's suffix follows
  FlipBit(place);
  Open();
  EXPECT_TRUE(absl::IsDataLoss(Read(*store_, sequences_[1], pages_[1])));
}

TEST_F(DamageTest, APageOfAnotherLengthIsDataLoss) {
  WriteThreePages();
  EXPECT_TRUE(absl::IsDataLoss(Read(*store_, sequences_[0], MakePage(19'999))));
  EXPECT_TRUE(absl::IsDataLoss(Read(*store_, sequences_[0], MakePage(20'001))));
  EXPECT_TRUE(absl::IsNotFound(Read(*store_, sequences_[2] + 100, pages_[0])));
}

TEST_F(DamageTest, ADamagedRecordIsCountedAndPassedOver) {
  WriteThreePages();
  FlipBit(Find(RecordOf(sequences_[1])));
  Open();
  uint64_t unreadable = 0;
  EXPECT_EQ(Records(*store_, &unreadable),
            (std::vector<std::string>{RecordOf(sequences_[0]), RecordOf(sequences_[2])}));
  EXPECT_EQ(unreadable, 1u);
  FlipBit(Find(RecordOf(sequences_[0])));
  Open();
  EXPECT_EQ(Records(*store_, &unreadable), (std::vector<std::string>{RecordOf(sequences_[2])}));
  EXPECT_EQ(unreadable, 2u);
}

TEST_F(DamageTest, RecordsAreReadWithoutAnyPagesFile) {
  WriteThreePages();
  std::filesystem::remove(Find(Text(pages_[0])).path);
  Open();
  uint64_t unreadable = 1;
  EXPECT_EQ(Records(*store_, &unreadable).size(), 3u);
  EXPECT_EQ(unreadable, 0u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(absl::IsDataLoss(Read(*store_, sequences_[i], pages_[i])));
  }
}

TEST_F(DamageTest, AMissingRecordsFileIsCountedAndOtherSegmentsAreRead) {
  WriteThreePages();
  std::vector<uint64_t> more;
  WriteSegment(*store_, {MakePage(5'000)}, &more);
  std::filesystem::remove(Find(RecordOf(sequences_[0])).path);
  Open();
  uint64_t unreadable = 0;
  EXPECT_EQ(Records(*store_, &unreadable), (std::vector<std::string>{RecordOf(more[0])}));
  EXPECT_GE(unreadable, 1u);
  EXPECT_TRUE(store_->DropSegment(segment_).ok());
  EXPECT_EQ(store_->Segments().size(), 1u);
}

TEST_F(DamageTest, ATruncatedPagesFileIsDataLossAndTheStoreStillTakesSegments) {
  WriteThreePages();
  std::filesystem::resize_file(Find(Text(pages_[0])).path, 30'000);
  Open();
  EXPECT_TRUE(absl::IsDataLoss(Read(*store_, sequences_[2], pages_[2])));
  std::vector<uint64_t> more;
  const Page page = MakePage(5'000);
  WriteSegment(*store_, {page}, &more);
  EXPECT_TRUE(Read(*store_, more[0], page).ok());
}

}  // namespace
}  // namespace prefixd::ssd
