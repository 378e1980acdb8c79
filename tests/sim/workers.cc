// What workers do in a World.
#include <algorithm>

#include "cache/verbs/verbs.h"
#include "tests/sim/world.h"

namespace prefixd::testing {
namespace {

namespace verbs = cache::verbs;

// Calls never wait: what is not there at once is answered as such.
cache::Patience None() { return std::chrono::steady_clock::now(); }

}  // namespace

void SimWorker::Hear(const cache::SessionEvent& event) {
  for (Held& one : held) {
    if (one.answer.lease != event.lease) continue;
    if (event.kind == cache::SessionEvent::Kind::kLeaseFailed) {
      one.usable = std::min(one.usable, event.usable_tokens);
      one.unreadable.erase(event.group);
      if (one.usable == 0) one.unreadable.clear();  // no more is told
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

void World::Attach(SimWorker& worker) {
  cache::SessionOptions options;
  options.worker = "sim";
  options.wants_arena = setup_.shared && Dice(3) > 0;
  if (worker.files != nullptr) options.resume = worker.begun->key;
  options.wants_arena |= worker.files != nullptr;
  options.on_event = [&worker](const cache::SessionEvent& event) { worker.Hear(event); };
  const cache::BegunSession begun =
      verbs::BeginSession(parts_->context, parts_->index_loader, parts_->tables.sessions, options);
  Tell("attach" + std::string(begun.resumed ? ", resumed" : ""));
  ASSERT_TRUE(worker.files == nullptr || begun.resumed || !setup_.calm) << "not resumed";
  if (worker.files != nullptr && !begun.resumed) {
    worker.files.reset();  // another arena by now
    worker.held.clear();
  }
  for (SimWorker::Held& held : worker.held) {
    ASSERT_TRUE(begun.resumed_lease || held.answer.pages.empty()) << "what it reads is not held";
    held.answer.lease = begun.resumed_lease;
  }
  if (!begun.resumed_lease) worker.held.clear();
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
    const auto opened = verbs::OpenSpace(parts_->context, parts_->tables, parts_->room,
                                         parts_->space_board, worker.id(), identity);
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

cache::Request World::RequestOf(const SimWorker& worker, size_t space, const Tokens& tokens) const {
  cache::Request request;
  request.space = worker.spaces[space];
  request.tokens = tokens;
  return request;
}

void World::Acquire(SimWorker& worker) {
  const size_t space = Dice(kSpaces);
  SimWorker::Held held{.space = space, .tokens = NextTokens(space), .answer = {}, .unreadable = {}};
  if (setup_.remote && Dice(2) == 0) {
    const auto brought =
        verbs::Bring(parts_->context, parts_->tables, parts_->far, parts_->fetcher, parts_->finder,
                     parts_->loader.model, worker.id(), RequestOf(worker, space, held.tokens));
    ASSERT_TRUE(brought.ok()) << brought.status();
    if (*brought > 0) Tell("brings " + std::to_string(*brought));
    brought_ += *brought;
  }
  auto answer =
      verbs::Acquire(parts_->context, parts_->tables, parts_->room, parts_->loader, parts_->watcher,
                     worker.id(), RequestOf(worker, space, held.tokens), None());
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
    // The end of a page that is cut to the lease belongs to another sequence.
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
  auto plan = verbs::Reserve(parts_->context, parts_->tables, parts_->room, worker.id(),
                             {.space = worker.spaces[space],
                              .tokens = writing.tokens,
                              .content = {},
                              .groups = {},
                              .writable = {}});
  if (absl::IsResourceExhausted(plan.status())) return;
  ASSERT_TRUE(plan.ok()) << plan.status();
  writing.plan = *std::move(plan);
  writing.clears = known_[space].clears;
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
  const std::vector<std::byte> page =
      MakePage(group, block.rungs[writing.group], writing.tokens, block.first_token, block.tokens);
  std::span<const std::byte> data = std::span(page).subspan(writing.offset);
  if (Dice(4) == 0 && data.size() > 1) data = data.first(data.size() / 2);
  const absl::Status put = verbs::PutPage(parts_->context, parts_->tables.sessions, parts_->room,
                                          worker.id(), writing.plan.reservation,
                                          {.group = writing.group,
                                           .first_token = block.first_token,
                                           .tokens = block.tokens,
                                           .rung = block.rungs[writing.group],
                                           .page_bytes = page.size(),
                                           .offset = writing.offset,
                                           .xxh3 = base::Xxh3(data),
                                           .data = data},
                                          None());
  if (absl::IsResourceExhausted(put)) return;                // it tries again later
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
  LetReadsFail(!on_ssd);
  const auto answer =
      verbs::Commit(parts_->context, parts_->tables, parts_->room, parts_->loader, parts_->watcher,
                    parts_->spiller, parts_->writer, worker.id(),
                    {.reservation = writing.plan.reservation,
                     .tokens = tokens,
                     .sequence_end = blocks == writing.plan.blocks.size(),
                     .ends = {},
                     .staged = {},
                     .lease = false,
                     .durability = on_ssd ? block::Durability::kSsd : block::Durability::kRam},
                    In(60'000));
  LetReadsFail(true);
  // It stalled for too long, or its space was cleared meanwhile.
  if (absl::IsNotFound(answer.status()) || absl::IsFailedPrecondition(answer.status())) return;
  ASSERT_TRUE(answer.ok()) << answer.status();
  Tell("commit " + std::to_string(tokens) + " of space " + std::to_string(writing.space) +
       (answer->durability == block::Durability::kSsd ? " to SSD" : ""));
  const bool whole = std::ranges::none_of(answer->blocks, [](const block::BlockResult& result) {
    return result.result == block::StoreResult::kRefused;
  });
  // Blocks that were there when it was planned may have been cleared since.
  if (whole && writing.clears == known_[writing.space].clears) {
    OfSpace& known = known_[writing.space];
    if (answer->durability == block::Durability::kSsd) known.durable.push_back(stored);
    known.acknowledged.push_back(std::move(stored));
  }
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

}  // namespace prefixd::testing
