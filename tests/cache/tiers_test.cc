// RAM, SSD and restart: what is spilled comes back byte for byte, what is damaged is a shorter
// match.
#include <sys/resource.h>

#include <csignal>
#include <fstream>

#include "cache/store/record.h"
#include "ssd/segment_store.h"
#include "tests/cache/fixture.h"

namespace prefixd::testing {
namespace {

using TiersTest = CacheTest;

// XOR of one digest for each page, over everything that can be read back.
uint64_t DigestOf(const Collector& got) {
  uint64_t digest = 0;
  for (const auto& [key, page] : got.pages)
    digest ^= Mix(base::Xxh3(page, key.first * 1000003 + key.second));
  return digest;
}

// A3 restart: bits, group sizes and every payload byte identical after a drain and a new start.
TEST_F(TiersTest, ARestartGivesBackEveryByteAndEveryFormatField) {
  const auto identity = SmallIdentity();
  std::vector<Tokens> sequences;
  for (uint64_t i = 0; i < 20; ++i)
    sequences.push_back(RandomTokens(i / 2, 50 + 17 * i));  // pairs share prefixes
  uint64_t before = 0, ends = 0, held = 0;
  for (int life = 0; life < 3; ++life) {
    Open(WithSsd());
    auto opened = cache_->OpenSpace(session_, identity);
    ASSERT_TRUE(opened.ok());
    EXPECT_EQ(opened->created, life == 0);
    if (life == 0) {
      for (const Tokens& tokens : sequences)
        ASSERT_TRUE(Store(identity, opened->space, tokens).ok());
    }
    uint64_t digest = 0;
    for (const Tokens& tokens : sequences) {
      const auto acquired = Acquire(opened->space, tokens);
      EXPECT_EQ(acquired.match.kind, block::MatchKind::kExact);
      EXPECT_EQ(acquired.match.ended_by, block::EndReason::kRequestEnded);
      EXPECT_EQ(acquired.match.restorable_tokens, tokens.size());
      Collector got;
      ASSERT_TRUE(cache_
                      ->Fetch(session_, {.lease = acquired.lease, .groups = {}, .from_token = 0},
                              In(20000), &got)
                      .ok());
      digest += DigestOf(got);
      EXPECT_EQ(FetchAndCheck(identity, acquired, tokens), tokens.size());
      ASSERT_TRUE(cache_->Release(session_, {.lease = acquired.lease}).ok());
    }
    if (life == 0) {
      ends = Summary().ends;
      held = Summary().stored_tokens;
    }
    if (life == 0) before = digest;
    EXPECT_EQ(digest, before);
    EXPECT_EQ(Summary().ends, ends);
    EXPECT_EQ(Summary().stored_tokens, held);
    EXPECT_EQ(Summary().identity, identity);
    EXPECT_EQ(cache_->Flush(In(20000)).dirty_bytes, 0u);
  }
}

// A3 restart: other quantization flags neither reinterpret nor lose old entries.
TEST_F(TiersTest, OtherFlagsAfterARestartNeitherReinterpretNorLoseOldEntries) {
  const auto eight = SmallIdentity();
  const auto four = SmallIdentity(16, 4,
                                  {quant::MlxAffineFormat(4, 64, quant::Dtype::kF16),
                                   quant::MlxAffineFormat(4, 32, quant::Dtype::kF16)});
  const Tokens tokens = RandomTokens(1, 100);
  Open(WithSsd());
  ASSERT_TRUE(Store(eight, OpenSpace(eight), tokens).ok());
  cache_->Flush(In(20000));
  Open(WithSsd());
  const auto other = OpenSpace(four);
  EXPECT_EQ(Acquire(other, tokens).match.matched_tokens, 0u);
  ASSERT_TRUE(Store(four, other, tokens).ok());
  cache_->Flush(In(20000));
  Open(WithSsd());
  EXPECT_EQ(ReadBack(eight, OpenSpace(eight), tokens), 100u);
  EXPECT_EQ(ReadBack(four, OpenSpace(four), tokens), 100u);
}

// A4 budget, seen from the cache: far more than fits, nothing fails, what matches is exact.
TEST_F(TiersTest, FarMoreThanTheBudgetSpillsAndStaysExact) {
  Open(WithSsd(uint64_t{32} << 20));
  const auto identity = SmallIdentity(64, 16);
  const auto space = OpenSpace(identity);
  constexpr uint64_t kSequences = 60;
  for (uint64_t i = 0; i < kSequences; ++i) {
    auto stored = Store(identity, space, RandomTokens(i, 1000));
    ASSERT_TRUE(stored.ok()) << stored.status();
    ASSERT_EQ(stored->stored_tokens, 1000u);
    uint64_t parts = 0;
    const block::Stats stats = cache_->GetStats();
    for (const auto& part : stats.ram_parts) parts += part.value;
    EXPECT_LE(parts, stats.ram_budget_bytes);
  }
  EXPECT_GT(Counter("pages.spilled"), 0u);
  EXPECT_GT(Counter("pages.evicted"), 0u);
  EXPECT_EQ(Counter("pages.dropped"), 0u);
  for (uint64_t i = 0; i < kSequences; ++i)
    EXPECT_EQ(ReadBack(identity, space, RandomTokens(i, 1000)), 1000u) << i;
  EXPECT_GT(Counter("pages.promoted"), 0u);
  EXPECT_GT(Counter("tokens.delivered.ssd"), 0u);
}

TEST_F(TiersTest, WithoutAnSsdTierTheColdestLeavesAreGivenUpFirst) {
  Open(RamOnly(uint64_t{32} << 20));
  const auto identity = SmallIdentity(64, 16);
  const auto space = OpenSpace(identity);
  const Tokens hot = RandomTokens(1000, 1000);
  ASSERT_TRUE(Store(identity, space, hot).ok());
  for (uint64_t i = 0; i < 60; ++i) {
    ASSERT_TRUE(Store(identity, space, RandomTokens(i, 1000)).ok());
    EXPECT_EQ(ReadBack(identity, space, hot), 1000u);
  }
  const auto cold = Acquire(space, RandomTokens(0, 1000));
  EXPECT_LT(cold.match.restorable_tokens, 1000u);
  EXPECT_EQ(ReadBack(identity, space, RandomTokens(59, 1000)), 1000u);
  EXPECT_GT(Counter("pages.dropped"), 0u);
}

// Between two readings the others store more than RAM and SSD hold together, in pages of two
// other sizes, for which slabs are emptied, and of our size.
TEST_F(TiersTest, T4WhatIsReadAgainOutlivesAFloodThatFillsBothTiers) {
  uint64_t emptied = 0;  // with a slow disk perhaps none
  for (const bool ssd : {false, true}) {
    cache::Options options = RamOnly(uint64_t{48} << 20);
    options.ssd_budget_bytes = ssd ? uint64_t{64} << 20 : 0;
    options.segment_bytes = uint64_t{1} << 20;
    Open(options);
    const std::vector<block::SpaceIdentity> identities = {
        SmallIdentity(64, 16), SmallIdentity(16, 2), SmallIdentity(128, 16)};
    const auto space = OpenSpace(identities[0]);
    const Tokens ours = RandomTokens(1, 640);
    ASSERT_TRUE(Store(identities[0], space, ours).ok());
    EXPECT_EQ(ReadBack(identities[0], space, ours), 640u);
    for (uint64_t round = 1, i = 0; round <= 6; ++round) {
      const auto& identity = identities[round % 3];
      while (Counter("bytes.received") < round * (uint64_t{80} << 20)) {
        ASSERT_TRUE(Store(identity, OpenSpace(identity), RandomTokens(100 + i++, 640)).ok());
      }
      EXPECT_EQ(ReadBack(identities[0], space, ours), 640u) << round << (ssd ? " with SSD" : "");
    }
    emptied += Counter("slabs.emptied");
  }
  EXPECT_GT(emptied, 0u);
}

TEST_F(TiersTest, PagesOfVeryDifferentSizesShareTheArenaWithoutStarving) {
  Open(WithSsd(uint64_t{32} << 20));
  const auto small = SmallIdentity(16, 2);
  const auto large = SmallIdentity(
      128, 16, {quant::RawFormat(quant::Dtype::kF32), quant::RawFormat(quant::Dtype::kF32)});
  for (int round = 0; round < 3; ++round) {
    for (uint64_t i = 0; i < 40; ++i) {
      const auto& identity = round % 2 == 0 ? large : small;
      const Tokens tokens = RandomTokens(static_cast<uint64_t>(round) * 1000 + i, 300 + i % 64);
      auto stored = Store(identity, OpenSpace(identity), tokens);
      ASSERT_TRUE(stored.ok()) << "round " << round << " sequence " << i << ": " << stored.status();
      ASSERT_EQ(ReadBack(identity, OpenSpace(identity), tokens), tokens.size());
    }
  }
}

// A4 budget: the index has its own share, which short blocks fill.
TEST_F(TiersTest, AnIndexAtItsLimitForgetsColdBlocksAndGoesOn) {
  for (bool ssd : {false, true}) {
    Open(ssd ? WithSsd(uint64_t{32} << 20) : RamOnly(uint64_t{32} << 20));
    const auto identity = SmallIdentity(16, 1);
    const auto space = OpenSpace(identity);
    for (uint64_t i = 0; i < 1000; ++i) {
      auto stored = Store(identity, space, RandomTokens(i, 320));
      ASSERT_TRUE(stored.ok()) << stored.status();
      ASSERT_EQ(stored->stored_tokens, 320u) << i << " " << stored->blocks.back().reason;
      for (const auto& part : cache_->GetStats().ram_parts) {
        if (part.name == "index") {
          ASSERT_LE(part.value, uint64_t{2} << 20);
        }
      }
    }
    // In RAM alone even pages of 4 KiB fill the arena first.
    if (ssd) {
      EXPECT_GT(Counter("index.trimmed"), 0u);
    }
    EXPECT_EQ(ReadBack(identity, space, RandomTokens(999, 320)), 320u);
  }
}

TEST_F(TiersTest, ClearIsRememberedAcrossARestart) {
  const auto identity = SmallIdentity();
  const Tokens old_tokens = RandomTokens(1, 100), new_tokens = RandomTokens(2, 100);
  Open(WithSsd());
  ASSERT_TRUE(Store(identity, OpenSpace(identity), old_tokens).ok());
  cache_->Flush(In(20000));
  auto cleared = cache_->Clear(nullptr);
  ASSERT_TRUE(cleared.ok());
  EXPECT_EQ(cleared->spaces, 1u);
  EXPECT_GT(cleared->bytes, 0u);
  EXPECT_EQ(Acquire(OpenSpace(identity), old_tokens).match.matched_tokens, 0u);
  ASSERT_TRUE(Store(identity, OpenSpace(identity), new_tokens).ok());
  cache_->Flush(In(20000));
  Open(WithSsd());
  EXPECT_EQ(Acquire(OpenSpace(identity), old_tokens).match.matched_tokens, 0u);
  EXPECT_EQ(ReadBack(identity, OpenSpace(identity), new_tokens), 100u);
  const block::SpaceId unknown{};
  EXPECT_EQ(cache_->Clear(&unknown).status().code(), absl::StatusCode::kNotFound);
}

// Flips one byte in every page file: every page must be found bad, none may come back wrong.
TEST_F(TiersTest, DamagedPagesShortenTheMatchAndHealWhenStoredAgain) {
  const auto identity = SmallIdentity(64, 4);
  const Tokens tokens = RandomTokens(1, 640);
  Open(WithSsd());
  ASSERT_TRUE(Store(identity, OpenSpace(identity), tokens).ok());
  cache_->Flush(In(20000));
  cache_.reset();
  size_t damaged = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(dir_.path())) {
    if (entry.path().extension() != ".sst" || entry.file_size() < 100000) continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(entry.file_size() / 3));
    const char byte = static_cast<char>(file.peek() ^ 0x10);
    file.seekp(static_cast<std::streamoff>(entry.file_size() / 3));
    file.put(byte);
    ++damaged;
  }
  ASSERT_GT(damaged, 0u);
  Open(WithSsd());
  const auto space = OpenSpace(identity);
  const uint32_t usable = ReadBack(identity, space, tokens);  // compares every byte
  EXPECT_LT(usable, 640u);
  EXPECT_GE(Counter("check_failures"), 1u);
  EXPECT_GE(Counter("shortened.corrupt"), 1u);
  // Where RocksDB reads, the byte spoils a block of two pages. The second may be found bad only by
  // the reader after the first store.
  for (int stores = 0; stores < 2 && ReadBack(identity, space, tokens) < 640; ++stores) {
    ASSERT_TRUE(Store(identity, space, tokens).ok());
  }
  EXPECT_EQ(ReadBack(identity, space, tokens), 640u);
}

