// What is empty and open nowhere is forgotten, in the index, in the arena's table and on SSD.
// Nobody walks all spaces for it: each new one pays for a few looks.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/bytes.h"
#include "base/size.h"
#include "base/status.h"
#include "cache/tables/spaces.h"

namespace prefixd::cache {
namespace {

constexpr size_t kLooks = 8;         // of each new space
constexpr size_t kManyLooks = 1024;  // if there is no room for one more
constexpr size_t kLeastOpen = 16;    // that every session may have open

std::string MetaKey(const block::SpaceId& id) { return "space/" + base::ToHex(id); }

// Closes the one that the session used longest ago: its handle means nothing to the session until
// it opens the space again.
void CloseOne(Session* session) {
  const auto oldest = std::ranges::min_element(session->spaces, {},
                                               [](const auto& entry) { return entry.second.used; });
  session->spaces_bytes -= oldest->second.space->memory_bytes;
  session->spaces.erase(oldest);
}

}  // namespace

absl::Status Spaces::MakeRoom(const SessionPtr& session, uint64_t bytes) {
  const uint64_t most = MostBytes();
  const auto left = [&] { return most - std::min(most, known_bytes_.load()); };
  {
    base::MutexLock lock(mutex_);
    // What it closes is forgotten later, and counts as left for now.
    uint64_t closed = 0;
    while (session->spaces.size() > kLeastOpen && session->spaces_bytes + bytes > left() + closed) {
      const uint64_t before = session->spaces_bytes;
      CloseOne(session.get());
      closed += before - session->spaces_bytes;
    }
  }
  ForgetEmpty(kLooks);
  if (left() < bytes) ForgetEmpty(kManyLooks);
  if (left() >= bytes) return absl::OkStatus();
  context_->counters.Add("refused.spaces");
  return absl::ResourceExhaustedError(
      absl::StrCat("open_space: the spaces that are known take ", base::FormatBytes(known_bytes_),
                   " of memory, at most ", base::FormatBytes(most),
                   " (a part of --ram); end sessions that do not need "
                   "theirs, or try again later"));
}

void Spaces::ForgetEmpty(size_t looks) {
  base::MutexLock forgetting(adding_mutex_);
  for (size_t i = 0; i < looks; ++i) {
    SpacePtr space;
    {
      base::MutexLock lock(mutex_);
      if (i >= by_id_.size()) return;  // all were looked at
      auto next = by_id_.upper_bound(forget_cursor_);
      if (next == by_id_.end()) next = by_id_.begin();
      forget_cursor_ = next->first;
      if (next->second.use_count() > 1) continue;  // somebody has it beside the table
      space = next->second;
    }
    if (context_->index->IsEmpty(space->handle)) Forget(std::move(space));
  }
}

// Whoever has no pointer to it can get one from the table only, and whoever adds a block has one.
bool Spaces::Forget(SpacePtr space) {
  {
    base::MutexLock lock(mutex_);
    if (space.use_count() > 2) return false;  // somebody has it beside the table and this call
    by_id_.erase(space->id);
  }
  if (!context_->index->ForgetSpace(space->handle)) {  // it has limits, or was used meanwhile
    base::MutexLock lock(mutex_);
    by_id_[space->id] = space;
    return false;
  }
  if (space->ordinal != ram::Arena::kNoSpace) context_->arena->RemoveSpace(space->ordinal);
  worth_->Forget(space->handle);
  known_bytes_ -= space->memory_bytes;
  context_->counters.Add("spaces.forgotten");
  if (!space->saved) return true;
  base::MutexLock lock(mutex_);
  forgotten_.push_back(space->id);
  return true;
}

absl::Status Spaces::Save(const SpaceInfo& space) {
  PREFIXD_RETURN_IF_ERROR(
      context_->store->PutMeta(MetaKey(space.id), block::Encode(space.identity)));
  space.saved = true;
  return absl::OkStatus();
}

absl::Status Spaces::SaveThoseOf(std::span<const index::SpillBlock> blocks) {
  std::vector<std::string> gone;
  {
    base::MutexLock lock(mutex_);
    for (const block::SpaceId& id : forgotten_) gone.push_back(MetaKey(id));
    forgotten_.clear();
  }
  // An identity too many on SSD costs the next start one space, which it forgets.
  if (!gone.empty() && !context_->store->DeleteMeta(gone).ok()) {
    context_->counters.Add("ssd.write_errors");
  }
  const block::SpaceId* last = nullptr;
  for (const index::SpillBlock& block : blocks) {
    if (last != nullptr && *last == block.space) continue;
    last = &block.space;
    const SpacePtr space = Find(block.space);
    if (space != nullptr && !space->saved) PREFIXD_RETURN_IF_ERROR(Save(*space));
  }
  return absl::OkStatus();
}

}  // namespace prefixd::cache
