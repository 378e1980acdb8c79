// Tens of thousands of damaged values and reads: a match may be shorter, a byte is never wrong.
// PREFIXD_CORRUPTIONS sets how many are injected in each test.
#include <cstdlib>

#include "cache/record.h"
#include "ssd/segment_store.h"
#include "tests/cache/fixture.h"
#include "tests/support/fault_files.h"

namespace prefixd::testing {
namespace {

constexpr uint64_t kCorruptionsUsually = 3000;

uint64_t Wanted() {
  const char* wanted = std::getenv("PREFIXD_CORRUPTIONS");
  return wanted != nullptr ? std::strtoull(wanted, nullptr, 10) : kCorruptionsUsually;
}

struct StoredPage {
  uint64_t sequence = 0;
  block::PageHeader header;
  std::vector<std::byte> bytes;
};

class CorruptionTest : public CacheTest {
 protected:
  cache::Options OptionsOf(const std::string& name) {
    cache::Options options = WithSsd(uint64_t{32} << 20);
    options.directory = dir_.path() + "/" + name;
    options.direct_io = false;
    options.log = [](cache::LogLevel, const std::string&) {};
    return options;
  }
  // Sequences that share prefixes, on SSD.
  void Fill(const std::string& name) {
    Open(OptionsOf(name));
    const auto space = OpenSpace(identity_);
    for (uint64_t i = 0; i < 16; ++i) {
      Tokens tokens = RandomTokens(i / 4, 80);
      const Tokens more = RandomTokens(100 + i, 40 + 13 * i);
      tokens.insert(tokens.end(), more.begin(), more.end());
      ASSERT_TRUE(Store(identity_, space, tokens).ok());
      sequences_.push_back(tokens);
    }
    ASSERT_EQ(cache_->Flush(In(20000)).dirty_bytes, 0u);
    cache_.reset();
  }
  // Right bytes, however many.
  uint64_t ReadEverything() {
    const auto space = OpenSpace(identity_);
    uint64_t back = 0;
    for (const Tokens& tokens : sequences_) back += ReadBack(identity_, space, tokens);
    return back;
  }
  // Whoever computes what turned out bad stores it again, page by page as it is found.
  void ExpectHealed() {
    const auto space = OpenSpace(identity_);
    for (const Tokens& tokens : sequences_) {
      uint32_t back = 0;
      for (int time = 0; time < 40 && back < tokens.size(); ++time) {
        ASSERT_TRUE(Store(identity_, space, tokens).ok());
        back = ReadBack(identity_, space, tokens);
      }
      ASSERT_EQ(back, tokens.size());
    }
  }

  block::SpaceIdentity identity_ = SmallIdentity(16, 2);
  std::mt19937_64 random_{20261122};
  std::vector<Tokens> sequences_;
};

// Of large pages too, which are read past RocksDB.
TEST_F(CorruptionTest, ReadsThatComeBackDamagedNeverGiveWrongBytes) {
  identity_ = SmallIdentity(64, 16);
  Fill("ssd");
  const DiskPtr disk = std::make_shared<FaultDisk>(20261122);
  cache::Options options = OptionsOf("ssd");
  options.ssd_files = FilesOn(disk);
  uint64_t back = 0;
  // Of a few a single one, in the tail of a file, may leave nothing to come back.
  for (int round = 0; (disk->corrupted() < Wanted() || back == 0) && !HasFailure(); ++round) {
    ASSERT_LT(round, 100000);
    Open(options);
    disk->CorruptReads(0.02 + 0.4 * static_cast<double>(random_() % 100) / 100);
    back += ReadEverything();
    disk->CorruptReads(0);
    if (round % 16 == 0) ExpectHealed();
  }
  RecordProperty("corruptions", static_cast<int>(disk->corrupted()));
  EXPECT_GT(back, 0u);
}

// Below RocksDB nothing is wrong: every value is whole under its checksum, and is not what its key
// or its record says.
class ValueCorruptionTest : public CorruptionTest {
 protected:
  void Load(const std::string& name) {
    auto store = ssd::SegmentStore::Open({.directory = dir_.path() + "/" + name});
    ASSERT_TRUE(store.ok()) << store.status();
    uint64_t unreadable = 0;
    const auto take = [this](uint64_t, std::span<const std::byte> bytes) {
      records_.push_back(cache::DecodeRecord(bytes).value());
      return absl::OkStatus();
    };
    ASSERT_TRUE((*store)->ForEachRecord(take, &unreadable).ok());
    for (const cache::BlockRecord& record : records_) {
      for (const index::RestoredPage& page : record.block.pages) {
        StoredPage stored{.sequence = page.ssd_sequence, .header = {}, .bytes = {}};
        stored.bytes.resize(page.page_bytes);
        ASSERT_TRUE((*store)->ReadPage(page.ssd_sequence, &stored.header, stored.bytes).ok());
        pages_.push_back(std::move(stored));
      }
    }
    auto spaces = (*store)->ListMeta("space/");
    ASSERT_TRUE(spaces.ok());
    spaces_ = *spaces;
  }
  std::byte& Any(std::vector<std::byte>* bytes) { return (*bytes)[random_() % bytes->size()]; }

