// The arena's file: whose it is, what is gone on with, what is replaced and how.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/checksum.h"
#include "tests/ram/shared_arena.h"

namespace prefixd::ram {
namespace {

using block::ArenaHeader;
using testing::HasSubstr;
using testing::IsEmpty;

// A header that a daemon might have written, but for one field.
template <typename T>
void ChangeHeader(const std::string& path, size_t field, T value) {
  std::byte header[offsetof(ArenaHeader, check)];
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_EQ(pread(fd, header, sizeof(header), 0), static_cast<ssize_t>(sizeof(header)));
  close(fd);
  std::memcpy(header + field, &value, sizeof(value));
  const uint64_t check = base::Xxh3(header);
  Overwrite(path, 0, header, sizeof(header));
  Overwrite(path, offsetof(ArenaHeader, check), &check, sizeof(check));
}

// An arena with one page, then `damage`, then the next daemon.
void ExpectReplaced(const std::function<void(const std::string&)>& damage, const std::string& why) {
  SCOPED_TRACE(why);
  const ArenaPath path;
  block::Extent extent;
  int worker = -1;
  uint64_t file_bytes = 0, data_offset = 0;
  {
    const auto arena = OpenOrDie(path);
    extent = Store(*arena, arena->AddSpace(SpaceIdOf(1), "one").value(), 7, 16 * kKiB);
    worker = arena->OpenReadOnly().value();
    file_bytes = arena->file_bytes();
    data_offset = arena->data_offset();
  }
  const ino_t inode = StatOf(path.str()).st_ino;
  void* const map = mmap(nullptr, file_bytes, PROT_READ, MAP_SHARED, worker, 0);
  ASSERT_NE(map, MAP_FAILED);
  close(worker);
  damage(path.str());

  const auto arena = OpenOrDie(path);
  EXPECT_THAT(arena->replaced_why(), HasSubstr(why));
  EXPECT_NE(StatOf(path.str()).st_ino, inode);
  EXPECT_THAT(arena->TakeFound(), IsEmpty());
  EXPECT_THAT(arena->Spaces(), IsEmpty());
  while (arena->Allocate(16 * kKiB, 16 * kKiB).ok()) {
  }
  EXPECT_TRUE(
      HasPayload(static_cast<std::byte*>(map) + data_offset + extent.offset, extent.bytes, 7))
      << "a worker goes on reading the old file";
  munmap(map, file_bytes);
}

TEST(ArenaFileTest, AFileOfAnotherBootVersionOrShapeIsReplacedByANewOne) {
  ExpectReplaced(
      [](const std::string& path) {
        ChangeHeader(path, offsetof(ArenaHeader, boot_id), uint64_t{1});
      },
      "another boot of the kernel");
  ExpectReplaced(
      [](const std::string& path) {
        ChangeHeader(path, offsetof(ArenaHeader, key_id), uint64_t{1});
      },
      "with another key");
  ExpectReplaced(
      [](const std::string& path) {
        ChangeHeader(path, offsetof(ArenaHeader, version), block::kArenaVersion + 1);
      },
      absl::StrCat("version ", block::kArenaVersion + 1, ", this is ", block::kArenaVersion));
  ExpectReplaced(
      [](const std::string& path) {
        ChangeHeader(path, offsetof(ArenaHeader, header_bytes), uint32_t{64});
      },
      "version");
  ExpectReplaced(
      [](const std::string& path) {
        ChangeHeader(path, offsetof(ArenaHeader, magic), uint64_t{0});
      },
      "not an arena");
  ExpectReplaced(
      [](const std::string& path) {
        ChangeHeader(path, offsetof(ArenaHeader, data_offset), uint64_t{4096});
      },
      "laid out in another way");
  ExpectReplaced(
      [](const std::string& path) {
        ChangeHeader(path, offsetof(ArenaHeader, slab_bytes), uint64_t{0});
      },
      "slabs are damaged");
}

TEST(ArenaFileTest, ADamagedFileIsReplacedByANewOne) {
  for (const size_t at : {offsetof(ArenaHeader, instance), offsetof(ArenaHeader, slabs),
                          offsetof(ArenaHeader, check)}) {
    ExpectReplaced([&](const std::string& path) { Overwrite(path, at, "\xa5", 1); },
                   "header is damaged");
  }
  // The slab table begins behind header and slots.
  ExpectReplaced([](const std::string& path) { Overwrite(path, 8192, "\x01", 1); },
                 "entry 0 of its slab table is damaged");
  // Zeros would make a slab in use look idle, and its readers would lose what they read.
  ExpectReplaced(
      [](const std::string& path) {
        const uint64_t zeros[2] = {};
        Overwrite(path, 8192 + 16, zeros, 16);
      },
      "entry 1 of its slab table is damaged");
  ExpectReplaced(
      [](const std::string& path) {
        const uint64_t entry[2] = {block::Guarded(0), block::Guarded(1)};
        for (uint64_t slab = 10; slab < 20; ++slab) Overwrite(path, 8192 + slab * 16, entry, 16);
      },
      "less memory than they should");
}

TEST(ArenaFileTest, SomethingElseUnderThePathIsReplacedOrRefused) {
  {
    const ArenaPath path;
    std::ofstream(path.str()) << "hello";
    EXPECT_EQ(OpenOrDie(path)->replaced_why(), "it is too short");
  }
  {
    const ArenaPath path;
    ASSERT_EQ(mkdir(path.str().c_str(), 0700), 0);
    EXPECT_TRUE(absl::IsFailedPrecondition(Arena::Open(SharedOptions(path)).status()));
    rmdir(path.str().c_str());
  }
  {
    const ArenaPath path, target;
    OpenOrDie(target);
    ASSERT_EQ(symlink(target.str().c_str(), path.str().c_str()), 0);
    EXPECT_TRUE(absl::IsFailedPrecondition(Arena::Open(SharedOptions(path)).status()));
  }
  {
    const ArenaPath path;
    ASSERT_EQ(mkfifo(path.str().c_str(), 0600), 0);
    EXPECT_TRUE(absl::IsFailedPrecondition(Arena::Open(SharedOptions(path)).status()));
  }
}

TEST(ArenaFileTest, AFileOfAnotherUserIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can make one";
  const ArenaPath path;
  OpenOrDie(path);
  ASSERT_EQ(chown(path.str().c_str(), 12345, 12345), 0);
  const absl::Status status = Arena::Open(SharedOptions(path)).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("belongs to user 12345"));
}

TEST(ArenaFileTest, AFolderThatIsNoTmpfsIsRefused) {
  Arena::Options options;
  options.path = "/proc/prefixd-arena";
  const absl::Status status = Arena::Open(options).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("/proc is not on a tmpfs"));
  options.path = "/dev/shm/prefixd-no-such-folder/arena";
  EXPECT_TRUE(absl::IsFailedPrecondition(Arena::Open(options).status()));
}

