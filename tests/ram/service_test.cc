// What has memory: slabs in service, records, tables; never more than the capacity. (R25, R47)
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include <algorithm>
#include <map>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/descriptor.h"
#include "os/memory.h"
#include "tests/ram/shared_arena.h"

namespace prefixd::ram {
namespace {

using testing::HasSubstr;

uint64_t Accounted(const Arena& arena) {
  const ArenaStats stats = arena.stats();
  return stats.slabs_in_service * stats.slab_bytes + stats.table_bytes;
}

std::vector<block::Extent> Fill(Arena& arena, uint64_t bytes) {
  std::vector<block::Extent> extents;
  while (true) {
    const absl::StatusOr<block::Extent> extent = arena.Allocate(bytes, bytes);
    if (!extent.ok()) return extents;
    extents.push_back(*extent);
  }
}

// A tmpfs of our own; unmounted with the object.
class Mount {
 public:
  explicit Mount(const char* options) {
    if (mkdtemp(folder_) == nullptr) return;
    mounted_ = mount("prefixd-test", folder_, "tmpfs", 0, options) == 0;
  }
  ~Mount() {
    if (mounted_) umount2(folder_, MNT_DETACH);
    rmdir(folder_);
  }
  Mount(const Mount&) = delete;
  Mount& operator=(const Mount&) = delete;
  bool ok() const { return mounted_; }
  std::string folder() const { return folder_; }

