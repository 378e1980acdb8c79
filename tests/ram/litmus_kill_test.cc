// A daemon that stores, leases and names at full speed is killed at any instant, life after life,
// while a worker in another process reads what it was told. Whoever follows finds whole pages and
// whole slots, and nobody's page was given away.
#include <signal.h>
#include <sys/mman.h>

#include <map>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/ram/litmus.h"

namespace prefixd::ram {
namespace {

constexpr size_t kPlaces = 24;
constexpr uint32_t kSessions = 3, kKeys = 64;
constexpr uint64_t kMostOfALife = 4000;

// What daemon and worker tell each other, as they do by sockets; it outlives the daemon.
struct Place {
  block::Extent extent{};
  uint64_t record_at = 0;         // in the file
  std::atomic<uint64_t> told{0};  // the number of a lease, times kKeys, and its page
  std::atomic<uint64_t> done{0};  // what the worker has read and given back
};
struct Answers {
  std::array<Place, kPlaces> places;
  std::atomic<uint64_t> operations{0};
};

class SharedAnswers {
 public:
  SharedAnswers()
      : at_(mmap(nullptr, sizeof(Answers), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                 0)) {
    EXPECT_NE(at_, MAP_FAILED);
    new (at_) Answers;
  }
  ~SharedAnswers() { munmap(at_, sizeof(Answers)); }
  SharedAnswers(const SharedAnswers&) = delete;
  SharedAnswers& operator=(const SharedAnswers&) = delete;
  Answers& operator*() const { return *static_cast<Answers*>(at_); }
  Answers* operator->() const { return static_cast<Answers*>(at_); }

