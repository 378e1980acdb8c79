// The restorable length: how far the pages that a caller can use reach along its request. It is
// decided here and nowhere else.
//
// Internal to index/. Pure functions over the tree; the caller holds the index's mutex.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "index/space.h"
#include "index/walk.h"

namespace prefixd::index {

// Blocks whose pages hold [0, tokens), in order. All but the last are the request's own blocks; the
// last may be a donor: a sibling that shares only its first tokens with the request.
struct RestorablePath {
  std::vector<Node*> blocks;
  // Block by block, one page for each selected group; nullptr if it is a sliding or state group's
  // and not needed there.
  std::vector<Page*> pages;
  uint32_t tokens = 0;
  // If the path stops before the end of the walk: the group whose page is missing, or kAllGroups if
  // no selected group has a page.
  uint32_t missing_group = block::kAllGroups;
};

// Returns how many of the path's blocks begin before `tokens`.
size_t BlocksBefore(const RestorablePath& path, uint32_t tokens);

// Finds the longest path if every selected group is FULL: they need every token of [0, r). For each
// block one node gives the pages of all groups. If the block itself does not exist or cannot serve,
// the path ends with the child of the same parent which serves and shares the most tokens. (Two
// siblings together could serve more groups than one, but no more tokens than the longer of them
// holds. A length that only such a mix reaches is given up.)
RestorablePath FindRestorable(const Walk& walk, uint32_t block_tokens,
                              const block::SequenceView& request, const Usable& usable);

// Finds the path for any groups: the largest r <= `tokens` for which
//   every FULL group has all of [0, r),
//   every SLIDING group has each block of [r - window, r) and of its sinks before r,
//   every STATE group has a snapshot at exactly r,
// and which cuts no content range, unless `causal_content`. One node has all pages of the last
// block; those before it are of the request's own blocks.
RestorablePath FindAtMost(const Asked& asked, const Walk& walk, const Usable& usable,
                          uint32_t tokens, bool causal_content);
// The restorable lengths of one request from the longest down, by the rules of FindRestorable and
// FindAtMost. Each call costs what it passes over.
class MixedSearch;
class RightLengths {
 public:
  // No length is longer than `most`. If every group is FULL, `most` and all below it must be
  // restorable, and the walk is not looked at. The referenced objects must outlive this one.
  RightLengths(const Asked& asked, const Walk& walk, const Usable& usable, uint32_t most,
               bool causal_content);
  ~RightLengths();
  RightLengths(RightLengths&&) noexcept;

  // Returns the longest length of at most `tokens`. Requires: `tokens` never grows between calls.
  uint32_t AtMost(uint32_t tokens);

 private:
  const Asked* asked_;
  uint32_t most_;
  bool causal_content_;
  std::unique_ptr<MixedSearch> search_;  // null if every group is FULL
};
// Finds the path for any groups within answer.restorable_tokens and options.max_tokens. Shortens
// the answer to it and says what each kind of group costs.
RestorablePath ShortenToMixed(const Asked& asked, const Walk& walk, const Usable& usable,
                              const MatchOptions& options, block::MatchAnswer& answer);

// Cuts restorable_tokens to `to` if it is more, and adds the reason to shortened_by.
void Shorten(uint32_t to, block::ShortenReason reason, uint32_t group, block::MatchAnswer& answer);
// Cuts to the quota, then out of a content range unless options.causal_content. After a cut
// pending_tokens is 0.
void ShortenToQuota(uint32_t to, const Asked& asked, const RestorablePath& path,
                    const MatchOptions& options, block::MatchAnswer& answer);
// Sets ram_bytes and ssd_bytes: the path's pages of [0, restorable_tokens).
void CountTiers(const RestorablePath& path, block::MatchAnswer& answer);

// Returns `tokens`, or the start of the content range that a cut there would cut.
uint32_t CutOutsideContent(std::span<const block::ContentKey> content, uint32_t tokens);

}  // namespace prefixd::index
