// Chained block hash: the first 16 bytes of SHA-256 over
//   key (32 bytes) | parent hash (16 bytes) | u32 n | n x u32 token | u32 m | m x content key
// little-endian. A content key is u32 start (in the block), u32 item_offset, u32 length, 32-byte
// digest. The first block's parent hash is the first 16 bytes of SHA-256("prefixd/1/root" | space
// id).
//
// The key is random and belongs to the cache that keeps the blocks (cache/hash_key.h). Users choose
// tokens, so without the key somebody could search for two blocks with the same hash. The hash
// names a block, but equal hashes do not prove that two blocks are equal, and a block's parent is
// never found by hash (index/node.h, serial).
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
  // A hash keeps its first `bits` bits, the others are 0. Tests use 8, so that most blocks share
  // one.
  explicit BlockHasher(const HashKey& key = {}, uint32_t bits = 128) : key_(key), bits_(bits) {}

  // Requires: ValidateContent(block) is OK, so that equal blocks have equal bytes.
  BlockHash Hash(const BlockHash& parent, const SequenceView& block) const;

 private:
  HashKey key_;
  uint32_t bits_;
};

}  // namespace prefixd::block
