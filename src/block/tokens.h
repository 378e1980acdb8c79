// Tokens and content keys: what a prefix is made of, stored and compared on every hit.
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
  uint32_t start =
      0;  // first token of the range, counted from the start of the sequence (or block)
  uint32_t item_offset =
      0;  // how much of the item stands before `start` (an item cut by a block border)
  uint32_t length = 0;       // tokens
  base::Digest256 digest{};  // SHA-256 of the item
  auto operator<=>(const ContentKey&) const = default;
};

// A token sequence as a caller gives it: content keys in order of start, not overlapping, inside
// the tokens.
struct SequenceView {
  std::span<const Token> tokens;
  std::span<const ContentKey> content;
};

// InvalidArgument naming the key that is empty, out of order, overlapping, past the end, or that
// goes on exactly where the key before it stops in the same item: one spelling for one content, so
// that equal sequences have equal keys and equal hashes. CutContent of valid keys is valid.
absl::Status ValidateContent(const SequenceView& sequence);

// The content keys that overlap [begin, end) of `content`, cut to it, with starts relative to
// `begin` and item_offset moved along. Costs the keys that it returns: a long sequence is cut block
// by block. Requires: keys in order of start, not overlapping.
std::vector<ContentKey> CutContent(std::span<const ContentKey> content, uint32_t begin,
                                   uint32_t end);

// Both below compare position by position, so they also hold for keys that ValidateContent refuses
// as split. Cost without content: one pass at memory-compare speed.
//
// How many leading positions of `a` and `b` agree in token and in content (item digest and place in
// the item).
uint32_t CommonPrefix(const SequenceView& a, const SequenceView& b);
// Total order by the first position that differs (token, then no content before content, then
// digest, then place in the item); a proper prefix comes first. Sequences that share the most with
// x are neighbours of x in this order.
std::strong_ordering Compare(const SequenceView& a, const SequenceView& b);

}  // namespace prefixd::block