  StoredPage Damaged(const StoredPage& page) {
    StoredPage bad = page;
    ++injected_;
    switch (random_() % 6) {
      case 0:
        Any(&bad.bytes) ^= static_cast<std::byte>(1 << random_() % 8);
        break;
      case 1:  // torn
        Any(&bad.bytes) ^= std::byte{0x80};
        std::fill_n(bad.bytes.begin() + static_cast<ptrdiff_t>(bad.bytes.size() / 2),
                    bad.bytes.size() / 2, std::byte{0xee});
        break;
      case 2:
        bad.bytes.resize(1 + random_() % (bad.bytes.size() - 1));
        break;
      case 3:  // another page's value, header and all
        bad.header = pages_[random_() % pages_.size()].header;
        bad.bytes = pages_[random_() % pages_.size()].bytes;
        break;
      case 4: {  // another page, whole
        const StoredPage& other = pages_[random_() % pages_.size()];
        bad.header = other.header;
        bad.bytes = other.bytes;
        break;
      }
      default: {
        std::byte* header = reinterpret_cast<std::byte*>(&bad.header);
        header[random_() % sizeof(bad.header)] ^= static_cast<std::byte>(1 << random_() % 8);
      }
    }
    return bad;
  }
  // A record that points elsewhere, or whose bytes are not what was written.
  std::string Damaged(cache::BlockRecord record) {
    ++injected_;
    for (index::RestoredPage& page : record.block.pages) {
      if (random_() % 2 == 0) continue;
      const cache::BlockRecord& other = records_[random_() % records_.size()];
      const index::RestoredPage& from = other.block.pages[random_() % other.block.pages.size()];
      page.ssd_sequence = from.ssd_sequence;
      if (random_() % 2 == 0) page.check = from.check;
    }
    if (random_() % 3 == 0) record.block.parent = records_[random_() % records_.size()].block.hash;
    if (random_() % 3 == 0) record.block.parent_path ^= random_();
    std::string bytes = cache::EncodeRecord(record);
    if (random_() % 3 == 0) bytes[random_() % bytes.size()] ^= 4;
    if (random_() % 5 == 0) bytes.resize(random_() % bytes.size());
    return bytes;
  }
  // A store with every page and record, some of them damaged.
  void WriteDamaged(const std::string& name) {
    auto store =
        ssd::SegmentStore::Open({.directory = dir_.path() + "/" + name, .direct_io = false});
    ASSERT_TRUE(store.ok()) << store.status();
    for (const auto& [key, value] : spaces_) ASSERT_TRUE((*store)->PutMeta(key, value).ok());
    auto segment = (*store)->NewSegment();
    ASSERT_TRUE(segment.ok());
    std::map<uint64_t, uint64_t> moved;  // sequences before to sequences now
    for (const StoredPage& page : pages_) {
      const StoredPage written = random_() % 4 == 0 ? Damaged(page) : page;
      moved[page.sequence] = (*segment)->AddPage(written.header, written.bytes).value();
    }
    std::vector<cache::BlockRecord> before = records_;
    for (cache::BlockRecord& record : records_) {
      for (index::RestoredPage& page : record.block.pages)
        page.ssd_sequence = moved.at(page.ssd_sequence);
    }
    for (const cache::BlockRecord& record : records_) {
      const std::string bytes = random_() % 6 == 0 ? Damaged(record) : cache::EncodeRecord(record);
      ASSERT_TRUE((*segment)->AddRecord(bytes).ok());
    }
    records_ = std::move(before);
    ASSERT_TRUE((*segment)->Finish().ok());
  }

  std::vector<cache::BlockRecord> records_;
  std::vector<StoredPage> pages_;
  std::vector<std::pair<std::string, std::string>> spaces_;
  uint64_t injected_ = 0;
};

TEST_F(ValueCorruptionTest, ValuesThatAreNotWhatTheirKeySaysNeverGiveWrongBytes) {
  Fill("ssd");
  Load("ssd");
  uint64_t back = 0, bad = 0;
  for (int round = 0; injected_ < Wanted() && !HasFailure(); ++round) {
    WriteDamaged("damaged");
    Open(OptionsOf("damaged"));
    back += ReadEverything();
    bad += Counter("check_failures");
    if (round % 8 == 0) ExpectHealed();
    cache_.reset();
    std::filesystem::remove_all(dir_.path() + "/damaged");
  }
  RecordProperty("corruptions", static_cast<int>(injected_));
  EXPECT_GT(back, 0u);
  EXPECT_GT(bad, 0u);
}

}  // namespace
}  // namespace prefixd::testing
