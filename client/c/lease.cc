// Lookups and leases of prefixd.h.
#include "handles.h"

namespace {

using namespace prefixd::c;  // NOLINT: this file is that namespace's C face

constexpr size_t kMostMembers = 64;

// A lookup's options and what they point at.
struct Options {
  std::vector<prefixd::Content> content;
  prefixd::BeginOptions begin;
};

bool TakeLookup(const prefixd_lookup* from, Options* to) {
  prefixd_lookup lookup = PREFIXD_LOOKUP_INIT;
  if (from != nullptr && !Take(from, &lookup)) return false;
  to->content = ContentOf(lookup.content, lookup.content_count);
  to->begin.content = to->content;
  to->begin.max_cached_tokens = lookup.max_cached_tokens;
  to->begin.deadline = Millis(lookup.deadline_ms, 200);
  to->begin.load_deadline = Millis(lookup.load_deadline_ms, 10000);
  if (lookup.readable != 0) to->begin.readable = lookup.readable;
  to->begin.prefill_tokens_per_s = lookup.prefill_tokens_per_s;
  to->begin.wait_pending = std::chrono::milliseconds(lookup.wait_pending_ms);
  to->begin.request_id = Text(lookup.request_id);
  return true;
}

void GiveMatch(const prefixd::MatchInfo& match, prefixd_match_info* out) {
  prefixd_match_info info{};
  info.kind = static_cast<uint32_t>(match.kind);
  info.matched_tokens = match.matched_tokens;
  info.restorable_tokens = match.restorable_tokens;
  info.pending_tokens = match.pending_tokens;
  info.in_place = match.in_place;
  info.ram_bytes = match.ram_bytes;
  info.ssd_bytes = match.ssd_bytes;
  info.remote_bytes = match.remote_bytes;
  info.estimated_load_us = match.estimated_load_us;
  std::memcpy(info.why_shorter, match.why_shorter.data(),
              std::min(match.why_shorter.size(), sizeof(info.why_shorter) - 1));
  Give(info, out);
}

std::chrono::milliseconds WaitOf(uint32_t deadline_ms) {
  return deadline_ms == 0 ? prefixd::Lease::kLoadDeadline : std::chrono::milliseconds(deadline_ms);
}

std::unique_ptr<prefixd_lease> Owned(std::shared_ptr<prefixd::Client> client,
                                     prefixd::Lease lease) {
  auto handle = std::make_unique<prefixd_lease>();
  handle->client = std::move(client);
  handle->lease = std::move(lease);
  return handle;
}

uint32_t UsedTokens(uint32_t told) {
  if (told == PREFIXD_NONE_USED) return 0;
  return told == 0 ? prefixd::ReleaseInfo::kAsRead : told;
}

struct Set {
  std::shared_ptr<prefixd::Client> client;
  std::vector<Options> options;  // what the members' options point at
  std::vector<prefixd::SetMember> members;
};

prefixd_status TakeMembers(const prefixd_set_member* from, size_t count, Set* to) {
  to->options.resize(count);
  for (size_t i = 0; i < count; ++i) {
    const prefixd_set_member* const entry = EntryOf(from, i);
    prefixd_set_member member;
    if (entry->size != from->size) return Refuse("acquire_set: members differ in size");
    if (!Take(entry, &member) || !TakeLookup(member.lookup, &to->options[i])) {
      return PREFIXD_INVALID_ARGUMENT;
    }
    if (member.space == nullptr) {
      return Tell({prefixd::StatusCode::kUnavailable, "acquire_set: no space"});
    }
    if (to->client != nullptr && to->client != member.space->client) {
      return Refuse("acquire_set: the spaces are of several clients");
    }
    to->client = member.space->client;
    to->members.push_back({&member.space->space, to->options[i].begin});
  }
  return PREFIXD_OK;
}

}  // namespace