// Records that point at each other's pages: RocksDB finds nothing wrong with them, the page check
// does.
TEST_F(TiersTest, PagesFoundUnderAnotherNameAreMissesNeverWrongBytes) {
  const auto identity = SmallIdentity(64, 4);
  const Tokens tokens = RandomTokens(1, 128);
  Open(WithSsd());
  ASSERT_TRUE(Store(identity, OpenSpace(identity), tokens).ok());
  cache_->Flush(In(20000));
  cache_.reset();
  {
    auto store = ssd::SegmentStore::Open({.directory = dir_.path() + "/ssd"});
    ASSERT_TRUE(store.ok()) << store.status();
    std::vector<cache::BlockRecord> records;
    uint64_t unreadable = 0;
    ASSERT_TRUE((*store)
                    ->ForEachRecord(
                        [&records](uint64_t, std::span<const std::byte> bytes) {
                          records.push_back(*cache::DecodeRecord(bytes));
                          return absl::OkStatus();
                        },
                        &unreadable)
                    .ok());
    ASSERT_EQ(records.size(), 2u);
    for (size_t i = 0; i < records[0].block.pages.size(); ++i) {
      std::swap(records[0].block.pages[i].ssd_sequence, records[1].block.pages[i].ssd_sequence);
      std::swap(records[0].block.pages[i].check, records[1].block.pages[i].check);
    }
    auto segment = (*store)->NewSegment();
    ASSERT_TRUE(segment.ok());
    for (const auto& record : records)
      ASSERT_TRUE((*segment)->AddRecord(cache::EncodeRecord(record)).ok());
    ASSERT_TRUE((*segment)->Finish().ok());
  }
  Open(WithSsd());
  EXPECT_EQ(ReadBack(identity, OpenSpace(identity), tokens), 0u);
  EXPECT_GE(Counter("check_failures"), 1u);
}

