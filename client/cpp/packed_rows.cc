#include "packed_rows.h"

#include <cstring>

#include "absl/strings/str_cat.h"

#include "base/stream_copy.h"
#include "block/page_layout.h"
#include "kernels/relayout.h"

namespace prefixd::client {
namespace {

// `heads` consecutive units of one layer's K or V.
struct UnitRows {
  quant::TensorFormat format;
  uint32_t heads = 0;
  uint32_t dim = 0;
  const PageRows& rows;
};

bool IsInRows(const UnitRows& unit) { return unit.format.layout == quant::Layout::kRows; }

kernels::UnitRun RunOf(const UnitRows& unit, bool is_key) {
  return {.side = is_key ? quant::Side::kKey : quant::Side::kValue,
          .heads = unit.heads,
          .dim = unit.dim,
          .page_tokens = unit.rows.page_tokens,
          .first_token = unit.rows.first_slot,
          .tokens = unit.rows.tokens};
}

// Returns the tokens of `unit` in an engine's view; fills in strides of 0.
template <typename Packed, typename Byte, typename View>
Packed PackedOf(const View& view, const UnitRows& unit) {
  const quant::RowBytes row = quant::BytesOfStoredRow(quant::InRows(unit.format), unit.dim);
  Packed packed;
  const auto strides = [&](size_t row_bytes, size_t head, size_t token, size_t* to_head,
                           size_t* to_token) {
    *to_token = token == 0 ? row_bytes : token;
    *to_head = head == 0 ? unit.rows.tensor_tokens * *to_token : head;
  };
  strides(row.codes, view.codes_head_stride, view.codes_token_stride, &packed.codes_head_stride,
          &packed.codes_token_stride);
  strides(row.scales, view.scales_head_stride, view.scales_token_stride, &packed.scales_head_stride,
          &packed.scales_token_stride);
  const auto first = [&](auto* data, size_t token_stride) -> Byte* {
    return data == nullptr ? nullptr
                           : static_cast<Byte*>(data) + unit.rows.first_row * token_stride;
  };
  packed.codes = first(view.codes, packed.codes_token_stride);
  packed.scales = first(view.scales, packed.scales_token_stride);
  packed.biases = first(view.biases, packed.scales_token_stride);
  return packed;
}

// Codes, scales or biases: rows of `row_bytes`, with the strides of both sides.
struct Rows {
  size_t row_bytes = 0;
  size_t page_head_stride = 0;
  size_t view_head_stride = 0, view_token_stride = 0;
};

template <typename Copy>
void ForEachRun(const UnitRows& unit, const Rows& rows, Copy copy) {
  for (size_t head = 0; head < unit.heads; ++head) {
    const size_t in_page = head * rows.page_head_stride + unit.rows.first_slot * rows.row_bytes;
    const size_t in_view =
        head * rows.view_head_stride + unit.rows.first_row * rows.view_token_stride;
    if (rows.view_token_stride == rows.row_bytes) {
      copy(in_page, in_view, unit.rows.tokens * rows.row_bytes);
      continue;
    }
    for (size_t token = 0; token < unit.rows.tokens; ++token) {
      copy(in_page + token * rows.row_bytes, in_view + token * rows.view_token_stride,
           rows.row_bytes);
    }
  }
}

// Calls visit(offset of the part in a unit, the view's pointer, Rows) for codes, scales and biases.
template <typename View, typename Visit>
void ForEachPart(const View& view, const UnitRows& unit, Visit visit) {
  const quant::RowBytes row = quant::BytesOfStoredRow(unit.format, unit.dim);
  const quant::UnitLayout layout =
      quant::LayoutOfUnit(unit.format, unit.dim, unit.rows.page_tokens);
  const auto part = [&](uint64_t offset, auto* data, size_t row_bytes, size_t head_stride,
                        size_t token_stride) {
    if (row_bytes == 0) return;
    if (token_stride == 0) token_stride = row_bytes;
    if (head_stride == 0) head_stride = unit.rows.tensor_tokens * token_stride;
    visit(offset, data,
          Rows{.row_bytes = row_bytes,
               .page_head_stride = layout.unit_bytes,
               .view_head_stride = head_stride,
               .view_token_stride = token_stride});
  };
  part(layout.codes_offset, view.codes, row.codes, view.codes_head_stride, view.codes_token_stride);
  part(layout.scales_offset, view.scales, row.scales, view.scales_head_stride,
       view.scales_token_stride);
  part(layout.biases_offset, view.biases, row.biases, view.scales_head_stride,
       view.scales_token_stride);
}

template <typename View>
bool HasParts(const quant::TensorFormat& format, const View& view) {
  if (view.codes == nullptr) return false;
  const bool affine = format.codec == quant::Codec::kMlxAffine;
  if ((affine || quant::IsBlockFloat(format.codec)) && view.scales == nullptr) return false;
  return !affine || view.biases != nullptr;
}

template <typename View>
absl::Status Check(const char* caller, const block::LayerGroup& group, uint32_t rung,
                   const View& key, const View& value) {
  const quant::KvFormat& format = group.ladder[rung];
  const bool whole = !block::StoresValues(group) || HasParts(format.value, value);
  if (HasParts(format.key, key) && whole) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(caller, ": codes, scales or biases of ", quant::ToString(format), " missing"));
}

// Calls visit(is_key, units, their offset in the page) for K and, if the group stores it, for V.
template <typename Visit>
void ForUnits(const PageRows& rows, Visit visit) {
  const block::LayerGroup& group = rows.group;
  const quant::KvFormat& format = group.ladder[rows.rung];
  const block::PageLayout layout = block::LayoutOfPage(group, rows.rung, rows.page_tokens);
  visit(true,
        UnitRows{.format = format.key, .heads = group.kv_heads, .dim = group.key_dim, .rows = rows},
        block::KeyUnitOffset(group, layout, rows.layer, 0));
  if (!block::StoresValues(group)) return;
  visit(false,
        UnitRows{
            .format = format.value, .heads = group.kv_heads, .dim = group.value_dim, .rows = rows},
        block::ValueUnitOffset(group, layout, rows.layer, 0));
}

}  // namespace

