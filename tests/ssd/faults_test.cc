// A disk that fails: what was acknowledged stays, what failed is not there, and the store goes on.
#include <atomic>
#include <thread>

#include "tests/ssd/store_fixture.h"
#include "tests/support/fault_files.h"

namespace prefixd::ssd {
namespace {

class FaultTest : public StoreTest {
 protected:
  FaultTest() : disk_(std::make_shared<testing::FaultDisk>(20261122)) {
    files_ = testing::FilesOn(disk_);
  }
  // A segment that may fail on the way; with its pages when it did not.
  struct Written {
    SegmentInfo segment;
    std::vector<Page> pages;
    std::vector<uint64_t> sequences;
  };
  absl::Status TryWrite(Written* written) {
    absl::StatusOr<std::unique_ptr<SegmentWriter>> writer = store_->NewSegment();
    if (!writer.ok()) return writer.status();
    for (int i = 0; i < 3; ++i) {
      written->pages.push_back(MakePage(5'000 + random_() % 9'000));
      const Page& page = written->pages.back();
      absl::StatusOr<uint64_t> sequence = (*writer)->AddPage(page.header, page.bytes);
      if (!sequence.ok()) return sequence.status();
      written->sequences.push_back(*sequence);
      if (auto added = (*writer)->AddRecord(RecordOf(*sequence)); !added.ok())
        return added.status();
    }
    absl::StatusOr<SegmentInfo> segment = (*writer)->Finish();
    if (segment.ok()) written->segment = *segment;
    return segment.status();
  }
  void ExpectReadable(const Written& written) {
    for (size_t i = 0; i < written.pages.size(); ++i) {
      EXPECT_TRUE(Read(*store_, written.sequences[i], written.pages[i]).ok());
    }
  }

