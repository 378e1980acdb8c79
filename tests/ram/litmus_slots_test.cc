// Slots are given, named, freed and given to other sessions, while workers read their records.
#include <sys/stat.h>

#include "gtest/gtest.h"

#include "tests/ram/litmus.h"

namespace prefixd::ram {
namespace {

constexpr size_t kSessions = 32;  // at a time
constexpr uint32_t kKeys = 64;
constexpr uint64_t kOperationsOfASession = 6;

base::Peer OwnerOf(uint32_t key) {
  return {.pid = 1000 + key, .uid = 7000 + key, .pid_namespace = 99'000 + key};
}

// What the daemon told a worker, and what the worker did since.
struct Session {
  uint32_t slot = 0, key = 0;
  int lock = -1;
  bool given = false;                       // the daemon's own
  alignas(64) std::atomic<int> has{kNone};  // whose turn it is
  static constexpr int kNone = 0, kGiven = 1, kEnding = 2, kEnded = 3;
};

class SlotsLitmus {
 public:
  SlotsLitmus() {
    for (uint32_t i = 0; i < kKeys; ++i) keys_.push_back(KeyHash(SessionKey{std::byte(i + 1)}));
  }

  void Run(uint64_t sessions) {
    wanted_ = sessions;
    std::thread workers([this] { Work(); });
    Serve();
    ended_ = true;
    workers.join();
    EXPECT_EQ(stage_.slots.in_use(), 1u) << "the stage's own";
    std::cout << kOperationsOfASession * released_ << " operations: " << released_
              << " sessions given a slot, named, read, looked at, released\n";
  }

 private:
  // The daemon.
  void Serve() {
    Turn turn;
    for (uint64_t begun = 0; released_ < wanted_ && !verdict_.bad();) {
      for (Session& session : sessions_) {
        if (!session.given && begun < wanted_) {
          Begin(session, static_cast<uint32_t>(Mix(begun++, 1) % kKeys));
        } else if (session.given) {
          Look(session, turn);
        }
      }
    }
  }

  void Begin(Session& session, uint32_t key) {
    const std::optional<uint32_t> slot = stage_.slots.Claim(keys_[key]);
    if (!verdict_.Require(slot.has_value(), "there are 64 slots")) return;
    stage_.slots.SetOwner(*slot, OwnerOf(key));
    absl::StatusOr<SlotFiles> files = stage_.slots.OpenFor(*slot);
    if (!verdict_.Require(files.ok(), "no files for a session")) return;
    close(files->arena);  // the stage has the arena mapped
    session.slot = *slot;
    session.key = key;
    session.lock = files->lock;
    session.given = true;
    session.has.store(Session::kGiven, std::memory_order_release);
  }

  // A slot is released once nothing holds its lock, and not while its worker does.
  void Look(Session& session, Turn& turn) {
    const bool locked = stage_.slots.Locked(session.slot);
    const int has = session.has.load(std::memory_order_acquire);
    if (has == Session::kGiven) {
      verdict_.Require(locked, "a worker has its lock and the daemon does not see it");
      turn.Wait();
    }
    if (has != Session::kEnded) return;
    verdict_.Require(!stage_.slots.Locked(session.slot), "a lock that nobody holds");
    stage_.slots.Release(session.slot);
    session.given = false;
    session.has.store(Session::kNone, std::memory_order_relaxed);
    ++released_;
  }

  void Work() {
    Turn turn;
    while (!ended_.load(std::memory_order_relaxed) && !verdict_.bad()) {
      for (Session& session : sessions_) {
        if (session.has.load(std::memory_order_acquire) != Session::kGiven) {
          turn.Wait();
          continue;
        }
        Check(session);
        session.has.store(Session::kEnding, std::memory_order_release);
        close(session.lock);
        session.has.store(Session::kEnded, std::memory_order_release);
      }
    }
  }

  // All fields are this session's: none is an earlier one's, and none is missing.
  void Check(const Session& session) {
    const block::SlotRecord& record = view_.slot(session.slot);
    const base::Peer owner = OwnerOf(session.key);
    struct stat file = {};
    verdict_.Require(record.in_use.load(std::memory_order_acquire) == 1, "a slot not in use");
    verdict_.Require(std::memcmp(record.key_hash, keys_[session.key].data(), 32) == 0,
                     "another session's key");
    verdict_.Require(record.pid == owner.pid && record.uid == owner.uid &&
                         record.pid_namespace == owner.pid_namespace,
                     "another session's owner");
    verdict_.Require(
        fstat(session.lock, &file) == 0 && record.lock_inode == static_cast<uint32_t>(file.st_ino),
        "another session's lock file");
  }

  LitmusArena stage_;
  const View view_{*stage_.arena, *stage_.mapping};
  std::vector<base::Digest256> keys_;
  std::array<Session, kSessions> sessions_;
  uint64_t wanted_ = 0, released_ = 0;
  std::atomic<bool> ended_{false};
  Verdict verdict_;
};

TEST(LitmusTest, ASlotsRecordIsWhollyThatOfTheSessionThatHasIt) {
  SlotsLitmus().Run(LitmusOperations(1) / 10 / kOperationsOfASession);
}

}  // namespace
}  // namespace prefixd::ram
