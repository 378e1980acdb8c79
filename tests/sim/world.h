// A simulated host: the parts of the cache without their threads, a clock that stands still until
// it is told, a disk that fails as told and loses what was not synced, workers that stall, crash
// and repeat calls. One thread picks what happens next by a seeded random number, and checks after
// it:
//   safety    bytes are f(tokens); no match is longer than what was stored; budgets hold; what was
//             acknowledged is there unless something that may take it happened
//   liveness  once faults stop, all that was promised comes, and nothing is left behind
// What the seed does not decide: ids (random by design) and the order of hash tables.
#pragma once
#include <deque>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "cache/parts.h"
#include "tests/cache/shared_fixture.h"
#include "tests/support/fake_remote_store.h"
#include "tests/support/fault_files.h"

namespace prefixd::testing {

struct Setup {
  uint64_t ram_bytes = uint64_t{48} << 20;
  uint64_t ssd_bytes = uint64_t{64} << 20;
  uint32_t layers = 24;  // of a token: about 10 KiB, so that RAM and SSD fill
  bool shared = true;    // the arena
  bool calm = false;     // no faults, and room for everything: nothing may be lost
  bool power_cuts = true;
  // A store that hosts share fails in place of the disk.
  bool remote = false;
};

// A worker: its session, what it reads and what it writes.
struct SimWorker {
  struct Held {
    size_t space = 0;
    Tokens tokens;
    cache::Acquired answer;
    uint32_t usable = 0;            // lower after kLeaseFailed
    std::set<uint32_t> unreadable;  // groups that it waits to hear of
  };
  struct Writing {
    size_t space = 0;
    Tokens tokens;
    block::ReservePlan plan;
    size_t block = 0;  // the next page that is put
    uint32_t group = 0;
    uint64_t offset = 0;  // put of that page so far
    uint64_t clears = 0;  // of the space, before
  };
  std::optional<cache::BegunSession> begun;
  std::unique_ptr<MappedFiles> files;  // null: it reads by Fetch
  std::vector<block::SpaceHandle> spaces;
  std::deque<Held> held;
  std::optional<Writing> writing;
  std::vector<block::PinId> pins;

  block::SessionId id() const { return begun->session; }
  void Hear(const cache::SessionEvent& event);
  // The daemon ended: what it promised is void, what is mapped stays.
  void Forget();
};

class World {
 public:
  World(uint64_t seed, const Setup& setup);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  // Something happens. False: a check failed, and the story was printed.
  bool Step();
  // Faults stop: everything comes to rest, then all workers leave. The same.
  bool ComeToRest();
  double simulated_hours() const;
  uint64_t hits() const { return hits_; }  // tokens whose bytes were checked
  uint64_t lives() const { return lives_; }
  uint64_t brought() const { return brought_; }  // tokens that were found at other hosts

 private:
  static constexpr size_t kSpaces = 2;

  void Start();
  void End(bool power_cut);
  void Restart(bool power_cut);
  // One step of a part's thread. False: it had nothing to do.
  bool StepPart(size_t part);
  static constexpr size_t kParts = 9;

  void Act(SimWorker& worker);
  void Attach(SimWorker& worker);
  void Leave(SimWorker& worker, bool crash);
  void Acquire(SimWorker& worker);
  void Read(SimWorker& worker, SimWorker::Held& held);
  void ReadInPlace(SimWorker& worker, SimWorker::Held& held);
  void ReadByFetch(SimWorker& worker, SimWorker::Held& held);
  void ReleaseOldest(SimWorker& worker);
  void Reserve(SimWorker& worker);
  void Put(SimWorker& worker);
  void Commit(SimWorker& worker);
  void PinOrUnpin(SimWorker& worker);
  void Prefetch(SimWorker& worker);
  void Administer();
  void ClearSpace(size_t space);
  void ChangeDisk(bool heal);
  void ChangeRemote(bool heal);
  // Debian's RocksDB ends the process by an assertion when it cannot read back the end of a file
  // that it has just written: reads fail at all other times.
  void LetReadsFail(bool may_fail);

  Tokens NextTokens(size_t space);
  size_t LongestStored(size_t space, const Tokens& request) const;
  cache::Request RequestOf(const SimWorker& worker, size_t space, const Tokens& tokens) const;
  void CheckPage(size_t space, uint32_t group, uint32_t rung, const Tokens& tokens,
                 uint32_t first_token, uint32_t count, std::span<const std::byte> bytes);
  void CheckAcknowledged();
  void CheckNothingIsLeft();
  uint64_t Dice(uint64_t sides) { return random_() % sides; }
  void Tell(const std::string& line);
  bool Holds();

  const Setup setup_;
  std::mt19937_64 random_;
  const TempDir dir_;
  const std::string arena_path_;
  base::FakeClock clock_;
  const DiskPtr disk_;
  const std::shared_ptr<FakeRemoteStore> remote_;
  const std::vector<block::SpaceIdentity> identities_;
  std::unique_ptr<cache::Parts> parts_;
  std::vector<SimWorker> workers_;
  uint64_t steps_ = 0, hits_ = 0, lives_ = 0, brought_ = 0;
  bool spilling_ = false;  // the spiller is in a round
  double failing_reads_ = 0, corrupt_reads_ = 0;
  std::deque<std::string> story_;  // the last steps

  struct OfSpace {
    std::vector<Tokens> stored;        // may be there: given to Commit
    std::vector<Tokens> acknowledged;  // must be there if nothing took it
    std::vector<Tokens> durable;       // those of them that survive a power cut
    std::vector<Tokens> cleared;       // may come back while the border is not on disk
    uint64_t clears = 0;
  };
  std::vector<OfSpace> known_;
};

}  // namespace prefixd::testing