// More dirty RAM than the SSD may hold: what fits is saved once, what does not stays dirty, and the
// disk rests.
TEST_F(TiersTest, MoreDirtyRamThanTheSsdHoldsIsSavedOnceAndThenRests) {
  cache::Options options = WithSsd(uint64_t{64} << 20);
  options.ssd_budget_bytes = uint64_t{12} << 20;
  options.segment_bytes = uint64_t{2} << 20;
  Open(options);
  const auto identity = SmallIdentity(64, 16);
  const auto space = OpenSpace(identity);
  for (uint64_t i = 0; i < 5; ++i) ASSERT_TRUE(Store(identity, space, RandomTokens(i, 1000)).ok());
  const uint64_t before = Counter("bytes.spilled");
  const cache::FlushResult flushed = cache_->Flush(In(60000));
  EXPECT_GT(flushed.flushed_bytes, 0u);
  EXPECT_GT(flushed.dirty_bytes, 0u);
  EXPECT_LE(Counter("bytes.spilled") - before, options.ssd_budget_bytes);
  EXPECT_LE(cache_->GetStats().ssd_file_bytes, options.ssd_budget_bytes);
  for (uint64_t i = 0; i < 5; ++i)
    EXPECT_EQ(ReadBack(identity, space, RandomTokens(i, 1000)), 1000u);
}

