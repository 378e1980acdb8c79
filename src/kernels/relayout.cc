#include "kernels/relayout.h"

#include <cstring>

#include "kernels/common/simd_targets.h"
#include "kernels/convert/stream_copy.h"
#include "kernels/convert/unit_step.h"
#include "quant/transposed.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/relayout.cc"
#include "hwy/foreach_target.h"  // before the -inl.h files: it includes this file once per target
#include "hwy/highway.h"

#include "kernels/convert/stream_line-inl.h"
#include "kernels/convert/unit_rows-inl.h"
#include "kernels/convert/unit_tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

// Vectors of one lane are no better than the scalar conversion.
template <typename Place, typename Rows>
Place PlaceOf(const Rows& rows, size_t token) {
  return {.codes = rows.codes + token * rows.codes_stride,
          .scales = rows.scales + token * rows.scales_stride,
          .biases = rows.biases + token * rows.scales_stride};
}
HWY_ATTR void StoreStepOnTarget(const UnitStep& step, const ConstStepRows& from, std::byte* unit,
                                LinesBeside*) {
  for (uint32_t t = 0; t < step.count; ++t) {
    quant::StoreRow(step.shape, PlaceOf<quant::ConstRowPlace>(from, t), step.first + t, unit);
  }
}
HWY_ATTR void LoadStepOnTarget(const UnitStep& step, const std::byte* unit, const StepRows& to,
                               LinesBeside*) {
  for (uint32_t t = 0; t < step.count; ++t) {
    quant::LoadRow(step.shape, unit, step.first + t, PlaceOf<quant::RowPlace>(to, t));
  }
}

#else