 private:
  void* const at_;
};

uint32_t PageIn(uint64_t told) { return static_cast<uint32_t>(told % kKeys); }
base::Digest256 KeyOf(uint64_t i) { return KeyHash(SessionKey{std::byte(i % kKeys + 1)}); }
base::Peer OwnerOf(uint64_t i) {
  return {.pid = 1000 + i % kKeys, .uid = 7, .pid_namespace = 99'000 + i % kKeys};
}
// The slot whose session has the leases of this place.
uint32_t SlotOf(size_t place) { return static_cast<uint32_t>(place % kSessions); }

class Daemon {
 public:
  Daemon(const ArenaPath& path, uint64_t seed, const KnownPages& pages, Answers& answers)
      : arena_(OpenOrDie(path)), pages_(pages), answers_(answers), seed_(seed) {
    for (uint64_t i = 0; i < kKeys; ++i) keys_.push_back(KeyOf(i));
  }

  // Until it is killed.
  void Serve(const DescriptorPipe& to_worker) {
    for (Place& place : answers_.places) {
      place.extent = arena_->Allocate(kLitmusPage, kLitmusPage).value();
      place.record_at =
          static_cast<uint64_t>(reinterpret_cast<const std::byte*>(arena_->marks(place.extent)) -
                                reinterpret_cast<const std::byte*>(arena_->header()) -
                                static_cast<ptrdiff_t>(offsetof(block::PageRecord, marks)));
      pages_.Store(*arena_, place.extent, 0);
    }
    for (uint32_t i = 0; i < kSessions; ++i) Give(to_worker);
    for (uint64_t step = 0;; ++step) {
      if (Step(Mix(seed_, step))) answers_.operations.fetch_add(1, std::memory_order_relaxed);
    }
  }

 private:
  void Give(const DescriptorPipe& to_worker) {
    const uint32_t slot = slots_.Claim(keys_[0]).value();
    slots_.SetOwner(slot, OwnerOf(0));
    const SlotFiles files = slots_.OpenFor(slot).value();
    to_worker.Send(files.arena, slot);
    to_worker.Send(files.lock, slot);
    close(files.arena);
    close(files.lock);
  }

  bool Step(uint64_t random) {
    const size_t i = random % kPlaces;
    Place& place = answers_.places[i];
    if (leased_[i]) {
      if (place.done.load(std::memory_order_acquire) != told_[i]) return false;
      arena_->marks(place.extent)->SetHolders(0);
      leased_[i] = false;
    } else if (random >> 20 & 1) {
      Lease(i, random);
    } else if (random >> 21 & 1) {
      Replace(place.extent, PageOf(random));
    } else {
      Name(SlotOf(i));
    }
    return true;
  }

  static uint32_t PageOf(uint64_t random) { return random >> 24 & (KnownPages::kCount - 1); }

  // Freed and given out anew: another payload and another record.
  void Replace(block::Extent extent, uint32_t page) {
    arena_->Free(extent);
    EXPECT_EQ(arena_->Allocate(kLitmusPage, kLitmusPage).value(), extent);
    pages_.Store(*arena_, extent, page);
  }

  // The holder's bit, and then the answer.
  void Lease(size_t i, uint64_t random) {
    Place& place = answers_.places[i];
    Replace(place.extent, PageOf(random));
    arena_->marks(place.extent)->SetHolders(uint64_t{1} << SlotOf(i));
    told_[i] = ++leases_ * kKeys + PageOf(random);
    leased_[i] = true;
    place.told.store(told_[i], std::memory_order_release);
  }

  // The session comes back under another key, in another process.
  void Name(uint32_t slot) {
    const uint64_t name = ++names_[slot];
    slots_.Rename(slot, keys_[name % kKeys]);
    slots_.SetOwner(slot, OwnerOf(name));
  }

  const std::unique_ptr<Arena> arena_;
  Slots slots_{arena_.get()};
  const KnownPages& pages_;
  Answers& answers_;
  const uint64_t seed_;
  std::vector<base::Digest256> keys_;
  std::array<uint64_t, kPlaces> told_{};
  std::array<bool, kPlaces> leased_{};
  std::array<uint64_t, kSessions> names_{};
  uint64_t leases_ = 0;
};

class LitmusKillTest : public testing::Test {
 protected:
  // Reads what it is told, until the daemon has done so much; gives back every second lease.
  void Work(uint64_t operations) {
    for (uint64_t look = 1; answers_->operations.load(std::memory_order_relaxed) < operations;
         ++look) {
      for (size_t i = 0; i < kPlaces; ++i) {
        Place& place = answers_->places[i];
        const uint64_t told = place.told.load(std::memory_order_acquire);
        if (told == place.done.load(std::memory_order_relaxed)) continue;
        Read(place, SlotOf(i), told);
        if (Mix(told, look) % 2 == 0) place.done.store(told, std::memory_order_release);
      }
      if (HasFailure() || (look % 4096 == 0 && HasEnded())) return;
      std::this_thread::yield();
    }
  }

  void Read(const Place& place, uint32_t slot, uint64_t told) {
    const client::ArenaMapping& mapping = *workers_.at(slot);
    const std::byte* const file = mapping.file().data();
    const auto& record = *reinterpret_cast<const block::PageRecord*>(file + place.record_at);
    ASSERT_EQ(pages_->WhyNotWhole(mapping, record, place.extent, PageIn(told)), "");
    ASSERT_TRUE(IsPayload(mapping.data() + place.extent.offset, PageIn(told)));
    ASSERT_NE(record.marks.ReadHolders() >> slot & 1, 0u) << "a holder's bit is missing";
    ++reads_;
  }

  bool HasEnded() const {
    siginfo_t info = {};
    return waitid(P_PID, static_cast<id_t>(daemon_->pid()), &info, WEXITED | WNOHANG | WNOWAIT) !=
               0 ||
           info.si_pid != 0;
  }

  void TakeFiles(const DescriptorPipe& from_daemon) {
    for (uint32_t i = 0; i < kSessions; ++i) {
      const auto [arena, slot] = from_daemon.Receive();
      const auto [lock, same] = from_daemon.Receive();
      workers_[static_cast<uint32_t>(slot)] = MapAsWorker(arena, lock);
    }
  }

  // The next daemon: looks at everything, and gives it up.
  void Follow() {
    const auto arena = OpenOrDie(path_);
    ASSERT_EQ(arena->replaced_why(), "");
    Slots slots(arena.get());
    CheckSlots(slots);
    CheckPages(*arena);
    workers_.clear();
    for (uint32_t slot = 0; slot < kSessions; ++slot) slots.Release(slot);
  }

  void CheckSlots(const Slots& slots) {
    const std::vector<HeldSlot> held = slots.Held();
    ASSERT_EQ(held.size(), kSessions) << "workers have their locks";
    for (const HeldSlot& slot : held) {
      if (slot.key_hash == base::Digest256{}) {
        EXPECT_EQ(slot.owner, base::Peer{}) << "no key, but an owner";
        ++unnamed_;
        continue;
      }
      ASSERT_EQ(key_numbers_.count(slot.key_hash), 1u) << "half a key";
      const uint64_t key = key_numbers_[slot.key_hash];
      EXPECT_TRUE(slot.owner == OwnerOf(key) || slot.owner == OwnerOf(key + kKeys - 1))
          << "key " << key << " with the owner of another: " << slot.owner.pid;
    }
  }

  void CheckPages(Arena& arena) {
    std::map<uint64_t, FoundPage> found;
    for (FoundPage& page : arena.TakeFound()) {
      const std::optional<uint32_t> known = KnownPages::PageOf(page.content);
      ASSERT_TRUE(known.has_value()) << "a record that names no page";
      const auto* const record = reinterpret_cast<const block::PageRecord*>(
          reinterpret_cast<const std::byte*>(arena.marks(page.extent)) -
          offsetof(block::PageRecord, marks));
      EXPECT_EQ(pages_->WhyOtherRecord(*record, *known), "");
      EXPECT_TRUE(IsPayload(arena.data(page.extent), *known)) << "a record of other bytes";
      found.emplace(page.extent.offset, std::move(page));
    }
    for (size_t i = 0; i < kPlaces; ++i) {
      const Place& place = answers_->places[i];
      const uint64_t told = place.told.load();
      if (told == place.done.load()) continue;
      ASSERT_EQ(found.count(place.extent.offset), 1u) << "a leased page is not there";
      const FoundPage& page = found.at(place.extent.offset);
      EXPECT_NE(page.holders >> SlotOf(i) & 1, 0u) << "a leased page that anybody may take";
      EXPECT_EQ(KnownPages::PageOf(page.content), PageIn(told)) << "another page in its place";
      ++kept_;
    }
    for (const auto& [offset, page] : found) arena.Free(page.extent);
    for (const HeldExtent& held : arena.TakeHeld()) arena.Free(held.extent);
  }

  void Live(uint64_t seed, uint64_t operations) {
    new (&*answers_) Answers;
    const DescriptorPipe files;
    daemon_ =
        std::make_unique<Child>([&] { Daemon(path_, seed, *pages_, *answers_).Serve(files); });
    TakeFiles(files);
    Work(operations);
    EXPECT_FALSE(HasEnded()) << "the daemon ended by itself";
    daemon_.reset();
    operations_ += answers_->operations;
    if (!HasFailure()) Follow();
  }

  void SetUp() override {
    for (uint64_t i = 0; i < kKeys; ++i) key_numbers_[KeyOf(i)] = i;
    const auto arena = OpenOrDie(path_);
    Slots slots(arena.get());
    const uint32_t slot = slots.Claim(KeyOf(0)).value();
    const SlotFiles files = slots.OpenFor(slot).value();
    auto mapping = MapAsWorker(files.arena, files.lock);
    pages_ = std::make_unique<KnownPages>(*arena, *mapping);
    mapping.reset();
    slots.Release(slot);
  }

  const ArenaPath path_;
  const SharedAnswers answers_;
  std::unique_ptr<KnownPages> pages_;
  std::map<base::Digest256, uint64_t> key_numbers_;
  std::map<uint32_t, std::shared_ptr<const client::ArenaMapping>> workers_;
  std::unique_ptr<Child> daemon_;
  uint64_t operations_ = 0, reads_ = 0, kept_ = 0, unnamed_ = 0;
};

TEST_F(LitmusKillTest, AKillAtAnyInstantLeavesWholePagesWholeSlotsAndEveryLease) {
  const uint64_t wanted = LitmusOperations(1) / 5;
  uint64_t lives = 0;
  for (; operations_ + reads_ < wanted && !HasFailure(); ++lives) {
    Live(lives, 1 + Mix(lives, 7) % kMostOfALife);
  }
  EXPECT_GT(kept_, 0u) << "some died with leases";
  std::cout << operations_ + reads_ << " operations: " << lives << " daemons killed after "
            << operations_ << " changes, " << reads_ << " reads by their worker, " << kept_
            << " leases found again, " << unnamed_ << " slots found half written\n";
}

}  // namespace
}  // namespace prefixd::ram
