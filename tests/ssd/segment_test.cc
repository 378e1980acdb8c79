// Segments: what was written comes back, across reopen; sequences; dropping.
#include <set>

#include "tests/ssd/store_fixture.h"

namespace prefixd::ssd {
namespace {

class SegmentTest : public StoreTest {};

TEST_F(SegmentTest, PagesAndRecordsComeBackBeforeAndAfterReopen) {
  std::vector<Page> pages;
  for (const size_t page_bytes :
       {size_t{1}, size_t{4096}, size_t{1} << 20, (size_t{5} << 20) + 7}) {
    pages.push_back(MakePage(page_bytes));
  }
  std::vector<uint64_t> sequences;
  std::vector<SegmentInfo> segments = {WriteSegment(Open(), pages, &sequences)};
  for (int round = 0; round < 2; ++round) {
    EXPECT_TRUE(SameSegments(store_->Segments(), segments));
    for (size_t i = 0; i < pages.size(); ++i) {
      EXPECT_TRUE(Read(*store_, sequences[i], pages[i]).ok());
    }
    uint64_t unreadable = 1;
    const std::vector<std::string> records = Records(*store_, &unreadable);
    EXPECT_EQ(unreadable, 0u);
    ASSERT_EQ(records.size(), pages.size());
    for (size_t i = 0; i < pages.size(); ++i) EXPECT_EQ(records[i], RecordOf(sequences[i]));
    Open();
  }
}

TEST_F(SegmentTest, SegmentsOfRecordsOnlyAndOfPagesOnlyAreSegments) {
  SegmentStore& store = Open();
  const Page page = MakePage(10000);
  std::unique_ptr<SegmentWriter> writer = NewSegment(store);
  ASSERT_TRUE(writer->AddRecord("lonely").ok());
  ASSERT_TRUE(writer->AddRecord("").ok());
  const SegmentInfo records_only = writer->Finish().value();
  writer = NewSegment(store);
  const uint64_t sequence = writer->AddPage(page.header, page.bytes).value();
  const SegmentInfo pages_only = writer->Finish().value();
  Open();
  EXPECT_TRUE(SameSegments(store_->Segments(), {records_only, pages_only}));
  EXPECT_TRUE(Read(*store_, sequence, page).ok());
  uint64_t unreadable = 1;
  EXPECT_EQ(Records(*store_, &unreadable), (std::vector<std::string>{"lonely", ""}));
  EXPECT_EQ(unreadable, 0u);
}

TEST_F(SegmentTest, NothingIsVisibleBeforeFinishAndNothingIsLeftOfAnAbandonedSegment) {
  SegmentStore& store = Open();
  const Page page = MakePage(1 << 20);
  const uint64_t bytes_before = store.FileBytes();
  std::unique_ptr<SegmentWriter> writer = NewSegment(store);
  const uint64_t sequence = writer->AddPage(page.header, page.bytes).value();
  ASSERT_TRUE(writer->AddRecord("record").ok());
  EXPECT_EQ(writer->bytes(), sizeof(page.header) + page.bytes.size() + 6);
  EXPECT_TRUE(absl::IsNotFound(Read(store, sequence, page)));
  EXPECT_GT(store.MemoryBytes(), page.bytes.size());
  writer.reset();
  EXPECT_TRUE(absl::IsNotFound(Read(store, sequence, page)));
  EXPECT_TRUE(store.Segments().empty());
  EXPECT_EQ(store.FileBytes(), bytes_before);
  // Its sequences are gone for good.
  writer = NewSegment(store);
  EXPECT_GT(writer->AddPage(page.header, page.bytes).value(), sequence);
}

TEST_F(SegmentTest, OneSegmentIsWrittenAtATimeAndEndsOnce) {
  SegmentStore& store = Open();
  std::unique_ptr<SegmentWriter> writer = NewSegment(store);
  EXPECT_TRUE(absl::IsFailedPrecondition(store.NewSegment().status()));
  ASSERT_TRUE(writer->AddRecord("record").ok());
  ASSERT_TRUE(writer->Finish().ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(writer->Finish().status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(writer->AddRecord("late").status()));
  std::unique_ptr<SegmentWriter> next = NewSegment(store);
  writer.reset();  // must not let a third in
  EXPECT_TRUE(absl::IsFailedPrecondition(store.NewSegment().status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(next->Finish().status())) << "nothing was added";
  EXPECT_EQ(store.Segments().size(), 1u);
}

TEST_F(SegmentTest, NoSequenceIsEverUsedTwiceOverFiftyReopens) {
  const Page page = MakePage(100);
  std::set<uint64_t> seen;
  for (int i = 0; i < 50; ++i) {
    SegmentStore& store = Open();
    const uint64_t floor = store.last_sequence();
    EXPECT_TRUE(seen.empty() || *seen.rbegin() <= floor);
    std::unique_ptr<SegmentWriter> writer = NewSegment(store);
    for (int j = 0; j < 3; ++j) {
      const uint64_t page_sequence = writer->AddPage(page.header, page.bytes).value();
      const uint64_t record_sequence = writer->AddRecord("record").value();
      EXPECT_GT(page_sequence, floor);
      EXPECT_TRUE(seen.insert(page_sequence).second);
      EXPECT_TRUE(seen.insert(record_sequence).second);
      EXPECT_EQ(store.last_sequence(), record_sequence);
    }
    const bool finish = i % 3 != 0;
    ASSERT_TRUE(!finish || writer->Finish().ok());
  }
  EXPECT_EQ(*seen.begin() >> 20, 1u);
  EXPECT_EQ(*seen.rbegin() >> 20, 50u) << "the epoch is all but the low 20 bits";
}

TEST_F(SegmentTest, WhatIsReadAheadOfRecordsCountsWhileTheyAreRead) {
  std::vector<uint64_t> sequences;
  WriteSegment(Open(), {MakePage(300)}, &sequences);
  const uint64_t before = store_->MemoryBytes();
  uint64_t unreadable = 0, meanwhile = 0;
  const auto look = [&](uint64_t, std::span<const std::byte>) {
    meanwhile = store_->MemoryBytes();
    return absl::OkStatus();
  };
  ASSERT_TRUE(store_->ForEachRecord(look, &unreadable).ok());
  EXPECT_GE(meanwhile, before + (1 << 20));
  EXPECT_LT(store_->MemoryBytes(), before + (1 << 19));
}

TEST_F(SegmentTest, DropRemovesBothFilesAndLeavesTheNeighbours) {
  SegmentStore& store = Open();
  std::vector<Page> pages;
  std::vector<uint64_t> sequences;
  std::vector<SegmentInfo> segments;
  for (int i = 0; i < 5; ++i) {
    const std::vector<Page> own = {MakePage(300000), MakePage(300000)};
    segments.push_back(WriteSegment(store, own, &sequences));
    pages.insert(pages.end(), own.begin(), own.end());
  }
  const uint64_t bytes_before = store.FileBytes();
  ASSERT_TRUE(store.DropSegment(segments[2]).ok());
  EXPECT_TRUE(absl::IsNotFound(store.DropSegment(segments[2])));
  EXPECT_LE(store.FileBytes() + 600000, bytes_before);
  segments.erase(segments.begin() + 2);
  for (int round = 0; round < 2; ++round) {
    EXPECT_TRUE(SameSegments(store_->Segments(), segments));
    for (size_t i = 0; i < pages.size(); ++i) {
      const absl::Status status = Read(*store_, sequences[i], pages[i]);
      EXPECT_EQ(status.code(), i / 2 == 2 ? absl::StatusCode::kNotFound : absl::StatusCode::kOk);
    }
    uint64_t unreadable = 1;
    EXPECT_EQ(Records(*store_, &unreadable).size(), 8u);
    EXPECT_EQ(unreadable, 0u);
    Open();
  }
}

TEST_F(SegmentTest, FileBytesAreWhatTheFilesystemHasAllocated) {
  SegmentStore& store = Open();
  std::vector<uint64_t> sequences;
  const uint64_t bytes_before = store.FileBytes();
  const SegmentInfo segment = WriteSegment(store, {MakePage(4 << 20)}, &sequences);
  const uint64_t grown = store.FileBytes() - bytes_before;
  EXPECT_GE(grown, segment.file_bytes);
  EXPECT_LE(grown, segment.file_bytes + (64 << 10));
}

TEST_F(SegmentTest, AVisitorsErrorStopsTheRecords) {
  std::vector<uint64_t> sequences;
  WriteSegment(Open(), {MakePage(10), MakePage(10), MakePage(10)}, &sequences);
  int visits = 0;
  uint64_t unreadable = 0;
  const absl::Status status = store_->ForEachRecord(
      [&](uint64_t, std::span<const std::byte>) {
        return ++visits == 2 ? absl::CancelledError("enough") : absl::OkStatus();
      },
      &unreadable);
  EXPECT_EQ(status, absl::CancelledError("enough"));
  EXPECT_EQ(visits, 2);
}

}  // namespace
}  // namespace prefixd::ssd
