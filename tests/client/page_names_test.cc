// Names of leased pages: where two are equal, the bytes are, whatever was stored, evicted, cleared,
// restarted or damaged in between.
#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "block/arena_file.h"
#include "tests/client/daemon.h"
#include "tests/client/packed_cache.h"

namespace prefixd {
namespace {

using Names = std::vector<std::vector<PageName>>;  // [layer][block]

class PageNamesTest : public testing::Test {
 protected:
  // Starts a daemon, after the one before ended, and a client of it.
  void Open(const std::string& ssd = "", ClientOptions options = {}) {
    space_ = {};
    client_.reset();
    daemon_.reset();
    daemon_.emplace(
        directory_.socket(),
        DaemonOptions{.arena = arena_.path(), .directory = ssd, .ram_bytes = uint64_t{32} << 20});
    options.address = directory_.address();
    client_.emplace(options);
    space_ = client_->OpenSpace(spec_);
    ASSERT_TRUE(space_.ok()) << space_.status.message;
  }
  void Store(const std::vector<uint32_t>& tokens, uint32_t seed) {
    const PackedCache cache(spec_, static_cast<uint32_t>(tokens.size()), seed);
    const Result<CommitInfo> stored = StorePacked(space_.value(), spec_, tokens, cache);
    ASSERT_TRUE(stored.ok()) << stored.status.message;
  }
  // Stores more other sequences than RAM has room for, and uses them, as tokens_ were used.
  void PushOut() {
    for (uint32_t seed = 1000; seed < 1100; ++seed) {
      const std::vector<uint32_t> others = Tokens(300, next_++);
      Store(others, seed);
      for (int time = 0; time < 3; ++time) space_.value().Acquire(others).WaitAll();
    }
    const Result<MatchInfo> match = space_.value().Match(tokens_);
    ASSERT_TRUE(match.ok()) << match.status.message;
    EXPECT_LT(match.value().ram_bytes, stored_bytes_ / 2) << "most of tokens_ is gone";
  }
  // Returns the names of tokens_, after it compared the bytes of each block with those that had its
  // name before.
  Names NamesOf() {
    Lease lease = space_.value().Acquire(tokens_, {.deadline = std::chrono::seconds(20)});
    EXPECT_EQ(lease.WaitAll(), tokens_.size());
    stored_bytes_ = lease.match().ram_bytes + lease.match().ssd_bytes;
    Names names;
    for (int layer = 0; layer < static_cast<int>(spec_.layers.size()); ++layer) {
      names.push_back(lease.page_names(layer));
      const std::span<const BlockTableEntry> table = lease.block_table(layer);
      EXPECT_EQ(names.back().size(), table.size());
      uint32_t begin = 0;
      for (size_t i = 0; i < table.size(); ++i) {
        Compare(lease, layer, begin, table[i].tokens, names.back()[i]);
        begin += table[i].tokens;
      }
    }
    return names;
  }
  void Compare(Lease& lease, int layer, uint32_t begin, uint32_t count, PageName name) {
    const LayerSpec& l = spec_.layers[static_cast<size_t>(layer)];
    Packed key(l.formats[0].key, l.kv_heads, l.key_dim, count);
    Packed value(l.formats[0].value, l.kv_heads, l.value_dim, count);
    ASSERT_TRUE(lease.Gather(layer, begin, count, key.view(), value.view()).ok());
    ASSERT_NE(name, PageName{});
    const auto [found, is_new] =
        seen_.try_emplace({name.high, name.low, count}, std::pair(key, value));
    EXPECT_TRUE(is_new || found->second == std::pair(key, value))
        << "layer " << layer << ", tokens from " << begin << ": one name, two contents";
  }

