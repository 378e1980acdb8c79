// Prefetch: a hint that a queued request will come.
#include <memory>
#include <utility>

#include "base/status.h"
#include "cache/verbs/request.h"
#include "cache/verbs/verbs.h"

namespace prefixd::cache::verbs {

absl::StatusOr<Prefetched> Prefetch(Context& context, Tables& tables, Loader& loader,
                                    block::SessionId id, const Request& request) {
  PREFIXD_ASSIGN_OR_RETURN(const SessionPtr session, tables.sessions.Find(id, "prefetch"));
  PREFIXD_ASSIGN_OR_RETURN(const SpacePtr space, tables.spaces.Find(*session, request.space));
  PREFIXD_RETURN_IF_ERROR(CheckSequence({request.tokens, request.content}));
  PREFIXD_RETURN_IF_ERROR(CheckSelection(*space, request.groups, request.readable));
  // No quota of the caller counts a hint.
  const block::SessionId owner = context.NewOwner();
  index::Acquired held = context.index->Acquire(request.space, {request.tokens, request.content},
                                                OptionsOf(request, block::kNoSlot), owner);
  context.counters.Add("prefetches");
  Prefetched answer{.restorable_tokens = held.answer.restorable_tokens};
  if (!held.lease) return answer;
  PrefetchHint hint{.lease = std::make_shared<Lease>(&context, held.lease, nullptr),
                    .space = space,
                    .pages = std::move(held.pages)};
  uint32_t tokens = answer.restorable_tokens;
  hint.bytes = loader.BoundPrefetch(hint.pages, &tokens);
  if (!space->regular && tokens < answer.restorable_tokens) {  // worth nothing before its end
    tokens = 0;
    hint.bytes = 0;
  }
  answer.tokens = tokens;
  answer.bytes = hint.bytes;
  std::erase_if(hint.pages, [tokens](const index::PageInfo& page) {
    return page.state != index::PageState::kSsd || page.first_token >= tokens;
  });
  if (hint.pages.empty()) return answer;
  if (tokens < answer.restorable_tokens)
    PREFIXD_RETURN_IF_ERROR(context.index->ShrinkLease(held.lease, tokens));
  context.counters.AddAll({{"prefetch.pages", hint.pages.size()}, {"prefetch.bytes", hint.bytes}});
  loader.Prefetch(std::move(hint));
  return answer;
}

}  // namespace prefixd::cache::verbs