 private:
  char folder_[32] = "/tmp/prefixd-ram-mount-XXXXXX";
  bool mounted_ = false;
};

TEST(ServiceTest, ASlabTakesMemoryWhenItEntersService) {
  const ArenaPath path;
  const auto arena = OpenOrDie(path);
  EXPECT_EQ(arena->stats().slabs_in_service, 0u);
  EXPECT_LT(AllocatedBytes(*arena), 128 * kKiB);
  ASSERT_TRUE(arena->Allocate(16 * kKiB, 16 * kKiB).ok());
  EXPECT_EQ(arena->stats().slabs_in_service, 1u);
  EXPECT_GE(AllocatedBytes(*arena), 256 * kKiB);
  EXPECT_EQ(AllocatedBytes(*arena), Accounted(*arena));
}

TEST(ServiceTest, BackOneMoreGivesSlabsTheirMemoryAheadUpToTheCapacity) {
  const ArenaPath path;
  const auto arena = OpenOrDie(path);
  uint64_t slabs = 0;
  while (arena->BackOneMore()) ++slabs;
  EXPECT_EQ(slabs, 31u) << "32 less the tables";
  EXPECT_EQ(arena->stats().slabs_in_service, slabs);
  EXPECT_EQ(arena->stats().capacity_bytes, slabs * 256 * kKiB);
  EXPECT_EQ(arena->stats().slabs_free, slabs);
  EXPECT_LE(AllocatedBytes(*arena), 8 * kMiB);
  EXPECT_EQ(AllocatedBytes(*arena), Accounted(*arena));
  EXPECT_EQ(Fill(*arena, 256 * kKiB).size(), slabs);
}

TEST(ServiceTest, RecordsCountAgainstTheCapacity) {
  const ArenaPath path;
  const auto arena = OpenOrDie(path);
  const std::vector<block::Extent> extents = Fill(*arena, 4 * kKiB);
  const ArenaStats stats = arena->stats();
  EXPECT_GE(stats.table_bytes, extents.size() * sizeof(block::PageRecord));
  EXPECT_LE(Accounted(*arena), 8 * kMiB);
  EXPECT_EQ(AllocatedBytes(*arena), Accounted(*arena));
  EXPECT_EQ(extents.size(), 64u * 25) << "a page of 4 KiB takes 1 KiB of record";
  const absl::Status full = arena->Allocate(4 * kKiB, 4 * kKiB).status();
  EXPECT_TRUE(absl::IsResourceExhausted(full));
  for (const block::Extent extent : extents) arena->Free(extent);
  // The memory of small pages' records is not lost to large pages.
  EXPECT_EQ(Fill(*arena, 256 * kKiB).size(), 31u);
  EXPECT_EQ(AllocatedBytes(*arena), Accounted(*arena));
}

TEST(ServiceTest, SlabsThatAreFreeMakeRoomForTheRecordsOfOthers) {
  const ArenaPath path;
  const auto arena = OpenOrDie(path);
  while (arena->BackOneMore()) {
  }
  // Every slab is in service with the least of records; small pages need more of them.
  EXPECT_EQ(Fill(*arena, 4 * kKiB).size(), 64u * 25);
  EXPECT_LE(Accounted(*arena), 8 * kMiB);
  EXPECT_EQ(AllocatedBytes(*arena), Accounted(*arena));
}

TEST(ServiceTest, RandomSizesNeverExceedTheCapacityAndTheFileHasWhatIsAccounted) {
  const ArenaPath path;
  Arena::Options options = SharedOptions(path);
  options.capacity_bytes = 4 * kMiB;
  std::mt19937_64 random(1);
  uint64_t refused = 0, restarts = 0;
  auto arena = OpenOrDie(options);
  const uint32_t space = arena->AddSpace(SpaceIdOf(1), "one").value();
  std::vector<std::pair<block::Extent, uint64_t>> live;  // with its seed
  for (uint64_t step = 0; step < 20'000; ++step) {
    static constexpr uint64_t kFull[] = {4'000, 5'000, 30'000, 64 * kKiB, 256 * kKiB};
    const uint64_t full = kFull[random() % std::size(kFull)];
    if (random() % 8 != 0 || live.empty()) {
      const uint64_t bytes = 64 + random() % (full - 63);
      const absl::StatusOr<block::Extent> extent = arena->Allocate(bytes, full);
      if (extent.ok()) {
        FillPayload(*arena, *extent, step);
        const TestPage page = MakePage(step, space, bytes);
        arena->Publish(*extent, page.content);
        live.emplace_back(*extent, step);
      }
      refused += extent.ok() ? 0 : 1;
    } else {
      // Now and then all of a slab, so that slabs change their size.
      const uint64_t slab = live[random() % live.size()].first.offset / (256 * kKiB);
      uint64_t most = random() % 4 == 0 ? live.size() : 1;
      std::erase_if(live, [&](const auto& one) {
        if (most == 0 || one.first.offset / (256 * kKiB) != slab) return false;
        --most;
        arena->Free(one.first);
        return true;
      });
    }
    ASSERT_LE(Accounted(*arena), options.capacity_bytes) << step;
    ASSERT_EQ(AllocatedBytes(*arena), Accounted(*arena)) << step;
    ASSERT_EQ(arena->stats().extents, live.size());
    if (step % 2'000 != 1'999) continue;
    ++restarts;
    arena.reset();
    arena = OpenOrDie(options);
    std::map<block::Extent, uint64_t> found;
    for (const FoundPage& page : arena->TakeFound()) {
      found[page.extent] = page.content.check / 77;
      ASSERT_TRUE(HasPayload(arena->data(page.extent), page.extent.bytes, found[page.extent]));
    }
    ASSERT_EQ(found, (std::map<block::Extent, uint64_t>(live.begin(), live.end())));
    ASSERT_EQ(AllocatedBytes(*arena), Accounted(*arena));
  }
  EXPECT_GT(refused, 100u) << "the arena was never full: the test proves nothing";
  EXPECT_EQ(restarts, 10u);
}

TEST(ServiceTest, ASmallerCapacityGivesFreeSlabsBackAndNamesThoseToEmpty) {
  const ArenaPath path;
  Arena::Options options = SharedOptions(path);
  std::vector<block::Extent> extents;
  ino_t inode = 0;
  {
    const auto arena = OpenOrDie(options);
    const uint32_t space = arena->AddSpace(SpaceIdOf(1), "one").value();
    while (arena->BackOneMore()) {
    }
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      extents.push_back(Store(*arena, space, seed, 256 * kKiB));
    }
    inode = StatOf(path.str()).st_ino;
    EXPECT_EQ(arena->SlabToRetire(), std::nullopt);
  }
  options.capacity_bytes = 4 * kMiB;
  {
    const auto arena = OpenOrDie(options);
    EXPECT_EQ(arena->TakeFound().size(), 20u) << "nothing is thrown away";
    EXPECT_EQ(arena->stats().slabs_in_service, 20u) << "free ones left at once";
    EXPECT_EQ(AllocatedBytes(*arena), Accounted(*arena));
    EXPECT_TRUE(absl::IsResourceExhausted(arena->Allocate(4096, 4096).status()));
    // The highest, one after the other; one that cannot be emptied does not keep the rest.
    std::set<uint64_t> named;
    for (int i = 0; i < 10; ++i) named.insert(arena->SlabToRetire()->begin / (256 * kKiB));
    EXPECT_EQ(named, (std::set<uint64_t>{15, 16, 17, 18, 19}));
    for (const block::Extent extent : extents) {
      if (extent.offset / (256 * kKiB) < 15) continue;
      ASSERT_TRUE(arena->SlabToRetire().has_value());
      const uint64_t before = AllocatedBytes(*arena);
      arena->Free(extent);
      EXPECT_LT(AllocatedBytes(*arena), before - 200 * kKiB) << "punched";
    }
    EXPECT_EQ(arena->SlabToRetire(), std::nullopt);
    EXPECT_LE(AllocatedBytes(*arena), 4 * kMiB);
    EXPECT_EQ(AllocatedBytes(*arena), Accounted(*arena));
    EXPECT_EQ(arena->stats().slabs_in_service, 15u);
  }
  options.capacity_bytes = 16 * kMiB;
  const auto arena = OpenOrDie(options);
  EXPECT_EQ(arena->TakeFound().size(), 15u);
  EXPECT_EQ(Fill(*arena, 256 * kKiB).size(), 62u - 15) << "a larger one backs more";
  EXPECT_EQ(StatOf(path.str()).st_ino, inode);
}

// What the file says of each slab, to the workers that map it.
std::vector<uint64_t> ServiceOf(const ArenaPath& path) {
  const base::Descriptor file(open(path.str().c_str(), O_RDONLY | O_CLOEXEC));
  block::ArenaHeader header;
  EXPECT_EQ(pread(file.get(), static_cast<void*>(&header), sizeof(header), 0),
            static_cast<ssize_t>(sizeof(header)));
  std::vector<uint64_t> service(header.slabs);
  for (uint64_t i = 0; i < header.slabs; ++i) {
    const uint64_t at = header.slabs_offset + i * sizeof(block::SlabRecord) + sizeof(uint64_t);
    EXPECT_EQ(pread(file.get(), &service[i], sizeof(uint64_t), static_cast<off_t>(at)), 8);
  }
  return service;
}

TEST(ServiceTest, ASlabThatGotOtherMemoryIsToldFromWhatItWas) {
  const ArenaPath path;
  Arena::Options options = SharedOptions(path);
  std::vector<uint64_t> first;
  {
    const auto arena = OpenOrDie(options);
    while (arena->BackOneMore()) {
    }
    first = ServiceOf(path);
    const auto serving = std::count_if(first.begin(), first.end(), block::InService);
    ASSERT_EQ(serving, static_cast<int64_t>(arena->stats().slabs_in_service));
    ASSERT_TRUE(arena->GiveUp(3 * 256 * kKiB));
    const std::vector<uint64_t> fewer = ServiceOf(path);
    EXPECT_EQ(std::count_if(fewer.begin(), fewer.end(), block::InService), serving - 3);
    arena->TakeBack(3 * 256 * kKiB);
    while (arena->BackOneMore()) {
    }
    const std::vector<uint64_t> again = ServiceOf(path);
    size_t changed = 0;
    for (size_t i = 0; i < first.size(); ++i) {
      EXPECT_EQ(block::InService(again[i]), block::InService(first[i])) << i;
      changed += again[i] != first[i] ? 1 : 0;
    }
    EXPECT_EQ(changed, 3u);
    first = again;
  }
  const auto adopted = OpenOrDie(options);
  EXPECT_EQ(ServiceOf(path), first) << "a daemon that adopts the file takes nothing away";
}

// Half of the slabs is free, in a private arena and in a shared one.
TEST(ServiceTest, WhatIsGivenUpComesFromFreeSlabsAndCanBeTakenBack) {
  const ArenaPath path;
  for (const bool shared : {false, true}) {
    Arena::Options options = SharedOptions(path);
    if (!shared) options.path.clear();
    absl::StatusOr<std::unique_ptr<Arena>> opened = Arena::Open(options);
    ASSERT_TRUE(opened.ok()) << opened.status();
    Arena& arena = **opened;
    std::vector<block::Extent> extents = Fill(arena, 256 * kKiB);
    const size_t slabs = extents.size();
    EXPECT_FALSE(arena.GiveUp(256 * kKiB)) << "every slab is in use";
    for (size_t i = 0; i < 4; ++i) {
      std::memset(arena.data(extents[i]), 1, 256 * kKiB);
      arena.Free(extents[i]);
    }
    ASSERT_TRUE(arena.GiveUp(3 * 256 * kKiB));
    EXPECT_FALSE(arena.GiveUp(2 * 256 * kKiB)) << "one is free";
    EXPECT_EQ(arena.stats().slabs_in_service, slabs - 3);
    EXPECT_EQ(arena.stats().capacity_bytes, (slabs - 3) * 256 * kKiB);
    if (shared) {
      EXPECT_LE(AllocatedBytes(arena), options.capacity_bytes - 3 * 256 * kKiB);
    }
    EXPECT_EQ(Fill(arena, 256 * kKiB).size(), 1u);
    arena.TakeBack(3 * 256 * kKiB);
    EXPECT_EQ(Fill(arena, 256 * kKiB).size(), 3u);
    EXPECT_EQ(arena.stats().capacity_bytes, slabs * 256 * kKiB);
  }
}

TEST(ServiceTest, APrivateArenaGivesTheKernelWhatItGivesUp) {
  const auto arena = Arena::Open({.capacity_bytes = 8 * kMiB, .slab_bytes = 256 * kKiB});
  ASSERT_TRUE(arena.ok()) << arena.status();
  const std::vector<block::Extent> extents = Fill(**arena, 256 * kKiB);
  std::byte* const first = (*arena)->data(extents[0]);
  for (const block::Extent& extent : extents) {
    std::memset((*arena)->data(extent), 1, extent.bytes);
    (*arena)->Free(extent);
  }
  ASSERT_TRUE((*arena)->GiveUp(31 * 256 * kKiB));
  std::vector<unsigned char> there(8 * kMiB / 4096);
  ASSERT_EQ(mincore(first, 8 * kMiB, there.data()), 0);
  EXPECT_EQ(std::ranges::count_if(there, [](unsigned char page) { return (page & 1) != 0; }),
            256 * kKiB / 4096);
}

TEST(ServiceTest, SlabsBeyondTheCapacityRunEmptyWhileOthersServe) {
  const ArenaPath path;
  Arena::Options options = SharedOptions(path);
  {
    const auto arena = OpenOrDie(options);
    const uint32_t space = arena->AddSpace(SpaceIdOf(1), "one").value();
    for (uint64_t seed = 1; seed <= 20; ++seed) Store(*arena, space, seed, 128 * kKiB);
  }
  options.capacity_bytes = 2 * kMiB;
  const auto arena = OpenOrDie(options);
  std::vector<FoundPage> found = arena->TakeFound();
  ASSERT_EQ(found.size(), 20u);
  const auto by_offset = [](const FoundPage& a, const FoundPage& b) {
    return a.extent.offset < b.extent.offset;
  };
  std::sort(found.begin(), found.end(), by_offset);
  const uint64_t keep = arena->SlabToRetire()->begin;
  arena->Free(found.front().extent);  // in the lowest slab
  arena->Free(found.back().extent);   // in the highest, which has another
  const block::Extent extent = arena->Allocate(128 * kKiB, 128 * kKiB).value();
  EXPECT_LT(extent.offset, keep) << "a page that moves out of a slab to retire";
  EXPECT_TRUE(absl::IsResourceExhausted(arena->Allocate(128 * kKiB, 128 * kKiB).status()));
}

TEST(ServiceTest, LowSlabsAreFilledFirstSoThatHighOnesRunEmpty) {
  const ArenaPath path;
  const auto arena = OpenOrDie(path);
  std::vector<block::Extent> extents;
  for (int i = 0; i < 12; ++i) extents.push_back(arena->Allocate(64 * kKiB, 64 * kKiB).value());
  arena->Free(extents[1]);
  arena->Free(extents[9]);
  EXPECT_EQ(arena->Allocate(64 * kKiB, 64 * kKiB).value(), extents[1]);
  for (int i = 0; i < 4; ++i) arena->Free(extents[static_cast<size_t>(i)]);
  EXPECT_LT(arena->Allocate(256 * kKiB, 256 * kKiB).value().offset, 256 * kKiB);
}

TEST(ServiceTest, AFullTmpfsRefusesSlabsAndWhatIsInServiceStaysUsable) {
  const Mount mount("size=6m");
  if (!mount.ok()) GTEST_SKIP() << "mounting a tmpfs needs root: " << strerror(errno);
  const ArenaPath path(mount.folder());
  const auto arena = OpenOrDie(path);  // 8 MiB wanted
  const std::vector<block::Extent> extents = Fill(*arena, 256 * kKiB);
  EXPECT_EQ(extents.size(), 23u);
  const absl::Status full = arena->Allocate(256 * kKiB, 256 * kKiB).status();
  EXPECT_TRUE(absl::IsResourceExhausted(full));
  EXPECT_THAT(std::string(full.message()), HasSubstr("the tmpfs is full"));
  EXPECT_FALSE(arena->BackOneMore());
  EXPECT_EQ(AllocatedBytes(*arena), Accounted(*arena));
  for (const block::Extent extent : extents) FillPayload(*arena, extent, extent.offset);
  for (const block::Extent extent : extents) {
    EXPECT_TRUE(HasPayload(arena->data(extent), extent.bytes, extent.offset));
    arena->Free(extent);
  }
  EXPECT_GT(Fill(*arena, 4 * kKiB).size(), 64u * 17) << "records find their room";
}

TEST(ServiceTest, ATmpfsWithoutRoomForAQuarterIsRefused) {
  const Mount mount("size=1m");
  if (!mount.ok()) GTEST_SKIP() << "mounting a tmpfs needs root: " << strerror(errno);
  const ArenaPath path(mount.folder());
  const absl::Status status = Arena::Open(SharedOptions(path)).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("has room for 1.0 MiB"));
}

TEST(ServiceTest, HugePagesDoNotTakeMemoryThatIsNotAccounted) {
  if (!os::ChoosesHugePages()) GTEST_SKIP() << "the mount alone chooses";
  const Mount mount("size=256m,huge=within_size");
  if (!mount.ok()) GTEST_SKIP() << "mounting a tmpfs with huge pages needs root";
  const ArenaPath path(mount.folder());
  Arena::Options options = SharedOptions(path);
  options.capacity_bytes = 64 * kMiB;
  options.slab_bytes = 4 * kMiB;
  {
    const auto arena = OpenOrDie(options);
    EXPECT_EQ(AllocatedBytes(*arena), Accounted(*arena));
    const uint32_t space = arena->AddSpace(SpaceIdOf(1), std::string(20'000, 'x')).value();
    EXPECT_EQ(AllocatedBytes(*arena), Accounted(*arena));
    for (uint64_t seed = 1; seed <= 20; ++seed) Store(*arena, space, seed, kMiB);
    EXPECT_EQ(AllocatedBytes(*arena), Accounted(*arena));
    for (uint64_t seed = 21; seed <= 400; ++seed) Store(*arena, space, seed, 40 * kKiB);
    EXPECT_EQ(AllocatedBytes(*arena), Accounted(*arena));
  }
  const auto arena = OpenOrDie(options);
  for (const FoundPage& page : arena->TakeFound()) {
    const uint64_t seed = page.content.check / 77;
    EXPECT_TRUE(HasPayload(arena->data(page.extent), page.extent.bytes, seed));
  }
  EXPECT_EQ(arena->stats().extents, 400u);
  EXPECT_EQ(AllocatedBytes(*arena), Accounted(*arena));
}

// As many records as 8 GiB of 1 MiB pages have.
TEST(ServiceTest, AdoptionReadsRecordsAndNoPayload) {
  constexpr uint64_t kPages = 8192;
  const ArenaPath path;
  Arena::Options options = SharedOptions(path);
  options.capacity_bytes = 64 * kMiB;
  options.slab_bytes = kMiB;
  {
    const auto arena = OpenOrDie(options);
    const uint32_t space = arena->AddSpace(SpaceIdOf(1), "one").value();
    for (uint64_t seed = 1; seed <= kPages; ++seed) Store(*arena, space, seed, 4 * kKiB);
  }
  struct rusage before = {}, after = {};
  getrusage(RUSAGE_SELF, &before);
  const auto start = std::chrono::steady_clock::now();
  const auto arena = OpenOrDie(options);
  const auto end = std::chrono::steady_clock::now();
  getrusage(RUSAGE_SELF, &after);
  ASSERT_EQ(arena->TakeFound().size(), kPages);
  EXPECT_LT(end - start, std::chrono::seconds(10))
      << "milliseconds, on a machine with time to spare";
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LT(after.ru_minflt - before.ru_minflt, static_cast<long>(kPages / 2))
      << "page faults: each payload touched would be one";
#endif
}

// Bytes of [begin, end) of the arena that our page tables have.
uint64_t MappedBytes(const Arena& arena, uint64_t begin, uint64_t end) {
  const int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<uint64_t>(arena.data({.offset = begin})) / page;
  std::vector<uint64_t> entries((end - begin) / page);
  const auto bytes = static_cast<ssize_t>(entries.size() * sizeof(uint64_t));
  EXPECT_EQ(pread(fd, entries.data(), static_cast<size_t>(bytes),
                  static_cast<off_t>(first * sizeof(uint64_t))),
            bytes);
  close(fd);
  constexpr uint64_t kPresent = uint64_t{1} << 63;
  return page * static_cast<uint64_t>(
                    std::ranges::count_if(entries, [](uint64_t e) { return (e & kPresent) != 0; }));
}
void Populate(Arena& arena) {
  while (arena.PopulateAhead()) {
  }
  EXPECT_FALSE(arena.wants_populating());
}

constexpr uint64_t kSlab = 256 * kKiB, kStep = kSlab / 8;

class PopulateTest : public testing::Test {
  void SetUp() override {
    constexpr int kPopulateWrite = 23;  // of Linux 5.14
    constexpr size_t kBytes = 4096;
    void* const page =
        mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(page, MAP_FAILED);
    unsigned char resident = 0;
    const bool advised = madvise(page, kBytes, kPopulateWrite) == 0;
    mincore(page, kBytes, &resident);
    munmap(page, kBytes);
    if (!advised) GTEST_SKIP() << strerror(errno);
    if ((resident & 1) == 0) GTEST_SKIP() << "this kernel takes the advice for a hint";
  }
};

TEST_F(PopulateTest, OnlyAStepOfTheNextSlabIsMappedAhead) {
  const ArenaPath path;
  const auto arena = OpenOrDie(path);
  EXPECT_FALSE(arena->PopulateAhead()) << "nothing is in service";
  ASSERT_TRUE(arena->BackOneMore() && arena->BackOneMore());
  EXPECT_EQ(MappedBytes(*arena, 0, 2 * kSlab), 0u) << "backing maps nothing";
  EXPECT_TRUE(arena->wants_populating());
  Populate(*arena);
  EXPECT_EQ(MappedBytes(*arena, 0, 2 * kSlab), kStep);
  EXPECT_EQ(MappedBytes(*arena, 0, kStep), kStep);
}

TEST_F(PopulateTest, ExtentsAreMappedBeforeTheyAreGivenOutAndNeverMoreThanAStepAhead) {
  const ArenaPath path;
  const auto arena = OpenOrDie(path);
  ASSERT_TRUE(arena->BackOneMore() && arena->BackOneMore());
  uint64_t filled = 0;
  while (filled < 2 * kSlab) {
    if (arena->wants_populating()) Populate(*arena);
    const block::Extent extent = arena->Allocate(8 * kKiB, 8 * kKiB).value();
    ASSERT_EQ(MappedBytes(*arena, extent.offset, extent.offset + extent.bytes), extent.bytes);
    FillPayload(*arena, extent, extent.offset);
    filled += extent.bytes;
    // Of the slab that is being filled, and of the one after it.
    ASSERT_LE(MappedBytes(*arena, 0, 2 * kSlab), filled + 2 * kStep);
  }
  for (uint64_t at = 0; at < filled; at += 8 * kKiB) {
    ASSERT_TRUE(HasPayload(arena->data({.offset = at}), 8 * kKiB, at)) << "mapping changes no byte";
  }
}

TEST_F(PopulateTest, WhatNoExtentCoversIsNeverMapped) {
  const ArenaPath path;
  const auto arena = OpenOrDie(path);
  ASSERT_TRUE(arena->BackOneMore());
  std::vector<block::Extent> extents;
  for (int i = 0; i < 2; ++i) {
    Populate(*arena);
    extents.push_back(arena->Allocate(120 * kKiB, 120 * kKiB).value());
    FillPayload(*arena, extents.back(), 1);
  }
  arena->Free(extents[0]);  // the slab is filled again
  Populate(*arena);
  EXPECT_EQ(MappedBytes(*arena, 0, kSlab), 240 * kKiB);
}

TEST_F(PopulateTest, APageOfAnAdoptedSlabIsNotMapped) {
  const ArenaPath path;
  {
    const auto arena = OpenOrDie(path);
    const uint32_t space = arena->AddSpace(SpaceIdOf(1), "one").value();
    for (uint64_t seed = 1; seed <= 6; ++seed) Store(*arena, space, seed, 64 * kKiB);
    ASSERT_TRUE(arena->BackOneMore());
  }
  const auto arena = OpenOrDie(path);
  ASSERT_EQ(arena->TakeFound().size(), 6u);
  Populate(*arena);
  ASSERT_EQ(arena->Allocate(64 * kKiB, 64 * kKiB).value().offset / kSlab, 1u);
  Populate(*arena);
  EXPECT_EQ(MappedBytes(*arena, 0, 2 * kSlab), 0u);
  EXPECT_EQ(MappedBytes(*arena, 2 * kSlab, 3 * kSlab), kStep) << "the free slab";
}

TEST_F(PopulateTest, ASlabThatComesBackIntoServiceIsMappedAnew) {
  const ArenaPath path;
  const auto arena = OpenOrDie(path);
  std::vector<block::Extent> extents;
  while (arena->BackOneMore()) {
  }
  for (int i = 0; i < 30; ++i) extents.push_back(arena->Allocate(kSlab, kSlab).value());
  Populate(*arena);
  EXPECT_EQ(MappedBytes(*arena, 30 * kSlab, 31 * kSlab), kStep);
  for (size_t i = 0; i < 4; ++i) arena->Free(extents[i]);
  std::vector<block::Extent> small;
  for (int i = 0; i < 256; ++i) small.push_back(arena->Allocate(4 * kKiB, 4 * kKiB).value());
  ASSERT_EQ(MappedBytes(*arena, 30 * kSlab, 31 * kSlab), 0u) << "gave way to records";
  for (const block::Extent extent : small) arena->Free(extent);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(arena->Allocate(kSlab, kSlab).ok());
  ASSERT_TRUE(arena->BackOneMore());
  Populate(*arena);
  EXPECT_EQ(MappedBytes(*arena, 30 * kSlab, 31 * kSlab), kStep);
  EXPECT_EQ(AllocatedBytes(*arena), Accounted(*arena)) << "nothing out of service was touched";
}

void AllocatePublishFree(Arena& arena, uint64_t seed, bool* intact) {
  std::mt19937_64 random(seed);
  std::vector<std::pair<block::Extent, uint64_t>> mine;
  *intact = true;
  for (uint64_t i = 0; i < 1'500; ++i) {
    const uint64_t bytes = 64 + random() % (60 * kKiB);
    const absl::StatusOr<block::Extent> extent = arena.Allocate(bytes, 64 * kKiB);
    if (extent.ok()) {
      const uint64_t name = seed << 32 | i;
      FillPayload(arena, *extent, name);
      const TestPage page = MakePage(name, static_cast<uint32_t>(seed % 2), bytes);
      arena.Publish(*extent, page.content);
      arena.marks(*extent)->holders.fetch_or(seed);
      mine.emplace_back(*extent, name);
    }
    if (i % 64 == 0) {
      (void)arena.BackOneMore();
      while (arena.PopulateAhead()) {
      }
      (void)arena.SlabToRetire();
      (void)arena.AddSpace(SpaceIdOf(i), "space");
      if (i % 512 == 0) arena.ClearSpace(1);
    }
    while (mine.size() > 20 || (!extent.ok() && !mine.empty())) {
      std::swap(mine[random() % mine.size()], mine.back());
      const auto [freed, name] = mine.back();
      *intact = *intact && HasPayload(arena.data(freed), freed.bytes, name) &&
                arena.marks(freed)->holders.load() == seed;
      arena.Free(freed);
      mine.pop_back();
    }
  }
  for (const auto& [extent, name] : mine) arena.Free(extent);
}

TEST(ServiceTest, ThreadsAllocatePublishAndFreeWithoutSharingBytesOrRecords) {
  const ArenaPath path;
  Arena::Options options = SharedOptions(path);
  options.capacity_bytes = 3 * kMiB;
  const auto arena = OpenOrDie(options);
  ASSERT_TRUE(arena->AddSpace(SpaceIdOf(1000), "a").ok());
  ASSERT_TRUE(arena->AddSpace(SpaceIdOf(1001), "b").ok());
  bool intact[4] = {};
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] { AllocatePublishFree(*arena, i + 1, &intact[i]); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const bool ok : intact) EXPECT_TRUE(ok);
  EXPECT_EQ(arena->stats().extents, 0u);
  EXPECT_EQ(AllocatedBytes(*arena), Accounted(*arena));
}

}  // namespace
}  // namespace prefixd::ram
