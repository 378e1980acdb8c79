// The restorable length: how far the pages that a caller can use reach along its request. Decided
// here and nowhere else.
//
// Internal to index/. Pure functions over the tree; the caller holds the index's mutex.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "index/space.h"
#include "index/walk.h"

namespace prefixd::index {

// Blocks whose pages hold [0, tokens), in order. All but the last are the blocks of the request
// itself; the last may be a donor: a sibling that shares only its first tokens with the request.
struct RestorablePath {
  std::vector<Node*> blocks;
  // Block by block, one for each selected group. nullptr: a sliding or state group's, and not
  // needed there.
  std::vector<Page*> pages;
  uint32_t tokens = 0;  // from where the walk began
  // Where it stops before the end of the walk: the group whose page is missing, or kAllGroups when
  // none of the selected ones is there.
  uint32_t missing_group = block::kAllGroups;
};

// Where every selected group is FULL. They need every token of [0, r). For each block one node
// gives the pages of all groups: the block itself, or where it cannot serve or there is none, that
// child of the same parent which serves and shares the most tokens; there the path ends. (Two
// siblings together could serve more groups than one, never more than the longest of them holds; a
// length that only such a mix reaches is given up.)
RestorablePath FindRestorable(const Walk& walk, uint32_t block_tokens,
                              const block::SequenceView& request, const Usable& usable);

// Any groups, of a walk from the root: the largest r <= `tokens` for which
//   every FULL group has all of [0, r),
//   every SLIDING group has each block of [r - window, r) and of its sinks before r,
//   every STATE group has a snapshot at exactly r,
// and which cuts no content range unless that is causal. The last block's pages are all of one
// node, those before it of the request's own blocks.
RestorablePath FindAtMost(const Asked& asked, const Walk& walk, const Usable& usable,
                          uint32_t tokens, bool causal_content);
// The lengths that are right for one request, from the longest down: what each question costs is
// what it passes over. Same rules as FindRestorable and FindAtMost.
class MixedSearch;
class RightLengths {
 public:
  // None is longer than `most`. Where every group is FULL, `most` and all below it are restorable
  // and the walk is not looked at; the referenced objects outlive this.
  RightLengths(const Asked& asked, const Walk& walk, const Usable& usable, uint32_t most,
               bool causal_content);
  ~RightLengths();
  RightLengths(RightLengths&&) noexcept;

  // The longest of at most `tokens`. Requires: no more than was asked for before.
  uint32_t AtMost(uint32_t tokens);

 private:
  const Asked* asked_;
  uint32_t most_;
  bool causal_content_;
  std::unique_ptr<MixedSearch> search_;  // null: every group is FULL
};
// The same below answer.restorable_tokens and max_tokens; what each kind of group costs is said.
RestorablePath ShortenToMixed(const Asked& asked, const Walk& walk, const Usable& usable,
                              const MatchOptions& options, block::MatchAnswer& answer);

// Cuts restorable_tokens to `to` if it is more, and says why.
void Shorten(uint32_t to, block::ShortenReason reason, uint32_t group, block::MatchAnswer& answer);
// Cuts to the quota, then out of content ranges as `options` says; pending_tokens then mean
// nothing.
void ShortenToQuota(uint32_t to, const Asked& asked, const RestorablePath& path,
                    const MatchOptions& options, block::MatchAnswer& answer);
// Bytes of the path's pages of [0, restorable_tokens) by tier.
void CountTiers(const RestorablePath& path, block::MatchAnswer& answer);

// `tokens`, or the start of the content range of the request that it would cut. Both count from the
// start of the sequence; ranges may begin before the tail.
uint32_t CutOutsideContent(const Asked& asked, uint32_t tokens);

}  // namespace prefixd::index
