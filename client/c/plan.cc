// Plans of prefixd.h: storing.
#include "handles.h"

using namespace prefixd::c;  // NOLINT: this file is that namespace's C face

extern "C" {

prefixd_plan* prefixd_reserve(prefixd_space* space, const uint32_t* tokens, size_t count,
                              const prefixd_reserve_options* options) {
  return Guarded<prefixd_plan*>(nullptr, [&]() -> prefixd_plan* {
    prefixd_reserve_options with;
    if (!CheckTokens(tokens, count) || !Take(options, &with)) return nullptr;
    if (space == nullptr) {
      return Tell({prefixd::StatusCode::kUnavailable, "reserve: no space"}), nullptr;
    }
    const std::vector<prefixd::Content> content = ContentOf(with.content, with.content_count);
    prefixd::ReserveOptions inner;
    inner.content = content;
    if (with.turn_ends != nullptr) inner.turn_ends = {with.turn_ends, with.turn_end_count};
    inner.deadline = Millis(with.deadline_ms, 200);
    inner.write_format = with.write_format;
    if (with.readable != 0) inner.readable = with.readable;
    inner.coarser_formats = with.coarser_formats;
    auto handle = std::make_unique<prefixd_plan>();
    handle->client = space->client;
    handle->plan = space->space.Reserve({tokens, count}, inner);
    Tell(handle->plan.status());
    return handle.release();
  });
}

size_t prefixd_missing(const prefixd_plan* plan, prefixd_run* runs, size_t capacity) {
  return Guarded<size_t>(0, [&]() -> size_t {
    if (plan == nullptr) return 0;
    const std::span<const prefixd::TokenRun> missing = plan->plan.missing();
    for (size_t i = 0; runs != nullptr && i < std::min(capacity, missing.size()); ++i) {
      runs[i] = {missing[i].begin, missing[i].end};
    }
    return missing.size();
  });
}

size_t prefixd_missing_formats(const prefixd_plan* plan, uint32_t* formats, size_t capacity) {
  return Guarded<size_t>(0, [&]() -> size_t {
    if (plan == nullptr) return 0;
    const std::span<const prefixd::TokenRun> missing = plan->plan.missing();
    for (size_t i = 0; formats != nullptr && i < std::min(capacity, missing.size()); ++i) {
      formats[i] = missing[i].format;
    }
    return missing.size();
  });
}

prefixd_status prefixd_write_packed(prefixd_plan* plan, uint32_t layer, uint32_t begin,
                                    uint32_t count, const prefixd_planes* key,
                                    const prefixd_planes* value) {
  return Guarded<prefixd_status>(PREFIXD_EXHAUSTED, [&]() -> prefixd_status {
    prefixd::PackedView k, v;
    if (!TakePlanes(key, &k) || !TakePlanes(value, &v)) return PREFIXD_INVALID_ARGUMENT;
    static prefixd::Plan none;
    return Tell((plan ? plan->plan : none).WritePacked(LayerOf(layer), begin, count, k, v));
  });
}

prefixd_status prefixd_write_rows(prefixd_plan* plan, uint32_t layer, uint32_t begin,
                                  uint32_t count, const prefixd_rows* key,
                                  const prefixd_rows* value) {
  return Guarded<prefixd_status>(PREFIXD_EXHAUSTED, [&]() -> prefixd_status {
    prefixd::TensorView k, v;
    if (!TakeRows(key, &k) || !TakeRows(value, &v)) return PREFIXD_INVALID_ARGUMENT;
    static prefixd::Plan none;
    return Tell((plan ? plan->plan : none).WriteRows(LayerOf(layer), begin, count, k, v));
  });
}

size_t prefixd_snapshots_wanted(const prefixd_plan* plan, uint32_t* positions, size_t capacity) {
  return Guarded<size_t>(0, [&]() -> size_t {
    if (plan == nullptr) return 0;
    const std::span<const uint32_t> wanted = plan->plan.snapshots_wanted();
    if (positions != nullptr) {
      std::copy_n(wanted.begin(), std::min(capacity, wanted.size()), positions);
    }
    return wanted.size();
  });
}

prefixd_status prefixd_put_state(prefixd_plan* plan, uint32_t layer, uint32_t tokens,
                                 const void* state, size_t bytes) {
  return Guarded<prefixd_status>(PREFIXD_EXHAUSTED, [&]() -> prefixd_status {
    if (state == nullptr) return Refuse("put_state: no state");
    static prefixd::Plan none;
    return Tell(
        (plan ? plan->plan : none)
            .PutState(LayerOf(layer), tokens, {static_cast<const std::byte*>(state), bytes}));
  });
}

prefixd_status prefixd_commit(prefixd_plan* plan, uint32_t tokens,
                              const prefixd_commit_options* options, prefixd_commit_info* out) {
  return Guarded<prefixd_status>(PREFIXD_EXHAUSTED, [&]() -> prefixd_status {
    Give({}, out);
    prefixd_commit_options with;
    if (!Take(options, &with)) return PREFIXD_INVALID_ARGUMENT;
    static prefixd::Plan none;
    const prefixd::Result<prefixd::CommitInfo> stored =
        (plan ? plan->plan : none)
            .Commit(tokens, {.sequence_end = with.sequence_end != 0,
                             .durability = with.on_ssd != 0 ? prefixd::Durability::kSsd
                                                            : prefixd::Durability::kRam,
                             .deadline = Millis(with.deadline_ms, 10000)});
    if (stored.ok()) {
      prefixd_commit_info info{};
      info.stored_tokens = stored.value().stored_tokens;
      info.duplicate_tokens = stored.value().duplicate_tokens;
      info.on_ssd = stored.value().durability == prefixd::Durability::kSsd ? 1 : 0;
      Give(info, out);
    }
    return Tell(stored.status);
  });
}

void prefixd_abandon(prefixd_plan* plan) {
  Freeing([&] { delete plan; });
}

}  // extern "C"
