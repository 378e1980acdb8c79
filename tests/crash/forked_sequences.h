// Sequences that share their beginnings, for many workers on one tree: K and V of every token
// follow from the family up to where the sequence forks off, and from the branch behind it. Every
// worker that makes a sequence makes the same bytes, and whoever reads them can tell.
//
// Thread-safe once constructed.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "bench/common/stored_sequences.h"
#include "prefixd/client.h"

namespace prefixd::bench {

struct ForkedName {
  uint32_t family = 0;
  uint32_t branch = 0;
  uint32_t shared_tokens = 0;  // [0, shared_tokens) are the family's
  uint32_t tokens = 0;
};
std::vector<uint32_t> TokensOf(const ForkedName& name);

class ForkedPattern {
 public:
  explicit ForkedPattern(const Geometry& geometry);

  // Tokens [begin, name.tokens) in every layer, as a worker that computed them.
  Status Write(const ForkedName& name, uint32_t begin, Sequence* sequence) const;
  // Whether tokens [0, tokens) are what Write() wrote, in every layer.
  bool Matches(const ForkedName& name, uint32_t tokens, const Sequence& sequence) const;

 private:
  // K (tensor 0) or V (tensor 1) of a layer, as the client packs it: [kv_heads][count][...].
  class Packed;
  const std::byte* Row(const ForkedName& name, uint32_t token, uint64_t tensor_of_head) const;
  void Fill(const ForkedName& name, uint32_t layer, uint32_t begin, uint32_t count,
            Packed (&tensors)[2]) const;

  const Geometry geometry_;
  const RowBytes row_;
  std::vector<uint64_t> pattern_;
};

}  // namespace prefixd::bench
