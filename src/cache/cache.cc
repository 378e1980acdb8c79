#include "cache/cache.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

#include "base/size.h"
#include "base/status.h"
#include "cache/parts.h"
#include "cache/verbs/verbs.h"
#include "ram/make_file.h"

namespace prefixd::cache {

Cache::Cache(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
Cache::~Cache() = default;

absl::StatusOr<std::unique_ptr<Cache>> Cache::Open(const Options& options) {
  if (options.ssd_budget_bytes > 0 && options.ssd_budget_bytes < 2 * options.segment_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cache: an SSD budget of ", base::FormatBytes(options.ssd_budget_bytes),
        " is too small, two segments are ", base::FormatBytes(2 * options.segment_bytes)));
  }
  auto context = std::make_unique<Context>(options);
  PREFIXD_RETURN_IF_ERROR(context->Open());
  auto parts = std::make_unique<Parts>(std::move(context));
  PREFIXD_RETURN_IF_ERROR(parts->Start());
  return std::unique_ptr<Cache>(new Cache(std::move(parts)));
}

std::string Cache::StoreInstance(const std::string& directory) {
  return ssd::ReadInstance(directory);
}

bool Cache::WaitLoaded(base::Deadline deadline) {
  return parts_->index_loader.WaitLoaded(deadline);
}

uint64_t Cache::epoch() const { return parts_->context.epoch; }
std::unique_ptr<index::EventReader> Cache::FollowEvents(block::EventQuery query) {
  return std::make_unique<index::EventReader>(parts_->context.index.get(), std::move(query));
}

void Cache::Count(const char* counter, uint64_t by) { parts_->context.counters.Add(counter, by); }

void Cache::CountLatency(const char* name, uint64_t us) { parts_->context.counters.Time(name, us); }

ArenaPlace Cache::arena() const {
  const ram::Arena& arena = *parts_->context.arena;
  const uint64_t capacity = parts_->context.SharesNow().arena_bytes;
  if (!arena.shared()) {
    return {.held_by_another = parts_->context.arena_held, .capacity_bytes = capacity};
  }
  return {.shared = true,
          .path = parts_->context.options.arena_path,
          .file_bytes = arena.file_bytes(),
          .data_offset = arena.data_offset(),
          .capacity_bytes = capacity,
          .limited_to = arena.LimitedTo()};
}

std::vector<block::NamedCount> Cache::RamShares() const {
  const ram::BudgetShares shares = parts_->context.SharesNow();
  return {{"arena", shares.arena_bytes},         {"index", shares.index_bytes},
          {"in_flight", shares.in_flight_bytes}, {"history", shares.history_bytes},
          {"staging", shares.staging_bytes},     {"ssd", shares.ssd_bytes}};
}

bool Cache::CouldHaveArena() const {
  return parts_->context.arena_held && ram::CouldBeOwned(parts_->context.options.arena_path);
}

// --- sessions ---

BegunSession Cache::BeginSession(const SessionOptions& options) {
  return verbs::BeginSession(parts_->context, parts_->index_loader, parts_->tables.sessions,
                             options);
}

void Cache::EndSession(block::SessionId id) {
  const absl::StatusOr<SessionPtr> session = parts_->tables.sessions.Find(id, "end_session");
  if (session.ok()) parts_->tables.sessions.CutOff(*session);
}

absl::StatusOr<SessionFiles> Cache::OpenFiles(const SessionKey& key, const base::Peer& peer) {
  return parts_->tables.sessions.OpenFiles(key, peer);
}

block::SessionName Cache::NameOf(block::SessionId session) const {
  return parts_->tables.sessions.NameOf(session);
}

std::vector<block::SessionInfo> Cache::ListSessions() const {
  return parts_->tables.sessions.List();
}

std::vector<block::LeaseInfo> Cache::ListLeases() const {
  return parts_->tables.sessions.ListLeases();
}

absl::StatusOr<bool> Cache::NoteNotShared(block::SessionId session, const block::NotShared& note) {
  return verbs::NoteNotShared(parts_->tables.sessions, session, note);
}

bool Cache::NoteRefused(block::SessionId session, const block::NotShared& note) {
  return verbs::NoteRefused(parts_->tables.sessions, session, note);
}

absl::Status Cache::SetDevicePins(block::SessionId session, std::string_view slabs) {
  return verbs::SetDevicePins(parts_->context, parts_->tables.sessions, parts_->room, session,
                              slabs);
}

