// Models that workers serve without sharing their caches: kept with the session, for people.
#include "base/status.h"
#include "cache/core.h"

namespace prefixd::cache {

absl::StatusOr<bool> Core::NoteReason(const SessionPtr& session, const block::NotShared& note,
                                      std::string NotSharedNote::*part) {
  base::MutexLock lock(mutex);
  auto& notes = session->not_shared;
  auto known = notes.find(note.model);
  if (known == notes.end()) {
    if (note.reason.empty()) return false;
    if (notes.size() >= kMaxNotShared) {
      return absl::ResourceExhaustedError(absl::StrCat("not_shared: the session has notes on ",
                                                       notes.size(), " models, at most ",
                                                       kMaxNotShared));
    }
    known = notes.emplace(note.model, NotSharedNote{}).first;
  }
  const std::string before = known->second.reason();
  known->second.*part = note.reason;
  const std::string after = known->second.reason();
  if (after.empty()) notes.erase(known);
  return after != before;
}

absl::StatusOr<bool> Cache::NoteNotShared(block::SessionId id, const block::NotShared& note) {
  PREFIXD_ASSIGN_OR_RETURN(const SessionPtr session, core_->FindSession(id, "not_shared"));
  return core_->NoteReason(session, note, &NotSharedNote::said);
}

bool Cache::NoteRefused(block::SessionId id, const block::NotShared& note) {
  const absl::StatusOr<SessionPtr> session = core_->FindSession(id, "open_space");
  if (!session.ok()) return false;
  const absl::StatusOr<bool> news = core_->NoteReason(*session, note, &NotSharedNote::refused);
  return news.ok() && *news;
}

}  // namespace prefixd::cache
