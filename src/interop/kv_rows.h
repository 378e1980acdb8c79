// K and V of one layer and one sequence, packed as an engine packs them. Caches of mlx-lm and
// llama.cpp are converted to these rows, and the rows to pages of a space, and back. Codes, scales
// and biases are copied as they are, never quantized again.
//
// Values and pure functions, thread-safe.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"

#include "block/layer_group.h"
#include "quant/format.h"

namespace prefixd::interop {

// K or V: each part is dense [kv_heads][rows] of its row in layout rows (quant::BytesOfStoredRow).
struct RowsOfTensor {
  quant::TensorFormat format;  // layout kRows
  uint32_t dim = 0;
  std::vector<std::byte> codes, scales, biases;
};

struct KvRows {
  uint32_t kv_heads = 0;
  uint32_t rows = 0;    // tokens held, in the order of their positions
  uint32_t offset = 0;  // sequence length; the rows are its first `keep` tokens and its last ones
  // Of a rotating cache, else 0: beyond max_size tokens it drops old ones, never the first `keep`.
  uint32_t keep = 0, max_size = 0;
  RowsOfTensor key, value;

  // Returns true if every token from 0 on is here. Otherwise the rows are the state at exactly
  // `offset`, and no prefix of the sequence can be made of them.
  bool is_prefix() const { return rows == offset; }
  // Requires: row < rows.
  uint32_t PositionOf(uint32_t row) const {
    return row < keep && !is_prefix() ? row : offset - rows + row;
  }
};

// Keeps rows [0, tokens). InvalidArgument if the rows are no prefix, or fewer than `tokens`.
absl::Status Cut(uint32_t tokens, KvRows* rows);

// The sides of a copy: rows [first_row, first_row + count), and slots [slot, slot + count) of a
// layer of a page.
struct PlaceInPage {
  const block::LayerGroup& group;
  uint32_t rung = 0;
  uint32_t layer = 0;  // index inside the group
  uint32_t page_tokens = 0;
  uint32_t slot = 0;
  uint32_t first_row = 0;
  uint32_t count = 0;
};
// Returns InvalidArgument and copies nothing if heads, dims or formats are not the group's
// (whatever the page's layout), or tokens are out of range. Leaves the bytes of other tokens
// untouched.
absl::Status CopyToPage(const KvRows& rows, const PlaceInPage& place, std::byte* page);
// `rows` has its heads, formats, dims and row count set; this makes its parts long enough.
absl::Status CopyFromPage(const std::byte* page, const PlaceInPage& place, KvRows* rows);

}  // namespace prefixd::interop
