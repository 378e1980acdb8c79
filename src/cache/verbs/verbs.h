// What callers ask of the cache, one function a verb, over the parts that it names. cache.h has the
// contracts. Internal to the room.
#pragma once
#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "cache/cache.h"
#include "cache/context.h"
#include "cache/far/far.h"
#include "cache/far/fetcher.h"
#include "cache/far/finder.h"
#include "cache/far/space_board.h"
#include "cache/far/writer.h"
#include "cache/load/loader.h"
#include "cache/load/watcher.h"
#include "cache/room/room.h"
#include "cache/start/index_loader.h"
#include "cache/store/dropper.h"
#include "cache/store/segments.h"
#include "cache/store/spiller.h"
#include "cache/store/tier.h"
#include "cache/tables/tables.h"

namespace prefixd::cache::verbs {

// --- session.cc, open_space.cc ---
BegunSession BeginSession(const Context& context, IndexLoader& index_loader, Sessions& sessions,
                          const SessionOptions& options);
bool NoteRefused(Sessions& sessions, block::SessionId session, const block::NotShared& note);
absl::StatusOr<bool> NoteNotShared(Sessions& sessions, block::SessionId session,
                                   const block::NotShared& note);
absl::Status SetDevicePins(const Context& context, const Sessions& sessions, Room& room,
                           block::SessionId session, std::string_view slabs);
absl::StatusOr<OpenedSpace> OpenSpace(const Context& context, Tables& tables, Room& room,
                                      SpaceBoard& board, block::SessionId session,
                                      block::SpaceIdentity identity);
absl::StatusOr<std::vector<ToldSpace>> SpacesOfOthers(const Tables& tables, SpaceBoard& board,
                                                      const Patience& patience);

// --- match.cc, acquire.cc, set.cc, fetch.cc ---
absl::StatusOr<block::MatchAnswer> Match(Context& context, Tables& tables, Room& room,
                                         const LoadModel& model, block::SessionId session,
                                         const Request& request);
absl::StatusOr<std::vector<block::MatchAnswer>> MatchSet(Context& context, Tables& tables,
                                                         Room& room, const LoadModel& model,
                                                         block::SessionId session,
                                                         std::span<const Request> requests);
absl::StatusOr<Acquired> Acquire(Context& context, Tables& tables, Room& room, Loader& loader,
                                 Watcher& watcher, block::SessionId session, const Request& request,
                                 const Patience& patience);
// Returns nullopt, with nothing held or counted, if the far tier may have more.
absl::StatusOr<std::optional<Acquired>> AcquireHere(Context& context, Tables& tables, Room& room,
                                                    Loader& loader, Watcher& watcher,
                                                    const Far& far, block::SessionId session,
                                                    const Request& request,
                                                    const Patience& patience);
// Has the blocks of a few hits a second marked as used in the far tier, behind the worker's back.
void TellOfHit(const Tables& tables, Writer& writer, block::SessionId session,
               const Request& request, const block::MatchAnswer& match);
absl::StatusOr<std::vector<Acquired>> AcquireSet(Context& context, Tables& tables, Room& room,
                                                 Loader& loader, Watcher& watcher,
                                                 block::SessionId session,
                                                 std::span<const Request> requests,
                                                 const Patience& patience);
absl::Status Fetch(Context& context, Sessions& sessions, const Loader& loader,
                   const Refused& refused, block::SessionId session, const FetchRequest& request,
                   const Patience& patience, FetchSink* sink);

// --- bring.cc ---
// Whether the far tier is worth asking after this answer.
bool FallsShort(const Far& far, const SpaceInfo& space, const Request& request,
                const block::MatchAnswer& answer);
// Looks for what the index lacks of the request in the far tier, puts it into the tree and starts
// bringing it. Returns how many tokens that are, 0 if the store does not answer in time.
absl::StatusOr<uint32_t> Bring(Context& context, Tables& tables, Far& far, Fetcher& fetcher,
                               Finder& finder, const LoadModel& model, block::SessionId session,
                               const Request& request);

// --- prefixes.cc ---
// `space`: null for all.
block::HotPrefixes ListPrefixes(const Context& context, const Tables& tables,
                                const block::SpaceId* space, uint32_t most);

// --- lease.cc ---
absl::Status Release(Context& context, Tables& tables, LoadModel& model, block::SessionId session,
                     const Released& released);

// --- reserve.cc, put.cc, commit.cc ---
absl::StatusOr<block::ReservePlan> Reserve(Context& context, Tables& tables, Room& room,
                                           block::SessionId session, const ReserveRequest& request);
absl::Status Abandon(Context& context, Sessions& sessions, block::SessionId session,
                     block::ReservationId reservation);
absl::Status PutPage(Context& context, Sessions& sessions, Room& room, block::SessionId session,
                     block::ReservationId reservation, const PagePiece& piece,
                     const Patience& patience);
absl::StatusOr<block::CommitAnswer> Commit(Context& context, Tables& tables, Room& room,
                                           Loader& loader, Watcher& watcher, Spiller& spiller,
                                           Writer& writer, block::SessionId session,
                                           const CommitRequest& request, const Patience& patience);

// --- pin.cc, prefetch.cc ---
absl::StatusOr<Pinned> Pin(Context& context, Tables& tables, Loader& loader,
                           block::SessionId session, const Request& request,
                           std::chrono::milliseconds ttl, const Patience& patience);
absl::StatusOr<uint64_t> Unpin(Context& context, PinTable& pins, block::PinId pin);
absl::StatusOr<uint64_t> Unpin(Context& context, Tables& tables, block::SessionId session,
                               const Request& request);
std::vector<block::PinInfo> ListPins(Context& context, PinTable& pins);
absl::StatusOr<Prefetched> Prefetch(Context& context, Tables& tables, Loader& loader,
                                    block::SessionId session, const Request& request);

// --- clear.cc, purge.cc ---
absl::StatusOr<Cache::Cleared> Clear(Context& context, Tables& tables, PageRecords& records,
                                     Segments& segments, Tier& tier, Far& far,
                                     const block::SpaceId* space);
absl::StatusOr<Cache::PurgeProgress> Purge(Context& context, Tables& tables, PageRecords& records,
                                           Room& room, Segments& segments, Dropper& dropper,
                                           Tier& tier, Far& far, const block::SpaceId* space,
                                           uint64_t cursor);
uint64_t BytesInBothTiers(const Context& context, const Dropper& dropper);

// --- limits.cc, flush.cc, stats.cc ---
absl::StatusOr<bool> SetSpaceLimits(Context& context, Tables& tables, Room& room,
                                    const block::SpaceId& space, const block::SpaceLimits& limits);
absl::Status SetBudgets(Room& room, Segments& segments, uint64_t ram_bytes, uint64_t ssd_bytes);
FlushResult Flush(Context& context, IndexLoader& index_loader, Loader& loader, Segments& segments,
                  const Patience& patience);
block::Stats GetStats(Context& context, Tables& tables, Room& room, const Segments& segments,
                      const Tier& tier, const Far& far, const Writer& writer);

}  // namespace prefixd::cache::verbs
