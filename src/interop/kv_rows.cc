#include "interop/kv_rows.h"

#include <cstring>

#include "absl/strings/str_cat.h"

#include "base/status.h"
#include "block/page_layout.h"
#include "kernels/relayout.h"

namespace prefixd::interop {
namespace {

absl::Status BadRows(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("kv rows: ", what));
}

absl::Status CheckTensor(const char* name, const RowsOfTensor& rows,
                         const quant::TensorFormat& format, uint32_t dim) {
  if (rows.dim != dim) {
    return BadRows(absl::StrCat(name, " rows have ", rows.dim, " elements, the group's ", dim));
  }
  if (rows.format == quant::InRows(format)) return absl::OkStatus();
  return BadRows(absl::StrCat(name, " rows are ", quant::ToString(rows.format), ", the page is of ",
                              quant::ToString(format)));
}

absl::Status Check(const KvRows& rows, const PlaceInPage& place) {
  const block::LayerGroup& group = place.group;
  if (rows.kv_heads != group.kv_heads) {
    return BadRows(absl::StrCat(rows.kv_heads, " heads, the group has ", group.kv_heads));
  }
  const quant::KvFormat& format = group.ladder[place.rung];
  PREFIXD_RETURN_IF_ERROR(CheckTensor("key", rows.key, format.key, group.key_dim));
  if (block::StoresValues(group)) {
    PREFIXD_RETURN_IF_ERROR(CheckTensor("value", rows.value, format.value, group.value_dim));
  }
  if (uint64_t{place.first_row} + place.count > rows.rows ||
      uint64_t{place.slot} + place.count > place.page_tokens) {
    return BadRows(absl::StrCat("rows ", place.first_row, " to ", place.first_row + place.count,
                                " of ", rows.rows, " in slots from ", place.slot, " of ",
                                place.page_tokens));
  }
  return absl::OkStatus();
}

kernels::UnitRun RunOf(const PlaceInPage& place, quant::Side side, uint32_t dim) {
  return {.side = side,
          .heads = place.group.kv_heads,
          .dim = dim,
          .page_tokens = place.page_tokens,
          .first_token = place.slot,
          .tokens = place.count};
}

// Returns the rows from place.first_row on.
template <typename Packed, typename Rows>
Packed PackedOf(Rows& tensor, uint32_t rows, const PlaceInPage& place) {
  const quant::RowBytes row = quant::BytesOfStoredRow(tensor.format, tensor.dim);
  Packed packed;
  packed.codes = tensor.codes.data() + size_t{place.first_row} * row.codes;
  packed.scales = tensor.scales.data() + size_t{place.first_row} * row.scales;
  packed.biases = tensor.biases.data() + size_t{place.first_row} * row.biases;
  packed.codes_token_stride = row.codes;
  packed.codes_head_stride = size_t{rows} * row.codes;
  packed.scales_token_stride = row.scales;
  packed.scales_head_stride = size_t{rows} * row.scales;
  return packed;
}

// Calls visit(side, the format in the page, the tensor, where its units begin) for K, then for V
// where it is stored.
template <typename Rows, typename Visit>
void ForEachTensor(Rows& rows, const PlaceInPage& place, const Visit& visit) {
  const quant::KvFormat& format = place.group.ladder[place.rung];
  const block::PageLayout layout = block::LayoutOfPage(place.group, place.rung, place.page_tokens);
  visit(quant::Side::kKey, format.key, rows.key,
        block::KeyUnitOffset(place.group, layout, place.layer, 0));
  if (!block::StoresValues(place.group)) return;
  visit(quant::Side::kValue, format.value, rows.value,
        block::ValueUnitOffset(place.group, layout, place.layer, 0));
}

void Resize(uint32_t count, RowsOfTensor* tensor) {
  const quant::RowBytes row = quant::BytesOfStoredRow(tensor->format, tensor->dim);
  tensor->codes.resize(size_t{count} * row.codes);
  tensor->scales.resize(size_t{count} * row.scales);
  tensor->biases.resize(size_t{count} * row.biases);
}

// Keeps the first `to` of the `from` rows of every head.
void CutPart(uint32_t heads, size_t from, size_t to, std::vector<std::byte>* part) {
  if (part->empty()) return;  // the format has no such part
  const size_t row = part->size() / (heads * from);
  for (size_t head = 1; head < heads; ++head) {
    std::memmove(part->data() + head * to * row, part->data() + head * from * row, to * row);
  }
  part->resize(heads * to * row);
}

}  // namespace

absl::Status Cut(uint32_t tokens, KvRows* rows) {
  if (!rows->is_prefix()) {
    return BadRows(absl::StrCat("a rotating cache at offset ", rows->offset, " holds ", rows->rows,
                                " tokens and is not a prefix: it cannot be cut"));
  }
  if (tokens > rows->rows) {
    return BadRows(absl::StrCat(tokens, " tokens wanted, ", rows->rows, " are here"));
  }
  for (RowsOfTensor* tensor : {&rows->key, &rows->value}) {
    for (auto* part : {&tensor->codes, &tensor->scales, &tensor->biases}) {
      CutPart(rows->kv_heads, rows->rows, tokens, part);
    }
  }
  rows->rows = rows->offset = tokens;
  return absl::OkStatus();
}

absl::Status CopyToPage(const KvRows& rows, const PlaceInPage& place, std::byte* page) {
  PREFIXD_RETURN_IF_ERROR(Check(rows, place));
  ForEachTensor(rows, place,
                [&](quant::Side side, const quant::TensorFormat& format, const RowsOfTensor& tensor,
                    uint64_t at) {
                  kernels::StorePacked(format,
                                       PackedOf<kernels::PackedRows>(tensor, rows.rows, place),
                                       RunOf(place, side, tensor.dim), page + at);
                });
  return absl::OkStatus();
}

absl::Status CopyFromPage(const std::byte* page, const PlaceInPage& place, KvRows* rows) {
  PREFIXD_RETURN_IF_ERROR(Check(*rows, place));
  ForEachTensor(
      *rows, place,
      [&](quant::Side side, const quant::TensorFormat& format, RowsOfTensor& tensor, uint64_t at) {
        Resize(rows->kv_heads * rows->rows, &tensor);
        kernels::LoadPacked(format, page + at, RunOf(place, side, tensor.dim),
                            PackedOf<kernels::MutablePackedRows>(tensor, rows->rows, place));
      });
  return absl::OkStatus();
}

}  // namespace prefixd::interop
