// What turning rows by a Hadamard matrix before they are quantized is worth.
#include <cmath>
#include <random>

#include "absl/strings/str_cat.h"

#include "bench/common/kv_pages.h"
#include "bench/kv_cache/kv_cache.h"
#include "kernels/hadamard.h"
#include "quant/codec.h"

namespace prefixd::bench {
namespace {

constexpr size_t kRows = 8192;

// Every 32nd channel, as models have them in K: 20 times as large as the others.
void AddOutliers(std::vector<float>& rows, uint32_t dim) {
  constexpr uint32_t kEvery = 32;
  constexpr float kTimes = 20;
  for (size_t i = 5; i < rows.size(); i += 1) {
    if (i % dim % kEvery == 5) rows[i] *= kTimes;
  }
}

// Mean squared error of rows that are quantized and dequantized, turned before and back after, or
// not.
double SquaredError(const quant::TensorFormat& format, const std::vector<float>& rows, uint32_t dim,
                    bool rotate) {
  const quant::UnitLayout layout = quant::LayoutOfUnit(format, dim, 1);
  std::vector<std::byte> unit(layout.unit_bytes);
  std::vector<float> row(dim);
  double sum = 0;
  for (size_t at = 0; at < rows.size(); at += dim) {
    row.assign(rows.begin() + static_cast<ptrdiff_t>(at),
               rows.begin() + static_cast<ptrdiff_t>(at + dim));
    if (rotate) kernels::RotateRows(row.data(), 1, dim, dim);
    const quant::RowPlace place = quant::RowOf(unit.data(), layout, format, dim, 0);
    quant::QuantizeRow(format, row, place);
    quant::DequantizeRow(format, {place.codes, place.scales, place.biases}, row);
    if (rotate) kernels::RotateRows(row.data(), 1, dim, dim);
    for (uint32_t i = 0; i < dim; ++i) {
      const double moved = static_cast<double>(row[i]) - rows[at + i];
      sum += moved * moved;
    }
  }
  return sum / static_cast<double>(rows.size());
}

}  // namespace

void CompareRotation(Bench& bench, const KvCacheOptions& shape) {
  const uint32_t dim = shape.head_dim;
  const std::vector<float> gaussian = NormalFloats((bench.smoke() ? 64 : kRows) * dim, 11);
  std::vector<float> outliers = gaussian;
  AddOutliers(outliers, dim);
  for (const uint8_t bits : {uint8_t{8}, uint8_t{4}}) {
    const quant::TensorFormat format =
        quant::MlxAffineFormat(bits, static_cast<uint16_t>(shape.group_size), quant::Dtype::kF32);
    if (!quant::Validate(format, dim).ok()) continue;
    for (const auto& [name, rows] : {std::pair("Gaussian", &gaussian), {"outliers", &outliers}}) {
      const double plain = SquaredError(format, *rows, dim, false);
      const double turned = SquaredError(format, *rows, dim, true);
      bench.Add({absl::StrCat("hadamard, ", static_cast<int>(bits), "-bit, ", name),
                 {{"mse_1e6", plain * 1e6},
                  {"rotated_mse_1e6", turned * 1e6},
                  {"gain_ratio", plain / turned}}});
    }
  }
}

}  // namespace prefixd::bench