absl::StatusOr<OpenedSpace> Cache::OpenSpace(block::SessionId session,
                                             block::SpaceIdentity identity) {
  return verbs::OpenSpace(parts_->context, parts_->tables, parts_->room, parts_->space_board,
                          session, std::move(identity));
}

absl::StatusOr<std::vector<ToldSpace>> Cache::SpacesOfOthers(const Patience& patience) const {
  return verbs::SpacesOfOthers(parts_->tables, parts_->space_board, patience);
}

// --- reading ---

absl::StatusOr<block::MatchAnswer> Cache::Match(block::SessionId session, const Request& request) {
  return verbs::Match(parts_->context, parts_->tables, parts_->room, parts_->loader.model, session,
                      request);
}

absl::StatusOr<std::vector<block::MatchAnswer>> Cache::MatchSet(block::SessionId session,
                                                                std::span<const Request> requests) {
  return verbs::MatchSet(parts_->context, parts_->tables, parts_->room, parts_->loader.model,
                         session, requests);
}

absl::StatusOr<Acquired> Cache::Acquire(block::SessionId session, const Request& request,
                                        const Patience& patience) {
  absl::StatusOr<Acquired> acquired =
      verbs::Acquire(parts_->context, parts_->tables, parts_->room, parts_->loader, parts_->watcher,
                     session, request, patience);
  if (acquired.ok()) {
    verbs::TellOfHit(parts_->tables, parts_->writer, session, request, acquired->match);
  }
  return acquired;
}

bool Cache::has_remote() const { return parts_->far.on(); }

absl::StatusOr<std::optional<Acquired>> Cache::AcquireHere(block::SessionId session,
                                                           const Request& request,
                                                           const Patience& patience) {
  absl::StatusOr<std::optional<Acquired>> acquired =
      verbs::AcquireHere(parts_->context, parts_->tables, parts_->room, parts_->loader,
                         parts_->watcher, parts_->far, session, request, patience);
  if (acquired.ok() && acquired->has_value()) {
    verbs::TellOfHit(parts_->tables, parts_->writer, session, request, (*acquired)->match);
  }
  return acquired;
}

absl::StatusOr<uint32_t> Cache::Bring(block::SessionId session, const Request& request) {
  return verbs::Bring(parts_->context, parts_->tables, parts_->far, parts_->fetcher, parts_->finder,
                      parts_->loader.model, session, request);
}

bool Cache::WaitRemote(const Patience& patience) { return parts_->writer.WaitIdle(patience); }

absl::StatusOr<std::vector<Acquired>> Cache::AcquireSet(block::SessionId session,
                                                        std::span<const Request> requests,
                                                        const Patience& patience) {
  return verbs::AcquireSet(parts_->context, parts_->tables, parts_->room, parts_->loader,
                           parts_->watcher, session, requests, patience);
}

absl::Status Cache::Release(block::SessionId session, const Released& released) {
  return verbs::Release(parts_->context, parts_->tables, parts_->loader.model, session, released);
}

std::shared_ptr<const void> Cache::Hold(block::SessionId session, block::LeaseId lease) const {
  const absl::StatusOr<LeasePtr> held = parts_->tables.sessions.FindLease(session, lease);
  return held.ok() ? *held : nullptr;
}

absl::Status Cache::Fetch(block::SessionId session, const FetchRequest& request,
                          const Patience& patience, FetchSink* sink) {
  return verbs::Fetch(parts_->context, parts_->tables.sessions, parts_->loader, parts_->refused,
                      session, request, patience, sink);
}

absl::StatusOr<Prefetched> Cache::Prefetch(block::SessionId session, const Request& request) {
  return verbs::Prefetch(parts_->context, parts_->tables, parts_->loader, session, request);
}

block::PastAnswers Cache::Why(const block::WhyQuery& query) const {
  return parts_->tables.history.Find(query, parts_->context.Now());
}

block::HotPrefixes Cache::ListPrefixes(const block::SpaceId* space, uint32_t most) const {
  return verbs::ListPrefixes(parts_->context, parts_->tables, space, most);
}

// --- storing ---

absl::StatusOr<block::ReservePlan> Cache::Reserve(block::SessionId session,
                                                  const ReserveRequest& request) {
  return verbs::Reserve(parts_->context, parts_->tables, parts_->room, session, request);
}

absl::Status Cache::PutPage(block::SessionId session, block::ReservationId reservation,
                            const PagePiece& piece, const Patience& patience) {
  return verbs::PutPage(parts_->context, parts_->tables.sessions, parts_->room, session,
                        reservation, piece, patience);
}

