#include "not_shared.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "base/utf8.h"
#include "block/limits.h"
#include "block/space_identity.h"
#include "wire/limits.h"

namespace prefixd::client {
namespace {

constexpr std::chrono::milliseconds kTellDeadline{200};

// True if the daemon may not have received the note, or may yet forget it.
bool IsWorthAnotherTry(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsCancelled(status);
}

}  // namespace

void NotShared::Begin(const Session& session) {
  {
    base::MutexLock lock(mutex_);
    session_ = session;
    std::erase_if(notes_, [](const auto& entry) { return entry.second.reason().empty(); });
    for (auto& [model, note] : notes_) note.told = false;
  }
  TellAll();
}

void NotShared::End() {
  base::MutexLock lock(mutex_);
  session_.reset();
}

absl::Status NotShared::Say(const std::string& model, const std::string& reason) {
  if (model.empty()) return absl::InvalidArgumentError("not_shared: no model named");
  return Put(model, reason, &Note::said);
}

void NotShared::Refused(const std::string& model, const std::string& sentence) {
  Put(model.empty() ? "(unnamed)" : model, sentence, &Note::refused).IgnoreError();
}

absl::Status NotShared::Put(const std::string& model, const std::string& reason,
                            std::string Note::*part) {
  const std::string name = base::Utf8Prefix(model, block::kMaxModelBytes);
  {
    base::MutexLock lock(mutex_);
    auto known = notes_.find(name);
    if (known == notes_.end()) {
      if (reason.empty()) return absl::OkStatus();
      std::erase_if(notes_, [](const auto& entry) {
        return entry.second.reason().empty() && entry.second.told;
      });
      if (notes_.size() >= block::kMaxNotShared) {
        return absl::ResourceExhaustedError(absl::StrCat("not_shared: ", notes_.size(),
                                                         " models are not shared, at most ",
                                                         block::kMaxNotShared));
      }
      known = notes_.emplace(name, Note{}).first;
    }
    const std::string before = known->second.reason();
    known->second.*part = base::Utf8Prefix(reason, wire::kMaxReasonBytes);
    if (known->second.reason() != before) known->second.told = false;
  }
  TellAll();
  return absl::OkStatus();
}

std::optional<NotShared::Telling> NotShared::NextTelling() {
  base::MutexLock lock(mutex_);
  for (auto& [model, note] : notes_) {
    if (note.told || !session_) continue;
    note.told = true;
    Telling next{.session = *session_, .request = {}};
    next.request.set_session(session_->id);
    next.request.set_model(model);
    next.request.set_reason(note.reason());
    return next;
  }
  telling_ = false;
  return std::nullopt;
}

bool NotShared::TryLater(const Telling& failed) {
  base::MutexLock lock(mutex_);
  if (const auto note = notes_.find(failed.request.model()); note != notes_.end())
    note->second.told = false;
  if (session_ && *session_ != failed.session) return false;
  telling_ = false;
  return true;
}

void NotShared::TellAll() {
  {
    base::MutexLock lock(mutex_);
    if (telling_) return;  // the thread that tells will tell this too
    telling_ = true;
  }
  while (const std::optional<Telling> next = NextTelling()) {
    const absl::Status told = connection_
                                  ->Call(&Connection::Stub::NotShared, next->session, next->request,
                                         std::chrono::steady_clock::now() + kTellDeadline)
                                  .status();
    if (IsWorthAnotherTry(told) && TryLater(*next)) return;
  }
}

}  // namespace prefixd::client