absl::Status CheckParts(const char* caller, const block::LayerGroup& group, uint32_t rung,
                        const PackedView& key, const PackedView& value) {
  return Check(caller, group, rung, key, value);
}
absl::Status CheckParts(const char* caller, const block::LayerGroup& group, uint32_t rung,
                        const MutablePackedView& key, const MutablePackedView& value) {
  return Check(caller, group, rung, key, value);
}

void CopyIntoPage(const PageRows& rows, const PackedView& key, const PackedView& value,
                  std::byte* page) {
  ForUnits(rows, [&](bool is_key, const UnitRows& units, uint64_t at) {
    const PackedView& from = is_key ? key : value;
    if (!IsInRows(units)) {
      const auto packed = PackedOf<kernels::PackedRows, const std::byte>(from, units);
      return kernels::StorePacked(units.format, packed, RunOf(units, is_key), page + at);
    }
    ForEachPart(from, units, [&](uint64_t offset, const void* data, const Rows& part) {
      const std::byte* view = static_cast<const std::byte*>(data);
      ForEachRun(units, part, [&](size_t in_page, size_t in_view, size_t bytes) {
        std::memcpy(page + at + offset + in_page, view + in_view, bytes);
      });
    });
  });
}

void CopyOutOfPage(const PageRows& rows, const std::byte* page, Caches caches,
                   const MutablePackedView& key, const MutablePackedView& value) {
  ForUnits(rows, [&](bool is_key, const UnitRows& units, uint64_t at) {
    const MutablePackedView& to = is_key ? key : value;
    if (!IsInRows(units)) {
      const auto packed = PackedOf<kernels::MutablePackedRows, std::byte>(to, units);
      return kernels::LoadPacked(units.format, page + at, RunOf(units, is_key), packed);
    }
    ForEachPart(to, units, [&](uint64_t offset, void* data, const Rows& part) {
      std::byte* view = static_cast<std::byte*>(data);
      ForEachRun(units, part, [&](size_t in_page, size_t in_view, size_t bytes) {
        const std::byte* run = page + at + offset + in_page;
        if (caches == Caches::kPast) return base::StreamRun(view + in_view, run, bytes);
        std::memcpy(view + in_view, run, bytes);
      });
    });
  });
}

}  // namespace prefixd::client