TEST(ArenaFileTest, ASecondOwnerIsRefusedUntilTheFirstProcessEnds) {
  const ArenaPath path;
  Signal open;
  Child daemon([&] {
    const auto arena = OpenOrDie(path);
    open.Send();
    pause();
  });
  open.Await();
  const ino_t inode = StatOf(path.str()).st_ino;
  const absl::Status status = Arena::Open(SharedOptions(path)).status();
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(absl::StrCat(path.str(), " is locked by process ", daemon.pid(),
                                     ", which lives: it belongs to another running process")));
  daemon.Signal(SIGKILL);
  daemon.Wait();
  EXPECT_NE(OpenOrDie(path), nullptr);
  EXPECT_EQ(StatOf(path.str()).st_ino, inode);
}

TEST(ArenaFileTest, ADamagedFileOfALivingOwnerIsNotReplaced) {
  const ArenaPath path;
  const auto arena = OpenOrDie(path);
  const ino_t inode = StatOf(path.str()).st_ino;
  Overwrite(path.str(), 0, "XXXX", 4);
  EXPECT_TRUE(absl::IsUnavailable(Arena::Open(SharedOptions(path)).status()));
  EXPECT_EQ(StatOf(path.str()).st_ino, inode);
}

TEST(ArenaFileTest, WhatAKilledMakerLeftIsTakenOver) {
  const ArenaPath path;
  std::ofstream(path.str() + ".new") << "half a header";
  EXPECT_EQ(OpenOrDie(path)->replaced_why(), "");
  struct stat status = {};
  EXPECT_NE(stat((path.str() + ".new").c_str(), &status), 0);
}

TEST(ArenaFileTest, AMakerThatIsAtWorkIsNotDisturbed) {
  const ArenaPath path, other;
  const auto arena = OpenOrDie(other);  // owned, and under the maker's name
  ASSERT_EQ(rename(other.str().c_str(), (path.str() + ".new").c_str()), 0);
  EXPECT_TRUE(absl::IsUnavailable(Arena::Open(SharedOptions(path)).status()));
  EXPECT_EQ(StatOf(path.str() + ".new").st_size, static_cast<off_t>(arena->file_bytes()));
}

