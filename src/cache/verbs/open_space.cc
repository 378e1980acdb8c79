// OpenSpace: an identity to a handle.
#include <utility>

#include "base/status.h"
#include "cache/verbs/verbs.h"

namespace prefixd::cache::verbs {

absl::StatusOr<OpenedSpace> OpenSpace(const Context& context, Tables& tables, block::SessionId id,
                                      block::SpaceIdentity identity) {
  PREFIXD_ASSIGN_OR_RETURN(const SessionPtr session, tables.sessions.Find(id, "open_space"));
  if (identity.block_tokens == 0) identity.block_tokens = context.options.block_tokens;
  PREFIXD_RETURN_IF_ERROR(block::NormalizeAndValidate(&identity));
  return tables.spaces.Open(session, identity);
}

}  // namespace prefixd::cache::verbs
