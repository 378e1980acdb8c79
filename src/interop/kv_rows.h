// One layer's K and V of one sequence, as an engine outside has them packed: what stands between
// the caches of mlx-lm and llama.cpp and the pages of a space. Codes, scales and biases are carried
// as they are, never quantized anew.
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

// K or V: dense [kv_heads][rows] of each part's row (quant::BytesOfRow of the format, in rows).
struct RowsOfTensor {
  quant::TensorFormat format;  // layout kRows
  uint32_t dim = 0;
  std::vector<std::byte> codes, scales, biases;
};

struct KvRows {
  uint32_t kv_heads = 0;
  uint32_t rows = 0;    // tokens that are here, in the order of their positions
  uint32_t offset = 0;  // tokens that the sequence had: rows are its last, but for the first `keep`
  // Of a rotating cache, else 0: it never holds more than max_size tokens, the first `keep` stay.
  uint32_t keep = 0, max_size = 0;
  RowsOfTensor key, value;

  // Every token from 0 on is here. Else the rows are the state at exactly `offset`: no prefix of
  // the sequence can be made of them.
  bool is_prefix() const { return rows == offset; }
  // Requires: row < rows.
  uint32_t PositionOf(uint32_t row) const {
    return row < keep && !is_prefix() ? row : offset - rows + row;
  }
};

// Rows [0, tokens). InvalidArgument when they are no prefix, or fewer.
absl::Status Cut(uint32_t tokens, KvRows* rows);

// Rows [first_row, first_row + count) stand in, or go to, slots [slot, slot + count) of one layer
// of a page.
struct PlaceInPage {
  const block::LayerGroup& group;
  uint32_t rung = 0;
  uint32_t layer = 0;  // inside the group
  uint32_t page_tokens = 0;
  uint32_t slot = 0;
  uint32_t first_row = 0;
  uint32_t count = 0;
};
// InvalidArgument, with nothing copied, when heads, dims or formats are not the group's (whatever
// the page's layout), or the tokens are not inside. Bytes of other tokens are untouched.
absl::Status CopyToPage(const KvRows& rows, const PlaceInPage& place, std::byte* page);
// rows: heads, formats, dims and the row count are set; its parts are made long enough.
absl::Status CopyFromPage(const std::byte* page, const PlaceInPage& place, KvRows* rows);

}  // namespace prefixd::interop
