// Clients and digests of prefixd.h.
#include "absl/synchronization/mutex.h"

#include "client/cpp/address.h"
#include "handles.h"

namespace {

using namespace prefixd::c;  // NOLINT: this file is that namespace's C face

prefixd_status GiveDigest(const prefixd::Result<prefixd::Digest>& from, uint8_t to[32]) {
  if (from.ok()) std::memcpy(to, from.value().data(), from.value().size());
  return Tell(from.status);
}

}  // namespace

extern "C" {

prefixd_client* prefixd_attach(const prefixd_options* options) {
  return Guarded<prefixd_client*>(nullptr, [&]() -> prefixd_client* {
    prefixd_options with;
    if (!Take(options, &with)) return nullptr;
    prefixd::ClientOptions inner;
    if (with.address != nullptr) inner.address = with.address;
    if (with.name != nullptr) inner.name = with.name;
    const absl::Status address = prefixd::client::CheckAddress(inner.address);
    if (!address.ok()) return Refuse(std::string(address.message()).c_str()), nullptr;
    inner.token_file = Text(with.token_file);
    inner.engine = Text(with.engine);
    inner.connect_deadline = Millis(with.connect_deadline_ms, 2000);
    inner.use_arena = with.no_arena == 0;
    if (with.staging_bytes != 0) inner.staging_bytes = with.staging_bytes;
    if (with.no_staging != 0) inner.staging_bytes = 0;
    // Debian's Abseil looks for lock cycles at each lock that gRPC takes: 40 % of the time of an
    // empty call.
    absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
    auto client = std::make_unique<prefixd_client>();
    client->client = std::make_shared<prefixd::Client>(std::move(inner));
    return client.release();
  });
}

void prefixd_detach(prefixd_client* client) {
  Freeing([&] { delete client; });
}

int32_t prefixd_attached(const prefixd_client* client, uint32_t deadline_ms) {
  return Guarded<int32_t>(0, [&] {
    if (client == nullptr) return SetError(PREFIXD_UNAVAILABLE, "attached: no client"), 0;
    if (client->client->WaitAttached(std::chrono::milliseconds(deadline_ms))) return 1;
    return SetError(PREFIXD_UNAVAILABLE, client->client->arena().why_not.c_str()), 0;
  });
}

prefixd_status prefixd_not_shared(prefixd_client* client, const char* model, const char* reason) {
  return Guarded<prefixd_status>(PREFIXD_EXHAUSTED, [&]() -> prefixd_status {
    if (client == nullptr) {
      return Tell({prefixd::StatusCode::kUnavailable, "not_shared: no client"});
    }
    return Tell(client->client->NotShared(Text(model), Text(reason)));
  });
}

void prefixd_stats(const prefixd_client* client, prefixd_counts* out) {
  Guarded([&] {
    prefixd_counts counts{};
    if (client != nullptr) {
      const prefixd::ClientStats stats = client->client->stats();
      const prefixd::ArenaInfo arena = client->client->arena();
      counts.lookups = stats.lookups;
      counts.failed_lookups = stats.failed_lookups;
      counts.requested_tokens = stats.requested_tokens;
      counts.restorable_tokens = stats.restorable_tokens;
      counts.gathered_bytes = stats.gathered_bytes;
      counts.stored_tokens = stats.stored_tokens;
      counts.duplicate_tokens = stats.duplicate_tokens;
      counts.failed_commits = stats.failed_commits;
      counts.attached = client->client->attached();
      counts.arena_bytes = arena.data_bytes;
      counts.staging_bytes = arena.staging_bytes;
      SetError(arena.why_not.empty() ? PREFIXD_OK : PREFIXD_UNAVAILABLE, arena.why_not.c_str());
    }
    Give(counts, out);
  });
}

prefixd_status prefixd_set_trace(const char* traceparent, const char* tracestate) {
  return Guarded<prefixd_status>(PREFIXD_EXHAUSTED, [&] {
    return Tell(prefixd::SetTrace(Text(traceparent), Text(tracestate)));
  });
}

prefixd_status prefixd_digest_checkpoint(const char* directory, uint8_t digest[32]) {
  return Guarded<prefixd_status>(PREFIXD_INTERNAL, [&] {
    return GiveDigest(prefixd::DigestCheckpoint(Text(directory)), digest);
  });
}

prefixd_status prefixd_digest_file(const char* path, uint8_t digest[32]) {
  return Guarded<prefixd_status>(
      PREFIXD_INTERNAL, [&] { return GiveDigest(prefixd::DigestFile(Text(path)), digest); });
}

}  // extern "C"
