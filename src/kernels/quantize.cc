#include "kernels/quantize.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/quantize_rows.h"
#include "quant/unit.h"

namespace prefixd::kernels {
namespace {

constexpr uint32_t kStepRows = 16;  // dequantized at a time

bool SameElements(const quant::TensorFormat& format, quant::Dtype dtype) {
  return format.codec == quant::Codec::kRaw && format.dtype == dtype;
}

template <typename View>
auto* ElementAt(const View& view, uint32_t head, uint32_t token) {
  return view.data +
         (head * view.head_stride + token * view.token_stride) * quant::DtypeBytes(view.dtype);
}

// Working memory of one call.
class StepBuffers {
 public:
  explicit StepBuffers(uint32_t dim)
      : rows_(size_t{kStepRows} * dim),
        scales_(size_t{kStepRows} * (dim / 32 + 1)),
        biases_(scales_.size()),
        codes_(dim) {}
  float* rows() { return rows_.data(); }
  uint8_t* codes() { return codes_.data(); }
  RowScratch scratch() {
    return {.scales = scales_.data(), .biases = biases_.data(), .codes = codes_.data()};
  }

 private:
  std::vector<float> rows_, scales_, biases_;
  std::vector<uint8_t> codes_;
};

quant::UnitShape ShapeOf(const quant::TensorFormat& format, const UnitRun& run) {
  return {.format = format, .side = run.side, .dim = run.dim, .page_tokens = run.page_tokens};
}

void QuantizeTiled(const quant::TensorFormat& format, const TensorView& from, const UnitRun& run,
                   std::byte* units) {
  const quant::UnitShape shape = ShapeOf(format, run);
  std::vector<float> row(run.dim);
  for (uint32_t head = 0; head < run.heads; ++head, units += quant::LayoutOf(shape).unit_bytes) {
    for (uint32_t token = 0; token < run.tokens; ++token) {
      WidenRow(from.dtype, ElementAt(from, head, token), run.dim, row.data());
      quant::QuantizeToken(shape, row, run.first_token + token, units);
    }
  }
}

void DequantizeTiled(const quant::TensorFormat& format, const std::byte* units, const UnitRun& run,
                     const MutableTensorView& to) {
  const quant::UnitShape shape = ShapeOf(format, run);
  std::vector<float> row(run.dim);
  for (uint32_t head = 0; head < run.heads; ++head, units += quant::LayoutOf(shape).unit_bytes) {
    for (uint32_t token = 0; token < run.tokens; ++token) {
      quant::DequantizeToken(shape, units, run.first_token + token, row);
      NarrowRow(to.dtype, row.data(), run.dim, ElementAt(to, head, token));
    }
  }
}

}  // namespace

void Quantize(const quant::TensorFormat& format, const TensorView& from, const UnitRun& run,
              std::byte* units) {
  if (format.layout == quant::Layout::kTiled) return QuantizeTiled(format, from, run, units);
  const quant::UnitLayout layout = quant::LayoutOfUnit(format, run.dim, run.page_tokens);
  StepBuffers buffers(run.dim);
  for (uint32_t head = 0; head < run.heads; ++head, units += layout.unit_bytes) {
    for (uint32_t token = 0; token < run.tokens; ++token) {
      const quant::RowPlace place =
          quant::RowOf(units, layout, format, run.dim, run.first_token + token);
      const std::byte* row = ElementAt(from, head, token);
      if (SameElements(format, from.dtype)) {
        std::memcpy(place.codes, row, size_t{run.dim} * quant::DtypeBytes(from.dtype));
      } else {
        WidenRow(from.dtype, row, run.dim, buffers.rows());
        QuantizeOneRow(format, buffers.rows(), run.dim, place, buffers.codes());
      }
    }
  }
}

void Dequantize(const quant::TensorFormat& format, const std::byte* units, const UnitRun& run,
                const MutableTensorView& to) {
  if (format.layout == quant::Layout::kTiled) return DequantizeTiled(format, units, run, to);
  RowRange rows{.format = &format,
                .unit = units,
                .layout = quant::LayoutOfUnit(format, run.dim, run.page_tokens),
                .row = quant::BytesOfRow(format, run.dim),
                .dim = run.dim};
  StepBuffers buffers(run.dim);
  for (uint32_t head = 0; head < run.heads; ++head, rows.unit += rows.layout.unit_bytes) {
    for (uint32_t token = 0; token < run.tokens; token += rows.count) {
      rows.first = run.first_token + token;
      rows.count = std::min(kStepRows, run.tokens - token);
      if (SameElements(format, to.dtype)) {
        rows.count = 1;
        std::memcpy(ElementAt(to, head, token),
                    rows.unit + rows.layout.codes_offset + size_t{rows.first} * rows.row.codes,
                    rows.row.codes);
        continue;
      }
      DequantizeRowRange(rows, buffers.scratch(), buffers.rows());
      for (uint32_t i = 0; i < rows.count; ++i) {
        NarrowRow(to.dtype, buffers.rows() + size_t{i} * run.dim, run.dim,
                  ElementAt(to, head, token + i));
      }
    }
  }
}

}  // namespace prefixd::kernels
