// The check of a page, and the 64-byte header in front of every page on SSD. A page of another
// name, a torn page or one with flipped bits fails the check: it is a miss instead of wrong bytes.
//
// Pure functions, thread-safe.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"

#include "block/block_hash.h"

namespace prefixd::block {

struct PageName {
  SpaceId space{};
  BlockHash block{};
  uint16_t group = 0;
  uint16_t part = 0;  // part of a state snapshot; 0 for KV pages
  uint16_t rung = 0;
  uint32_t tokens = 0;  // slots the page is laid out for
  bool operator==(const PageName&) const = default;
};

// Returns XXH3-64 (seed 0) of the name: space id, block hash, u16 group, u16 part, u16 rung, u32
// tokens, 58 bytes little-endian.
uint64_t CheckSeed(const PageName& name);

// Returns XXH3-64 of the page bytes, seeded with CheckSeed of the name. Never 0 (0 becomes 1).
uint64_t PageCheck(const PageName& name, std::span<const std::byte> page);

// Copies a page to `to`, where nobody else writes, and returns PageCheck of the copy. `from` is
// read once: who writes to it meanwhile changes what is stored, never whether its check is right.
uint64_t CopyAndCheck(const PageName& name, std::span<const std::byte> from, std::byte* to);

inline constexpr uint32_t kPageMagic = 0x31504b56;  // "VKP1"
inline constexpr uint32_t kPageFormatVersion = 1;

// The header in front of each SSD value. Fixed-width, little-endian.
struct PageHeader {
  uint32_t magic = kPageMagic;
  uint16_t version = kPageFormatVersion;
  uint16_t group = 0;
  uint16_t part = 0;
  uint16_t rung = 0;
  uint32_t tokens = 0;
  uint32_t page_bytes = 0;
  uint32_t coding = 0;  // of the bytes that follow; 0: the page itself. Else ssd/page_coding.h's
  std::byte space_prefix[16] = {};  // first half of the space id
  std::byte block[16] = {};
  uint64_t check = 0;
};
static_assert(sizeof(PageHeader) == 64);

// Requires: page.size() < 2^32 (LayerGroup limits ensure it); check = PageCheck(name, page).
PageHeader MakePageHeader(const PageName& name, std::span<const std::byte> page, uint64_t check);
// Returns DataLoss saying what differs (magic, version, a field of the name, length, coding,
// check). Checks every byte of the header. `expected_check` is the index's own, so a stale page
// fails too.
absl::Status VerifyPage(const PageHeader& header, const PageName& name, uint64_t expected_check,
                        std::span<const std::byte> page);

}  // namespace prefixd::block
