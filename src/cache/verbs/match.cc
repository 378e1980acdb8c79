// Match: what is there, changing nothing.
#include "base/status.h"
#include "cache/verbs/request.h"
#include "cache/verbs/verbs.h"

namespace prefixd::cache::verbs {

absl::StatusOr<block::MatchAnswer> Match(Context& context, Tables& tables, Room& room,
                                         const LoadModel& model, block::SessionId id,
                                         const Request& request) {
  PREFIXD_ASSIGN_OR_RETURN(const SessionPtr session, tables.sessions.Find(id, "match"));
  PREFIXD_ASSIGN_OR_RETURN(const SpacePtr space, tables.spaces.Find(*session, request.space));
  PREFIXD_RETURN_IF_ERROR(CheckSequence({request.tokens, request.content}));
  PREFIXD_RETURN_IF_ERROR(CheckSelection(*space, request.groups, request.readable));
  room.KeepLimits();
  block::MatchAnswer answer = context.index->Match(request.space, {request.tokens, request.content},
                                                   OptionsOf(request, block::kNoSlot), id);
  answer.load_us = model.EstimateMicros(answer.ram_bytes, answer.ssd_bytes);
  context.counters.Add("matches");
  return answer;
}

}  // namespace prefixd::cache::verbs
