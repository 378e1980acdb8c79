// Large pages are read past RocksDB, where the segment's closing marker says. RocksDB reads what is
// laid out otherwise.
#include "ssd/direct_read.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "rocksdb/sst_file_writer.h"
#include "rocksdb/table.h"

#include "ssd/store_state.h"
#include "tests/ssd/store_fixture.h"

namespace prefixd::ssd {
namespace {

class DirectReadTest : public StoreTest {
 protected:
  // The database of a store that is closed, and its pages files.
  void OpenTables() {
    store_.reset();
    table_db_.reset();
    absl::StatusOr<std::unique_ptr<TableDb>> table_db = TableDb::Open({.directory = directory_});
    ASSERT_TRUE(table_db.ok()) << table_db.status();
    table_db_ = *std::move(table_db);
    std::map<uint64_t, std::string> paths;
    const auto segments = FindSegments(*table_db_, &paths);
    ASSERT_TRUE(segments.ok()) << segments.status();
    direct_reads_.Set(*segments, paths);
  }
  static block::PageName NameOf(const Page& page) {
    block::PageName name{.group = page.header.group, .tokens = page.header.tokens};
    std::copy_n(page.header.block, sizeof(page.header.block), name.block.begin());
    return name;
  }
  bool ReadDirectly(uint64_t sequence, const Page& expected) {
    std::vector<std::byte> page(expected.bytes.size());
    const DirectReads::Result result =
        direct_reads_.Read(*table_db_, sequence, NameOf(expected), expected.header.check, page);
    return result == DirectReads::Result::kRead && page == expected.bytes;
  }

