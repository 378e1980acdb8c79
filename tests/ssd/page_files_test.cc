// Large pages are read past RocksDB, where the segment's closing marker says: the pages of this
// format version, with their headers in their keys, and those of version 2, one value each.
#include "ssd/page_files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "rocksdb/sst_file_writer.h"

#include "ssd/store_state.h"
#include "tests/ssd/store_fixture.h"

namespace prefixd::ssd {
namespace {

class PageFilesTest : public StoreTest {
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
    page_files_.Set(*segments, paths);
  }
  static block::PageName NameOf(const Page& page) {
    block::PageName name{.group = page.header.group, .tokens = page.header.tokens};
    std::copy_n(page.header.block, sizeof(page.header.block), name.block.begin());
    return name;
  }
  bool ReadDirectly(uint64_t sequence, const Page& expected) {
    std::vector<std::byte> page(expected.bytes.size());
    const bool read =
        page_files_.Read(*table_db_, sequence, NameOf(expected), expected.header.check, page);
    return read && page == expected.bytes;
  }
  void Ingest(rocksdb::ColumnFamilyHandle* family,
              const std::vector<std::pair<uint64_t, std::string>>& values) {
    const std::string path = directory_ + "/" + family->GetName() + ".old";
    rocksdb::SstFileWriter writer(table_db_->file_options(), table_db_->table_options_for(1 << 20),
                                  family);
    ASSERT_TRUE(writer.Open(path).ok());
    for (const auto& [sequence, value] : values) {
      ASSERT_TRUE(writer.Put(SequenceKey(sequence), value).ok());
    }
    ASSERT_TRUE(writer.Finish().ok());
    rocksdb::IngestExternalFileOptions options;
    options.move_files = true;
    ASSERT_TRUE(table_db_->db->IngestExternalFile(family, {path}, options).ok());
  }
  // A segment as version 2 wrote it: header and page are one value under an 8-byte key.
  void WriteVersionTwo(const std::vector<Page>& pages, uint64_t first) {
    std::vector<std::pair<uint64_t, std::string>> values;
    std::vector<PagePlace> places;
    uint64_t block = 0;
    for (const Page& page : pages) {
      std::string value(reinterpret_cast<const char*>(&page.header), sizeof(page.header));
      value += base::AsText(page.bytes);
      const EntryPlace entry = EntryAt(block, kSequenceKeyBytes, value.size());
      block = entry.value + value.size() + 13;  // a restart, their count, compression, checksum
      places.push_back({.sequence = first + 1 + places.size(), .offset = entry.value});
      values.emplace_back(places.back().sequence, value);
    }
    const uint64_t last = places.back().sequence + 1;
    Ingest(table_db_->records, {{first, ""}, {last, EncodeClosingMarker(0, places)}});
    Ingest(table_db_->pages, values);
  }

  std::unique_ptr<TableDb> table_db_;
  PageFiles page_files_;
};

TEST_F(PageFilesTest, LargePagesAreReadWhereTheMarkerSaysTheyAre) {
  const std::vector<Page> pages = {MakePage(16 << 10), MakePage((1 << 20) + 77), MakePage(130'000)};
  std::vector<uint64_t> sequences;
  WriteSegment(Open(), pages, &sequences);
  OpenTables();
  for (size_t i = 0; i < pages.size(); ++i) {
    EXPECT_TRUE(ReadDirectly(sequences[i], pages[i])) << i;
    EXPECT_FALSE(ReadDirectly(sequences[i], pages[(i + 1) % pages.size()])) << i;
  }
}

TEST_F(PageFilesTest, SmallAndCompressedPagesAreLeftToRocksDb) {
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

TEST_F(PageFilesTest, WhatVersionTwoWroteIsReadEitherWay) {
  const std::vector<Page> pages = {MakePage(100'000), MakePage(500), MakePage(1 << 20)};
  const uint64_t first = Open().last_sequence() + 1;
  OpenTables();
  WriteVersionTwo(pages, first);
  OpenTables();
  EXPECT_TRUE(ReadDirectly(first + 1, pages[0]));
  EXPECT_FALSE(ReadDirectly(first + 2, pages[1])) << "is small";
  EXPECT_TRUE(ReadDirectly(first + 3, pages[2]));
  table_db_.reset();
  Open();
  for (size_t i = 0; i < pages.size(); ++i) {
    EXPECT_TRUE(Read(*store_, first + 1 + i, pages[i]).ok()) << i;
    std::vector<std::byte> page(pages[i].bytes.size());
    EXPECT_TRUE(
        store_->ReadPage(first + 1 + i, NameOf(pages[i]), pages[i].header.check, page).ok());
  }
  EXPECT_TRUE(absl::IsNotFound(Read(*store_, first + 4, pages[0])));
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

// Where there is no direct I/O, a tier of many GiB would push everything else out of memory.
TEST_F(PageFilesTest, WhatIsReadBufferedDoesNotStayInThePageCache) {
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