absl::StatusOr<block::CommitAnswer> Cache::Commit(block::SessionId session,
                                                  const CommitRequest& request,
                                                  const Patience& patience) {
  return verbs::Commit(parts_->context, parts_->tables, parts_->room, parts_->loader,
                       parts_->watcher, parts_->spiller, parts_->writer, session, request,
                       patience);
}

absl::Status Cache::CheckReservation(block::SessionId session,
                                     block::ReservationId reservation) const {
  return parts_->tables.sessions.FindReservation(session, reservation).status();
}

absl::Status Cache::Abandon(block::SessionId session, block::ReservationId reservation) {
  return verbs::Abandon(parts_->context, parts_->tables.sessions, session, reservation);
}

// --- pins ---

absl::StatusOr<Pinned> Cache::Pin(block::SessionId session, const Request& request,
                                  std::chrono::milliseconds ttl, const Patience& patience) {
  return verbs::Pin(parts_->context, parts_->tables, parts_->loader, session, request, ttl,
                    patience);
}

absl::StatusOr<uint64_t> Cache::Unpin(block::PinId pin) {
  return verbs::Unpin(parts_->context, parts_->tables.pins, pin);
}

absl::StatusOr<uint64_t> Cache::Unpin(block::SessionId session, const Request& request) {
  return verbs::Unpin(parts_->context, parts_->tables, session, request);
}

std::vector<block::PinInfo> Cache::ListPins() const {
  return verbs::ListPins(parts_->context, parts_->tables.pins);
}

// --- for whoever runs it ---

absl::StatusOr<Cache::Cleared> Cache::Clear(const block::SpaceId* space) {
  return verbs::Clear(parts_->context, parts_->tables, parts_->records, parts_->segments,
                      parts_->tier, parts_->far, space);
}

absl::StatusOr<Cache::PurgeProgress> Cache::Purge(const block::SpaceId* space, uint64_t cursor) {
  return verbs::Purge(parts_->context, parts_->tables, parts_->records, parts_->room,
                      parts_->segments, parts_->dropper, parts_->tier, parts_->far, space, cursor);
}

VerifyProgress Cache::Verify(uint64_t cursor, uint64_t bytes_per_s, const Patience& patience) {
  return parts_->verifier.Step(cursor, bytes_per_s, patience);
}

FlushResult Cache::Flush(const Patience& patience) {
  FlushResult result = verbs::Flush(parts_->context, parts_->index_loader, parts_->loader,
                                    parts_->segments, patience);
  result.remote_waits = has_remote() && !WaitRemote(patience);
  return result;
}

absl::StatusOr<bool> Cache::SetSpaceLimits(const block::SpaceId& space,
                                           const block::SpaceLimits& limits) {
  return verbs::SetSpaceLimits(parts_->context, parts_->tables, parts_->room, space, limits);
}

absl::StatusOr<block::BudgetState> Cache::SetBudgets(uint64_t ram_bytes, uint64_t ssd_bytes) {
  PREFIXD_RETURN_IF_ERROR(verbs::SetBudgets(parts_->room, parts_->segments, ram_bytes, ssd_bytes));
  const block::Stats stats = GetStats();
  const uint64_t over_bytes = parts_->context.arena->OverBytes();
  const uint64_t awaited_bytes = parts_->context.arena->device_pins().awaited_bytes;
  block::BudgetState state{.ram_budget_bytes = stats.ram_budget_bytes,
                           .ram_over_bytes = over_bytes,
                           .awaited_bytes = std::min(awaited_bytes, over_bytes),
                           .ssd_budget_bytes = stats.ssd_budget_bytes,
                           .ssd_file_bytes = stats.ssd_file_bytes};
  for (const block::NamedCount& part : stats.ram_parts) state.ram_used_bytes += part.value;
  parts_->context.Log(LogLevel::kInfo,
                      absl::StrCat("budgets: RAM ", base::FormatBytes(state.ram_budget_bytes),
                                   ", SSD ", base::FormatBytes(state.ssd_budget_bytes)));
  return state;
}

block::Stats Cache::GetStats() const {
  return verbs::GetStats(parts_->context, parts_->tables, parts_->room, parts_->segments,
                         parts_->tier, parts_->far, parts_->writer);
}

Cache::Holdings Cache::GetHoldings() const {
  const index::IndexCounts counts = parts_->context.index->Counts();
  return {.entries = counts.ends, .ram_payload_bytes = counts.ram_payload_bytes};
}

std::vector<block::SpaceSummary> Cache::ListSpaces() const { return parts_->tables.spaces.List(); }

}  // namespace prefixd::cache
