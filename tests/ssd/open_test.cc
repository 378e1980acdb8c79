// Opening a store: who may, what is refused and how it says so, what a crash leaves behind.
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "rocksdb/db.h"

#include "os/files.h"
#include "ssd/table_db.h"
#include "tests/ssd/store_fixture.h"

namespace prefixd::ssd {
namespace {

using testing::HasSubstr;

// Gives everything under `parent` to a user. False: not root.
bool GiveTo(uid_t user, const std::string& parent) {
  for (const auto& entry : std::filesystem::recursive_directory_iterator(parent)) {
    if (chown(entry.path().c_str(), user, user) != 0) return false;
  }
  return chown(parent.c_str(), user, user) == 0;
}

class OpenTest : public StoreTest {
 protected:
  absl::Status OpenStatus(const std::string& directory) {
    return SegmentStore::Open({directory}).status();
  }

  // Runs `body` in a child process that dies by _exit, without any destructor.
  template <typename Body>
  static int ExitCodeOf(const Body& body) {
    const pid_t child = fork();
    if (child == 0) _exit(body());
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  // Exit code 7: as the owner of the directory, whom modes bind, Open is Unavailable and names the
  // file. Root may do anything, so it becomes somebody else.
  int OpenAsItsOwner(const std::string& file) {
    return ExitCodeOf([&] {
      constexpr uid_t kNobody = 65534;
      const bool root = geteuid() == 0;
      if (root && (!GiveTo(kNobody, parent_) || setresuid(kNobody, kNobody, kNobody) != 0))
        return 1;
      const absl::Status status = OpenStatus(directory_);
      if (!absl::IsUnavailable(status)) return 2;
      return std::string(status.message()).find(file) != std::string::npos ? 7 : 3;
    });
  }
  void TakeBack() {
    if (geteuid() == 0) {
      ASSERT_TRUE(GiveTo(0, parent_));
    }
  }

  // The raw database, as another program sees it.
  void WriteRaw(const std::string& key, const std::string& value) {
    store_.reset();
    std::vector<rocksdb::ColumnFamilyHandle*> handles;
    rocksdb::DB* db = nullptr;
    rocksdb::ColumnFamilyOptions options;
    options.level_compaction_dynamic_level_bytes = false;  // else later versions move files down
    ASSERT_TRUE(rocksdb::DB::Open({}, directory_,
                                  {{"default", options}, {"pages", options}, {"records", options}},
                                  &handles, &db)
                    .ok());
    EXPECT_TRUE(db->Put({}, key, value).ok());
    for (rocksdb::ColumnFamilyHandle* handle : handles) db->DestroyColumnFamilyHandle(handle);
    delete db;
  }
  std::string ReadRaw(const std::string& family, const std::string& key) {
    store_.reset();
    std::vector<rocksdb::ColumnFamilyHandle*> handles;
    rocksdb::DB* db = nullptr;
    const rocksdb::ColumnFamilyOptions options;
    EXPECT_TRUE(rocksdb::DB::OpenForReadOnly(
                    {}, directory_, {{"default", options}, {family, options}}, &handles, &db)
                    .ok());
    std::string value;
    EXPECT_TRUE(db->Get({}, handles[1], key, &value).ok()) << key;
    for (rocksdb::ColumnFamilyHandle* handle : handles) db->DestroyColumnFamilyHandle(handle);
    delete db;
    return value;
  }
};

TEST_F(OpenTest, TheDirectoryIsPrivate) {
  Open();
  struct stat info;
  ASSERT_EQ(stat(directory_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  ASSERT_EQ(chmod(directory_.c_str(), 0755), 0);
  Open();
  ASSERT_EQ(stat(directory_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
}

// A5: a second daemon on the same directory.
TEST_F(OpenTest, ASecondStoreOnTheDirectoryIsRefusedInThisAndInAnotherProcess) {
  const Page page = MakePage(5000);
  Open();
  std::unique_ptr<SegmentWriter> writer = NewSegment(*store_);
  const uint64_t sequence = writer->AddPage(page.header, page.bytes).value();
  const absl::Status in_use = absl::FailedPreconditionError(
      absl::StrCat("segment store: directory ", directory_, " is locked by process ", getpid(),
                   ", which lives: it is in use by another prefixd"));
  EXPECT_EQ(OpenStatus(directory_), in_use);
  EXPECT_EQ(ExitCodeOf([&] { return OpenStatus(directory_) == in_use ? 7 : 1; }), 7);
  // The refused ones left the segment that is being written alone.
  ASSERT_TRUE(writer->Finish().ok());
  EXPECT_TRUE(Read(*store_, sequence, page).ok());
}

// T8: the kernel gives the locks of a killed process back a moment after it was reaped. Here a
// second process shares the first one's files and keeps them open for as long as the test wants.
class KilledStore {
 public:
  explicit KilledStore(const std::string& directory) {
    EXPECT_EQ(pipe(opened_), 0);
    EXPECT_EQ(pipe(release_), 0);
    pid_ = fork();
    if (pid_ == 0) {
      const auto store = SegmentStore::Open({directory});
      // Like fork, but its files are the same: RocksDB's record lock stays, too.
      const long shares = syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0);
      char byte = store.ok() ? 'x' : '!';
      if (shares == 0) {
        (void)!write(opened_[1], &byte, 1);
        (void)!read(release_[0], &byte, 1);
        _exit(0);
      }
      while (true) pause();
    }
    char byte = 0;
    EXPECT_EQ(read(opened_[0], &byte, 1), 1);
    EXPECT_EQ(byte, 'x');
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  ~KilledStore() {
    Release();
    for (const int fd : {opened_[0], opened_[1], release_[0], release_[1]}) close(fd);
  }
  KilledStore(const KilledStore&) = delete;
  KilledStore& operator=(const KilledStore&) = delete;
  pid_t pid() const { return pid_; }
  void Release() {
    if (!std::exchange(released_, true)) (void)!write(release_[1], "x", 1);
  }

 private:
  int opened_[2] = {}, release_[2] = {};
  pid_t pid_ = -1;
  bool released_ = false;
};

TEST_F(OpenTest, T8AStoreWhoseDaemonWasKilledOpensOnceTheKernelGaveItsLockBack) {
  KilledStore killed(directory_);
  std::vector<std::string> said;
  const absl::Status opened = SegmentStore::Open({.directory = directory_,
                                                  .lock_wait = {.say =
                                                                    [&](const std::string& line) {
                                                                      said.push_back(line);
                                                                      killed.Release();
                                                                    }}})
                                  .status();
  EXPECT_TRUE(opened.ok()) << opened;
  ASSERT_EQ(said.size(), 1u);
  EXPECT_THAT(said[0], HasSubstr(absl::StrCat("directory ", directory_, " is locked by process ",
                                              killed.pid(), ", which has ended")));
}

TEST_F(OpenTest, T8RocksDbsOwnLockIsWaitedForToo) {
  KilledStore killed(directory_);
  // Ours is free already: the file is another one, as if the kernel had closed that first.
  ASSERT_EQ(unlink((directory_ + "/prefixd.lock").c_str()), 0);
  std::ofstream(directory_ + "/prefixd.lock").close();
  std::vector<std::string> said;
  const absl::Status opened = SegmentStore::Open({.directory = directory_,
                                                  .lock_wait = {.say =
                                                                    [&](const std::string& line) {
                                                                      said.push_back(line);
                                                                      killed.Release();
                                                                    }}})
                                  .status();
  EXPECT_TRUE(opened.ok()) << opened;
  ASSERT_EQ(said.size(), 1u);
  EXPECT_THAT(said[0], HasSubstr("/LOCK is locked by "));
}

TEST_F(OpenTest, T8ALockThatNobodyLivingHoldsIsWaitedForOnlySoLong) {
  const KilledStore killed(directory_);
  const absl::Status opened =
      SegmentStore::Open(
          {.directory = directory_, .lock_wait = {.limit = std::chrono::milliseconds(30)}})
          .status();
  EXPECT_TRUE(absl::IsUnavailable(opened)) << opened;
}

// A5: an unwritable directory.
TEST_F(OpenTest, ADirectoryThatCannotBeUsedIsNamed) {
  const absl::Status missing = OpenStatus(parent_ + "/no/such");
  EXPECT_TRUE(absl::IsUnavailable(missing));
  EXPECT_THAT(std::string(missing.message()), HasSubstr(parent_ + "/no/such: No such file"));
  std::ofstream(parent_ + "/file") << "text";
  const absl::Status under_file = OpenStatus(parent_ + "/file");
  EXPECT_THAT(std::string(under_file.message()), HasSubstr(parent_ + "/file: Not a directory"));
  const absl::Status foreign = OpenStatus(parent_);
  EXPECT_TRUE(absl::IsFailedPrecondition(foreign));
  EXPECT_THAT(std::string(foreign.message()),
              HasSubstr(parent_ + " is neither empty nor a prefixd store, it holds file"));
}

// T5: what somebody else prepared is not written through.
TEST_F(OpenTest, T5AStoreThatHoldsALinkIsRefusedAndNothingIsWrittenThroughIt) {
  Open();
  store_.reset();
  const std::string victim = directory_ + "-victim";
  std::ofstream(victim) << "precious";
  for (const char* const name : {"prefixd.lock", "prefixd.instance", "LOG", "incoming"}) {
    const std::string path = directory_ + "/" + name;
    std::filesystem::rename(path, path + ".kept");
    ASSERT_EQ(symlink(victim.c_str(), path.c_str()), 0);
    const absl::Status status = OpenStatus(directory_);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::string(name) + ", which is a link"));
    std::filesystem::remove(path);
    std::filesystem::rename(path + ".kept", path);
  }
  std::string text;
  std::ifstream(victim) >> text;
  EXPECT_EQ(text, "precious");
  std::filesystem::remove(victim);
  Open();
}

TEST_F(OpenTest, T5AStoreOfAnotherUserIsRefusedSayingWhose) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can make one";
  Open();
  store_.reset();
  const std::string file = directory_ + "/CURRENT";
  ASSERT_EQ(chown(file.c_str(), 12345, 12345), 0);
  EXPECT_THAT(std::string(OpenStatus(directory_).message()),
              HasSubstr("holds CURRENT, which belongs to user 12345, this is 0"));
  ASSERT_EQ(chown(file.c_str(), 0, 0), 0);
  ASSERT_EQ(chown(directory_.c_str(), 12345, 12345), 0);
  const absl::Status status = OpenStatus(directory_);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("segment store: directory " + directory_ +
                        " belongs to user 12345, this is 0: run prefixd as that user, chown it"));
  ASSERT_EQ(chown(directory_.c_str(), 0, 0), 0);
  Open();
}

// As an administrator moves it to another disk.
TEST_F(OpenTest, ADirectoryThatIsALinkOfItsOwnUserIsFollowed) {
  const std::string real = directory_ + "-real";
  ASSERT_EQ(mkdir(real.c_str(), 0700), 0);
  ASSERT_EQ(symlink(real.c_str(), directory_.c_str()), 0);
  Open();
  store_.reset();
  EXPECT_TRUE(std::filesystem::exists(real + "/CURRENT"));
  std::filesystem::remove_all(real);
}

TEST_F(OpenTest, ADirectoryWithoutPermissionIsPermissionDenied) {
  ASSERT_EQ(chmod(parent_.c_str(), 0555), 0);
  const int code = ExitCodeOf([&] {
    // Root may write anywhere: be somebody else.
    if (geteuid() == 0 && setresuid(65534, 65534, 65534) != 0) return 1;
    const absl::Status status = OpenStatus(directory_);
    if (!absl::IsPermissionDenied(status)) return 2;
    return std::string(status.message()).find(directory_) != std::string::npos ? 7 : 3;
  });
  EXPECT_EQ(code, 7);
  ASSERT_EQ(chmod(parent_.c_str(), 0700), 0);
}

// T6: once the directory is known to be this user's, a refused call is a failing disk like any
// other: prefixd serves without the tier and tries again.
TEST_F(OpenTest, T6AFileThatMayNotBeRemovedNowIsUnavailableNotDenied) {
  Open();
  store_.reset();
  const std::string incoming = directory_ + "/incoming";
  std::ofstream(incoming + "/1.pages") << "left by a crash";
  ASSERT_EQ(chmod(incoming.c_str(), 0500), 0);
  EXPECT_EQ(OpenAsItsOwner("1.pages"), 7);
  TakeBack();
  ASSERT_EQ(chmod(incoming.c_str(), 0700), 0);
  Open();
}

TEST_F(OpenTest, T6ALockFileThatMayNotBeOpenedNowIsUnavailableNotDenied) {
  Open();
  store_.reset();
  const std::string lock = directory_ + "/prefixd.lock";
  ASSERT_EQ(chmod(lock.c_str(), 0400), 0);
  EXPECT_EQ(OpenAsItsOwner("prefixd.lock"), 7);
  TakeBack();
  ASSERT_EQ(chmod(lock.c_str(), 0600), 0);
  Open();
}

TEST_F(OpenTest, AnotherFormatVersionIsRefusedSayingBothAndLeftAlone) {
  Open();
  WriteRaw("store/format_version", std::string("\x07\0\0\0", 4));
  const absl::Status expected =
      absl::FailedPreconditionError("segment store: directory " + directory_ +
                                    " has format version 7, this prefixd reads version 5");
  EXPECT_EQ(OpenStatus(directory_), expected);
  EXPECT_EQ(OpenStatus(directory_), expected);
}

TEST_F(OpenTest, WhatAnOlderVersionLeftIsReclaimedAndSaidSo) {
  std::vector<uint64_t> sequences;
  WriteSegment(Open(), {MakePage(1 << 20)}, &sequences);
  const std::string instance = ReadInstance(directory_);
  EXPECT_EQ(instance.size(), 32u);
  WriteRaw("store/format_version", std::string("\0\0\0\0", 4));
  SegmentStore& store = Open();
  EXPECT_THAT(store.findings().reclaimed_why, HasSubstr("format version 0"));
  EXPECT_TRUE(store.findings().notes.empty());
  EXPECT_TRUE(store.Segments().empty());
  EXPECT_LT(store.FileBytes(), uint64_t{1} << 20);
  EXPECT_EQ(ReadInstance(directory_), instance);
  EXPECT_TRUE(Open().findings().reclaimed_why.empty());
}

TEST_F(OpenTest, T1AStoreWhoseHashesCouldBeMadeToCollideIsReclaimed) {
  std::vector<uint64_t> sequences;
  WriteSegment(Open(), {MakePage(1 << 16)}, &sequences);
  WriteRaw("store/format_version", std::string("\4\0\0\0", 4));
  SegmentStore& store = Open();
  EXPECT_THAT(store.findings().reclaimed_why, HasSubstr("format version 4"));
  EXPECT_TRUE(store.Segments().empty());
}

TEST_F(OpenTest, T1AStoreOfAnotherKeyIsReclaimedAndSaidSo) {
  std::vector<uint64_t> sequences;
  WriteSegment(Open(), {MakePage(1 << 16)}, &sequences);
  store_.reset();
  base::Hash128 key_id{};
  auto store = SegmentStore::Open({.directory = directory_, .key_id = key_id}).value();
  EXPECT_THAT(store->findings().reclaimed_why, HasSubstr("another key"));
  EXPECT_TRUE(store->Segments().empty());
  for (int i = 0; i < 2; ++i) {
    store.reset();
    store = SegmentStore::Open({.directory = directory_, .key_id = key_id}).value();
    EXPECT_TRUE(store->findings().reclaimed_why.empty());
  }
  store.reset();
  EXPECT_EQ(ReadRaw("default", "store/key_id"), std::string(16, '\0'));
  key_id[15] = std::byte{1};
  store = SegmentStore::Open({.directory = directory_, .key_id = key_id}).value();
  EXPECT_THAT(store->findings().reclaimed_why, HasSubstr("another key"));
}

TEST_F(OpenTest, OpeningIsRefusedWhenTheEpochsAreUsedUp) {
  Open();
  WriteRaw("store/epoch", std::string("\xfe\xff\xff\xff\xff\x0f\0\0", 8));
  const uint64_t last = Open().last_sequence();
  EXPECT_EQ(last, ((uint64_t{1} << 44) - 1) << 20);
  store_.reset();
  const absl::Status status = OpenStatus(directory_);
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(directory_ + " has used all its epochs, limit 17592186044415"));
}

// Sequences stay small, and none is given out twice wherever the store is killed.
TEST_F(OpenTest, AnEpochThatIsUsedUpIsFollowedByTheNextInTheMiddleOfASegment) {
  std::unique_ptr<SegmentWriter> writer = NewSegment(Open());
  uint64_t last = writer->AddRecord("a record").value();
  for (uint32_t i = 0; i < uint32_t{1} << 20; ++i) {
    const uint64_t next = writer->AddRecord("another").value();
    ASSERT_EQ(next, last + 1);
    last = next;
  }
  ASSERT_TRUE(writer->Finish().ok());
  writer.reset();
  EXPECT_EQ(ReadRaw("default", "store/epoch"), std::string("\x02\0\0\0\0\0\0\0", 8));
  EXPECT_EQ(ReadRaw("records", SequenceKey(last)), "another");
  EXPECT_EQ(Open().Segments().front().last_sequence, last + 1);
  EXPECT_EQ(store_->last_sequence(), uint64_t{3} << 20);
}

// What a disk that forgets synced writes leaves.
TEST_F(OpenTest, AnEpochThatWasResetNeverGivesOutASequenceThatIsOnDisk) {
  const std::vector<Page> pages = {MakePage(20'000), MakePage(20'000), MakePage(20'000)};
  std::vector<uint64_t> sequences;
  for (const Page& page : pages) WriteSegment(Open(), {page}, &sequences);
  WriteRaw("store/epoch", std::string(8, '\0'));
  EXPECT_GT(Open().last_sequence(), sequences.back());
  const Page page = MakePage(20'000);
  WriteSegment(*store_, {page}, &sequences);
  EXPECT_EQ(store_->Segments().size(), 4u);
  EXPECT_TRUE(Read(*store_, sequences[3], page).ok());
  for (size_t i = 0; i < pages.size(); ++i) {
    EXPECT_TRUE(Read(*store_, sequences[i], pages[i]).ok());
  }
}

// Golden: another program and a later version rely on it.
TEST_F(OpenTest, TheLayoutOnDiskIsAsDocumented) {
  const Page page = MakePage(777);
  std::unique_ptr<SegmentWriter> writer = NewSegment(Open());
  ASSERT_EQ(writer->AddPage(page.header, page.bytes).value(), (uint64_t{1} << 20) + 2);
  ASSERT_EQ(writer->AddRecord("a record").value(), (uint64_t{1} << 20) + 3);
  ASSERT_TRUE(writer->Finish().ok());
  ASSERT_TRUE(store_->PutMeta("space", "identity").ok());
  const auto key = [](char counter) { return std::string("\0\0\0\0\0\x10\0", 7) + counter; };
  const std::string header(reinterpret_cast<const char*>(&page.header), 64);
  EXPECT_EQ(header.substr(0, 6), std::string("VKP1\x01\0", 6));
  EXPECT_EQ(ReadRaw("pages", key(2) + header), base::AsText(page.bytes))
      << "the 64-byte header ends the key";
  EXPECT_EQ(ReadRaw("records", key(1)), "") << "opening marker";
  EXPECT_EQ(ReadRaw("records", key(3)), "a record");
  EXPECT_EQ(ReadRaw("records", key(4)), std::string("\x01\0\0\0\0\0\0\0", 8))
      << "closing marker: how many records";
  EXPECT_EQ(ReadRaw("default", "store/format_version"), std::string("\x05\0\0\0", 4));
  EXPECT_EQ(ReadRaw("default", "store/epoch"), std::string("\x01\0\0\0\0\0\0\0", 8));
  EXPECT_EQ(ReadRaw("default", "meta/space"), "identity");
}

// The killed process is a death test's: the binary runs again up to the statement that dies.
class OpenDeathTest : public OpenTest {
 protected:
  OpenDeathTest() { testing::GTEST_FLAG(death_test_style) = "threadsafe"; }

  void WriteAndDie(const Page& page) {
    std::vector<uint64_t> sequences;
    SegmentStore& store = Open();
    WriteSegment(store, {page, page}, &sequences);
    _exit(store.PutMeta("key", "value").ok() ? 7 : 1);
  }
  void WriteHalfAndDie(const Page& page) {
    const std::unique_ptr<SegmentWriter> writer = NewSegment(Open());
    const bool added = writer->AddPage(page.header, page.bytes).ok() &&
                       writer->AddPage(page.header, page.bytes).ok() &&
                       writer->AddRecord("record").ok();
    _exit(added ? 7 : 1);
  }
};

TEST_F(OpenDeathTest, AFinishedSegmentSurvivesAKillRightAfterIt) {
  const Page page = MakePage(1 << 20);
  ASSERT_EXIT(WriteAndDie(page), testing::ExitedWithCode(7), "");
  SegmentStore& store = Open();
  ASSERT_EQ(store.Segments().size(), 1u);
  const uint64_t first = store.Segments()[0].first_sequence;
  EXPECT_TRUE(Read(store, first + 1, page).ok());
  EXPECT_TRUE(Read(store, first + 3, page).ok());
  uint64_t unreadable = 1;
  EXPECT_EQ(Records(store, &unreadable),
            (std::vector<std::string>{RecordOf(first + 1), RecordOf(first + 3)}));
  EXPECT_EQ(unreadable, 0u);
  EXPECT_EQ(store.ListMeta("").value().size(), 1u);
}

TEST_F(OpenDeathTest, AnUnfinishedSegmentLeavesNothingAfterAKill) {
  const Page page = MakePage(3 << 20);
  ASSERT_EXIT(WriteHalfAndDie(page), testing::ExitedWithCode(7), "");
  EXPECT_FALSE(std::filesystem::is_empty(directory_ + "/incoming")) << "the kill came too late";
  SegmentStore& store = Open();
  EXPECT_TRUE(std::filesystem::is_empty(directory_ + "/incoming"));
  EXPECT_TRUE(store.Segments().empty());
  uint64_t unreadable = 1;
  EXPECT_TRUE(Records(store, &unreadable).empty());
  EXPECT_LT(store.FileBytes(), page.bytes.size());
}

TEST_F(OpenTest, MetadataIsListedByPrefixAndSurvivesReopen) {
  SegmentStore& store = Open();
  ASSERT_TRUE(store.PutMeta("space/b", "2").ok());
  ASSERT_TRUE(store.PutMeta("space/a", std::string("\0\xff", 2)).ok());
  ASSERT_TRUE(store.PutMeta("spaces", "no").ok());
  ASSERT_TRUE(store.PutMeta("space/c", "3").ok());
  ASSERT_TRUE(store.DeleteMeta(std::vector<std::string>{"space/c"}).ok());
  using List = std::vector<std::pair<std::string, std::string>>;
  const List expected = {{"space/a", std::string("\0\xff", 2)}, {"space/b", "2"}};
  EXPECT_EQ(Open().ListMeta("space/").value(), expected);
  EXPECT_EQ(store_->ListMeta("").value().size(), 3u) << "the store's own keys are not listed";
  EXPECT_TRUE(store_->ListMeta("t").value().empty());
}

TEST_F(OpenTest, DirectIoIsWhatTheFilesystemAndTheOptionsAllow) {
  Open();
  const std::string probe = parent_ + "/probe";
  const int fd = open(probe.c_str(), O_RDWR | O_CREAT | O_DIRECT, 0600);
  EXPECT_EQ(store_->direct_io(), os::OpensUncached() && fd >= 0);
  if (fd >= 0) close(fd);
  store_.reset();
  const auto buffered = SegmentStore::Open({.directory = directory_, .direct_io = false}).value();
  EXPECT_FALSE(buffered->direct_io());
  const Page page = MakePage(100'000);
  std::vector<uint64_t> sequences;
  WriteSegment(*buffered, {page}, &sequences);
  EXPECT_TRUE(Read(*buffered, sequences[0], page).ok());
}

// Where tmpfs has no direct I/O (before Linux 6.6), the store must fall back.
TEST_F(OpenTest, AStoreOnTmpfsWorksAndSaysWhetherItIsDirect) {
  if (access("/dev/shm", W_OK) != 0) GTEST_SKIP() << "no /dev/shm here";
  directory_ = "/dev/shm/prefixd_ssd_test_" + std::to_string(getpid());
  const Page page = MakePage(100'000);
  std::vector<uint64_t> sequences;
  WriteSegment(Open(), {page}, &sequences);
  EXPECT_TRUE(Read(Open(), sequences[0], page).ok());
  const std::string probe = directory_ + "_probe";
  const int fd = open(probe.c_str(), O_RDWR | O_CREAT | O_DIRECT, 0600);
  EXPECT_EQ(store_->direct_io(), os::OpensUncached() && fd >= 0);
  if (fd >= 0) close(fd);
  unlink(probe.c_str());
  store_.reset();
  std::filesystem::remove_all(directory_);
}

}  // namespace
}  // namespace prefixd::ssd