TEST_F(TiersTest, AnSsdBudgetBelowTwoSegmentsIsRefused) {
  cache::Options options = WithSsd();
  options.directory = dir_.path() + "/ssd";
  options.ssd_budget_bytes = 2 * options.segment_bytes - 1;
  const auto refused = cache::Cache::Open(options).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(refused.message()).find("two segments"), std::string::npos) << refused;
}

// Files may not grow past 256 KiB for a while, as on a full disk: segments fail, serving goes on,
// and later they succeed again.
TEST_F(TiersTest, ADiskThatRefusesWritesStopsNobodyAndIsUsedAgainLater) {
  Open(WithSsd(uint64_t{32} << 20));
  const auto identity = SmallIdentity(64, 16);
  const auto space = OpenSpace(identity);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, SIG_IGN);
  const rlimit tiny{.rlim_cur = 256 << 10, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &tiny), 0);
  for (uint64_t i = 0; i < 40; ++i) {
    const Tokens tokens = RandomTokens(i, 1000);
    auto stored = Store(identity, space, tokens);
    ASSERT_TRUE(stored.ok()) << stored.status();
    EXPECT_EQ(ReadBack(identity, space, tokens), 1000u);
  }
  EXPECT_GT(Counter("ssd.write_errors"), 0u);
  EXPECT_EQ(Counter("ssd.failing"), 1u);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(cache_->Flush(In(20000)).dirty_bytes, 0u);
  EXPECT_EQ(Counter("ssd.failing"), 0u);
  Open(WithSsd(uint64_t{32} << 20));
  EXPECT_EQ(ReadBack(identity, OpenSpace(identity), RandomTokens(39, 1000)), 1000u);
}

