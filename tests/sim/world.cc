#include "tests/sim/world.h"

#include <algorithm>

#include "cache/verbs/verbs.h"

namespace prefixd::testing {
namespace {

namespace verbs = cache::verbs;

// Calls never wait: what is not there at once is answered as such.
cache::Patience None() { return std::chrono::steady_clock::now(); }

std::vector<block::SpaceIdentity> Identities() {
  block::SpaceIdentity salted = SmallIdentity(16, 4);
  salted.salt = "another user";
  return {SmallIdentity(16, 4), salted};
}

std::string ArenaPath(uint64_t seed) {
  return "/dev/shm/prefixd_sim_" + std::to_string(getpid()) + "_" + std::to_string(seed);
}

}  // namespace

void SimWorker::Hear(const cache::SessionEvent& event) {
  for (Held& one : held) {
    if (one.answer.lease != event.lease) continue;
    if (event.kind == cache::SessionEvent::Kind::kLeaseFailed) {
      one.usable = std::min(one.usable, event.usable_tokens);
      one.unreadable.erase(event.group);
      continue;
    }
    one.unreadable.erase(event.group);
    for (block::LeasedPage& page : one.answer.pages) {
      if (page.group != event.group) continue;
      page.in_ram = page.offset != block::kNoOffset;
      for (const block::LeasedPage& told : event.pages) {
        if (told.first_token != page.first_token) continue;
        page.offset = told.offset;
        page.in_ram = true;
      }
    }
  }
}

void SimWorker::Forget() {
  writing.reset();
  pins.clear();
  spaces.clear();
  if (files == nullptr) {
    held.clear();
    begun.reset();
    return;
  }
  for (Held& one : held) {
    // What was not readable never will be; the rest it may go on reading.
    std::erase_if(one.answer.pages, [](const block::LeasedPage& page) { return !page.in_ram; });
    one.unreadable.clear();
  }
}

World::World(uint64_t seed, const Setup& setup)
    : setup_(setup),
      random_(seed),
      arena_path_(ArenaPath(seed)),
      disk_(std::make_shared<FaultDisk>(seed)),
      identities_(Identities()),
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
  const bool border_waits = parts_->tier.border_waits();
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
    if (power_cut || (dirty && !setup_.shared)) known.acknowledged.clear();
  }
}

void World::Restart(bool power_cut) {
  Tell(power_cut ? "the power goes" : "kill -9");
  End(power_cut);
  Start();
}