extern "C" {

prefixd_status prefixd_match(prefixd_space* space, const uint32_t* tokens, size_t count,
                             const prefixd_lookup* lookup, prefixd_match_info* out) {
  return Guarded<prefixd_status>(PREFIXD_EXHAUSTED, [&]() -> prefixd_status {
    GiveMatch({}, out);
    Options options;
    if (!CheckTokens(tokens, count) || !TakeLookup(lookup, &options)) {
      return PREFIXD_INVALID_ARGUMENT;
    }
    if (space == nullptr) return Tell({prefixd::StatusCode::kUnavailable, "match: no space"});
    const prefixd::Result<prefixd::MatchInfo> match =
        space->space.Match({tokens, count}, options.begin);
    if (match.ok()) GiveMatch(match.value(), out);
    return Tell(match.status);
  });
}

prefixd_status prefixd_prefetch(prefixd_space* space, const uint32_t* tokens, size_t count,
                                const prefixd_lookup* lookup, uint32_t* there) {
  return Guarded<prefixd_status>(PREFIXD_EXHAUSTED, [&]() -> prefixd_status {
    if (there != nullptr) *there = 0;
    Options options;
    if (!CheckTokens(tokens, count) || !TakeLookup(lookup, &options)) {
      return PREFIXD_INVALID_ARGUMENT;
    }
    if (space == nullptr) return Tell({prefixd::StatusCode::kUnavailable, "prefetch: no space"});
    const prefixd::Result<uint32_t> hint = space->space.Prefetch({tokens, count}, options.begin);
    if (hint.ok() && there != nullptr) *there = hint.value();
    return Tell(hint.status);
  });
}

prefixd_lease* prefixd_acquire(prefixd_space* space, const uint32_t* tokens, size_t count,
                               const prefixd_lookup* lookup, prefixd_match_info* out) {
  return Guarded<prefixd_lease*>(nullptr, [&]() -> prefixd_lease* {
    GiveMatch({}, out);
    Options options;
    if (!CheckTokens(tokens, count) || !TakeLookup(lookup, &options)) return nullptr;
    if (space == nullptr) {
      return Tell({prefixd::StatusCode::kUnavailable, "acquire: no space"}), nullptr;
    }
    auto handle = Owned(space->client, space->space.Acquire({tokens, count}, options.begin));
    GiveMatch(handle->lease.match(), out);
    Tell(handle->lease.match().status);
    return handle.release();
  });
}

prefixd_status prefixd_acquire_set(const prefixd_set_member* members, size_t member_count,
                                   const uint32_t* tokens, size_t count, prefixd_lease** leases,
                                   prefixd_match_info* out) {
  return Guarded<prefixd_status>(PREFIXD_EXHAUSTED, [&]() -> prefixd_status {
    if (member_count > kMostMembers) return Refuse("acquire_set: more than 64 members");
    if (member_count > 0 && (members == nullptr || leases == nullptr)) {
      return Refuse("acquire_set: no members, or no room for their leases");
    }
    std::fill_n(leases, member_count, nullptr);
    for (size_t i = 0; i < member_count; ++i) GiveMatch({}, EntryOf(out, i));
    Set set;
    if (!CheckTokens(tokens, count)) return PREFIXD_INVALID_ARGUMENT;
    const prefixd_status taken = TakeMembers(members, member_count, &set);
    if (taken != PREFIXD_OK || member_count == 0) return taken;
    std::vector<prefixd::Lease> found = set.client->AcquireSet(set.members, {tokens, count});
    std::vector<std::unique_ptr<prefixd_lease>> handles;
    for (prefixd::Lease& lease : found) handles.push_back(Owned(set.client, std::move(lease)));
    for (size_t i = 0; i < handles.size(); ++i) {
      const prefixd::MatchInfo& match = handles[i]->lease.match();
      GiveMatch(match, EntryOf(out, i));
      if (!match.status.ok()) Tell(match.status);
      leases[i] = handles[i].release();
    }
    return LastStatus();
  });
}

uint32_t prefixd_restorable_tokens(const prefixd_lease* lease) {
  return Guarded<uint32_t>(0, [&] { return lease ? lease->lease.restorable_tokens() : 0; });
}

uint32_t prefixd_wait(prefixd_lease* lease, uint32_t layer, uint32_t deadline_ms) {
  return Guarded<uint32_t>(
      0, [&] { return lease ? lease->lease.Wait(LayerOf(layer), WaitOf(deadline_ms)) : 0; });
}

uint32_t prefixd_wait_all(prefixd_lease* lease, uint32_t deadline_ms) {
  return Guarded<uint32_t>(0,
                           [&] { return lease ? lease->lease.WaitAll(WaitOf(deadline_ms)) : 0; });
}

prefixd_status prefixd_gather(prefixd_lease* lease, uint32_t layer, uint32_t begin, uint32_t count,
                              const prefixd_planes* key, const prefixd_planes* value) {
  return Guarded<prefixd_status>(PREFIXD_EXHAUSTED, [&]() -> prefixd_status {
    prefixd::MutablePackedView k, v;
    if (!TakePlanes(key, &k) || !TakePlanes(value, &v)) return PREFIXD_INVALID_ARGUMENT;
    static prefixd::Lease none;
    return Tell((lease ? lease->lease : none).Gather(LayerOf(layer), begin, count, k, v));
  });
}

prefixd_status prefixd_gather_rows(prefixd_lease* lease, uint32_t layer, uint32_t begin,
                                   uint32_t count, const prefixd_rows* key,
                                   const prefixd_rows* value) {
  return Guarded<prefixd_status>(PREFIXD_EXHAUSTED, [&]() -> prefixd_status {
    prefixd::MutableTensorView k, v;
    if (!TakeRows(key, &k) || !TakeRows(value, &v)) return PREFIXD_INVALID_ARGUMENT;
    static prefixd::Lease none;
    return Tell((lease ? lease->lease : none).GatherRows(LayerOf(layer), begin, count, k, v));
  });
}

prefixd_status prefixd_get_state(prefixd_lease* lease, uint32_t layer, void* state, size_t bytes) {
  return Guarded<prefixd_status>(PREFIXD_EXHAUSTED, [&]() -> prefixd_status {
    if (state == nullptr) return Refuse("get_state: no room for a state");
    static prefixd::Lease none;
    return Tell((lease ? lease->lease : none)
                    .GetState(LayerOf(layer), {static_cast<std::byte*>(state), bytes}));
  });
}

size_t prefixd_table(prefixd_lease* lease, uint32_t layer, const prefixd_block** blocks) {
  if (blocks != nullptr) *blocks = nullptr;
  return Guarded<size_t>(0, [&]() -> size_t {
    if (lease == nullptr || blocks == nullptr) return 0;
    const auto table = lease->lease.block_table(LayerOf(layer));
    std::vector<prefixd_block>& told = lease->tables[layer];
    told.clear();  // keeps its memory: a table of a layer never grows
    told.reserve(table.size());
    for (const prefixd::BlockTableEntry& entry : table) {
      told.push_back({.units = entry.units,
                      .arena_offset = entry.arena_offset,
                      .page_tokens = entry.page_tokens,
                      .tokens = entry.tokens,
                      .format = entry.format});
    }
    *blocks = told.data();
    return told.size();
  });
}

size_t prefixd_page_names(prefixd_lease* lease, uint32_t layer, prefixd_page_name* names,
                          size_t capacity) {
  return Guarded<size_t>(0, [&]() -> size_t {
    if (lease == nullptr) return 0;
    const std::vector<prefixd::PageName> found = lease->lease.page_names(LayerOf(layer));
    for (size_t i = 0; names != nullptr && i < std::min(capacity, found.size()); ++i) {
      names[i] = {found[i].high, found[i].low};
    }
    return found.size();
  });
}

prefixd_status prefixd_lease_arena(const prefixd_lease* lease, prefixd_arena* out) {
  return Guarded<prefixd_status>(PREFIXD_EXHAUSTED, [&]() -> prefixd_status {
    const auto view = lease == nullptr ? std::nullopt : lease->lease.arena();
    constexpr size_t kLeast = offsetof(prefixd_arena, mapping) + sizeof(void*);  // else it leaks
    if (out == nullptr || out->size < kLeast || !CheckSize(out, out->size, sizeof(*out))) {
      return Refuse("lease_arena: no room for an arena");
    }
    prefixd_arena arena{};
    if (view.has_value()) {
      arena.base = view->base;
      arena.bytes = view->bytes;
      arena.slab_bytes = view->slab_bytes;
      arena.service = reinterpret_cast<const uint64_t*>(view->service);
      arena.service_stride = view->service_stride;
      arena.tell = view->tell;
      arena.teller = view->teller;
      arena.mapping = new std::shared_ptr<const void>(view->mapping);
    }
    Give(arena, out);
    if (view.has_value()) return Tell(prefixd::Status());
    SetError(PREFIXD_NOT_FOUND, "lease_arena: the lease's pages are not read in place");
    return PREFIXD_NOT_FOUND;
  });
}

void prefixd_drop_arena(prefixd_arena* arena) {
  Guarded([&] {
    if (arena == nullptr) return;
    delete static_cast<std::shared_ptr<const void>*>(arena->mapping);
    arena->mapping = nullptr;
    arena->base = nullptr;
    arena->service = nullptr;
    if (arena->size < sizeof(*arena)) return;  // a caller of version 15
    arena->tell = nullptr;
    arena->teller = nullptr;
  });
}

size_t prefixd_stored_runs(prefixd_lease* lease, uint32_t layer, prefixd_stored_run* runs,
                           size_t capacity) {
  return Guarded<size_t>(0, [&]() -> size_t {
    if (lease == nullptr) return 0;
    const std::vector<prefixd::TokenRun> stored = lease->lease.runs(LayerOf(layer));
    for (size_t i = 0; runs != nullptr && i < std::min(capacity, stored.size()); ++i) {
      runs[i] = {stored[i].begin, stored[i].end, stored[i].format, 0};
    }
    return stored.size();
  });
}

void prefixd_release(prefixd_lease* lease, const prefixd_used* used) {
  Freeing([&] {
    const std::unique_ptr<prefixd_lease> owned(lease);
    prefixd_used worth;
    if (owned == nullptr || used == nullptr || !Take(used, &worth)) return;
    owned->lease.Release(
        {.used_tokens = UsedTokens(worth.used_tokens),
         .first_token = std::chrono::microseconds(static_cast<int64_t>(worth.first_token_us)),
         .prefill_tokens_per_s = worth.prefill_tokens_per_s});
  });
}

}  // extern "C"
