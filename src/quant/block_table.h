// What an attention kernel walks: for each KV block of one layer, where its units are, how many
// tokens they hold and what the bytes mean. Shared by kernels/, the client and the public header.
//
// Plain values. The bytes pointed to must stay valid and unchanged while a kernel runs.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "quant/format.h"

namespace prefixd::quant {

// One layer of one page: K units [kv_heads], then V units [kv_heads], each
// LayoutOfUnit().unit_bytes long with the geometry of `page_tokens`. 128-byte aligned.
struct BlockTableEntry {
  const std::byte* units = nullptr;
  uint64_t arena_offset =
      ~uint64_t{0};          // of `units` in the shared arena; all ones = private memory
  uint32_t page_tokens = 0;  // token slots the units were laid out for
  uint32_t tokens = 0;       // slots in use, <= page_tokens
  uint32_t format = 0;       // index into the formats given beside the table
};
using BlockTable = std::span<const BlockTableEntry>;

}  // namespace prefixd::quant
