#include "tests/sim/world.h"

#include <algorithm>

#include "cache/verbs/verbs.h"

namespace prefixd::testing {
namespace {

namespace verbs = cache::verbs;

// Calls never wait: what is not there at once is answered as such.
cache::Patience None() { return std::chrono::steady_clock::now(); }

std::vector<block::SpaceIdentity> Identities(uint32_t layers) {
  block::SpaceIdentity salted = SmallIdentity(16, layers);
  salted.salt = "another user";
  return {SmallIdentity(16, layers), salted};
}

std::string ArenaPath(uint64_t seed) {
  return "/dev/shm/prefixd_sim_" + std::to_string(getpid()) + "_" + std::to_string(seed);
}

}  // namespace

World::World(uint64_t seed, const Setup& setup)
    : setup_(setup),
      random_(seed),
      arena_path_(ArenaPath(seed)),
      disk_(std::make_shared<FaultDisk>(seed)),
      remote_(setup.remote ? std::make_shared<FakeRemoteStore>() : nullptr),
      identities_(Identities(setup.layers)),
      workers_(3 + seed % 3),
      known_(kSpaces) {
  Start();
}

World::~World() {
  for (SimWorker& worker : workers_) worker.files.reset();
  parts_.reset();
  for (const char* suffix : {"", ".key", ".locks"}) {
    std::filesystem::remove_all(arena_path_ + suffix);
  }
}

double World::simulated_hours() const {
  return static_cast<double>(clock_.MonotonicMicros()) / 3600e6;
}

void World::Tell(const std::string& line) {
  story_.push_back(std::to_string(steps_) + " " + line);
  if (story_.size() > 80) story_.pop_front();
}

bool World::Holds() {
  if (!::testing::Test::HasFailure()) return true;
  std::cerr << "the last steps:\n";
  for (const std::string& line : story_) std::cerr << "  " << line << "\n";
  return false;
}

// --- the daemon ---

void World::Start() {
  cache::Options options;
  options.ram_budget_bytes = setup_.ram_bytes;
  options.ssd_budget_bytes = setup_.ssd_bytes;
  options.segment_bytes = uint64_t{1} << 20;
  options.directory = dir_.path() + "/ssd";
  if (setup_.shared) options.arena_path = arena_path_;
  options.ssd_files = FilesOn(disk_);
  options.lock_wait = std::chrono::milliseconds(0);
  options.ssd_write_share = setup_.calm ? 0 : 0.5;
  options.clock = &clock_;
  options.remote.store = remote_;
  options.remote.room_patience = std::chrono::milliseconds(0);
  options.log = [this](cache::LogLevel level, const std::string& line) {
    if (level != cache::LogLevel::kInfo) Tell("log: " + line);
  };
  auto context = std::make_unique<cache::Context>(options);
  const absl::Status opened = context->Open();
  ASSERT_TRUE(opened.ok()) << opened;
  parts_ = std::make_unique<cache::Parts>(std::move(context));
  const absl::Status tier = parts_->tier.Start();
  ASSERT_TRUE(tier.ok()) << tier;
  parts_->index_loader.Start().IgnoreError();  // an unreadable disk: served from RAM
  if (parts_->context.store != nullptr) parts_->spiller.LetWork();
  ++lives_;
}

void World::End(bool power_cut) {
  spilling_ = false;
  const bool border_waits = parts_->tier.border_waits() || parts_->far.generations.any_waiting();
  const bool dirty = parts_->context.index->Counts().dirty_bytes > 0;
  parts_.reset();
  if (power_cut) {
    disk_->PowerCycle();
    // A reboot empties /dev/shm, and no worker lives through it.
    for (SimWorker& worker : workers_) worker.files.reset();
    std::filesystem::remove(arena_path_);
  }
  for (SimWorker& worker : workers_) worker.Forget();
  for (OfSpace& known : known_) {
    if (border_waits) std::ranges::copy(known.cleared, std::back_inserter(known.stored));
    known.cleared.clear();
    if (power_cut || (dirty && !setup_.shared)) known.acknowledged = known.durable;
  }
}

void World::Restart(bool power_cut) {
  Tell(power_cut ? "the power goes" : "kill -9");
  End(power_cut);
  Start();
  CheckAcknowledged();
}

bool World::StepPart(size_t part) {
  cache::Parts& parts = *parts_;
  switch (part) {
    case 0:
      return parts.loader.Step();
    case 1:
      if (!parts.watcher.changed().Poll()) return false;  // a wake-up that is lost is found
      parts.watcher.Step();
      return true;
    case 2:
      if (parts.context.store == nullptr) return false;
      if (!spilling_ && !parts.spill_demand.wanted().Poll()) return false;
      LetReadsFail(false);
      spilling_ = parts.spiller.Step();
      LetReadsFail(true);
      return true;
    case 3:
      return parts.context.store != nullptr && parts.dropper.Step();
    case 4:
      return parts.tables.sessions.Step();
    case 5:
      return setup_.shared && parts.room.Step();
    case 6:
      return parts.fetcher.Step();
    case 7:
      if (parts.writer.Step()) return true;
      parts.far.generations.RaiseWaiting(std::chrono::steady_clock::now());
      return false;
    default:
      return !parts.tier
                  .Step([&parts](const auto& take) { return parts.index_loader.LoadLate(take); })
                  .ok();
  }
}

// --- what happens ---

bool World::Step() {
  ++steps_;
  const uint64_t dice = Dice(1000);
  if (dice < 640) {
    Act(workers_[Dice(workers_.size())]);
  } else if (dice < 960) {
    StepPart(Dice(kParts));
  } else if (dice < 985) {
    clock_.Advance(static_cast<int64_t>(Dice(200) == 0 ? 700'000'000 : 1 + Dice(20'000'000)));
  } else if (dice < 990) {
    Administer();
  } else if (dice < 998) {
    if (setup_.remote) {
      ChangeRemote(Dice(4) != 0);
    } else if (!setup_.calm) {
      ChangeDisk(Dice(2) == 0);
    }
  } else {
    // With a store that hosts share, what a reboot lost may come from there.
    Restart(setup_.power_cuts && Dice(setup_.remote ? 2 : 4) == 0);
  }
  return Holds();
}

void World::Act(SimWorker& worker) {
  if (!worker.begun.has_value() || worker.spaces.empty()) return Attach(worker);
  const uint64_t dice = Dice(100);
  if (dice < 22) {
    if (worker.held.size() < 3) Acquire(worker);
  } else if (dice < 40) {
    if (!worker.held.empty()) Read(worker, worker.held[Dice(worker.held.size())]);
  } else if (dice < 50) {
    ReleaseOldest(worker);
  } else if (dice < 88) {
    if (!worker.writing.has_value()) return Reserve(worker);
    const bool whole = worker.writing->block == worker.writing->plan.blocks.size();
    whole || Dice(12) == 0 ? Commit(worker) : Put(worker);
  } else if (dice < 91) {
    PinOrUnpin(worker);
  } else if (dice < 94) {
    Prefetch(worker);
  } else if (dice < 96) {
    Leave(worker, Dice(2) == 0);
  }  // else it stalls
}

void World::ClearSpace(size_t space) {
  Tell("clear");
  const block::SpaceId id = block::IdOf(identities_[space]);
  const auto cleared = verbs::Clear(parts_->context, parts_->tables, parts_->records,
                                    parts_->segments, parts_->tier, parts_->far, &id);
  if (absl::IsNotFound(cleared.status())) return;
  ASSERT_TRUE(cleared.ok()) << cleared.status();
  OfSpace& known = known_[space];
  std::ranges::move(known.stored, std::back_inserter(known.cleared));
  known.stored.clear();
  known.acknowledged.clear();
  known.durable.clear();
  ++known.clears;
}

void World::Administer() {
  switch (Dice(3)) {
    case 0:
      if (Dice(4) == 0) ClearSpace(Dice(kSpaces));
      return;
    case 1:
      Tell("verify");
      for (uint64_t cursor = parts_->verifier.Step(0, 0, None()).next; cursor != 0;) {
        cursor = parts_->verifier.Step(cursor, 0, None()).next;
      }
      return;
    default:
      if (!setup_.shared || setup_.calm) return;
      Tell("other budgets");
      verbs::SetBudgets(parts_->room, parts_->segments, setup_.ram_bytes - (Dice(16) << 20), 0)
          .IgnoreError();
  }
}

void World::LetReadsFail(bool may_fail) {
  disk_->FailReads(may_fail ? failing_reads_ : 0);
  disk_->CorruptReads(may_fail ? corrupt_reads_ : 0, 3);
}

void World::ChangeDisk(bool heal) {
  Tell(heal ? "the disk works" : "the disk fails");
  disk_->FailWrites(0);
  disk_->FailTables(0);
  disk_->SetFreeBytes(std::nullopt);
  failing_reads_ = corrupt_reads_ = 0;
  LetReadsFail(true);
  if (heal) return;
  for (OfSpace& known : known_) {
    known.acknowledged.clear();
    known.durable.clear();
  }
  switch (Dice(5)) {
    case 0:
      return disk_->FailWrites(EIO, Dice(30), 1 + Dice(30));
    case 1:
      return disk_->SetFreeBytes(Dice(1 << 20));
    case 2:
      failing_reads_ = 0.1;
      return LetReadsFail(true);
    case 3:
      corrupt_reads_ = 0.1;
      return LetReadsFail(true);
    default:
      return disk_->FailTables(ENOSPC);
  }
}

void World::ChangeRemote(bool heal) {
  if (remote_ == nullptr) return;
  Tell(heal ? "the remote store works" : "the remote store fails");
  remote_->down = remote_->late = false;
  if (heal) return;
  switch (Dice(4)) {
    case 0:
      remote_->down = true;
      return;
    case 1:
      remote_->late = true;
      return;
    case 2:  // some bundles are evicted
      return remote_->ForEach(
          [this](const std::string&, FakeRemoteStore::Bundle&) { return Dice(4) != 0; });
    default:  // bytes rot
      return remote_->ForEach([this](const std::string&, FakeRemoteStore::Bundle& bundle) {
        std::string& bytes = Dice(3) == 0 ? bundle.record : bundle.stripes[0];
        if (Dice(4) == 0) bytes[Dice(bytes.size())] ^= 1;
        return true;
      });
  }
}

// --- at the end ---

bool World::ComeToRest() {
  Tell("faults stop");
  ChangeDisk(true);
  ChangeRemote(true);
  constexpr int kMostSteps = 100'000;
  int step = 0;
  for (bool busy = true; busy && step < kMostSteps; ++step) {
    busy = false;
    for (size_t part = 0; part < kParts; ++part) {
      // Workers that stalled hold their slots: reaping them waits for them.
      if (StepPart(part) && part != 4) busy = true;
    }
  }
  EXPECT_LT(step, kMostSteps) << "the parts never come to rest";
  for (SimWorker& worker : workers_) {
    for (const SimWorker::Held& held : worker.held) {
      EXPECT_TRUE(held.unreadable.empty()) << "a group of a lease was never told of";
    }
  }
  if (setup_.ssd_bytes > 0) {
    EXPECT_TRUE(parts_->context.store != nullptr) << "the tier never opened";
    EXPECT_FALSE(parts_->tier.border_waits()) << "a border is never written";
    const cache::FlushResult flushed = verbs::Flush(parts_->context, parts_->index_loader,
                                                    parts_->loader, parts_->segments, In(60'000));
    EXPECT_TRUE(flushed.dirty_bytes == 0 || !setup_.calm);
  }
  CheckAcknowledged();
  for (SimWorker& worker : workers_) {
    if (worker.begun.has_value() && !worker.spaces.empty()) Leave(worker, false);
    worker.files.reset();
  }
  CheckNothingIsLeft();
  return Holds();
}

void World::CheckAcknowledged() {
  if (!setup_.calm) return;
  SimWorker reader;
  cache::SessionOptions options;
  options.worker = "reader";
  reader.begun =
      verbs::BeginSession(parts_->context, parts_->index_loader, parts_->tables.sessions, options);
  for (size_t space = 0; space < kSpaces; ++space) {
    const auto opened = verbs::OpenSpace(parts_->context, parts_->tables, parts_->room,
                                         parts_->space_board, reader.id(), identities_[space]);
    ASSERT_TRUE(opened.ok()) << opened.status();
    reader.spaces.push_back(opened->space);
  }
  for (size_t space = 0; space < kSpaces; ++space) {
    for (const Tokens& tokens : known_[space].acknowledged) {
      const auto match =
          verbs::Match(parts_->context, parts_->tables, parts_->room, parts_->loader.model,
                       reader.id(), RequestOf(reader, space, tokens));
      ASSERT_TRUE(match.ok()) << match.status();
      EXPECT_EQ(match->restorable_tokens, tokens.size())
          << "acknowledged, and gone: kind " << static_cast<int>(match->kind) << ", ended by "
          << static_cast<int>(match->ended_by) << ", shortened by "
          << (match->shortened_by.empty() ? 0 : static_cast<int>(match->shortened_by[0].reason));
    }
  }
  Leave(reader, false);
}

void World::CheckNothingIsLeft() {
  clock_.Advance(int64_t{3600} * 1'000'000);  // pins end
  while (parts_->tables.sessions.Step() || parts_->loader.Step()) {
  }
  const block::Stats stats =
      verbs::GetStats(parts_->context, parts_->tables, parts_->room, parts_->segments, parts_->tier,
                      parts_->far, parts_->writer);
  EXPECT_EQ(stats.sessions, 0u);
  EXPECT_EQ(stats.leases, 0u);
  EXPECT_EQ(stats.pins, 0u);
  EXPECT_EQ(stats.leased_bytes, 0u);
  EXPECT_EQ(stats.reservations, 0u);
  EXPECT_EQ(parts_->tables.sessions.arriving_bytes(), 0u);
  EXPECT_EQ(parts_->tables.sessions.announced_bytes(), 0u);
  EXPECT_EQ(parts_->context.in_flight_bytes, 0u);
  const absl::Status valid = parts_->context.index->Validate();
  EXPECT_TRUE(valid.ok()) << valid;
  const std::vector<block::Extent> known = parts_->context.index->ListPlaces().extents;
  EXPECT_EQ(parts_->context.arena->stats().extents, known.size())
      << "extents that no page uses, or pages without one";
  uint64_t ram = 0;
  for (const block::NamedCount& part : stats.ram_parts) ram += part.value;
  EXPECT_LE(ram, stats.ram_budget_bytes);
}

}  // namespace prefixd::testing