TEST_F(TiersTest, ASecondCacheOnTheSameDirectoryIsRefused) {
  Open(WithSsd());
  cache::Options options = WithSsd();
  options.directory = dir_.path() + "/ssd";
  const auto second = cache::Cache::Open(options).status();
  EXPECT_EQ(second.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(std::string(second.message()).find("in use"), std::string::npos) << second;
}

TEST_F(TiersTest, TheSsdBudgetDropsTheOldestSegments) {
  cache::Options options = WithSsd(uint64_t{32} << 20);
  options.ssd_budget_bytes = uint64_t{48} << 20;
  options.segment_bytes = uint64_t{4} << 20;
  Open(options);
  const auto identity = SmallIdentity(64, 16);
  const auto space = OpenSpace(identity);
  for (uint64_t i = 0; i < 100; ++i) {
    ASSERT_TRUE(Store(identity, space, RandomTokens(i, 1000)).ok());
    ASSERT_LE(cache_->GetStats().ssd_file_bytes, options.ssd_budget_bytes);
  }
  EXPECT_GT(Counter("segments.dropped"), 0u);
  EXPECT_EQ(ReadBack(identity, space, RandomTokens(99, 1000)), 1000u);
  for (uint64_t i = 0; i < 100; ++i)
    ReadBack(identity, space, RandomTokens(i, 1000));  // right bytes or shorter
}

TEST_F(TiersTest, ASmallPageIsStoredThoughFullPagesBeingWrittenStandInEverySlab) {
  Open(RamOnly(uint64_t{32} << 20));
  const auto identity = SmallIdentity(64, 16);
  const auto space = OpenSpace(identity);
  const uint64_t slab_bytes = uint64_t{4} << 20;
  const uint64_t slabs = Counter("arena.slabs_in_service");
  for (uint64_t i = 0; Counter("arena.extent_bytes") <= (slabs - 1) * slab_bytes; ++i) {
    const Tokens tokens = RandomTokens(i, 320);
    auto plan = cache_->Reserve(
        session_, {.space = space, .tokens = tokens, .content = {}, .groups = {}, .writable = {}});
    ASSERT_TRUE(plan.ok());
    for (const block::BlockPlan& block : plan->blocks)
      ASSERT_TRUE(PutBlock(session_, identity, plan->reservation, tokens, block).ok());
  }
  const Tokens tail = RandomTokens(1000, 20);
  const auto stored = Store(identity, space, tail);
  ASSERT_TRUE(stored.ok()) << stored.status();
  EXPECT_EQ(ReadBack(identity, space, tail), 20u);
}

// Two spaces fill the slabs page by page in turns; one is cleared, so that all slabs are half
// empty.
TEST_F(TiersTest, LoosePagesMoveTogetherSoThatAnotherSizeGetsASlab) {
  Open(RamOnly(uint64_t{32} << 20));
  const auto stays = SmallIdentity(64, 16);
  auto goes = stays;
  goes.model = "goes";
  const auto space = OpenSpace(stays);
  auto opened = cache_->OpenSpace(session_, goes);
  ASSERT_TRUE(opened.ok());
  const uint64_t arena_bytes = Counter("arena.slabs_in_service") * (uint64_t{4} << 20);
  uint64_t count = 0;
  while (Counter("arena.extent_bytes") < arena_bytes - (uint64_t{2} << 20)) {
    ASSERT_TRUE(Store(stays, space, RandomTokens(count, 64)).ok());
    ASSERT_TRUE(Store(goes, opened->space, RandomTokens(count, 64)).ok());
    ++count;
  }
  ASSERT_TRUE(cache_->Clear(&opened->id).ok());
  ASSERT_EQ(Counter("pages.evicted"), 0u);
  const Tokens tail = RandomTokens(1'000'000, 20);
  ASSERT_TRUE(Store(stays, space, tail).ok());
  EXPECT_GT(Counter("pages.moved"), 0u);
  EXPECT_EQ(Counter("pages.evicted"), 0u);
  EXPECT_EQ(ReadBack(stays, space, tail), 20u);
  for (uint64_t i = 0; i < count; ++i) EXPECT_EQ(ReadBack(stays, space, RandomTokens(i, 64)), 64u);
}

}  // namespace
}  // namespace prefixd::testing
