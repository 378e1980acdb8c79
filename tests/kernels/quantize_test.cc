// Quantize and Dequantize against the scalar codecs, byte for byte, on every target.
#include "kernels/quantize.h"

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "quant/codec.h"
#include "tests/kernels/dispatch_targets.h"
#include "tests/kernels/paged_layer.h"

namespace prefixd::kernels {
namespace {

using quant::Dtype;
using quant::TensorFormat;
using Bytes = std::vector<std::byte>;

constexpr uint32_t kHeads = 2;
constexpr uint32_t kTokens = 21;  // more than one step of Dequantize
constexpr uint32_t kFirstSlot = 3;
constexpr uint32_t kPageTokens = 32;

// [kHeads][kTokens][dim] with rows that hit the edges of a codec among ordinary ones.
std::vector<float> TestRows(uint32_t dim) {
  std::vector<float> rows = RandomFloats(size_t{kHeads} * kTokens * dim, 3);
  const auto fill = [&](uint32_t token, auto value_of) {
    for (uint32_t d = 0; d < dim; ++d) rows[token * dim + d] = value_of(static_cast<float>(d));
  };
  fill(0, [](float) { return 0.0f; });
  fill(1, [](float) { return -5.0f; });
  fill(2, [](float d) { return d == 0 ? 1.0f : d == 1 ? -1.0f : 0.0f; });  // edges tie
  fill(3, [](float d) { return (d - 16) / 8; });                           // codes tie
  fill(4, [](float d) { return d * 1e-9f; });
  fill(5, [](float d) { return (d - 7) * 1e-41f; });  // subnormal: 1/scale overflows
  fill(6, [](float d) { return 3e37f * std::sin(d); });
  fill(7, [](float d) { return d == 3 ? 127.0f : d / 2 - 20; });  // q8_0 halves
  fill(8, [](float d) { return -0.0f * d; });
  return rows;
}

Bytes Narrowed(const std::vector<float>& rows, Dtype dtype) {
  Bytes bytes(rows.size() * quant::DtypeBytes(dtype));
  quant::NarrowFromFloat(dtype, rows.data(), rows.size(), bytes.data());
  return bytes;
}

// The run of every test: tokens 3 ... 23 of pages with 32 slots.
UnitRun RunOf(uint32_t dim) {
  return {.heads = kHeads,
          .dim = dim,
          .page_tokens = kPageTokens,
          .first_token = kFirstSlot,
          .tokens = kTokens};
}

Bytes ScalarUnits(const TensorFormat& format, uint32_t dim, Dtype dtype, const Bytes& rows) {
  const quant::UnitLayout layout = quant::LayoutOfUnit(format, dim, kPageTokens);
  Bytes units(kHeads * layout.unit_bytes, std::byte{0x5a});
  std::vector<float> row(dim);
  for (uint32_t head = 0; head < kHeads; ++head) {
    for (uint32_t token = 0; token < kTokens; ++token) {
      const size_t at = (size_t{head} * kTokens + token) * dim * quant::DtypeBytes(dtype);
      quant::WidenToFloat(dtype, rows.data() + at, dim, row.data());
      quant::QuantizeRow(format, row,
                         quant::RowOf(units.data() + head * layout.unit_bytes, layout, format, dim,
                                      kFirstSlot + token));
    }
  }
  return units;
}

Bytes ScalarRows(const TensorFormat& format, uint32_t dim, Dtype dtype, const Bytes& units) {
  const quant::UnitLayout layout = quant::LayoutOfUnit(format, dim, kPageTokens);
  std::vector<float> rows(size_t{kHeads} * kTokens * dim);
  for (uint32_t head = 0; head < kHeads; ++head) {
    for (uint32_t token = 0; token < kTokens; ++token) {
      quant::DequantizeRow(format,
                           quant::RowOf(units.data() + head * layout.unit_bytes, layout, format,
                                        dim, kFirstSlot + token),
                           std::span(rows).subspan((size_t{head} * kTokens + token) * dim, dim));
    }
  }
  return Narrowed(rows, dtype);
}

template <typename Check>
void ForEachFormatAndDtype(const Check& check) {
  for (const uint32_t dim : {32u, 80u, 96u, 128u, 33u}) {
    for (const TensorFormat& format : FormatsFor(dim)) {
      for (const Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBf16}) {
        SCOPED_TRACE(quant::ToString(format) + " dim " + std::to_string(dim) + " tensor " +
                     quant::ToString(dtype));
        check(format, dim, dtype);
      }
    }
  }
}

TEST(QuantizeTest, BytesEqualTheScalarCodecsOnEveryTarget) {
  ForEachFormatAndDtype([](const TensorFormat& format, uint32_t dim, Dtype dtype) {
    const Bytes rows = Narrowed(TestRows(dim), dtype);
    const Bytes want = ScalarUnits(format, dim, dtype, rows);
    ForEachTarget([&](const char*) {
      Bytes units(want.size(), std::byte{0x5a});
      Quantize(format,
               {.data = rows.data(),
                .dtype = dtype,
                .head_stride = size_t{kTokens} * dim,
                .token_stride = dim},
               RunOf(dim), units.data());
      EXPECT_TRUE(units == want);
    });
  });
}

TEST(QuantizeTest, DequantizedValuesEqualTheScalarCodecsOnEveryTarget) {
  ForEachFormatAndDtype([](const TensorFormat& format, uint32_t dim, Dtype dtype) {
    const Bytes units = ScalarUnits(format, dim, Dtype::kF32, Narrowed(TestRows(dim), Dtype::kF32));
    const Bytes want = ScalarRows(format, dim, dtype, units);
    ForEachTarget([&](const char*) {
      Bytes rows(want.size());
      Dequantize(format, units.data(), RunOf(dim),
                 {.data = rows.data(),
                  .dtype = dtype,
                  .head_stride = size_t{kTokens} * dim,
                  .token_stride = dim});
      EXPECT_TRUE(rows == want);
    });
  });
}

TEST(QuantizeTest, MisalignedTensorsWithGapsBetweenRowsAreLeftAsTheyAre) {
  constexpr uint32_t kDim = 64;
  constexpr size_t kTokenStride = kHeads * kDim + 5;  // tokens outside heads
  const TensorFormat format = quant::MlxAffineFormat(4, 64, Dtype::kF16);
  const std::vector<float> dense = TestRows(kDim);
  Bytes rows(1 + kTokens * kTokenStride * 4, std::byte{0x5a});
  for (size_t head = 0; head < kHeads; ++head) {
    for (size_t token = 0; token < kTokens; ++token) {
      std::memcpy(&rows[1 + (token * kTokenStride + head * kDim) * 4],
                  &dense[(head * kTokens + token) * kDim], kDim * 4);
    }
  }
  const Bytes want = ScalarUnits(format, kDim, Dtype::kF32, Narrowed(dense, Dtype::kF32));
  const Bytes values = ScalarRows(format, kDim, Dtype::kF32, want);
  ForEachTarget([&](const char*) {
    Bytes units(want.size(), std::byte{0x5a});
    Quantize(format, {.data = rows.data() + 1, .head_stride = kDim, .token_stride = kTokenStride},
             RunOf(kDim), units.data());
    EXPECT_TRUE(units == want);
    Bytes back(rows.size(), std::byte{0x5a});
    Dequantize(format, units.data(), RunOf(kDim),
               {.data = back.data() + 1, .head_stride = kDim, .token_stride = kTokenStride});
    for (size_t token = 0; token < kTokens; ++token) {
      const std::byte* got = &back[1 + token * kTokenStride * 4];
      for (size_t head = 0; head < kHeads; ++head) {
        EXPECT_EQ(std::memcmp(got + head * kDim * 4, &values[(head * kTokens + token) * kDim * 4],
                              kDim * 4),
                  0);
      }
      EXPECT_EQ(got[kHeads * kDim * 4], std::byte{0x5a}) << "wrote into the gap";
    }
  });
}

TEST(QuantizeTest, NanStaysWithinItsGroup) {
  constexpr uint32_t kDim = 64;
  const TensorFormat format = quant::MlxAffineFormat(8, 32, Dtype::kF32);
  const std::vector<float> clean = TestRows(kDim);
  std::vector<float> rows = clean;
  rows[kDim * 10 + 40] = NAN;  // group 1 of token 10
  const Bytes want = ScalarUnits(format, kDim, Dtype::kF32, Narrowed(clean, Dtype::kF32));
  const Bytes want_values = ScalarRows(format, kDim, Dtype::kF32, want);
  ForEachTarget([&](const char*) {
    Bytes units(want.size(), std::byte{0x5a});
    Quantize(format,
             {.data = reinterpret_cast<const std::byte*>(rows.data()),
              .head_stride = size_t{kTokens} * kDim,
              .token_stride = kDim},
             RunOf(kDim), units.data());
    Bytes values(want_values.size());
    Dequantize(
        format, units.data(), RunOf(kDim),
        {.data = values.data(), .head_stride = size_t{kTokens} * kDim, .token_stride = kDim});
    for (size_t i = 0; i < clean.size(); ++i) {
      const bool poisoned = i / 32 == kDim * 10 / 32 + 1;
      if (poisoned) continue;
      EXPECT_EQ(std::memcmp(&values[i * 4], &want_values[i * 4], 4), 0) << i;
    }
  });
}

}  // namespace
}  // namespace prefixd::kernels