HWY_ATTR void StoreStepOnTarget(const UnitStep& step, const ConstStepRows& from, std::byte* unit,
                                LinesBeside* beside) {
  StoreTilesOfRows(step, from, unit, SendBeside(beside));
}
HWY_ATTR void LoadStepOnTarget(const UnitStep& step, const std::byte* unit, const StepRows& to,
                               LinesBeside* beside) {
  LoadRowsOfTiles(step, unit, to, SendBeside(beside));
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace prefixd::kernels {
namespace {

HWY_EXPORT(StoreStepOnTarget);
HWY_EXPORT(LoadStepOnTarget);

// Null stays null: ggml's rows have codes alone.
template <typename Byte>
Byte* Behind(Byte* first, size_t offset) {
  return first == nullptr ? first : first + offset;
}

// The rows from token `token` on.
template <typename Byte>
BasicStepRows<Byte> RowsFrom(const BasicStepRows<Byte>& rows, size_t token) {
  return {.codes = rows.codes + token * rows.codes_stride,
          .scales = Behind(rows.scales, token * rows.scales_stride),
          .biases = Behind(rows.biases, token * rows.scales_stride),
          .codes_stride = rows.codes_stride,
          .scales_stride = rows.scales_stride};
}

// The packed rows of one head.
template <typename Byte, typename Rows>
BasicStepRows<Byte> RowsOf(const Rows& rows, uint32_t head) {
  return {.codes = rows.codes + head * rows.codes_head_stride,
          .scales = Behind<Byte>(rows.scales, head * rows.scales_head_stride),
          .biases = Behind<Byte>(rows.biases, head * rows.scales_head_stride),
          .codes_stride = rows.codes_token_stride,
          .scales_stride = rows.scales_token_stride};
}

// The rows of units in layout rows, from the run's first token on.
template <typename Rows, typename Byte>
Rows RowsInUnits(const quant::TensorFormat& format, const UnitRun& run, Byte* units) {
  const quant::UnitLayout layout = quant::LayoutOfUnit(format, run.dim, run.page_tokens);
  const quant::RowBytes row = quant::BytesOfStoredRow(format, run.dim);
  Rows rows;
  rows.codes = units + layout.codes_offset + size_t{run.first_token} * row.codes;
  rows.scales = units + layout.scales_offset + size_t{run.first_token} * row.scales;
  rows.biases = units + layout.biases_offset + size_t{run.first_token} * row.biases;
  rows.codes_head_stride = rows.scales_head_stride = layout.unit_bytes;
  rows.codes_token_stride = row.codes;
  rows.scales_token_stride = row.scales;
  return rows;
}

// Copies the codes, the scales or the biases of rows to rows.
void CopyPart(size_t row_bytes, size_t count, const std::byte* from, size_t from_stride,
              std::byte* to, size_t to_stride) {
  if (row_bytes == 0) return;
  if (from_stride == row_bytes && to_stride == row_bytes) {
    std::memcpy(to, from, row_bytes * count);
    return;
  }
  for (size_t i = 0; i < count; ++i) {
    std::memcpy(to + i * to_stride, from + i * from_stride, row_bytes);
  }
}

void CopyRows(const quant::TensorFormat& format, const UnitRun& run, const PackedRows& from,
              const MutablePackedRows& to) {
  const quant::RowBytes row = quant::BytesOfStoredRow(format, run.dim);
  for (uint32_t head = 0; head < run.heads; ++head) {
    const auto a = RowsOf<const std::byte>(from, head);
    const auto b = RowsOf<std::byte>(to, head);
    CopyPart(row.codes, run.tokens, a.codes, a.codes_stride, b.codes, b.codes_stride);
    CopyPart(row.scales, run.tokens, a.scales, a.scales_stride, b.scales, b.scales_stride);
    CopyPart(row.biases, run.tokens, a.biases, a.scales_stride, b.biases, b.scales_stride);
  }
}

UnitStep WholeUnit(const quant::TensorFormat& format, quant::Layout layout, const UnitRun& run) {
  UnitStep unit;
  unit.shape = ShapeOf(format, run);
  unit.shape.format.layout = layout;
  unit.layout = quant::LayoutOf(unit.shape);
  return unit;
}

// Copies one head's rows, from the run's first token on, into its tiled unit and out of it.
void StoreUnit(const UnitStep& tiled, const UnitRun& run, const ConstStepRows& rows,
               std::byte* unit, LinesBeside* beside = nullptr) {
  ForEachStep(tiled, run.first_token, run.tokens, [&](const UnitStep& step, uint32_t at) {
    HWY_DYNAMIC_DISPATCH(StoreStepOnTarget)(step, RowsFrom(rows, at), unit, beside);
  });
}
void LoadUnit(const UnitStep& tiled, const std::byte* unit, const UnitRun& run,
              const StepRows& rows, LinesBeside* beside = nullptr) {
  ForEachStep(tiled, run.first_token, run.tokens, [&](const UnitStep& step, uint32_t at) {
    HWY_DYNAMIC_DISPATCH(LoadStepOnTarget)(step, unit, RowsFrom(rows, at), beside);
  });
}

// Does the same with a transposed unit, a token at a time.
void StoreTransposedUnit(const quant::UnitShape& shape, const UnitRun& run,
                         const ConstStepRows& rows, std::byte* unit) {
  for (uint32_t t = 0; t < run.tokens; ++t) {
    quant::StoreTransposedRow(shape, rows.codes + t * rows.codes_stride, run.first_token + t, unit);
  }
}
void LoadTransposedUnit(const quant::UnitShape& shape, const std::byte* unit, const UnitRun& run,
                        const StepRows& rows) {
  for (uint32_t t = 0; t < run.tokens; ++t) {
    quant::LoadTransposedRow(shape, unit, run.first_token + t, rows.codes + t * rows.codes_stride);
  }
}

}  // namespace

void StorePacked(const quant::TensorFormat& format, const PackedRows& from, const UnitRun& run,
                 std::byte* units) {
  if (format.layout == quant::Layout::kRows) {
    return CopyRows(format, run, from, RowsInUnits<MutablePackedRows>(format, run, units));
  }
  const UnitStep unit = WholeUnit(format, format.layout, run);
  const uint64_t unit_bytes = unit.layout.unit_bytes;
  for (uint32_t head = 0; head < run.heads; ++head) {
    if (format.layout == quant::Layout::kTransposed) {
      StoreTransposedUnit(unit.shape, run, RowsOf<const std::byte>(from, head),
                          units + head * unit_bytes);
      continue;
    }
    StoreUnit(unit, run, RowsOf<const std::byte>(from, head), units + head * unit_bytes);
  }
}

void LoadPacked(const quant::TensorFormat& format, const std::byte* units, const UnitRun& run,
                const MutablePackedRows& to) {
  if (format.layout == quant::Layout::kRows) {
    return CopyRows(format, run, RowsInUnits<PackedRows>(format, run, units), to);
  }
  const UnitStep unit = WholeUnit(format, format.layout, run);
  const uint64_t unit_bytes = unit.layout.unit_bytes;
  for (uint32_t head = 0; head < run.heads; ++head) {
    if (format.layout == quant::Layout::kTransposed) {
      LoadTransposedUnit(unit.shape, units + head * unit_bytes, run, RowsOf<std::byte>(to, head));
      continue;
    }
    LoadUnit(unit, units + head * unit_bytes, run, RowsOf<std::byte>(to, head));
  }
}

void Relayout(const quant::TensorFormat& format, const std::byte* units, const UnitRun& run,
              std::byte* to) {
  const bool to_rows = format.layout == quant::Layout::kTiled;
  const UnitStep tiled = WholeUnit(format, quant::Layout::kTiled, run);
  UnitStep rows = WholeUnit(format, quant::Layout::kRows, run);
  rows.first = run.first_token;
  rows.count = run.tokens;
  const quant::RowBytes row = quant::BytesOfStoredRow(rows.shape.format, run.dim);
  const UnitStep& source = to_rows ? tiled : rows;
  const UnitStep& target = to_rows ? rows : tiled;
  const uint64_t from_bytes = source.layout.unit_bytes;
  UnitOutput output(target.shape, run);
  LinesBeside beside;
  for (uint32_t head = 0; head < run.heads; ++head, units += from_bytes) {
    std::byte* const unit = output.Begin(to);
    beside.StartUnit(output.pending(), head + 1 < run.heads ? units + from_bytes : nullptr);
    if (to_rows) {
      LoadUnit(tiled, units, run, RowsInUnit(rows, row, unit), &beside);
    } else {
      StoreUnit(tiled, run, RowsInUnit(rows, row, units), unit, &beside);
    }
    output.End(to);
    to += target.layout.unit_bytes;
  }
}

}  // namespace prefixd::kernels
#endif  // HWY_ONCE
