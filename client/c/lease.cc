// Lookups and leases of prefixd.h.
#include "handles.h"

namespace {

using namespace prefixd::c;  // NOLINT: this file is that namespace's C face

static_assert(sizeof(prefixd_block) == sizeof(prefixd::BlockTableEntry) &&
              offsetof(prefixd_block, units) == offsetof(prefixd::BlockTableEntry, units) &&
              offsetof(prefixd_block, arena_offset) ==
                  offsetof(prefixd::BlockTableEntry, arena_offset) &&
              offsetof(prefixd_block, page_tokens) ==
                  offsetof(prefixd::BlockTableEntry, page_tokens) &&
              offsetof(prefixd_block, tokens) == offsetof(prefixd::BlockTableEntry, tokens) &&
              offsetof(prefixd_block, format) == offsetof(prefixd::BlockTableEntry, format));

// A lookup's options and what they point at.
struct Options {
  std::vector<prefixd::Content> content;
  prefixd::BeginOptions begin;
};

bool TakeLookup(const prefixd_lookup* from, Options* to) {
  prefixd_lookup lookup;
  if (!Take(from, &lookup)) return false;
  to->content = ContentOf(lookup.content, lookup.content_count);
  to->begin.content = to->content;
  if (lookup.max_tokens != 0) to->begin.max_tokens = lookup.max_tokens;
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
  info.estimated_load_us = match.estimated_load_us;
  std::memcpy(info.why_shorter, match.why_shorter.data(),
              std::min(match.why_shorter.size(), sizeof(info.why_shorter) - 1));
  Give(info, out);
}

std::chrono::milliseconds WaitOf(uint32_t deadline_ms) {
  return deadline_ms == 0 ? prefixd::Lease::kLoadDeadline : std::chrono::milliseconds(deadline_ms);
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

prefixd_lease* prefixd_acquire(prefixd_space* space, const uint32_t* tokens, size_t count,
                               const prefixd_lookup* lookup, prefixd_match_info* out) {
  return Guarded<prefixd_lease*>(nullptr, [&]() -> prefixd_lease* {
    GiveMatch({}, out);
    Options options;
    if (!CheckTokens(tokens, count) || !TakeLookup(lookup, &options)) return nullptr;
    if (space == nullptr) {
      return Tell({prefixd::StatusCode::kUnavailable, "acquire: no space"}), nullptr;
    }
    auto handle = std::make_unique<prefixd_lease>();
    handle->client = space->client;
    handle->lease = space->space.Acquire({tokens, count}, options.begin);
    GiveMatch(handle->lease.match(), out);
    Tell(handle->lease.match().status);
    return handle.release();
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
    const std::span<const prefixd::BlockTableEntry> table =
        lease->lease.block_table(LayerOf(layer));
    *blocks = reinterpret_cast<const prefixd_block*>(table.data());
    return table.size();
  });
}

void prefixd_release(prefixd_lease* lease, const prefixd_used* used) {
  Freeing([&] {
    const std::unique_ptr<prefixd_lease> owned(lease);
    prefixd_used worth;
    if (owned == nullptr || used == nullptr || !Take(used, &worth)) return;
    owned->lease.Release(
        {.used_tokens = worth.used_tokens,
         .first_token = std::chrono::microseconds(static_cast<int64_t>(worth.first_token_us)),
         .prefill_tokens_per_s = worth.prefill_tokens_per_s});
  });
}

}  // extern "C"
