// A block's record on SSD: everything a restart needs to put the block back into the tree without
// reading a page.
//
// Encoding, little-endian, version 2: u32 magic, u32 version, space id 32, block hash 16, parent
// hash 16, u64 serial, u64 the parent's serial, u32 others, others x u64 serial, u32 first_token,
// u32 n, n x u32 token, u32 m, m x {u32 start, u32 item_offset, u32 length, digest 32}, u32 ends,
// ends x u32, i64 last_use, u32 pages, pages x {u32 group, u32 rung, u32 tokens, u64 page_bytes,
// u64 payload_bytes, u64 check, u64 sequence}, u64 XXH3-64 of all before it.
//
// Version 1 named a block's parent by a hash that anybody could find collisions of, so its records
// are not read: which of two blocks of one name a child belongs to cannot be told where one of them
// is gone.
#pragma once
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/statusor.h"

#include "index/prefix_index.h"

namespace prefixd::cache {

inline constexpr uint32_t kRecordMagic = 0x31524b56;  // "VKR1"
inline constexpr uint32_t kRecordVersion = 2;

struct BlockRecord {
  block::SpaceId space{};
  uint32_t first_token = 0;
  int64_t last_use = 0;
  index::RestoredBlock block;
};

std::string EncodeRecord(const BlockRecord& record);
// Of a decoded block, what hangs from it included.
uint64_t MemoryOf(const index::RestoredBlock& block);
// DataLoss when the bytes are not a record of this version, whole and unchanged.
absl::StatusOr<BlockRecord> DecodeRecord(std::span<const std::byte> bytes);

}  // namespace prefixd::cache
