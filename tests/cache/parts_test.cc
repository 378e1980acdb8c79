// The small parts: budget shares, load-time estimate, block records.
#include "cache/load/load_model.h"
#include "cache/store/record.h"
#include "ram/budget.h"
#include "tests/cache/fixture.h"

namespace prefixd::testing {
namespace {

TEST(BudgetTest, SharesSumToTheBudget) {
  for (uint64_t mib : {32u, 64u, 256u, 2048u, 65536u}) {
    for (bool ssd : {false, true}) {
      for (bool shared : {false, true}) {
        auto shares = ram::CutBudget(mib << 20, ssd, shared);
        ASSERT_TRUE(shares.ok());
        EXPECT_EQ(shares->arena_bytes + shares->staging_bytes + shares->index_bytes +
                      shares->in_flight_bytes + shares->ssd_bytes + shares->history_bytes,
                  mib << 20);
        const uint64_t index_may_take = shares->index_most_bytes - shares->index_bytes;
        EXPECT_GE(shares->arena_bytes - index_may_take, (mib << 20) / 2);
        EXPECT_EQ(shares->staging_bytes > 0, shared);
      }
    }
  }
}

TEST(LoadModelTest, LearnsEachTierAndEachSizeApart) {
  cache::LoadModel model;
  for (int i = 0; i < 9; ++i) {
    model.Learn(1 << 20, 0, 1000);    // 1 MiB from RAM
    model.Learn(64 << 20, 0, 40000);  // 64 MiB from RAM
    model.Learn(0, 64 << 20, 90000);  // 64 MiB from SSD
  }
  EXPECT_NEAR(static_cast<double>(model.EstimateMicros(1 << 20, 0)), 1000, 10);
  EXPECT_NEAR(static_cast<double>(model.EstimateMicros(64 << 20, 0)), 40000, 400);
  EXPECT_NEAR(static_cast<double>(model.EstimateMicros(0, 64 << 20)), 90000, 900);
  EXPECT_NEAR(static_cast<double>(model.EstimateMicros(64 << 20, 64 << 20)), 130000, 1300);
}

TEST(LoadModelTest, OneOutlierDoesNotMoveTheEstimate) {
  cache::LoadModel model;
  for (int i = 0; i < 8; ++i) model.Learn(1 << 20, 0, 1000);
  model.Learn(1 << 20, 0, 500000);
  EXPECT_NEAR(static_cast<double>(model.EstimateMicros(1 << 20, 0)), 1000, 10);
}

// A machine that is busy half of the time: one load in three takes three times as long.
TEST(LoadModelTest, TheEstimateIsWithinTwiceOfQuietAndBusyLoads) {
  cache::LoadModel model;
  for (uint64_t us : {1000u, 1000u, 3000u, 1000u, 1000u, 3000u, 1000u, 1000u, 3000u}) {
    model.Learn(1 << 20, 0, us);
  }
  const auto estimate = static_cast<double>(model.EstimateMicros(1 << 20, 0));
  EXPECT_GT(estimate, 1500);
  EXPECT_LT(estimate, 2000);
}

TEST(LoadModelTest, ASmallLoadTeachesLargeOnesButNotItsRoundTrip) {
  cache::LoadModel model;
  const auto untaught = static_cast<double>(model.EstimateMicros(64 << 20, 0));
  const uint64_t small = model.EstimateMicros(1 << 16, 0);
  for (int i = 0; i < 3; ++i) model.Learn(1 << 16, 0, 2 * small);
  const auto taught = static_cast<double>(model.EstimateMicros(64 << 20, 0));
  EXPECT_NEAR(taught, 2 * untaught, 0.02 * untaught);
}

TEST(LoadModelTest, NothingToLoadTakesNoTime) {
  EXPECT_EQ(cache::LoadModel().EstimateMicros(0, 0), 0u);
}

cache::BlockRecord SampleRecord() {
  cache::BlockRecord record;
  record.space[3] = std::byte{7};
  record.first_token = 128;
  record.last_use = 99;
  record.block.hash[0] = std::byte{1};
  record.block.parent[0] = std::byte{2};
  record.block.serials = {.own = 4, .parent = 3};
  record.block.other_serials = {8, 9};
  record.block.tokens = {5, 6, 7};
  record.block.content = {{.start = 1, .item_offset = 4, .length = 2, .digest = {}}};
  record.block.ends = {3};
  record.block.pages = {{.group = 1,
                         .rung = 2,
                         .tokens = 3,
                         .page_bytes = 4,
                         .payload_bytes = 5,
                         .check = 6,
                         .ssd_sequence = 7}};
  return record;
}

TEST(RecordTest, ComesBackWithEveryField) {
  const cache::BlockRecord record = SampleRecord();
  const std::string bytes = cache::EncodeRecord(record);
  auto decoded = cache::DecodeRecord(base::AsBytes(bytes));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->space, record.space);
  EXPECT_EQ(decoded->first_token, 128u);
  EXPECT_EQ(decoded->last_use, 99);
  EXPECT_EQ(decoded->block.hash, record.block.hash);
  EXPECT_EQ(decoded->block.parent, record.block.parent);
  EXPECT_EQ(decoded->block.serials, record.block.serials);
  EXPECT_EQ(decoded->block.other_serials, record.block.other_serials);
  EXPECT_EQ(decoded->block.tokens, record.block.tokens);
  EXPECT_EQ(decoded->block.content, record.block.content);
  EXPECT_EQ(decoded->block.ends, record.block.ends);
  ASSERT_EQ(decoded->block.pages.size(), 1u);
  EXPECT_EQ(decoded->block.pages[0].check, 6u);
  EXPECT_EQ(decoded->block.pages[0].ssd_sequence, 7u);
}

// The bytes of version 2: a change here is a new version.
TEST(RecordTest, TheEncodingIsGolden) {
  const std::string bytes = cache::EncodeRecord(SampleRecord());
  EXPECT_EQ(bytes.size(), 248u);
  EXPECT_EQ(base::ToHex(base::AsBytes(bytes)).substr(0, 16), "564b523102000000");
  EXPECT_EQ(base::ToHex(base::AsBytes(bytes)).substr(2 * 240), "c9e9b794e93909a1");
}

TEST(RecordTest, EveryFlippedBitAndEveryCutIsFound) {
  const std::string bytes = cache::EncodeRecord(SampleRecord());
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    std::string flipped = bytes;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_FALSE(cache::DecodeRecord(base::AsBytes(flipped)).ok()) << bit;
  }
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(cache::DecodeRecord(base::AsBytes(std::string_view(bytes).substr(0, size))).ok())
        << size;
  }
}

}  // namespace
}  // namespace prefixd::testing
