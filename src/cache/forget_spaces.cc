// Spaces come with every user's salt and would stay for ever: what is empty and open nowhere is
// forgotten, in the index, in the arena's table and on SSD.
//
// Nobody walks all of them for it: each new space pays for a few looks.
#include <algorithm>

#include "base/bytes.h"
#include "base/size.h"
#include "base/status.h"
#include "cache/core.h"

namespace prefixd::cache {
namespace {

constexpr size_t kLooks = 8;         // of each new space
constexpr size_t kManyLooks = 1024;  // where there is no room for one more
constexpr size_t kLeastOpen = 16;    // that every session may have open

std::string MetaKey(const block::SpaceId& id) { return "space/" + base::ToHex(id); }

// The one that the session used longest ago is not open any more: its handle means nothing to it
// until it opens it again.
void CloseOne(Session* session) {
  const auto oldest = std::ranges::min_element(session->spaces, {},
                                               [](const auto& entry) { return entry.second.used; });
  session->spaces_bytes -= oldest->second.space->memory_bytes;
  session->spaces.erase(oldest);
}

}  // namespace

absl::Status Core::MakeSpaceRoom(const SessionPtr& session, uint64_t bytes) {
  const uint64_t most = MostSpaceBytes();
  const auto left = [&] { return most - std::min(most, known_space_bytes.load()); };
  {
    base::MutexLock lock(mutex);
    // What it closes is forgotten later, and counts as left for now.
    uint64_t closed = 0;
    while (session->spaces.size() > kLeastOpen && session->spaces_bytes + bytes > left() + closed) {
      const uint64_t before = session->spaces_bytes;
      CloseOne(session.get());
      closed += before - session->spaces_bytes;
    }
  }
  ForgetEmptySpaces(kLooks);
  if (left() < bytes) ForgetEmptySpaces(kManyLooks);
  if (left() >= bytes) return absl::OkStatus();
  counters.Add("refused.spaces");
  return absl::ResourceExhaustedError(absl::StrCat(
      "open_space: the spaces that are known take ", base::FormatBytes(known_space_bytes),
      " of memory, at most ", base::FormatBytes(most),
      " (a part of --ram); end sessions that do not need "
      "theirs, or try again later"));
}

void Core::ForgetEmptySpaces(size_t looks) {
  base::MutexLock forgetting(space_mutex);
  for (size_t i = 0; i < looks; ++i) {
    SpacePtr space;
    {
      base::MutexLock lock(mutex);
      if (i >= spaces_by_id.size()) return;  // all were looked at
      auto next = spaces_by_id.upper_bound(forget_cursor);
      if (next == spaces_by_id.end()) next = spaces_by_id.begin();
      forget_cursor = next->first;
      if (next->second.use_count() > 2) continue;  // somebody has it beside both tables
      space = next->second;
    }
    if (index->IsEmpty(space->handle)) ForgetSpace(std::move(space));
  }
}

// Who has no pointer to it can get one from the tables only, and who adds a block has one.
bool Core::ForgetSpace(SpacePtr space) {
  {
    base::MutexLock lock(mutex);
    if (space.use_count() > 3) return false;  // both tables and this one
    spaces_by_id.erase(space->id);
    spaces.erase(space->handle);
  }
  if (!index->ForgetSpace(space->handle)) {  // it has limits, or was used between both looks
    base::MutexLock lock(mutex);
    spaces_by_id[space->id] = space;
    spaces[space->handle] = space;
    return false;
  }
  if (space->ordinal != ram::Arena::kNoSpace) arena->RemoveSpace(space->ordinal);
  worth.Forget(space->handle);
  known_space_bytes -= space->memory_bytes;
  counters.Add("spaces.forgotten");
  if (!space->saved) return true;
  base::MutexLock lock(mutex);
  forgotten_spaces.push_back(space->id);
  return true;
}

absl::Status Core::SaveSpace(const SpaceInfo& space) {
  PREFIXD_RETURN_IF_ERROR(store->PutMeta(MetaKey(space.id), block::Encode(space.identity)));
  space.saved = true;
  return absl::OkStatus();
}

absl::Status Core::SaveSpaces(std::span<const index::SpillBlock> blocks) {
  std::vector<std::string> gone;
  {
    base::MutexLock lock(mutex);
    for (const block::SpaceId& id : forgotten_spaces) gone.push_back(MetaKey(id));
    forgotten_spaces.clear();
  }
  // An identity too many on SSD costs the next start one space, which it forgets.
  if (!gone.empty() && !store->DeleteMeta(gone).ok()) counters.Add("ssd.write_errors");
  const block::SpaceId* last = nullptr;
  for (const index::SpillBlock& block : blocks) {
    if (last != nullptr && *last == block.space) continue;
    last = &block.space;
    const SpacePtr space = SpaceOf(block.space);
    if (space != nullptr && !space->saved) PREFIXD_RETURN_IF_ERROR(SaveSpace(*space));
  }
  return absl::OkStatus();
}

}  // namespace prefixd::cache
