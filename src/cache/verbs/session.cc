// Sessions begin, and say which models they serve without sharing their caches.
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

}  // namespace prefixd::cache::verbs