bool World::StepPart(size_t part) {
  cache::Parts& parts = *parts_;
  switch (part) {
    case 0:
      return parts.loader.Step();
    case 1:
      parts.watcher.Step();
      return false;
    case 2:
      return parts.context.store != nullptr && parts.spiller.Step();
    case 3:
      return parts.context.store != nullptr && parts.dropper.Step();
    case 4:
      return parts.tables.sessions.Step();
    case 5:
      return setup_.shared && parts.room.Step();
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
    clock_.Advance(static_cast<int64_t>(Dice(200) == 0 ? 700e6 : 1 + Dice(20'000'000)));
  } else if (dice < 990) {
    Administer();
  } else if (dice < 998) {
    if (!setup_.calm) ChangeDisk(Dice(2) == 0);
  } else {
    Restart(!setup_.calm && Dice(4) == 0);
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

void World::Attach(SimWorker& worker) {
  cache::SessionOptions options;
  options.worker = "sim";
  options.wants_arena = setup_.shared && Dice(3) > 0;
  if (worker.files != nullptr) options.resume = worker.begun->key;
  options.wants_arena |= worker.files != nullptr;
  options.on_event = [&worker](const cache::SessionEvent& event) { worker.Hear(event); };
  const cache::BegunSession begun = verbs::BeginSession(parts_->context, parts_->index_loader,
                                                        parts_->tables.sessions, options);
  Tell("attach" + std::string(begun.resumed ? ", resumed" : ""));
  if (worker.files != nullptr && !begun.resumed) {
    worker.files.reset();  // another arena by now
    worker.held.clear();
  }
  for (SimWorker::Held& held : worker.held) held.answer.lease = begun.resumed_lease;
  worker.begun = begun;
  if (begun.slot != block::kNoSlot && !begun.resumed) {
    const auto files = parts_->tables.sessions.OpenFiles(
        begun.key, {.pid = static_cast<uint64_t>(getpid()),
                    .uid = geteuid(),
                    .pid_namespace = base::ThisProcess().pid_namespace});
    ASSERT_TRUE(files.ok()) << files.status();
    const ram::Arena& arena = *parts_->context.arena;
    const cache::ArenaPlace place{
        .shared = true, .file_bytes = arena.file_bytes(), .data_offset = arena.data_offset()};
    worker.files = std::make_unique<MappedFiles>(*files, place, 0);
  }
  worker.spaces.clear();
  for (const block::SpaceIdentity& identity : identities_) {
    const auto opened =
        verbs::OpenSpace(parts_->context, parts_->tables, worker.id(), identity);
    ASSERT_TRUE(opened.ok()) << opened.status();
    worker.spaces.push_back(opened->space);
  }
}

void World::Leave(SimWorker& worker, bool crash) {
  Tell(crash ? "a worker crashes" : "a worker leaves");
  if (crash) worker.files.reset();
  const auto session = parts_->tables.sessions.Find(worker.id(), "end");
  ASSERT_TRUE(session.ok()) << session.status();
  parts_->tables.sessions.CutOff(*session);
  worker.files.reset();
  worker.held.clear();
  worker.writing.reset();
  worker.spaces.clear();
  worker.begun.reset();
}

Tokens World::NextTokens(size_t space) {
  Tokens tokens;
  const std::vector<Tokens>& stored = known_[space].stored;
  if (!stored.empty() && Dice(6) != 0) {
    tokens = stored[Dice(stored.size())];
    tokens.resize(Dice(tokens.size() + 1));
  }
  const size_t extra = Dice(90) + (tokens.empty() ? 1 : 0);
  for (size_t i = 0; i < extra; ++i) tokens.push_back(static_cast<Token>(Dice(3)));
  return tokens;
}

size_t World::LongestStored(size_t space, const Tokens& request) const {
  size_t longest = 0;
  for (const Tokens& tokens : known_[space].stored) {
    const auto [a, b] = std::mismatch(tokens.begin(), tokens.end(), request.begin(), request.end());
    longest = std::max(longest, static_cast<size_t>(a - tokens.begin()));
  }
  return longest;
}

cache::Request World::RequestOf(const SimWorker& worker, size_t space,
                                const Tokens& tokens) const {
  cache::Request request;
  request.space = worker.spaces[space];
  request.tokens = tokens;
  return request;
}

void World::Acquire(SimWorker& worker) {
  const size_t space = Dice(kSpaces);
  SimWorker::Held held{.space = space, .tokens = NextTokens(space), .answer = {}, .unreadable = {}};
  auto answer = verbs::Acquire(parts_->context, parts_->tables, parts_->room, parts_->loader,
                               parts_->watcher, worker.id(),
                               RequestOf(worker, space, held.tokens), None());
  ASSERT_TRUE(answer.ok()) << answer.status();
  Tell("acquire " + std::to_string(held.tokens.size()) + ": " +
       std::to_string(answer->match.restorable_tokens) + " of " +
       std::to_string(answer->match.matched_tokens));
  ASSERT_LE(answer->match.matched_tokens, LongestStored(space, held.tokens));
  ASSERT_LE(answer->match.restorable_tokens, answer->match.matched_tokens);
  if (!answer->lease) return;
  held.usable = answer->match.restorable_tokens;
  held.answer = *std::move(answer);
  for (const block::LeasedPage& page : held.answer.pages) {
    if (!page.in_ram && worker.files != nullptr) held.unreadable.insert(page.group);
  }
  worker.held.push_back(std::move(held));
}

void World::CheckPage(size_t space, uint32_t group, uint32_t rung, const Tokens& tokens,
                      uint32_t first_token, uint32_t count, std::span<const std::byte> bytes) {
  const std::vector<std::byte> want =
      MakePage(identities_[space].groups[group], rung, tokens, first_token, count);
  ASSERT_TRUE(std::ranges::equal(want, bytes))
      << "wrong bytes in group " << group << " at token " << first_token;
  hits_ += count;
}

void World::Read(SimWorker& worker, SimWorker::Held& held) {
  if (worker.files != nullptr) return ReadInPlace(worker, held);
  ReadByFetch(worker, held);
}

void World::ReadInPlace(SimWorker& worker, SimWorker::Held& held) {
  for (const block::LeasedPage& page : held.answer.pages) {
    if (!page.in_ram || page.offset == block::kNoOffset) continue;
    // Of a page that is cut to the lease, what is behind belongs to another sequence.
    if (page.tokens < page.page_tokens || page.first_token + page.tokens > held.usable) continue;
    const block::LayerGroup& group = identities_[held.space].groups[page.group];
    const uint64_t bytes = block::LayoutOfPage(group, page.rung, page.tokens).page_bytes;
    CheckPage(held.space, page.group, page.rung, held.tokens, page.first_token, page.tokens,
              worker.files->at(page.offset, bytes));
  }
}

void World::ReadByFetch(SimWorker& worker, SimWorker::Held& held) {
  Collector got;
  const absl::Status fetched =
      verbs::Fetch(parts_->context, parts_->tables.sessions, parts_->loader, parts_->refused,
                   worker.id(), {.lease = held.answer.lease, .groups = {}}, None(), &got);
  ASSERT_TRUE(fetched.ok()) << fetched;
  for (const auto& [place, bytes] : got.pages) {
    CheckPage(held.space, place.first, 0, held.tokens, place.second, got.tokens[place], bytes);
  }
}

void World::ReleaseOldest(SimWorker& worker) {
  if (worker.held.empty()) return;
  const block::LeaseId lease = worker.held.front().answer.lease;
  const auto release = [&] {
    return verbs::Release(parts_->context, parts_->tables, parts_->loader.model, worker.id(),
                          {.lease = lease, .used_tokens = worker.held.front().usable});
  };
  ASSERT_TRUE(release().ok());
  if (Dice(5) == 0) {
    ASSERT_TRUE(absl::IsNotFound(release()));  // the call is repeated
  }
  std::erase_if(worker.held,
                [lease](const SimWorker::Held& held) { return held.answer.lease == lease; });
}

void World::Reserve(SimWorker& worker) {
  const size_t space = Dice(kSpaces);
  SimWorker::Writing writing{.space = space, .tokens = NextTokens(space), .plan = {}};
  auto plan =
      verbs::Reserve(parts_->context, parts_->tables, worker.id(),
                     {.space = worker.spaces[space],
                      .tokens = writing.tokens,
                      .content = {},
                      .groups = {},
                      .writable = {}});
  if (absl::IsResourceExhausted(plan.status())) return;
  ASSERT_TRUE(plan.ok()) << plan.status();
  writing.plan = *std::move(plan);
  worker.writing = std::move(writing);
}

void World::Put(SimWorker& worker) {
  SimWorker::Writing& writing = *worker.writing;
  const block::BlockPlan& block = writing.plan.blocks[writing.block];
  const auto next = [&] {
    writing.offset = 0;
    if (++writing.group < block.rungs.size()) return;
    writing.group = 0;
    ++writing.block;
  };
  if (block.state == block::BlockState::kPresent || block.rungs[writing.group] == block::kNoLimit) {
    return next();
  }
  const block::LayerGroup& group = identities_[writing.space].groups[writing.group];
  const std::vector<std::byte> page = MakePage(group, block.rungs[writing.group], writing.tokens,
                                               block.first_token, block.tokens);
  std::span<const std::byte> data = std::span(page).subspan(writing.offset);
  if (Dice(4) == 0 && data.size() > 1) data = data.first(data.size() / 2);
  const absl::Status put =
      verbs::PutPage(parts_->context, parts_->tables.sessions, parts_->room, worker.id(),
                     writing.plan.reservation,
                     {.group = writing.group,
                      .first_token = block.first_token,
                      .tokens = block.tokens,
                      .rung = block.rungs[writing.group],
                      .page_bytes = page.size(),
                      .offset = writing.offset,
                      .xxh3 = base::Xxh3(data),
                      .data = data},
                     None());
  if (absl::IsResourceExhausted(put)) return;  // it tries again later
  if (absl::IsNotFound(put)) return worker.writing.reset();  // it stalled for too long
  ASSERT_TRUE(put.ok()) << put;
  writing.offset += data.size();
  if (writing.offset == page.size()) next();
}

void World::Commit(SimWorker& worker) {
  const SimWorker::Writing writing = *std::exchange(worker.writing, std::nullopt);
  const size_t blocks = writing.block;
  if (blocks == 0) {
    verbs::Abandon(parts_->context, parts_->tables.sessions, worker.id(), writing.plan.reservation)
        .IgnoreError();
    return;
  }
  const block::BlockPlan& last = writing.plan.blocks[blocks - 1];
  const uint32_t tokens = last.first_token + last.tokens;
  Tokens stored = writing.tokens;
  stored.resize(tokens);
  known_[writing.space].stored.push_back(stored);
  const bool on_ssd = Dice(10) == 0;
  const auto answer = verbs::Commit(
      parts_->context, parts_->tables, parts_->room, parts_->loader, parts_->watcher,
      parts_->spiller, worker.id(),
      {.reservation = writing.plan.reservation,
       .tokens = tokens,
       .sequence_end = blocks == writing.plan.blocks.size(),
       .ends = {},
       .staged = {},
       .lease = false,
       .durability = on_ssd ? block::Durability::kSsd : block::Durability::kRam},
      In(1000));
  if (absl::IsNotFound(answer.status())) return;  // it stalled for too long
  ASSERT_TRUE(answer.ok()) << answer.status();
  Tell("commit " + std::to_string(tokens));
  const bool whole = std::ranges::none_of(answer->blocks, [](const block::BlockResult& result) {
    return result.result == block::StoreResult::kRefused;
  });
  if (whole) known_[writing.space].acknowledged.push_back(std::move(stored));
  if (blocks < writing.plan.blocks.size()) {
    verbs::Abandon(parts_->context, parts_->tables.sessions, worker.id(), writing.plan.reservation)
        .IgnoreError();
  }
}

void World::PinOrUnpin(SimWorker& worker) {
  if (!worker.pins.empty() && Dice(2) == 0) {
    verbs::Unpin(parts_->context, parts_->tables.pins, worker.pins.back()).IgnoreError();
    worker.pins.pop_back();
    return;
  }
  const size_t space = Dice(kSpaces);
  const auto pinned = verbs::Pin(parts_->context, parts_->tables, parts_->loader, worker.id(),
                                 RequestOf(worker, space, NextTokens(space)),
                                 std::chrono::milliseconds(1 + Dice(60'000)), None());
  if (absl::IsResourceExhausted(pinned.status())) return;
  ASSERT_TRUE(pinned.ok()) << pinned.status();
  if (pinned->pin) worker.pins.push_back(pinned->pin);
}

void World::Prefetch(SimWorker& worker) {
  const size_t space = Dice(kSpaces);
  const auto hint = verbs::Prefetch(parts_->context, parts_->tables, parts_->loader, worker.id(),
                                    RequestOf(worker, space, NextTokens(space)));
  ASSERT_TRUE(hint.ok()) << hint.status();
}

void World::ClearSpace(size_t space) {
  Tell("clear");
  const block::SpaceId id = block::IdOf(identities_[space]);
  const auto cleared = verbs::Clear(parts_->context, parts_->tables, parts_->records,
                                    parts_->segments, parts_->tier, &id);
  if (absl::IsNotFound(cleared.status())) return;
  ASSERT_TRUE(cleared.ok()) << cleared.status();
  OfSpace& known = known_[space];
  std::ranges::move(known.stored, std::back_inserter(known.cleared));
  known.stored.clear();
  known.acknowledged.clear();
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
      verbs::SetBudgets(parts_->room, parts_->segments,
                        setup_.ram_bytes + (Dice(3) << 20), setup_.ssd_bytes)
          .IgnoreError();
  }
}

void World::ChangeDisk(bool heal) {
  Tell(heal ? "the disk works" : "the disk fails");
  disk_->FailWrites(0);
  disk_->FailTables(0);
  disk_->SetFreeBytes(std::nullopt);
  disk_->FailReads(0);
  disk_->CorruptReads(0);
  if (heal) return;
  for (OfSpace& known : known_) known.acknowledged.clear();
  switch (Dice(5)) {
    case 0:
      return disk_->FailWrites(EIO, Dice(30), 1 + Dice(30));
    case 1:
      return disk_->SetFreeBytes(Dice(1 << 20));
    case 2:
      return disk_->FailReads(0.1);
    case 3:
      return disk_->CorruptReads(0.1, 3);
    default:
      return disk_->FailTables(ENOSPC);
  }
}

// --- at the end ---

bool World::ComeToRest() {
  Tell("faults stop");
  ChangeDisk(true);
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
    if (setup_.calm) EXPECT_EQ(flushed.dirty_bytes, 0u);
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
  reader.begun = cache::BegunSession{
      .session = verbs::BeginSession(parts_->context, parts_->index_loader,
                                     parts_->tables.sessions, {.worker = "reader"})
                     .session};
  for (size_t space = 0; space < kSpaces; ++space) {
    const auto opened =
        verbs::OpenSpace(parts_->context, parts_->tables, reader.id(), identities_[space]);
    ASSERT_TRUE(opened.ok()) << opened.status();
    reader.spaces.push_back(opened->space);
  }
  for (size_t space = 0; space < kSpaces; ++space) {
    for (const Tokens& tokens : known_[space].acknowledged) {
      const auto match =
          verbs::Match(parts_->context, parts_->tables, parts_->room, parts_->loader.model,
                       reader.id(), RequestOf(reader, space, tokens));
      ASSERT_TRUE(match.ok()) << match.status();
      EXPECT_EQ(match->restorable_tokens, tokens.size()) << "acknowledged, and gone";
    }
  }
  Leave(reader, false);
}

void World::CheckNothingIsLeft() {
  clock_.Advance(int64_t{3600} * 1'000'000);  // pins end
  while (parts_->tables.sessions.Step() || parts_->loader.Step()) {
  }
  const block::Stats stats = verbs::GetStats(parts_->context, parts_->tables, parts_->room,
                                             parts_->segments, parts_->tier);
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
