// How records of blocks say their tokens and content, wherever they are kept: on SSD
// (cache/store/record.h) and in the store that hosts share (remote/record.h).
//
//   tokens: u32 n, n x u32
//   content: u32 n, n x {u32 start, u32 item_offset, u32 length, 32-byte digest}
//
// Little-endian. Pure functions. The readers take any bytes: they allocate no more than a few times
// what is left of them, and make the reader no longer ok() where a count cannot be true.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "block/block_hash.h"
#include "block/tokens.h"

namespace prefixd::block {

void WriteTokens(std::span<const Token> tokens, base::ByteWriter* writer);
void WriteContent(std::span<const ContentKey> content, base::ByteWriter* writer);

// Returns a count of items of at least so many bytes each; 0 if they cannot be there.
uint32_t ReadCount(size_t item_bytes, base::ByteReader* reader);
std::vector<Token> ReadTokens(base::ByteReader* reader);
std::vector<ContentKey> ReadContent(base::ByteReader* reader);

// Zeros, if fewer bytes are left.
template <size_t N>
std::array<std::byte, N> ReadArray(base::ByteReader* reader) {
  std::array<std::byte, N> array{};
  std::ranges::copy(reader->Raw(N), array.begin());
  return array;
}

}  // namespace prefixd::block
