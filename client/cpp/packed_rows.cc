#include "packed_rows.h"

#include <cstring>

namespace prefixd::client {
namespace {

// One of codes, scales and biases: rows of `row_bytes`, both sides by their strides.
struct Rows {
  size_t row_bytes = 0;
  size_t page_head_stride = 0;
  size_t view_head_stride = 0, view_token_stride = 0;
};

template <typename Copy>
void ForEachRun(const UnitRows& unit, const Rows& rows, Copy copy) {
  for (size_t head = 0; head < unit.heads; ++head) {
    const size_t in_page = head * rows.page_head_stride + unit.first_slot * rows.row_bytes;
    const size_t in_view = head * rows.view_head_stride + unit.first_row * rows.view_token_stride;
    if (rows.view_token_stride == rows.row_bytes) {
      copy(in_page, in_view, unit.tokens * rows.row_bytes);
      continue;
    }
    for (size_t token = 0; token < unit.tokens; ++token) {
      copy(in_page + token * rows.row_bytes, in_view + token * rows.view_token_stride,
           rows.row_bytes);
    }
  }
}

// Calls visit(offset of the part in a unit, the view's pointer, Rows) for codes, scales and biases.
template <typename View, typename Visit>
void ForEachPart(const View& view, const UnitRows& unit, Visit visit) {
  const quant::RowBytes row = quant::BytesOfRow(unit.format, unit.dim);
  const quant::UnitLayout layout = quant::LayoutOfUnit(unit.format, unit.dim, unit.page_tokens);
  const auto part = [&](uint64_t offset, auto* data, size_t row_bytes, size_t head_stride,
                        size_t token_stride) {
    if (row_bytes == 0) return;
    if (token_stride == 0) token_stride = row_bytes;
    if (head_stride == 0) head_stride = unit.tensor_tokens * token_stride;
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
  if (format.codec != quant::Codec::kMlxAffine) return true;
  return view.scales != nullptr && view.biases != nullptr;
}

}  // namespace

bool IsComplete(const quant::TensorFormat& format, const PackedView& view) {
  return HasParts(format, view);
}
bool IsComplete(const quant::TensorFormat& format, const MutablePackedView& view) {
  return HasParts(format, view);
}

void CopyIn(const PackedView& from, const UnitRows& rows, std::byte* units) {
  ForEachPart(from, rows, [&](uint64_t offset, const void* data, const Rows& part) {
    const std::byte* view = static_cast<const std::byte*>(data);
    ForEachRun(rows, part, [&](size_t in_page, size_t in_view, size_t bytes) {
      std::memcpy(units + offset + in_page, view + in_view, bytes);
    });
  });
}

void CopyOut(const std::byte* units, const UnitRows& rows, const MutablePackedView& to) {
  ForEachPart(to, rows, [&](uint64_t offset, void* data, const Rows& part) {
    std::byte* view = static_cast<std::byte*>(data);
    ForEachRun(rows, part, [&](size_t in_page, size_t in_view, size_t bytes) {
      std::memcpy(view + in_view, units + offset + in_page, bytes);
    });
  });
}

}  // namespace prefixd::client
