// Sessions begin, say which models they serve without sharing their caches, and what they have
// pinned for devices.
#include <span>

#include "absl/strings/str_cat.h"

#include "base/status.h"
#include "cache/verbs/verbs.h"

namespace prefixd::cache::verbs {

BegunSession BeginSession(const Context& context, IndexLoader& index_loader, Sessions& sessions,
                          const SessionOptions& options) {
  // What an earlier session held is known once the index is loaded.
  if (options.resume.has_value() && options.wants_arena && context.arena->shared()) {
    index_loader.WaitLoaded(std::chrono::steady_clock::now() + context.options.resume_within);
  }
  return sessions.Begin(options);
}

absl::StatusOr<bool> NoteNotShared(Sessions& sessions, block::SessionId id,
                                   const block::NotShared& note) {
  PREFIXD_ASSIGN_OR_RETURN(const SessionPtr session, sessions.Find(id, "not_shared"));
  return sessions.NoteReason(session, note, &NotSharedNote::said);
}

bool NoteRefused(Sessions& sessions, block::SessionId id, const block::NotShared& note) {
  const absl::StatusOr<SessionPtr> session = sessions.Find(id, "open_space");
  if (!session.ok()) return false;
  const absl::StatusOr<bool> news = sessions.NoteReason(*session, note, &NotSharedNote::refused);
  return news.ok() && *news;
}

absl::Status SetDevicePins(const Context& context, const Sessions& sessions, Room& room,
                           block::SessionId id, std::string_view slabs) {
  PREFIXD_ASSIGN_OR_RETURN(const SessionPtr session, sessions.Find(id, "device_pins"));
  if (session->slot == nullptr) {
    return absl::FailedPreconditionError("device_pins: the session does not map the arena");
  }
  const uint64_t bits = context.arena->slabs(), most = (bits + 7) / 8;
  if (slabs.size() > most ||
      (slabs.size() == most && bits % 8 != 0 && static_cast<uint8_t>(slabs.back()) >> bits % 8)) {
    return absl::InvalidArgumentError(
        absl::StrCat("device_pins: ", slabs.size(), " bytes name slabs beyond the arena's ", bits));
  }
  context.arena->SetDevicePins(session->slot->slot(), std::as_bytes(std::span(slabs)));
  room.SlabsChanged();
  return absl::OkStatus();
}

}  // namespace prefixd::cache::verbs