// Many daemons at once: one owns the file, the others are refused, nobody's file is lost.
TEST(ArenaFileTest, OfManyStartingAtOnceOneOwnsTheFile) {
  for (int round = 0; round < 20; ++round) {
    const ArenaPath path;
    std::vector<std::unique_ptr<Arena>> owners(4);
    std::vector<std::thread> threads;
    for (auto& owner : owners) {
      threads.emplace_back([&] {
        absl::StatusOr<std::unique_ptr<Arena>> arena = Arena::Open(SharedOptions(path));
        if (arena.ok()) owner = *std::move(arena);
      });
    }
    for (std::thread& thread : threads) thread.join();
    std::erase(owners, nullptr);
    ASSERT_EQ(owners.size(), 1u);
    struct stat mine = {};
    fstat(owners[0]->fd(), &mine);
    EXPECT_EQ(StatOf(path.str()).st_ino, mine.st_ino);
  }
}

TEST(ArenaFileTest, TheFileIsSizedOnceAndReadableByItsGroupOnly) {
  const ArenaPath path;
  Arena::Options options = SharedOptions(path);
  options.max_capacity_bytes = 32 * kMiB;
  OpenOrDie(options);
  const struct stat first = StatOf(path.str());
  EXPECT_EQ(first.st_mode & 07777, 0640u);
  EXPECT_GE(first.st_size, static_cast<off_t>(32 * kMiB));
  for (const uint64_t capacity : {4 * kMiB, 32 * kMiB, 64 * kMiB}) {
    options.capacity_bytes = capacity;
    options.max_capacity_bytes = capacity * 2;
    options.slab_bytes = 512 * kKiB;  // the file keeps its own
    const auto arena = OpenOrDie(options);
    EXPECT_EQ(arena->stats().slab_bytes, 256 * kKiB);
    EXPECT_LE(arena->stats().capacity_bytes, 32 * kMiB);
    EXPECT_EQ(StatOf(path.str()).st_ino, first.st_ino);
    EXPECT_EQ(StatOf(path.str()).st_size, first.st_size);
  }
}

TEST(ArenaFileTest, ACapacityThatDoesNotHoldOneSlabIsRefusedOrReplacesTheFile) {
  const ArenaPath path;
  Arena::Options options = SharedOptions(path);
  OpenOrDie(options);
  options.capacity_bytes = 256 * kKiB;
  EXPECT_TRUE(absl::IsInvalidArgument(Arena::Open(options).status()));
  options.slab_bytes = 64 * kKiB;
  EXPECT_THAT(OpenOrDie(options)->replaced_why(), HasSubstr("do not fit into a capacity"));
  options.slab_bytes = 0;
  for (const uint64_t capacity : {128 * kKiB, kMiB, 4 * kMiB + 4096, 64 * kMiB}) {
    const ArenaPath fresh;
    options.path = fresh.str();
    options.capacity_bytes = capacity;
    const auto arena = OpenOrDie(options);
    EXPECT_TRUE(arena->Allocate(4096, 4096).ok()) << capacity;
  }
}

TEST(ArenaFileTest, TheHeaderTellsTheOwnersEpoch) {
  const ArenaPath path;
  Arena::Options options = SharedOptions(path);
  for (const uint64_t epoch : {11u, 12u}) {
    options.epoch = epoch;
    EXPECT_EQ(OpenOrDie(options)->header()->epoch.load(), epoch);
  }
}

// What the kernel says of the NUMA policy of a file's mapping, such as "interleave:0".
std::string PolicyOf(const std::string& path) {
  std::ifstream lines("/proc/self/numa_maps");
  for (std::string line; std::getline(lines, line);) {
    if (line.find("file=" + path) == std::string::npos) continue;
    const size_t begin = line.find(' ') + 1;
    return line.substr(begin, line.find(' ', begin) - begin);
  }
  return "";
}

TEST(NumaTest, TheMemoryComesFromTheNodesInTurnIfThereAreSome) {
  const ArenaPath path;
  {
    const auto arena = OpenOrDie(path);
    if (PolicyOf(path.str()) != "default") GTEST_SKIP() << "policy here: " << PolicyOf(path.str());
  }
  Arena::Options options = SharedOptions(path);
  options.nodes = {0};
  const auto arena = Arena::Open(options).value();
  if (!arena->not_spread_why().empty()) GTEST_SKIP() << arena->not_spread_why();
  EXPECT_EQ(PolicyOf(path.str()), "interleave:0");
}

TEST(NumaTest, WhereTheSystemRefusesTheArenaSaysSoAndServes) {
  const ArenaPath path;
  Arena::Options options = SharedOptions(path);
  options.nodes = {2'000};
  const auto arena = Arena::Open(options).value();
  const std::string policy = PolicyOf(path.str());
  if (policy.empty() || policy == "default") {  // else numactl chose, and nothing was refused
    EXPECT_NE(arena->not_spread_why(), "");
  }
  EXPECT_TRUE(arena->Allocate(16 * kKiB, 16 * kKiB).ok());
}

}  // namespace
}  // namespace prefixd::ram