  testing::DiskPtr disk_;
};

// Every single change that writing a segment makes to the disk fails once, with each error.
TEST_F(FaultTest, AfterAFailureAtAnyStepTheNextSegmentIsTaken) {
  for (int error : {EIO, ENOSPC}) {
    Open();
    bool failed = true;
    for (uint64_t step = 0; failed; ++step) {
      ASSERT_LT(step, 200u);
      disk_->FailWrites(error, step, 1);
      const uint64_t before = disk_->errors();
      Written first, second;
      const absl::Status status = TryWrite(&first);
      failed = disk_->errors() > before;
      disk_->FailWrites(0);
      EXPECT_TRUE(status.ok() || absl::IsUnavailable(status)) << status;
      const absl::Status next = TryWrite(&second);
      ASSERT_TRUE(next.ok()) << "after a failure at step " << step << ": " << next;
      if (status.ok()) ExpectReadable(first);
      ExpectReadable(second);
      for (const SegmentInfo& segment : store_->Segments())
        ASSERT_TRUE(store_->DropSegment(segment).ok());
    }
  }
}

// The database is closed by its last user and opened by the next, whoever they are.
TEST_F(FaultTest, ReadersDoNotNoticeThatTheDatabaseIsOpenedAnewAfterAnError) {
  Open();
  Written kept;
  ASSERT_TRUE(TryWrite(&kept).ok());
  std::atomic<bool> stop{false};
  std::vector<std::thread> readers;
  for (int i = 0; i < 3; ++i) {
    readers.emplace_back([&] {
      while (!stop && !HasFailure()) ExpectReadable(kept);
    });
  }
  const uint64_t before = disk_->errors();
  for (uint64_t step = 0; step < 80 && !HasFailure(); ++step) {
    Written refused, later;
    disk_->FailWrites(EIO, step % 40, 1);
    TryWrite(&refused).IgnoreError();
    disk_->FailWrites(0);
    EXPECT_TRUE(TryWrite(&later).ok());
  }
  stop = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_GT(disk_->errors(), before);
}

TEST_F(FaultTest, AFullDiskIsSaidAndUsedAgainWhenThereIsSpace) {
  Open();
  Written kept, refused, later;
  ASSERT_TRUE(TryWrite(&kept).ok());
  disk_->SetFreeBytes(10'000);
  const absl::Status full = TryWrite(&refused);
  EXPECT_TRUE(absl::IsUnavailable(full)) << full;
  EXPECT_NE(std::string(full.message()).find("No space"), std::string::npos) << full;
  ExpectReadable(kept);
  disk_->SetFreeBytes(std::nullopt);
  ASSERT_TRUE(TryWrite(&later).ok());
  ExpectReadable(later);
  Open();
  ExpectReadable(kept);
  ExpectReadable(later);
}

TEST_F(FaultTest, MetadataIsWrittenAgainAfterTheDiskFailed) {
  Open();
  disk_->FailWrites(EIO);
  EXPECT_FALSE(store_->PutMeta("a", "1").ok());
  disk_->FailWrites(0);
  EXPECT_TRUE(store_->PutMeta("a", "2").ok());
  Open();
  const auto list = store_->ListMeta("a");
  ASSERT_TRUE(list.ok());
  ASSERT_EQ(list->size(), 1u);
  EXPECT_EQ(list->front().second, "2");
}

TEST_F(FaultTest, AReadErrorIsUnavailableAndTheNextReadSucceeds) {
  Open();
  Written written;
  ASSERT_TRUE(TryWrite(&written).ok());
  disk_->FailReads(1);
  EXPECT_TRUE(absl::IsUnavailable(Read(*store_, written.sequences[0], written.pages[0])));
  disk_->FailReads(0);
  ExpectReadable(written);
}

// What does not check is read once more; a large page, which is read past RocksDB, then through it.
TEST_F(FaultTest, OneBadReadOfALargePageIsNoLoss) {
  Open();
  const Page large = MakePage(200'000);
  std::vector<uint64_t> sequences;
  WriteSegment(*store_, {MakePage(700), large, MakePage(3'000)}, &sequences);
  block::PageName name{.group = large.header.group, .tokens = 64};
  std::memcpy(name.block.data(), large.header.block, sizeof(large.header.block));
  std::vector<std::byte> page(large.bytes.size());
  const auto read = [&](uint64_t check) {
    return store_->ReadPage(sequences[1], name, check, page);
  };
  for (int life = 0; life < 2; ++life) {
    ASSERT_TRUE(read(large.header.check).ok());
    for (int time = 0; time < 8; ++time) {
      const uint64_t before = disk_->corrupted();
      disk_->CorruptReads(1, 1);
      std::fill(page.begin(), page.end(), std::byte{0});
      EXPECT_TRUE(read(large.header.check).ok()) << "read past RocksDB or not at all";
      EXPECT_EQ(page, large.bytes);
      EXPECT_EQ(disk_->corrupted(), before + 1);
    }
    disk_->CorruptReads(1);
    EXPECT_TRUE(absl::IsDataLoss(read(large.header.check)));
    disk_->CorruptReads(0);
    EXPECT_TRUE(absl::IsDataLoss(read(large.header.check + 1)));
    name.group ^= 1;
    EXPECT_TRUE(absl::IsDataLoss(read(large.header.check)));
    name.group ^= 1;
    Open();
  }
}

TEST_F(FaultTest, ASegmentThatWasAcknowledgedSurvivesAPowerCutAndOthersAreNotThere) {
  for (uint64_t cut = 0; cut < 120; ++cut) {
    Open();
    Written acknowledged, cut_short;
    ASSERT_TRUE(TryWrite(&acknowledged).ok());
    disk_->CutAfter(cut);
    const bool second = TryWrite(&cut_short).ok();
    store_.reset();
    disk_->PowerCycle();
    Open();
    ExpectReadable(acknowledged);
    if (second) ExpectReadable(cut_short);
    uint64_t unreadable = 0;
    EXPECT_EQ(Records(*store_, &unreadable).size(), store_->Segments().size() * 3);
    EXPECT_EQ(unreadable, 0u);
    for (const SegmentInfo& segment : store_->Segments())
      ASSERT_TRUE(store_->DropSegment(segment).ok());
  }
}

}  // namespace
}  // namespace prefixd::ssd
