// Match: one walk, one answer.
#include <algorithm>

#include "index/impl.h"

namespace prefixd::index {
namespace {

void Label(const Asked& asked, const Walk& walk, const WalkEnd& end, bool next_is_ghost,
           block::MatchAnswer& answer) {
  answer.matched_tokens = walk.matched();
  const bool whole = answer.matched_tokens == asked.size();
  const bool stored_end = end.declared || !end.goes_on;
  if (answer.matched_tokens == 0) {
    answer.kind = block::MatchKind::kNone;
  } else if (whole) {
    answer.kind = stored_end ? block::MatchKind::kExact : block::MatchKind::kSupersequence;
  } else {
    answer.kind = stored_end ? block::MatchKind::kPrefix : block::MatchKind::kLcp;
  }
  if (whole) {
    answer.ended_by = block::EndReason::kRequestEnded;
  } else if ((end.hole && asked.space->shape.AnyFull()) || next_is_ghost) {
    answer.ended_by = block::EndReason::kEvicted;
  } else if (end.goes_on && answer.matched_tokens > 0) {
    answer.ended_by = block::EndReason::kDiverged;
    answer.diverged_sequences = end.ends_beyond;
  } else {
    answer.ended_by = block::EndReason::kNeverStored;
  }
}

// Replaces reasons by kIndexLoading where what is missing may be on its way.
void SayLoading(block::MatchAnswer& answer) {
  if (answer.ended_by != block::EndReason::kRequestEnded) {
    answer.ended_by = block::EndReason::kIndexLoading;
  }
  for (block::Shortening& shortened : answer.shortened_by) {
    if (shortened.reason == block::ShortenReason::kEvicted ||
        shortened.reason == block::ShortenReason::kNoStateSnapshot ||
        shortened.reason == block::ShortenReason::kWindowGone) {
      shortened.reason = block::ShortenReason::kIndexLoading;
    }
  }
}

// Returns how many leading positions the two share. Looks at the content of `other` only as far as
// the tokens agree.
uint32_t Shared(const block::SequenceView& request, const block::SequenceView& other) {
  const uint32_t tokens = block::CommonPrefix({request.tokens, {}}, {other.tokens, {}});
  if (tokens == 0 || (request.content.empty() && other.content.empty())) return tokens;
  return block::CommonPrefix(request, Slice(other, 0, tokens).view());
}

// Returns how far from `from` on `other` has announced blocks in a form that the caller can use, at
// most `limit`; `from` if it has not announced the block there.
uint32_t AnnouncedBy(const Reservation& other, const Usable& usable, uint32_t block_tokens,
                     uint32_t limit, uint32_t from) {
  for (size_t i = from / block_tokens; i < other.blocks.size() && from < limit; ++i) {
    const block::BlockPlan& plan = other.blocks[i];
    if (other.states[i] != PlanState::kMissing || plan.state != block::BlockState::kYours) break;
    const bool wanted =
        std::all_of(usable.groups.begin(), usable.groups.end(), [&](const Usable::Group& group) {
          const uint32_t rung = plan.rungs[group.group];
          if (!group.full()) return true;
          return rung != block::kNoLimit && (group.rungs >> rung & 1) != 0;
        });
    if (!wanted) break;
    from = std::min(limit, plan.first_token + plan.tokens);
  }
  return from;
}

}  // namespace

bool PrefixIndex::Impl::NextBlockIsGhost(const Asked& asked, const Walk& walk) const {
  const auto size = static_cast<uint32_t>(asked.request.tokens.size());
  if (walk.base == size || ghosts.size() == 0) return false;
  const Slice next(asked.request, walk.base,
                   std::min(size, walk.base + walk.last->space()->shape.block_tokens));
  return ghosts.Contains(Hash(walk.last->hash, next.view()));
}

uint32_t PrefixIndex::Impl::AnnouncedUpTo(const Asked& asked, const Usable& usable,
                                          block::SessionId session, uint32_t from) const {
  struct Announcement {
    const Reservation* reservation;
    uint32_t shared;
  };
  const Space& space = *asked.space;
  std::vector<Announcement> announcements;
  for (const auto& [id, other] : reservations) {
    if (other->space != &space || other->session == session) continue;
    const uint32_t shared = Shared(asked.request, other->view());
    if (shared > from) announcements.push_back({other.get(), shared});
  }
  uint32_t up_to = from;
  // One writer's announcement may go on where another's stops, so again until nothing is gained.
  for (bool gained = true; gained;) {
    gained = false;
    for (const Announcement& announcement : announcements) {
      const uint32_t reach = AnnouncedBy(*announcement.reservation, usable,
                                         space.shape.block_tokens, announcement.shared, up_to);
      gained |= reach > up_to;
      up_to = reach;
    }
  }
  return up_to;
}

block::MatchAnswer PrefixIndex::Impl::Answer(const Asked& asked, const Walk& walk,
                                             const Usable& usable, const MatchOptions& options,
                                             block::SessionId session, RestorablePath& path) const {
  const uint32_t block_tokens = asked.space->shape.block_tokens;
  uint32_t restorable = path.tokens;
  block::MatchAnswer answer;
  Label(asked, walk, LookAtEnd(walk, block_tokens, asked.request), NextBlockIsGhost(asked, walk),
        answer);
  answer.restorable_tokens = answer.matched_tokens;
  if (!usable.regular) {
    path = ShortenToMixed(asked, walk, usable, options, answer);
    restorable = answer.restorable_tokens;
  } else if (path.tokens < walk.matched()) {
    if (usable.has_mask) {
      const RestorablePath any = FindRestorable(walk, block_tokens, asked.request, AnyRung(usable));
      Shorten(any.tokens, block::ShortenReason::kEvicted, any.missing_group, answer);
    }
    Shorten(restorable,
            usable.has_mask ? block::ShortenReason::kFormat : block::ShortenReason::kEvicted,
            path.missing_group, answer);
  }
  Shorten(options.max_tokens, block::ShortenReason::kMaxTokens, block::kAllGroups, answer);
  if (!options.causal_content) {
    Shorten(CutOutsideContent(asked.request.content, answer.restorable_tokens),
            block::ShortenReason::kAtomicContent, block::kAllGroups, answer);
  }
  if (!reservations.empty()) {
    const uint32_t announced = AnnouncedUpTo(asked, usable, session, restorable);
    if (announced > restorable) {
      answer.pending_tokens = std::min(announced, options.max_tokens) - answer.restorable_tokens;
    }
  }
  if (loading) SayLoading(answer);
  CountTiers(path, answer);
  return answer;
}

block::MatchAnswer PrefixIndex::Match(block::SpaceHandle handle, const block::SequenceView& request,
                                      const MatchOptions& options, block::SessionId session) const {
  block::MatchAnswer answer;
  impl_->combiner.Run([&]() PREFIXD_REQUIRES(impl_->mutex) {
    answer = impl_->Match(handle, request, options, session);
  });
  return answer;
}

block::MatchAnswer PrefixIndex::Impl::Match(block::SpaceHandle handle,
                                            const block::SequenceView& request,
                                            const MatchOptions& options,
                                            block::SessionId session) const {
  Space* const space = FindSpace(handle);
  if (space == nullptr) return {};
  const Asked asked{space, request};
  const uint32_t block_tokens = space->shape.block_tokens;
  const Walk walk = WalkDown(space->root, block_tokens, request);
  const Usable usable = UsableOf(space->shape, options.selection);
  RestorablePath path;
  if (usable.regular) path = FindRestorable(walk, block_tokens, request, usable);
  return Answer(asked, walk, usable, options, session, path);
}

}  // namespace prefixd::index
