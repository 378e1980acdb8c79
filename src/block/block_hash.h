// Chained block hash: XXH3-128 (seed 0, canonical) over
//   parent hash (16 bytes) | u32 n | n x u32 token | u32 m | m x content key
// little-endian, a content key being u32 start (in the block), u32 item_offset, u32 length, 32-byte
// digest. Canonical: the 16 bytes are XXH128_canonicalFromHash, big-endian high half first. The
// first block's parent is the first 16 bytes of SHA-256("prefixd/1/root" | space identity digest).
// The hash names blocks; it is never proof that two blocks are equal.
//
// Pure functions, thread-safe. Golden vectors: tests/block/golden_hashes.py.
#pragma once
#include "base/checksum.h"
#include "block/tokens.h"

namespace prefixd::block {

using BlockHash = base::Hash128;
using SpaceId = base::Digest256;  // SHA-256 of the encoded space identity

BlockHash RootHash(const SpaceId& space);
// Requires: ValidateContent(block) is OK, which makes equal blocks equal bytes.
BlockHash HashBlock(const BlockHash& parent, const SequenceView& block);

}  // namespace prefixd::block