  std::unique_ptr<TableDb> table_db_;
  DirectReads direct_reads_;
};

TEST_F(DirectReadTest, LargePagesAreReadWhereTheMarkerSaysTheyAre) {
  const std::vector<Page> pages = {MakePage(16 << 10), MakePage((1 << 20) + 77), MakePage(130'000)};
  std::vector<uint64_t> sequences;
  WriteSegment(Open(), pages, &sequences);
  OpenTables();
  for (size_t i = 0; i < pages.size(); ++i) {
    EXPECT_TRUE(ReadDirectly(sequences[i], pages[i])) << i;
    EXPECT_FALSE(ReadDirectly(sequences[i], pages[(i + 1) % pages.size()])) << i;
  }
}

TEST_F(DirectReadTest, SmallAndCompressedPagesAreLeftToRocksDb) {
  const Page small = MakePage(1000);
  Page even = MakePage(1 << 16);
  std::fill(even.bytes.begin(), even.bytes.end(), std::byte{7});
  std::unique_ptr<SegmentWriter> writer = NewSegment(Open());
  const uint64_t of_small = writer->AddPage(small.header, small.bytes).value();
  const uint64_t of_even = writer->AddPage(even.header, even.bytes, 2).value();
  ASSERT_TRUE(writer->Finish().ok());
  EXPECT_TRUE(Read(*store_, of_even, even).ok());
  OpenTables();
  EXPECT_FALSE(ReadDirectly(of_small, small));
  EXPECT_FALSE(ReadDirectly(of_even, even));
}

// The files of a segment in a layout that no prefixd writes: several pages a block, and keys
// without what they share. Its closing marker notes the places of the usual layout.
class OtherLayoutTest : public DirectReadTest {
 protected:
  void Put(rocksdb::ColumnFamilyHandle* family, rocksdb::Options options,
           const std::vector<std::pair<std::string, std::string>>& entries) {
    rocksdb::SstFileWriter writer(rocksdb::EnvOptions(), options, family);
    const std::string path = parent_ + "/" + family->GetName() + ".sst";
    ASSERT_TRUE(writer.Open(path).ok());
    for (const auto& [key, value] : entries) ASSERT_TRUE(writer.Put(key, value).ok());
    ASSERT_TRUE(writer.Finish().ok());
    rocksdb::IngestExternalFileOptions ingest;
    ingest.allow_global_seqno = false;
    const rocksdb::Status status = table_db_->db->IngestExternalFile(family, {path}, ingest);
    ASSERT_TRUE(status.ok()) << status.ToString();
  }
  void WriteOtherwise(uint64_t first_sequence) {
    std::vector<std::pair<std::string, std::string>> pages, records;
    std::vector<PagePlace> places;
    EntryPlaces entries;
    records.emplace_back(SequenceKey(first_sequence), "");
    for (const Page& page : pages_) {
      sequences_.push_back(first_sequence + sequences_.size() + 1);
      pages.emplace_back(PageKey(sequences_.back(), page.header), base::AsText(page.bytes));
      const auto& [key, value] = pages.back();
      const EntryPlaces::Place place = entries.Next(key.size(), value.size());
      places.push_back({.sequence = sequences_.back(),
                        .offset = place.key + kSequenceKeyBytes,
                        .gap_bytes = static_cast<uint8_t>(place.value - place.key - key.size())});
    }
    records.emplace_back(SequenceKey(sequences_.back() + 1), EncodeClosingMarker(0, places));
    rocksdb::BlockBasedTableOptions format;
    format.format_version = 5;
    format.checksum = rocksdb::kXXH3;
    format.block_size = 1 << 20;
    rocksdb::Options options = table_db_->table_options;
    options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(format));
    Put(table_db_->pages, options, pages);
    Put(table_db_->records, table_db_->table_options_for(0), records);
  }
  absl::Status ReadFrom(const SegmentStore& store, size_t i) {
    std::vector<std::byte> page(pages_[i].bytes.size());
    const absl::Status status =
        store.ReadPage(sequences_[i], NameOf(pages_[i]), pages_[i].header.check, page);
    EXPECT_TRUE(!status.ok() || page == pages_[i].bytes) << i;
    return status;
  }

  std::vector<Page> pages_;
  std::vector<uint64_t> sequences_;
};

TEST_F(OtherLayoutTest, PagesThatAreElsewhereAreReadByRocksDbAndTheSegmentIsSaidOnce) {
  const uint64_t first_sequence = Open().last_sequence() + 1;
  OpenTables();
  for (int i = 0; i < 4; ++i) pages_.push_back(MakePage(20'000));
  ASSERT_NO_FATAL_FAILURE(WriteOtherwise(first_sequence));
  table_db_.reset();
  std::vector<std::string> said;
  const auto store =
      SegmentStore::Open(
          {.directory = directory_,
           .on_unknown_format = [&](const std::string& what) { said.push_back(what); }})
          .value();
  for (int round = 0; round < 2; ++round) {
    for (size_t i = 0; i < pages_.size(); ++i) EXPECT_TRUE(ReadFrom(*store, i).ok()) << i;
  }
  ASSERT_EQ(said.size(), 1u);
  EXPECT_NE(said[0].find("is not where its segment notes it"), std::string::npos) << said[0];

  // A segment of the usual layout is read directly all the same.
  const Page usual = MakePage(20'000);
  std::vector<uint64_t> sequences;
  WriteSegment(*store, {usual}, &sequences);
  std::vector<std::byte> page(usual.bytes.size());
  EXPECT_TRUE(store->ReadPage(sequences[0], NameOf(usual), usual.header.check, page).ok());
  EXPECT_EQ(page, usual.bytes);
  EXPECT_EQ(said.size(), 1u);
}

// Bytes of the file that the page cache has.
uint64_t CachedBytes(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const auto size = static_cast<size_t>(lseek(fd, 0, SEEK_END));
  void* const mapped = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  close(fd);
  if (mapped == MAP_FAILED) return 0;
  std::vector<unsigned char> resident(size / 4096 + 1);
  EXPECT_EQ(mincore(mapped, size, resident.data()), 0);
  munmap(mapped, size);
  return 4096 * static_cast<uint64_t>(std::ranges::count_if(
                    resident, [](unsigned char page) { return (page & 1) != 0; }));
}

// Without direct I/O, reads from a tier of many GiB would otherwise push everything else out of the
// page cache.
TEST_F(DirectReadTest, WhatIsReadBufferedDoesNotStayInThePageCache) {
  const std::string other = parent_ + "/other";
  std::ofstream(other) << std::string(4 << 20, 'x');
  const int fd = open(other.c_str(), O_RDONLY | O_CLOEXEC);
  const bool lets_go = fsync(fd) == 0 && posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0;
  close(fd);
  if (!lets_go || CachedBytes(other) > (1 << 20)) GTEST_SKIP() << "no file leaves this page cache";

  const auto store = SegmentStore::Open({.directory = directory_, .direct_io = false}).value();
  std::vector<Page> pages;
  for (int i = 0; i < 4; ++i) pages.push_back(MakePage(4 << 20));
  std::vector<uint64_t> sequences;
  WriteSegment(*store, pages, &sequences);
  for (size_t i = 0; i < pages.size(); ++i) {
    std::vector<std::byte> page(pages[i].bytes.size());
    EXPECT_TRUE(store->ReadPage(sequences[i], NameOf(pages[i]), pages[i].header.check, page).ok());
    EXPECT_EQ(page, pages[i].bytes);
  }
  uint64_t cached = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
    if (entry.path().extension() == ".sst") cached += CachedBytes(entry.path().string());
  }
  EXPECT_LT(cached, uint64_t{2} << 20) << "of 16 MiB";
}

}  // namespace
}  // namespace prefixd::ssd
