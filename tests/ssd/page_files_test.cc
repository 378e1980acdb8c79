// Large pages are read past RocksDB, where the segment's closing marker says.
#include "ssd/page_files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

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
