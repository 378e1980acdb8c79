#include "kernels/relayout.h"

#include "quant/unit.h"

namespace prefixd::kernels {
namespace {

quant::UnitShape ShapeOf(const quant::TensorFormat& format, const UnitRun& run) {
  return {.format = format, .side = run.side, .dim = run.dim, .page_tokens = run.page_tokens};
}

template <typename Place, typename Rows>
Place PlaceOf(const Rows& rows, uint32_t head, uint32_t token) {
  const size_t scales = head * rows.scales_head_stride + token * rows.scales_token_stride;
  return {.codes = rows.codes + head * rows.codes_head_stride + token * rows.codes_token_stride,
          .scales = rows.scales == nullptr ? nullptr : rows.scales + scales,
          .biases = rows.biases == nullptr ? nullptr : rows.biases + scales};
}

// The rows of units in layout rows.
template <typename Rows, typename Byte>
Rows RowsOf(const quant::TensorFormat& format, const UnitRun& run, Byte* units) {
  const quant::UnitLayout layout = quant::LayoutOfUnit(format, run.dim, run.page_tokens);
  const quant::RowBytes row = quant::BytesOfRow(format, run.dim);
  Rows rows;
  rows.codes = units + layout.codes_offset + size_t{run.first_token} * row.codes;
  rows.scales = units + layout.scales_offset + size_t{run.first_token} * row.scales;
  rows.biases = units + layout.biases_offset + size_t{run.first_token} * row.biases;
  rows.codes_head_stride = rows.scales_head_stride = layout.unit_bytes;
  rows.codes_token_stride = row.codes;
  rows.scales_token_stride = row.scales;
  return rows;
}

}  // namespace

void StorePacked(const quant::TensorFormat& format, const PackedRows& from, const UnitRun& run,
                 std::byte* units) {
  const quant::UnitShape shape = ShapeOf(format, run);
  for (uint32_t head = 0; head < run.heads; ++head, units += quant::LayoutOf(shape).unit_bytes) {
    for (uint32_t t = 0; t < run.tokens; ++t) {
      quant::StoreRow(shape, PlaceOf<quant::ConstRowPlace>(from, head, t), run.first_token + t,
                      units);
    }
  }
}

void LoadPacked(const quant::TensorFormat& format, const std::byte* units, const UnitRun& run,
                const MutablePackedRows& to) {
  const quant::UnitShape shape = ShapeOf(format, run);
  for (uint32_t head = 0; head < run.heads; ++head, units += quant::LayoutOf(shape).unit_bytes) {
    for (uint32_t t = 0; t < run.tokens; ++t) {
      quant::LoadRow(shape, units, run.first_token + t, PlaceOf<quant::RowPlace>(to, head, t));
    }
  }
}

void Relayout(const quant::TensorFormat& format, const std::byte* units, const UnitRun& run,
              std::byte* to) {
  const quant::TensorFormat in_rows = quant::InRows(format);
  if (format.layout == quant::Layout::kTiled) {
    return LoadPacked(format, units, run, RowsOf<MutablePackedRows>(in_rows, run, to));
  }
  StorePacked(quant::Tiled(format), RowsOf<PackedRows>(in_rows, run, units), run, to);
}

}  // namespace prefixd::kernels
