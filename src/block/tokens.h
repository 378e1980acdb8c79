// Tokens and content keys: what a prefix is made of. They are stored, and compared on every hit.
//
// Plain values and pure functions.
#pragma once
#include <compare>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"

#include "base/checksum.h"

namespace prefixd::block {

using Token = uint32_t;

// Non-token input (an image, audio) under a range of placeholder tokens. Two prefixes with equal
// tokens and different content are different prefixes.
struct ContentKey {
  uint32_t start = 0;        // first token of the range, from the start of the sequence (or block)
  uint32_t item_offset = 0;  // how much of an item that a block border cuts is before `start`
  uint32_t length = 0;       // tokens
  base::Digest256 digest{};  // SHA-256 of the item
  auto operator<=>(const ContentKey&) const = default;
};
// A content key takes so many bytes where it is hashed and stored.
inline constexpr size_t kContentKeyBytes = 3 * sizeof(uint32_t) + sizeof(base::Digest256);

// A token sequence as a caller passes it: content keys in order of start, not overlapping, inside
// the tokens.
struct SequenceView {
  std::span<const Token> tokens;
  std::span<const ContentKey> content;
};

// Returns InvalidArgument naming the key that is empty, out of order, overlapping, past the end, or
// that continues the key before it in the same item. Content has one spelling, so that equal
// sequences have equal keys and equal hashes. CutContent of valid keys is valid.
absl::Status ValidateContent(const SequenceView& sequence);

// Returns the content keys that overlap [begin, end), cut to that range, with starts relative to
// `begin` and item_offset moved along. Costs a binary search and the returned keys, so a long
// sequence can be cut block by block. Requires: keys in order of start, not overlapping.
std::vector<ContentKey> CutContent(std::span<const ContentKey> content, uint32_t begin,
                                   uint32_t end);

// Both functions below compare position by position, so they also accept keys that ValidateContent
// refuses because one continues another. Cost without content: one pass at memory-compare speed.
//
// Returns how many leading positions of `a` and `b` agree in token and in content (item digest and
// place in the item).
uint32_t CommonPrefix(const SequenceView& a, const SequenceView& b);
// Orders sequences by the first position that differs: by token, then no content before content,
// then by digest, then by place in the item. A proper prefix comes first. The sequences that share
// the most with x are next to x in this total order.
std::strong_ordering Compare(const SequenceView& a, const SequenceView& b);

}  // namespace prefixd::block
