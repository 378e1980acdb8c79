// Records on their way from the SSD tier to the tree: what waits is bounded, and in the gauge.
#include "cache/start/decoded_records.h"

#include <thread>

#include "tests/cache/fixture.h"

namespace prefixd::testing {
namespace {

constexpr uint64_t kRecords = 20'000;
constexpr uint64_t kWaits = 1 << 20, kBatch = 288 << 10;  // a batch, and what overshoots

class DecodedRecordsTest : public CacheTest {
 protected:
  void SetUp() override {
    store_ = ssd::SegmentStore::Open({.directory = dir_.path() + "/records"}).value();
    auto writer = store_->NewSegment().value();
    cache::BlockRecord record;
    record.block.tokens = RandomTokens(1, 64);
    record.block.pages.resize(2);
    const std::string bytes = cache::EncodeRecord(record);
    for (uint64_t i = 0; i < kRecords; ++i) ASSERT_TRUE(writer->AddRecord(bytes).ok());
    ASSERT_TRUE(writer->Finish().ok());
  }
  // Until the reader waits: it has given all that may wait.
  void WaitUntilFull() {
    const auto deadline = In(20000);
    while (gauge_ < kWaits && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::yield();
    }
    EXPECT_GE(gauge_.load(), kWaits);
  }

  std::unique_ptr<ssd::SegmentStore> store_;
  std::atomic<uint64_t> gauge_{0};
};

TEST_F(DecodedRecordsTest, WhatIsReadAheadIsBoundedAndInTheGaugeUntilItIsAskedBeyond) {
  uint64_t records = 0;
  {
    cache::DecodedRecords decoded(store_.get(), &gauge_);
    WaitUntilFull();
    for (auto batch = decoded.Next(); !batch.empty(); batch = decoded.Next()) {
      records += batch.size();
      uint64_t bytes = 0;
      for (const cache::DecodedRecord& one : batch) {
        ASSERT_TRUE(one.record.ok());
        bytes += cache::MemoryOf(one.record->block);
      }
      EXPECT_GE(gauge_.load(), bytes);
      // Waiting, the batch being made and those that do not fit in, the one in our hands.
      EXPECT_LE(gauge_.load(), kWaits + 3 * kBatch);
    }
    EXPECT_TRUE(decoded.status().ok()) << decoded.status();
    EXPECT_EQ(gauge_.load(), 0u);
  }
  EXPECT_EQ(records, kRecords);
}

TEST_F(DecodedRecordsTest, NothingStaysInTheGaugeWhenNobodyReadsOn) {
  {
    cache::DecodedRecords decoded(store_.get(), &gauge_);
    WaitUntilFull();
    EXPECT_FALSE(decoded.Next().empty());
  }
  EXPECT_EQ(gauge_.load(), 0u);
}

}  // namespace
}  // namespace prefixd::testing
