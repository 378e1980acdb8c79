// Tens of thousands of damaged values and reads: a match may be shorter, a byte is never wrong, and
// what is not damaged itself is there.
// PREFIXD_CORRUPTIONS sets how many are injected in each test; the properties of a test say how
// many it injected, and of which kinds.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>

#include "base/secret_file.h"
#include "cache/hash_key.h"
#include "cache/store/record.h"
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

  static void Report(const std::vector<std::pair<std::string, uint64_t>>& kinds) {
    uint64_t all = 0;
    std::string text;
    for (const auto& [kind, count] : kinds) {
      EXPECT_GT(count, Wanted() / 100) << kind;
      all += count;
      text += (text.empty() ? "" : ", ") + std::to_string(count) + " " + kind;
    }
    RecordProperty("corruptions", static_cast<int>(all));
    RecordProperty("kinds", text);
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
  Report({{"reads torn", disk->corrupted(FaultDisk::kTorn)},
          {"reads cut short", disk->corrupted(FaultDisk::kTruncated)},
          {"reads of another place", disk->corrupted(FaultDisk::kMisplaced)},
          {"reads with a flipped bit", disk->corrupted(FaultDisk::kFlipped)}});
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
  template <typename T>
  const T& AnotherOf(const std::vector<T>& all, const T& than) {
    for (;;) {
      const T& one = all[random_() % all.size()];
      if (&one != &than) return one;
    }
  }
  void FlipBit(std::byte* bytes, size_t count) {
    bytes[random_() % count] ^= static_cast<std::byte>(1 << random_() % 8);
  }

  // Requires: `page` is of pages_.
  StoredPage Damaged(const StoredPage& page) {
    StoredPage bad = page;
    const StoredPage& other = AnotherOf(pages_, page);
    const auto half = static_cast<ptrdiff_t>(bad.bytes.size() / 2);
    switch (random_() % 6) {
      case 0:
        ++injected_["pages with a flipped bit"];
        FlipBit(bad.bytes.data(), bad.bytes.size());
        break;
      case 1:
        ++injected_["pages torn"];
        FlipBit(bad.bytes.data(), bad.bytes.size());
        std::fill(bad.bytes.begin() + half, bad.bytes.end(), std::byte{0xee});
        break;
      case 2:
        ++injected_["pages truncated"];
        bad.bytes.resize(1 + random_() % (bad.bytes.size() - 1));
        break;
      case 3:
        ++injected_["pages under another's header"];
        bad.header = other.header;
        break;
      case 4:
        ++injected_["pages under another's key"];
        bad = other;
        break;
      default:
        ++injected_["headers with a flipped bit"];
        FlipBit(reinterpret_cast<std::byte*>(&bad.header), sizeof(bad.header));
    }
    return bad;
  }
  // Of `record`, whose pages were moved, that `before` the move.
  std::string Damaged(cache::BlockRecord record, const cache::BlockRecord& before) {
    index::RestoredPage& page = record.block.pages[random_() % record.block.pages.size()];
    const index::RestoredPage from = AnotherOf(records_, before).block.pages.front();
    switch (random_() % 6) {
      case 0:
        ++injected_["records of another page's sequence"];
        page.ssd_sequence = moved_.at(from.ssd_sequence);
        break;
      case 1:
        ++injected_["records of another page's sequence and check"];
        page.ssd_sequence = moved_.at(from.ssd_sequence);
        page.check = from.check;
        break;
      case 2:  // what its sequences were, which have been given out again
        ++injected_["records from before counters were reset"];
        record.block.pages = before.block.pages;
        break;
      case 3:
        ++injected_["records of another parent"];
        record.block.parent = AnotherOf(records_, before).block.hash;
        record.block.serials.parent ^= random_();
        break;
      case 4: {
        ++injected_["records with a flipped bit"];
        std::string bytes = cache::EncodeRecord(record);
        FlipBit(reinterpret_cast<std::byte*>(bytes.data()), bytes.size());
        return bytes;
      }
      default: {
        ++injected_["records truncated"];
        std::string bytes = cache::EncodeRecord(record);
        bytes.resize(random_() % bytes.size());
        return bytes;
      }
    }
    return cache::EncodeRecord(record);
  }
  // How many tokens of a sequence stand on SSD in blocks of which nothing was damaged.
  uint32_t WholeTokens(const Tokens& tokens) const {
    uint32_t at = 0;
    const cache::BlockRecord* last = nullptr;
    const auto goes_on = [&](const cache::BlockRecord& record) {
      const Tokens& own = record.block.tokens;
      return record.first_token == at && at + own.size() <= tokens.size() &&
             (last == nullptr || record.block.parent == last->block.hash) &&
             std::equal(own.begin(), own.end(), tokens.begin() + at) &&
             !damaged_.contains(record.block.hash);
    };
    while (at < tokens.size()) {
      const auto next = std::ranges::find_if(records_, goes_on);
      if (next == records_.end()) break;
      last = &*next;
      at += static_cast<uint32_t>(next->block.tokens.size());
    }
    return at;
  }
  // Right bytes, however many, of what is damaged; all bytes of what is not.
  void ReadDamaged(uint64_t* back, uint64_t* whole) {
    const auto space = OpenSpace(identity_);
    for (const Tokens& tokens : sequences_) {
      const uint32_t read = ReadBack(identity_, space, tokens), least = WholeTokens(tokens);
      ASSERT_GE(read, least) << "of " << tokens.size();
      *back += read;
      *whole += least;
    }
  }
  uint64_t Injected() const {
    uint64_t all = 0;
    for (const auto& [kind, count] : injected_) all += count;
    return all;
  }
  // A store with every page and record, some of them damaged.
  void WriteDamaged(const std::string& name) {
    const auto hashed_with = base::ReadSecret(dir_.path() + "/ssd/prefixd.key").value().value();
    auto store = ssd::SegmentStore::Open({.directory = dir_.path() + "/" + name,
                                          .direct_io = false,
                                          .key_id = cache::IdOf(hashed_with)});
    ASSERT_TRUE(store.ok()) << store.status();
    ASSERT_TRUE(base::WriteSecret(dir_.path() + "/" + name + "/prefixd.key", hashed_with).ok());
    for (const auto& [key, value] : spaces_) ASSERT_TRUE((*store)->PutMeta(key, value).ok());
    auto segment = (*store)->NewSegment();
    ASSERT_TRUE(segment.ok());
    // In another order than before: every sequence is another page's now.
    std::ranges::shuffle(pages_, random_);
    moved_.clear();
    damaged_.clear();
    std::set<uint64_t> damaged_pages;  // by sequence before
    for (const StoredPage& page : pages_) {
      const bool damage = random_() % 4 == 0;
      const StoredPage written = damage ? Damaged(page) : page;
      if (damage) damaged_pages.insert(page.sequence);
      moved_[page.sequence] = (*segment)->AddPage(written.header, written.bytes).value();
    }
    for (const cache::BlockRecord& before : records_) {
      cache::BlockRecord record = before;
      bool damage = random_() % 6 == 0;
      for (index::RestoredPage& page : record.block.pages) {
        page.ssd_sequence = moved_.at(page.ssd_sequence);
      }
      const std::string bytes = damage ? Damaged(record, before) : cache::EncodeRecord(record);
      for (const index::RestoredPage& page : before.block.pages) {
        damage = damage || damaged_pages.contains(page.ssd_sequence);
      }
      if (damage) damaged_.insert(before.block.hash);
      ASSERT_TRUE((*segment)->AddRecord(bytes).ok());
    }
    ASSERT_TRUE((*segment)->Finish().ok());
  }

  std::vector<cache::BlockRecord> records_;
  std::vector<StoredPage> pages_;
  std::vector<std::pair<std::string, std::string>> spaces_;
  std::map<uint64_t, uint64_t> moved_;        // sequences before to sequences now
  std::set<block::BlockHash> damaged_;        // blocks: their record or a page of theirs
  std::map<std::string, uint64_t> injected_;  // by kind
};

TEST_F(ValueCorruptionTest, ValuesThatAreNotWhatTheirKeySaysNeverGiveWrongBytes) {
  Fill("ssd");
  Load("ssd");
  uint64_t back = 0, whole = 0, bad = 0;
  for (int round = 0; Injected() < Wanted() && !HasFailure(); ++round) {
    WriteDamaged("damaged");
    Open(OptionsOf("damaged"));
    ReadDamaged(&back, &whole);
    bad += Counter("check_failures");
    if (round % 8 == 0) ExpectHealed();
    cache_.reset();
    std::filesystem::remove_all(dir_.path() + "/damaged");
  }
  Report({injected_.begin(), injected_.end()});
  EXPECT_EQ(injected_.size(), 12u) << "kinds";
  EXPECT_GT(whole, 0u);
  EXPECT_GE(back, whole);
  EXPECT_GT(bad, 0u);
}

}  // namespace
}  // namespace prefixd::testing
