// The file system below RocksDB: what is written behind is what was appended, or an error; a table
// file's tail is what was written, or the file is refused.
#include "ssd/table_files.h"

#include <fstream>

#include "tests/ssd/store_fixture.h"
#include "tests/support/fault_files.h"

namespace prefixd::ssd {
namespace {

class TableFilesTest : public StoreTest {
 protected:
  TableFilesTest() : disk_(std::make_shared<testing::FaultDisk>(20261122)) {
    files_ = testing::FilesOn(disk_);
    table_files_ = TableFilesOver(files_->env->GetFileSystem(),
                                  [this](const std::string&) { ++unknown_formats_; });
    std::filesystem::create_directories(directory_);
  }
  static std::string Load(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static void Save(const std::string& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
  }
  // Table files of a segment that was written and closed.
  std::vector<std::string> Tables() {
    Open();
    for (int i = 0; i < 3; ++i) pages_.push_back(MakePage(20'000));
    WriteSegment(*store_, pages_, &sequences_);
    store_.reset();
    std::vector<std::string> paths;
    for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
      if (entry.path().extension() == ".sst") paths.push_back(entry.path().string());
    }
    return paths;
  }
  rocksdb::IOStatus OpenTable(const std::string& path,
                              std::unique_ptr<rocksdb::FSRandomAccessFile>* file) {
    return table_files_->NewRandomAccessFile(path, {}, file, nullptr);
  }

  testing::DiskPtr disk_;
  std::shared_ptr<rocksdb::FileSystem> table_files_;
  std::vector<Page> pages_;
  std::vector<uint64_t> sequences_;
};

// RocksDB with assertions ends the process on some of these bits when it reads them first.
TEST_F(TableFilesTest, ATailWithAFlippedBitIsRefusedAndTheProcessLives) {
  const std::vector<std::string> paths = Tables();
  ASSERT_EQ(paths.size(), 2u);
  for (const std::string& path : paths) {
    const std::string whole = Load(path);
    std::unique_ptr<rocksdb::FSRandomAccessFile> file;
    ASSERT_TRUE(OpenTable(path, &file).ok());
    // The properties name the comparator; from there to the footer it is all theirs.
    const size_t properties = whole.rfind("leveldb.BytewiseComparator");
    ASSERT_NE(properties, std::string::npos);
    size_t refused = 0;
    for (size_t at = properties; at + 53 < whole.size(); ++at) {
      std::string bad = whole;
      bad[at] = static_cast<char>(bad[at] ^ (1 << random_() % 8));
      Save(path, bad);
      const rocksdb::IOStatus status = OpenTable(path, &file);
      EXPECT_TRUE(status.IsCorruption()) << path << " byte " << at << ": " << status.ToString();
      refused += status.IsCorruption();
      if (at % 16 != 0) continue;
      Open();
      for (size_t i = 0; i < pages_.size(); ++i) {  // right bytes or none
        Read(*store_, sequences_[i], pages_[i]).IgnoreError();
      }
      store_.reset();
    }
    EXPECT_GT(refused, 100u);
    Save(path, whole);
  }
  Open();
  for (size_t i = 0; i < pages_.size(); ++i)
    EXPECT_TRUE(Read(*store_, sequences_[i], pages_[i]).ok());
}

// A later RocksDB may write such tables. This one refuses them, and the rest of the store is there.
TEST_F(TableFilesTest, ATableOfALaterFormatIsLeftToRocksDbAndCounted) {
  std::string pages;
  for (const std::string& path : Tables()) {
    if (Load(path).size() > 50'000) pages = path;
  }
  std::string later = Load(pages);
  later[later.size() - 12] = 6;  // 4 bytes of version, 8 of magic number
  Save(pages, later);
  std::unique_ptr<rocksdb::FSRandomAccessFile> file;
  EXPECT_TRUE(OpenTable(pages, &file).ok());
  EXPECT_EQ(unknown_formats_.load(), 1);
  Open();
  EXPECT_TRUE(absl::IsDataLoss(Read(*store_, sequences_[0], pages_[0])));
  EXPECT_GT(unknown_formats_.load(), 1) << "the store said so too";
  uint64_t unreadable = 0;
  EXPECT_EQ(Records(*store_, &unreadable).size(), pages_.size());
  WriteSegment(*store_, pages_, &sequences_);
  EXPECT_TRUE(Read(*store_, sequences_.back(), pages_.back()).ok());
}

TEST_F(TableFilesTest, AShortOrEmptyTableFileIsRefused) {
  const std::string path = Tables().front();
  const std::string whole = Load(path);
  std::unique_ptr<rocksdb::FSRandomAccessFile> file;
  for (size_t bytes = 0; bytes < whole.size(); bytes += 1 + bytes / 8) {
    Save(path, whole.substr(0, bytes));
    EXPECT_TRUE(OpenTable(path, &file).IsCorruption()) << bytes;
  }
}

TEST_F(TableFilesTest, WhatWasVerifiedIsWhatLaterReadsOfTheTailReturn) {
  const std::string path = Tables().front();
  const std::string whole = Load(path);
  std::unique_ptr<rocksdb::FSRandomAccessFile> file;
  ASSERT_TRUE(OpenTable(path, &file).ok());
  disk_->CorruptReads(1);
  std::string scratch(whole.size(), '\0');
  for (int i = 0; i < 100; ++i) {
    rocksdb::Slice read;
    const size_t from = whole.size() - 1 - random_() % 300;
    ASSERT_TRUE(file->Read(from, whole.size() - from, {}, &read, scratch.data(), nullptr).ok());
    if (read.size() < whole.size() - from) continue;  // the damage: it came back short
    EXPECT_EQ(read.ToString(), whole.substr(from));
  }
}

class WriteBehindTest : public TableFilesTest {
 protected:
  using Writable = std::unique_ptr<rocksdb::FSWritableFile>;
  // Null where the file system refuses direct I/O: nothing is written behind there.
  Writable Create() {
    rocksdb::FileOptions options;
    options.use_direct_writes = true;
    Writable file;
    const rocksdb::IOStatus status = table_files_->NewWritableFile(path_, options, &file, nullptr);
    return status.ok() ? std::move(file) : nullptr;
  }
  bool DirectWorks() { return Create() != nullptr; }
  // False as soon as anything fails.
  bool Append(const Writable& file, size_t bytes) {
    std::string more(bytes, '\0');
    for (char& c : more) c = static_cast<char>(random_());
    appended_ += more;
    return file->Append(more, {}, nullptr).ok();
  }
  size_t SomeBytes() { return random_() % (random_() % 4 == 0 ? 3'000'000 : 70'000); }

  const std::string path_ = directory_ + "/table.sst";
  std::string appended_;
};

TEST_F(WriteBehindTest, AFileHoldsWhatWasAppendedAfterEverySyncAndAfterClose) {
  if (!DirectWorks()) GTEST_SKIP() << "no direct I/O on " << directory_;
  for (int round = 0; round < 20; ++round) {
    appended_.clear();
    const Writable file = Create();
    for (int i = 0; i < 20; ++i) {
      ASSERT_TRUE(Append(file, SomeBytes()));
      EXPECT_EQ(file->GetFileSize({}, nullptr), appended_.size());
      if (random_() % 4 != 0) continue;
      ASSERT_TRUE(file->Sync({}, nullptr).ok());
      ASSERT_EQ(Load(path_), appended_);
    }
    ASSERT_TRUE(file->Close({}, nullptr).ok());
    ASSERT_EQ(Load(path_), appended_);
  }
}

TEST_F(WriteBehindTest, WhatWasSyncedIsNotWrittenOnceMoreByClose) {
  if (!DirectWorks()) GTEST_SKIP() << "no direct I/O on " << directory_;
  const Writable file = Create();
  ASSERT_TRUE(Append(file, 3'000'000));
  ASSERT_TRUE(file->Sync({}, nullptr).ok());
  const uint64_t changes = disk_->changes();
  ASSERT_TRUE(file->Sync({}, nullptr).ok());
  ASSERT_TRUE(file->Close({}, nullptr).ok());
  EXPECT_LE(disk_->changes() - changes, 1u) << "the second sync is one";
  EXPECT_EQ(Load(path_), appended_);
}

TEST_F(WriteBehindTest, AFileThatIsDroppedUnfinishedEndsItsThread) {
  if (!DirectWorks()) GTEST_SKIP() << "no direct I/O on " << directory_;
  for (int round = 0; round < 20; ++round) {
    const Writable file = Create();
    disk_->Slow(std::chrono::microseconds(500));
    for (int i = 0; i < 5; ++i) ASSERT_TRUE(Append(file, SomeBytes()));
  }
}

// Whichever write fails, Sync and Close say so, and go on saying so.
TEST_F(WriteBehindTest, AnErrorBehindIsSaidAtTheLatestBySync) {
  if (!DirectWorks()) GTEST_SKIP() << "no direct I/O on " << directory_;
  for (int error : {EIO, ENOSPC}) {
    bool failed = true;
    for (uint64_t step = 0; failed; ++step) {
      ASSERT_LT(step, 100u);
      appended_.clear();
      const Writable file = Create();
      const uint64_t before = disk_->errors();
      disk_->FailWrites(error, step, 1);
      for (int i = 0; i < 6; ++i) Append(file, 900'000);  // its errors: as Sync's below
      const rocksdb::IOStatus synced = file->Sync({}, nullptr);
      failed = disk_->errors() > before;
      disk_->FailWrites(0);
      EXPECT_EQ(synced.ok(), !failed) << "step " << step << ": " << synced.ToString();
      if (failed && step < 6) {
        EXPECT_FALSE(file->Sync({}, nullptr).ok());
        EXPECT_FALSE(file->Close({}, nullptr).ok());
      }
      if (!failed) {
        EXPECT_EQ(Load(path_), appended_);
      }
    }
  }
}

}  // namespace
}  // namespace prefixd::ssd
