// OpenSpace: an identity to a handle. What other hosts opened, for people.
#include <algorithm>
#include <set>
#include <utility>

#include "base/status.h"
#include "cache/verbs/verbs.h"

namespace prefixd::cache::verbs {

absl::StatusOr<OpenedSpace> OpenSpace(const Context& context, Tables& tables, Room& room,
                                      SpaceBoard& board, block::SessionId id,
                                      block::SpaceIdentity identity) {
  PREFIXD_ASSIGN_OR_RETURN(const SessionPtr session, tables.sessions.Find(id, "open_space"));
  if (identity.block_tokens == 0) identity.block_tokens = context.options.block_tokens;
  PREFIXD_RETURN_IF_ERROR(block::NormalizeAndValidate(&identity));
  room.FitIndex({.space_bytes = tables.spaces.MemoryWith(identity)});
  absl::StatusOr<OpenedSpace> opened = tables.spaces.Open(session, identity);
  if (opened.ok()) board.Opened(identity);
  return opened;
}

absl::StatusOr<std::vector<ToldSpace>> SpacesOfOthers(const Tables& tables, SpaceBoard& board,
                                                      const Patience& patience) {
  PREFIXD_ASSIGN_OR_RETURN(std::vector<ToldSpace> told, board.Read(patience.until()));
  std::set<block::SpaceId> here;
  for (const SpacePtr& space : tables.spaces.All()) {
    here.insert(block::IdOf(WithoutSalt(space->identity)));
  }
  std::erase_if(
      told, [&here](const ToldSpace& space) { return here.contains(block::IdOf(space.identity)); });
  return told;
}

}  // namespace prefixd::cache::verbs
