// A few tokens of one unit on their way between floats, packed rows and units. The form in between
// has a byte for each code. Internal to kernels/.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/bytes.h"
#include "kernels/quantize.h"
#include "quant/unit.h"

namespace prefixd::kernels {

// Returns the shape of each unit of a run.
inline quant::UnitShape ShapeOf(const quant::TensorFormat& format, const UnitRun& run) {
  return {.format = format, .side = run.side, .dim = run.dim, .page_tokens = run.page_tokens};
}

inline constexpr uint32_t kUnitStepTokens = quant::kTiledSlots * 2;  // a K tile at most

// Slots `first` ... `first + count - 1` of a unit. In tiled K they stand in one tile.
struct UnitStep {
  quant::UnitShape shape;
  quant::UnitLayout layout;
  uint32_t first = 0;
  uint32_t count = 0;  // <= kUnitStepTokens
  size_t groups() const { return shape.dim / shape.format.group_size; }
  size_t scale_bytes() const { return quant::DtypeBytes(shape.format.dtype); }
  bool has_biases() const {
    return shape.format.codec == quant::Codec::kMlxAffine ||
           shape.format.codec == quant::Codec::kQ4_1 || shape.format.codec == quant::Codec::kQ5_1;
  }
};

// The tokens of a step: codes [count][dim], q8_0's as their two's complement; scales and biases
// [count][groups] of the scale dtype (ggml: d and m).
template <typename Byte, typename Code>
struct BasicParts {
  Code* codes = nullptr;
  Byte* scales = nullptr;
  Byte* biases = nullptr;
};
using Parts = BasicParts<std::byte, uint8_t>;
using ConstParts = BasicParts<const std::byte, const uint8_t>;

// Packed rows of the step's tokens; strides in bytes.
template <typename Byte>
struct BasicStepRows {
  Byte* codes = nullptr;
  Byte* scales = nullptr;
  Byte* biases = nullptr;
  size_t codes_stride = 0, scales_stride = 0;
};
using StepRows = BasicStepRows<std::byte>;
using ConstStepRows = BasicStepRows<const std::byte>;

// Returns where the step's tokens stand in a unit of layout rows, which are `row` bytes each.
template <typename Byte>
BasicStepRows<Byte> RowsInUnit(const UnitStep& step, const quant::RowBytes& row, Byte* unit) {
  BasicStepRows<Byte> rows;
  rows.codes = unit + step.layout.codes_offset + step.first * size_t{row.codes};
  rows.scales = unit + step.layout.scales_offset + step.first * size_t{row.scales};
  rows.biases = unit + step.layout.biases_offset + step.first * size_t{row.biases};
  rows.codes_stride = row.codes;
  rows.scales_stride = row.scales;
  return rows;
}

template <typename Byte>
BasicStepRows<Byte> RowsInUnit(const UnitStep& step, Byte* unit) {
  return RowsInUnit(step, quant::BytesOfStoredRow(step.shape.format, step.shape.dim), unit);
}

// Memory for the parts of a step, for its scales and biases as floats and for a row of raw
// elements.
class StepMemory {
 public:
  // For steps of at most `tokens` tokens.
  StepMemory(uint32_t dim, uint32_t tokens)
      : codes_bytes_(size_t{std::min(tokens, kUnitStepTokens)} * base::AlignUp(dim, 32)),
        memory_(new std::byte[codes_bytes_ + 4 * parameter_bytes() + dim * sizeof(float)]) {}

  Parts parts() const {
    return {.codes = reinterpret_cast<uint8_t*>(memory_.get()),
            .scales = memory_.get() + codes_bytes_,
            .biases = memory_.get() + codes_bytes_ + parameter_bytes()};
  }
  float* scales() const { return FloatsAt(2); }
  float* biases() const { return FloatsAt(3); }
  float* row() const { return FloatsAt(4); }  // [dim]

 private:
  // Four bytes for 32 codes: no group is smaller. Raw elements have no groups.
  size_t parameter_bytes() const { return codes_bytes_ / 8; }
  float* FloatsAt(size_t i) const {
    return reinterpret_cast<float*>(memory_.get() + codes_bytes_ + i * parameter_bytes());
  }

  const size_t codes_bytes_;
  const std::unique_ptr<std::byte[]> memory_;
};

// Cuts a run into steps of `unit`: calls visit(step, index of the step's first token in the run).
template <typename Visit>
void ForEachStep(const UnitStep& unit, uint32_t first_token, uint32_t tokens, const Visit& visit) {
  UnitStep step = unit;
  for (uint32_t done = 0; done < tokens; done += step.count) {
    step.first = first_token + done;
    step.count = std::min(kUnitStepTokens - step.first % kUnitStepTokens, tokens - done);
    visit(step, done);
  }
}
template <typename Visit>
void ForEachStep(const quant::UnitShape& shape, uint32_t first_token, uint32_t tokens,
                 const Visit& visit) {
  ForEachStep({.shape = shape, .layout = quant::LayoutOf(shape)}, first_token, tokens, visit);
}

}  // namespace prefixd::kernels
