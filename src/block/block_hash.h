// Chained block hash: the first 16 bytes of SHA-256 over
//   key (32 bytes) | parent hash (16 bytes) | u32 n | n x u32 token | u32 m | m x content key
// little-endian, a content key being u32 start (in the block), u32 item_offset, u32 length, 32-byte
// digest. The first block's parent is the first 16 bytes of SHA-256("prefixd/1/root" | space
// identity digest).
//
// The key is random and belongs to the cache that keeps the blocks (cache/hash_key.h): users choose
// tokens, so without it somebody could search for two blocks of one hash. The hash names blocks; it
// is still no proof that two are equal, nor does anything find its parent by it (index/node.h,
// serial).
//
// Thread-safe. Golden vectors: tests/block/golden_hashes.py.
#pragma once
#include "base/checksum.h"
#include "block/tokens.h"

namespace prefixd::block {

using BlockHash = base::Hash128;
using SpaceId = base::Digest256;  // SHA-256 of the encoded space identity
using HashKey = std::array<std::byte, 32>;

BlockHash RootHash(const SpaceId& space);

class BlockHasher {
 public:
  // A hash keeps its first `bits` bits, the others are 0: tests cut it to 8, so that most blocks
  // share theirs.
  explicit BlockHasher(const HashKey& key = {}, uint32_t bits = 128) : key_(key), bits_(bits) {}

  // Requires: ValidateContent(block) is OK, which makes equal blocks equal bytes.
  BlockHash Hash(const BlockHash& parent, const SequenceView& block) const;

 private:
  HashKey key_;
  uint32_t bits_;
};

}  // namespace prefixd::block