  TempDirectory directory_;
  ArenaPath arena_;
  std::optional<Daemon> daemon_;
  std::optional<Client> client_;
  const SpaceSpec spec_ = SmallSpace(MlxAffine(8, 64, Dtype::kF16));
  Result<Space> space_;
  std::vector<uint32_t> tokens_ = Tokens(300, 1);
  uint32_t next_ = 2;
  uint64_t stored_bytes_ = 0;  // of tokens_, as NamesOf() found them
  std::map<std::tuple<uint64_t, uint64_t, uint32_t>, std::pair<Packed, Packed>> seen_;
};

TEST_F(PageNamesTest, EachLayerOfEachBlockHasANameOfItsOwnAndKeepsIt) {
  Open();
  Store(tokens_, 7);
  const Names names = NamesOf();
  std::set<std::pair<uint64_t, uint64_t>> different;
  for (const auto& layer : names) {
    for (const PageName name : layer) different.insert({name.high, name.low});
  }
  EXPECT_EQ(different.size(), names.size() * names[0].size());
  EXPECT_EQ(NamesOf(), names);
}

TEST_F(PageNamesTest, APageThatWasStoredAgainWithOtherBytesHasAnotherName) {
  Open();
  Store(tokens_, 1);
  Names before = NamesOf();
  for (uint32_t seed = 2; seed <= 5; ++seed) {
    PushOut();
    Store(tokens_, seed);
    const Names after = NamesOf();  // which compares the bytes
    EXPECT_NE(after[0].back(), before[0].back());
    EXPECT_NE(after[1].back(), before[1].back());
    before = after;
  }
}

TEST_F(PageNamesTest, AfterAClearNamesAreStillThoseOfTheBytes) {
  Open();
  for (const uint32_t seed : {7u, 8u, 7u}) {
    Store(tokens_, seed);
    NamesOf();
    const block::SpaceId id = daemon_->space().id;
    ASSERT_TRUE(daemon_->cache().Clear(&id).ok());
  }
}

TEST_F(PageNamesTest, PagesOfOtherTokensNeverTakeAName) {
  Open();
  for (uint32_t seed = 1; seed <= 60; ++seed) {  // more than fit: places are used again
    tokens_ = Tokens(300, seed + 5000);
    Store(tokens_, seed);
    NamesOf();
  }
}

TEST_F(PageNamesTest, APageThatComesBackFromSsdKeepsItsName) {
  const TempDirectory ssd;
  Open(ssd.path());
  Store(tokens_, 7);
  const Names names = NamesOf();
  PushOut();
  EXPECT_EQ(NamesOf(), names);
  Open(ssd.path());
  EXPECT_EQ(NamesOf(), names) << "after a restart";
}

TEST_F(PageNamesTest, ALeaseTellsTheMappingThatItsPagesAreReadFromAndWhichSlabsServe) {
  Open();
  Store(tokens_, 7);
  Lease lease = space_.value().Acquire(tokens_);
  ASSERT_EQ(lease.WaitAll(), 300u);
  const std::optional<ArenaView> arena = lease.arena();
  ASSERT_TRUE(arena.has_value());
  size_t pages = 0;
  for (const BlockTableEntry& entry : lease.block_table(0)) {
    EXPECT_EQ(entry.units, arena->base + entry.arena_offset);
    EXPECT_LT(entry.arena_offset, arena->bytes);
    const uint64_t slab = entry.arena_offset / arena->slab_bytes;
    EXPECT_TRUE(block::InService(arena->service[slab * arena->service_stride]));
    ++pages;
  }
  EXPECT_GT(pages, 0u);
  ASSERT_EQ(arena->bytes % arena->slab_bytes, 0u);
  uint64_t serving = 0;
  for (uint64_t slab = 0; slab < arena->bytes / arena->slab_bytes; ++slab) {
    serving += block::InService(arena->service[slab * arena->service_stride]) ? 1 : 0;
  }
  EXPECT_GT(serving, 0u);
  EXPECT_LT(serving, arena->bytes / arena->slab_bytes) << "the file has room for a larger budget";
  EXPECT_FALSE(Lease().arena().has_value());
  const uint64_t of = lease.block_table(0)[0].arena_offset / arena->slab_bytes;
  lease.Release();
  space_ = {};
  client_ = {};
  EXPECT_TRUE(block::InService(arena->service[of * arena->service_stride])) << "still mapped";
}

TEST_F(PageNamesTest, ASequenceTellsTheMappingOfItsCachedPages) {
  Open();
  Store(tokens_, 7);
  Sequence cached = space_.value().Begin(tokens_);
  ASSERT_EQ(cached.WaitAll(), 300u);
  const std::optional<ArenaView> arena = cached.arena();
  ASSERT_TRUE(arena.has_value());
  EXPECT_EQ(cached.block_table(0)[0].units, arena->base + cached.block_table(0)[0].arena_offset);
  Sequence same = space_.value().Begin(tokens_);
  ASSERT_TRUE(same.arena().has_value());
  EXPECT_EQ(same.arena()->mapping, arena->mapping) << "one mapping for all";
  EXPECT_FALSE(Sequence().arena().has_value());
  EXPECT_FALSE(space_.value().Begin(std::vector<uint32_t>(70, 9)).arena().has_value()) << "a miss";
  cached.Release();
  EXPECT_FALSE(cached.arena().has_value());
}

TEST_F(PageNamesTest, PagesThatAreCopiedHaveNoNames) {
  Open("", {.use_arena = false});
  Store(tokens_, 7);
  Lease lease = space_.value().Acquire(tokens_);
  ASSERT_EQ(lease.WaitAll(), 300u);
  EXPECT_EQ(lease.page_names(0), std::vector<PageName>(lease.block_table(0).size()));
  EXPECT_TRUE(lease.page_names(-1).empty());
  EXPECT_TRUE(lease.page_names(3).empty());
  EXPECT_TRUE(Lease().page_names(0).empty());
  EXPECT_FALSE(lease.arena().has_value());
}

// Writes `change` of the arena's header and mapping, as a stray write of another process would.
template <typename Change>
void Damage(const std::string& path, Change change) {
  const base::Descriptor file(open(path.c_str(), O_RDWR | O_CLOEXEC));
  const auto bytes = std::filesystem::file_size(path);
  void* const map = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  ASSERT_NE(map, MAP_FAILED);
  change(static_cast<block::ArenaHeader*>(map), static_cast<std::byte*>(map));
  munmap(map, bytes);
}

TEST_F(PageNamesTest, WhereTheArenasTablesAreDamagedPagesHaveNoNames) {
  Open();
  Store(tokens_, 7);
  Lease lease = space_.value().Acquire(tokens_);
  ASSERT_EQ(lease.WaitAll(), 300u);
  Damage(arena_.path(), [](block::ArenaHeader* header, std::byte* file) {
    auto* slabs = reinterpret_cast<block::SlabRecord*>(file + header->slabs_offset);
    for (uint64_t i = 0; i < header->slabs; ++i) slabs[i].extent_units.fetch_xor(1);
  });
  EXPECT_EQ(lease.page_names(0), std::vector<PageName>(lease.block_table(0).size()));
}

}  // namespace
}  // namespace prefixd
