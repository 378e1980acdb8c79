// Quantize and Dequantize against the scalar codecs, byte for byte, on every target.
#include "kernels/quantize.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/convert/half_rows.h"
#include "quant/unit.h"
#include "tests/kernels/dispatch_targets.h"
#include "tests/kernels/guarded_bytes.h"
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

// The run of every test: tokens 3 ... 23 of pages with 32 slots, unless said otherwise.
UnitRun RunOf(uint32_t dim, quant::Side side = quant::Side::kKey) {
  return {.side = side,
          .heads = kHeads,
          .dim = dim,
          .page_tokens = kPageTokens,
          .first_token = kFirstSlot,
          .tokens = kTokens};
}

quant::UnitShape ShapeOf(const TensorFormat& format, const UnitRun& run) {
  return {.format = format, .side = run.side, .dim = run.dim, .page_tokens = run.page_tokens};
}

// rows: [heads][run.tokens][dim]; `before`: what stood in the units.
Bytes ScalarUnits(const TensorFormat& format, const UnitRun& run, Dtype dtype, const Bytes& rows,
                  std::byte before = std::byte{0x5a}) {
  const quant::UnitShape shape = ShapeOf(format, run);
  const uint64_t unit_bytes = quant::LayoutOf(shape).unit_bytes;
  Bytes units(run.heads * unit_bytes, before);
  std::vector<float> row(run.dim);
  for (uint32_t head = 0; head < run.heads; ++head) {
    for (uint32_t token = 0; token < run.tokens; ++token) {
      const size_t at = (size_t{head} * run.tokens + token) * run.dim * quant::DtypeBytes(dtype);
      quant::WidenToFloat(dtype, rows.data() + at, run.dim, row.data());
      quant::QuantizeToken(shape, row, run.first_token + token, units.data() + head * unit_bytes);
    }
  }
  return units;
}

Bytes ScalarRows(const TensorFormat& format, const UnitRun& run, Dtype dtype, const Bytes& units) {
  const quant::UnitShape shape = ShapeOf(format, run);
  const uint64_t unit_bytes = quant::LayoutOf(shape).unit_bytes;
  std::vector<float> rows(size_t{run.heads} * run.tokens * run.dim);
  for (uint32_t head = 0; head < run.heads; ++head) {
    for (uint32_t token = 0; token < run.tokens; ++token) {
      quant::DequantizeToken(
          shape, units.data() + head * unit_bytes, run.first_token + token,
          std::span(rows).subspan((size_t{head} * run.tokens + token) * run.dim, run.dim));
    }
  }
  return Narrowed(rows, dtype);
}

TensorView ViewOf(const Bytes& rows, const UnitRun& run, Dtype dtype) {
  return {.data = rows.data(),
          .dtype = dtype,
          .head_stride = size_t{run.tokens} * run.dim,
          .token_stride = run.dim};
}
MutableTensorView ViewOf(Bytes& rows, const UnitRun& run, Dtype dtype) {
  return {.data = rows.data(),
          .dtype = dtype,
          .head_stride = size_t{run.tokens} * run.dim,
          .token_stride = run.dim};
}

// Rows and tiled, K and V. Calls check(format, run, dtype of the tensor).
template <typename Check>
void ForEachFormatAndDtype(const Check& check) {
  for (const uint32_t dim : {32u, 80u, 96u, 128u, 33u}) {
    for (const TensorFormat& in_rows : FormatsFor(dim)) {
      std::vector<std::pair<TensorFormat, quant::Side>> units = {{in_rows, quant::Side::kKey}};
      if (quant::HasTiled(in_rows)) {
        units.push_back({quant::Tiled(in_rows), quant::Side::kKey});
        units.push_back({quant::Tiled(in_rows), quant::Side::kValue});
      }
      for (const auto& [format, side] : units) {
        for (const Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBf16}) {
          SCOPED_TRACE(quant::ToString(format) + " dim " + std::to_string(dim) + " tensor " +
                       quant::ToString(dtype) + (side == quant::Side::kKey ? " K" : " V"));
          check(format, RunOf(dim, side), dtype);
        }
      }
    }
  }
}

void ExpectScalarUnits(const TensorFormat& format, const UnitRun& run, Dtype dtype,
                       const Bytes& rows) {
  const Bytes want = ScalarUnits(format, run, dtype, rows);
  ForEachTarget([&](const char*) {
    Bytes units(want.size(), std::byte{0x5a});
    Quantize(format, ViewOf(rows, run, dtype), run, units.data());
    EXPECT_TRUE(units == want);
  });
}

void ExpectScalarRows(const TensorFormat& format, const UnitRun& run, Dtype dtype,
                      const Bytes& units) {
  const Bytes want = ScalarRows(format, run, dtype, units);
  ForEachTarget([&](const char*) {
    Bytes rows(want.size());
    Dequantize(format, units.data(), run, ViewOf(rows, run, dtype));
    EXPECT_TRUE(rows == want);
  });
}

TEST(QuantizeTest, BytesEqualTheScalarCodecsOnEveryTarget) {
  ForEachFormatAndDtype([](const TensorFormat& format, const UnitRun& run, Dtype dtype) {
    ExpectScalarUnits(format, run, dtype, Narrowed(TestRows(run.dim), dtype));
  });
}

TEST(QuantizeTest, DequantizedValuesEqualTheScalarCodecsOnEveryTarget) {
  ForEachFormatAndDtype([](const TensorFormat& format, const UnitRun& run, Dtype dtype) {
    const Bytes rows = Narrowed(TestRows(run.dim), Dtype::kF32);
    ExpectScalarRows(format, run, dtype, ScalarUnits(format, run, Dtype::kF32, rows));
  });
}

// Head dims of real models, and every way in which tokens can start and end inside tiles and words.
TEST(QuantizeTest, EveryHeadDimAndPlaceOfTokensGivesTheScalarBytes) {
  for (const uint32_t dim : {64u, 96u, 192u, 256u, 576u}) {
    for (const TensorFormat& in_rows :
         {quant::MlxAffineFormat(8, 32, Dtype::kF16), quant::MlxAffineFormat(4, 64, Dtype::kBf16),
          quant::MlxAffineFormat(6, 64, Dtype::kF32), quant::GgmlFormat(quant::Codec::kQ8_0),
          quant::GgmlFormat(quant::Codec::kQ4_1)}) {
      if (!quant::Validate(in_rows, dim).ok()) continue;
      for (const quant::Side side : {quant::Side::kKey, quant::Side::kValue}) {
        for (const auto& [page, first, count] :
             std::vector<std::array<uint32_t, 3>>{{64, 0, 64},
                                                  {64, 5, 1},
                                                  {64, 31, 2},
                                                  {64, 2, 61},
                                                  {63, 30, 33},
                                                  {33, 32, 1},
                                                  {1, 0, 1},
                                                  {40, 34, 6},
                                                  {128, 1, 127}}) {
          const TensorFormat format = quant::Tiled(in_rows);
          SCOPED_TRACE(quant::ToString(format) + " dim " + std::to_string(dim) + " tokens " +
                       std::to_string(first) + " + " + std::to_string(count) + " of " +
                       std::to_string(page) + (side == quant::Side::kKey ? " K" : " V"));
          const UnitRun run{.side = side,
                            .heads = 2,
                            .dim = dim,
                            .page_tokens = page,
                            .first_token = first,
                            .tokens = count};
          const Bytes rows =
              Narrowed(RandomFloats(size_t{2} * count * dim, dim + count), Dtype::kF32);
          ExpectScalarUnits(format, run, Dtype::kF32, rows);
          ExpectScalarRows(format, run, Dtype::kF32, ScalarUnits(format, run, Dtype::kF32, rows));
        }
      }
    }
  }
}

// Long results are written past the caches: the same bytes, all of them there on return.
TEST(QuantizeTest, LongResultsAreTheSameBytes) {
  constexpr uint32_t kDim = 256;
  const UnitRun run{.side = quant::Side::kValue,
                    .heads = 300,
                    .dim = kDim,
                    .page_tokens = 64,
                    .first_token = 0,
                    .tokens = 64};
  const TensorFormat format = quant::MlxAffineFormat(8, 64, Dtype::kF32);
  const Bytes rows = Narrowed(RandomFloats(size_t{run.heads} * 64 * kDim, 9), Dtype::kF32);
  Bytes units(run.heads * quant::LayoutOf(ShapeOf(format, run)).unit_bytes);
  Quantize(format, ViewOf(rows, run, Dtype::kF32), run, units.data());
  const Bytes want = ScalarRows(format, run, Dtype::kF32, units);
  // Aligned, which it has to be to go past the caches; and not.
  for (const size_t shift : {size_t{0}, size_t{4}}) {
    Bytes memory(want.size() + 128);
    const size_t at = 64 - reinterpret_cast<uintptr_t>(memory.data()) % 64 + shift;
    ForEachTarget([&](const char*) {
      std::fill(memory.begin(), memory.end(), std::byte{0x5a});
      Dequantize(format, units.data(), run,
                 {.data = memory.data() + at,
                  .dtype = Dtype::kF32,
                  .head_stride = size_t{64} * kDim,
                  .token_stride = kDim});
      EXPECT_EQ(std::memcmp(memory.data() + at, want.data(), want.size()), 0);
      EXPECT_EQ(memory[at - 1], std::byte{0x5a});
      EXPECT_EQ(memory[at + want.size()], std::byte{0x5a});
    });
  }
}

// Results that are asked to go past the caches; aligned, which they have to be to go there, and
// not.
TEST(QuantizeTest, StreamedResultsAreTheSameBytes) {
  for (const uint32_t page : {64u, 21u, 128u}) {
    ForEachFormatAndDtype([&](const TensorFormat& format, UnitRun run, Dtype dtype) {
      run.heads = 3;
      run.page_tokens = run.tokens = page;
      run.first_token = 0;
      const Bytes rows = Narrowed(RandomFloats(size_t{3} * page * run.dim, page), dtype);
      const Bytes units = ScalarUnits(format, run, dtype, rows, std::byte{0});
      const Bytes values = ScalarRows(format, run, dtype, units);
      run.stream = true;
      for (const size_t shift : {size_t{0}, size_t{8}}) {
        Bytes memory(std::max(units.size(), values.size()) + 256);
        const size_t at = 128 - reinterpret_cast<uintptr_t>(memory.data()) % 64 + shift;
        ForEachTarget([&](const char*) {
          const auto equals = [&](const Bytes& want) {
            return std::memcmp(memory.data() + at, want.data(), want.size()) == 0 &&
                   memory[at - 1] == std::byte{0x5a} && memory[at + want.size()] == std::byte{0x5a};
          };
          std::fill(memory.begin(), memory.end(), std::byte{0x5a});
          std::fill_n(memory.data() + at, units.size(), std::byte{0});
          Quantize(format, ViewOf(rows, run, dtype), run, memory.data() + at);
          EXPECT_TRUE(equals(units));
          std::fill(memory.begin(), memory.end(), std::byte{0x5a});
          MutableTensorView to = ViewOf(memory, run, dtype);
          to.data += at;
          Dequantize(format, units.data(), run, to);
          EXPECT_TRUE(equals(values));
        });
      }
    });
  }
}

// Float16 rows with one NaN instead of all: which of two a sum takes is not said.
Bytes WithOneNan(Bytes halves) {
  for (size_t i = 0; i < halves.size(); i += 2) {
    uint16_t bits;
    std::memcpy(&bits, &halves[i], 2);
    if ((bits & 0x7fff) > 0x7c00) bits = 0x7e00;
    std::memcpy(&halves[i], &bits, 2);
  }
  return halves;
}

// Scales and biases of any bits: subnormal, infinite, NaN, of any sizes beside each other.
TEST(QuantizeTest, ArithmeticOfHalvesChangesNoBit) {
  if (!HaveHalfArithmetic()) GTEST_SKIP() << "this machine has none";
  constexpr uint32_t kDim = 128;
  const UnitRun run{.side = quant::Side::kKey,
                    .heads = 256,
                    .dim = kDim,
                    .page_tokens = 64,
                    .first_token = 0,
                    .tokens = 64};
  for (const TensorFormat& format : {quant::MlxAffineFormat(8, 32, Dtype::kF16),
                                     quant::Tiled(quant::MlxAffineFormat(4, 64, Dtype::kF16))}) {
    SCOPED_TRACE(quant::ToString(format));
    Bytes units(run.heads * quant::LayoutOf(ShapeOf(format, run)).unit_bytes);
    std::mt19937 random(5);
    for (std::byte& byte : units) byte = static_cast<std::byte>(random());
    const Bytes want = WithOneNan(ScalarRows(format, run, Dtype::kF16, units));
    for (const bool allowed : {true, false}) {
      AllowHalfArithmetic(allowed);
      Bytes rows(want.size());
      Dequantize(format, units.data(), run, ViewOf(rows, run, Dtype::kF16));
      EXPECT_TRUE(WithOneNan(rows) == want) << "with arithmetic of halves: " << allowed;
    }
    AllowHalfArithmetic(true);
  }
}

// Units of random codes, scales and biases of ordinary sizes. In every other head those of one
// group are not: very small, too large to be rounded by sums, no number, or -0.
Bytes UnitsOfOrdinarySizes(const TensorFormat& format, const UnitRun& run) {
  const quant::UnitLayout layout = quant::LayoutOf(ShapeOf(format, run));
  const size_t count = size_t{layout.slots} * (run.dim / format.group_size);
  Bytes units(run.heads * layout.unit_bytes);
  std::mt19937 random(7);
  for (std::byte& byte : units) byte = static_cast<std::byte>(random());
  std::uniform_real_distribution<float> exponent(-14, 6);
  const auto put = [&](float v, size_t i, std::byte* numbers) {
    quant::NarrowFromFloat(format.dtype, &v, 1, numbers + i * 2);
  };
  constexpr std::pair<float, float> kOdd[] = {
      {0x1p-15f, 1}, {65, 1},          {0, 1},      {-0.0f, 1},     {NAN, 1},      {INFINITY, 1},
      {-300, 1},     {1e-39f, 1e-38f}, {-1, -0.0f}, {60, 60000},    {-60, -60000}, {1, INFINITY},
      {1, NAN},      {300, -60000},    {1, 1e-39f}, {3e-6f, -3e-7f}};
  for (uint32_t head = 0; head < run.heads; ++head) {
    std::byte* const scales = units.data() + head * layout.unit_bytes + layout.scales_offset;
    std::byte* const biases = units.data() + head * layout.unit_bytes + layout.biases_offset;
    for (size_t i = 0; i < count; ++i) {
      const float scale = std::exp2(exponent(random)), bias = std::exp2(exponent(random) + 8);
      put(random() % 2 == 0 ? scale : -scale, i, scales);
      put(random() % 2 == 0 ? bias : -bias, i, biases);
    }
    if (head % 2 == 0) continue;
    const size_t i = random() % count;
    put(kOdd[head / 2 % std::size(kOdd)].first, i, scales);
    put(kOdd[head / 2 % std::size(kOdd)].second, i, biases);
  }
  return units;
}

TEST(QuantizeTest, ScalesAndBiasesOfOrdinarySizesGiveTheScalarBytes) {
  UnitRun run = RunOf(128);
  run.heads = run.page_tokens = run.tokens = 64;
  run.first_token = 0;
  for (const TensorFormat& format :
       {quant::MlxAffineFormat(8, 64, Dtype::kF16), quant::MlxAffineFormat(8, 64, Dtype::kBf16),
        quant::Tiled(quant::MlxAffineFormat(8, 32, Dtype::kBf16)),
        quant::MlxAffineFormat(6, 64, Dtype::kF16), quant::MlxAffineFormat(5, 32, Dtype::kBf16)}) {
    const Bytes units = UnitsOfOrdinarySizes(format, run);
    for (const Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBf16}) {
      ExpectScalarRows(format, run, dtype, units);
    }
  }
}

// Quotients of MLX's formula that are ties, and the floats next to those: a code may hang on the
// last bit of a division.
TEST(QuantizeTest, QuotientsNextToTiesGetTheCodesOfADivision) {
  constexpr uint32_t kDim = 128;
  std::mt19937 random(11);
  std::uniform_real_distribution<float> spread(0.5f, 2.0f);
  for (const int width : {2, 3, 4, 5, 6, 8}) {
    const auto bits = static_cast<uint8_t>(width);
    SCOPED_TRACE(width);
    const auto most = static_cast<float>((1 << width) - 1);
    std::vector<float> values(size_t{kHeads} * kTokens * kDim);
    for (size_t begin = 0; begin < values.size(); begin += 64) {
      const float scale = spread(random) * std::ldexp(1.0f, static_cast<int>(random() % 40) - 20);
      const float lowest = -scale * static_cast<float>(random() % (1u << width));
      for (size_t i = 0; i < 64; ++i) {
        const float code = static_cast<float>(random() % (1u << width));
        float value = lowest + scale * (i < 2 ? static_cast<float>(i) * most : code + 0.5f);
        for (auto step = random() % 3; step > 0; --step) {
          value = std::nextafter(value, i % 2 == 0 ? 1e30f : -1e30f);
        }
        values[begin + i] = value;
      }
    }
    for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16}) {
      ExpectScalarUnits(quant::MlxAffineFormat(bits, 64, Dtype::kF32), RunOf(kDim), dtype,
                        Narrowed(values, dtype));
    }
  }
}

// What the proof of a division by two multiplications (kernels/group_encoders-inl.h) leaves open:
// divisors whose 24 bits are within 6 of a multiple of 2^16, dividends next to every tie.
TEST(QuantizeTest, AReciprocalInTwoPartsFailsForOneDivisorOnly) {
  std::vector<uint32_t> failed;
  for (uint32_t multiple = 128; multiple <= 256; ++multiple) {
    for (int off = -8; off <= 8; ++off) {
      const auto bits = static_cast<uint32_t>(static_cast<int>(multiple << 16) + off);
      if (bits < 1u << 23 || bits >= 1u << 24) continue;
      const float divisor = std::ldexp(static_cast<float>(bits), -30);
      const float high = 1.0f / divisor, low = std::fma(-divisor, high, 1.0f) * high;
      for (uint32_t n = 0; n < 256; ++n) {
        float x = divisor * (static_cast<float>(n) + 0.5f);
        for (int step = 0; step < 4; ++step) x = std::nextafter(x, 0.0f);
        for (int step = -4; step <= 4; ++step, x = std::nextafter(x, 1e30f)) {
          if (std::nearbyint(x / divisor) == std::nearbyint(std::fma(x, high, x * low))) continue;
          failed.push_back(bits);
        }
      }
    }
  }
  EXPECT_EQ(failed, std::vector<uint32_t>{0xffffff});
}

// The one divisor, with its powers of two, whose reciprocal in two parts is not enough: it is
// left to a division. 2^-24 of the quotient decide whether the code is 0 or 1.
TEST(QuantizeTest, AQuotientJustAboveAHalfIsNoTie) {
  constexpr uint32_t kDim = 128;
  for (const int width : {2, 4, 8}) {
    SCOPED_TRACE(width);
    for (const int power : {-10, 0, 9}) {
      const float scale = std::ldexp(std::nextafter(2.0f, 0.0f), power);
      const float lowest = -scale * static_cast<float>(1 << (width - 1));
      std::vector<float> values(size_t{kHeads} * kTokens * kDim, std::ldexp(1.0f, power) + lowest);
      for (size_t begin = 0; begin < values.size(); begin += 64) {
        values[begin] = lowest;
        values[begin + 1] = scale * static_cast<float>((1 << (width - 1)) - 1);
      }
      ExpectScalarUnits(quant::MlxAffineFormat(static_cast<uint8_t>(width), 64, Dtype::kF32),
                        RunOf(kDim), Dtype::kF32, Narrowed(values, Dtype::kF32));
    }
  }
}

// MLX's own figures: 40 draws of (1, 32, 512, 128) gave these means.
TEST(QuantizeTest, MeanErrorOnNormalDataIsThatOfMlx) {
  constexpr uint32_t kDim = 128;
  const UnitRun run{.side = quant::Side::kKey,
                    .heads = 32,
                    .dim = kDim,
                    .page_tokens = 512,
                    .first_token = 0,
                    .tokens = 512};
  const std::vector<float> rows = RandomFloats(size_t{run.heads} * 512 * kDim, 1);
  const Bytes bytes = Narrowed(rows, Dtype::kF32);
  const auto mean_error = [&](uint8_t bits) {
    const TensorFormat format = quant::Tiled(quant::MlxAffineFormat(bits, 64, Dtype::kF32));
    Bytes units(run.heads * quant::LayoutOf(ShapeOf(format, run)).unit_bytes);
    Bytes back(bytes.size());
    Quantize(format, ViewOf(bytes, run, Dtype::kF32), run, units.data());
    Dequantize(format, units.data(), run, ViewOf(back, run, Dtype::kF32));
    double sum = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      float value;
      std::memcpy(&value, &back[i * 4], 4);
      sum += std::fabs(double{value} - double{rows[i]});
    }
    return sum / static_cast<double>(rows.size());
  };
  EXPECT_NEAR(mean_error(8), 0.00456, 0.00002);
  EXPECT_NEAR(mean_error(4), 0.0771, 0.0002);
}

TEST(QuantizeTest, NothingBesideTensorsAndUnitsIsTouched) {
  for (const uint32_t dim : {32u, 96u, 128u}) {
    for (const TensorFormat& in_rows : FormatsFor(dim)) {
      for (const TensorFormat& format : {in_rows, quant::Tiled(in_rows)}) {
        const UnitRun run{.side = quant::Side::kValue,
                          .heads = kHeads,
                          .dim = dim,
                          .page_tokens = 23,
                          .first_token = 0,
                          .tokens = 23};
        const Bytes rows = Narrowed(RandomFloats(size_t{kHeads} * 23 * dim, 5), Dtype::kF16);
        const Bytes want = ScalarUnits(format, run, Dtype::kF16, rows);
        const Bytes values = ScalarRows(format, run, Dtype::kF16, want);
        SCOPED_TRACE(quant::ToString(format));
        for (const auto at : {GuardedBytes::At::kBegin, GuardedBytes::At::kEnd}) {
          ForEachTarget([&](const char*) {
            const GuardedBytes from(rows, at), units(Bytes(want.size(), std::byte{0x5a}), at);
            const GuardedBytes back(Bytes(values.size()), at);
            TensorView view = ViewOf(rows, run, Dtype::kF16);
            view.data = from.data();
            Quantize(format, view, run, units.data());
            EXPECT_TRUE(units == want);
            Dequantize(format, units.data(), run,
                       {.data = back.data(),
                        .dtype = Dtype::kF16,
                        .head_stride = size_t{23} * dim,
                        .token_stride = dim});
            EXPECT_TRUE(back == values);
          });
        }
      }
    }
  }
}

// The first of equally wide elements, and the first of zeros of both signs, decide bytes of ggml's.
TEST(QuantizeTest, TiesInsideAGroupAreDecidedByTheirOrder) {
  constexpr uint32_t kDim = 64;
  std::vector<float> values(size_t{kHeads} * kTokens * kDim);
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t token = i / kDim, d = i % kDim;
    const bool first_half = d % 32 < 1 + token % 31;
    if (token % 3 == 0) values[i] = first_half ? 2.0f : -2.0f;
    if (token % 3 == 1) values[i] = first_half ? -0.0f : 0.0f;
    if (token % 3 == 2) values[i] = d % 32 == token % 32 ? -0.0f : d % 5 == 0 ? 0.0f : 3.0f;
    if (token % 2 == 1) values[i] = -values[i];
  }
  for (const TensorFormat& format : FormatsFor(kDim)) {
    SCOPED_TRACE(quant::ToString(format));
    ExpectScalarUnits(format, RunOf(kDim), Dtype::kF32, Narrowed(values, Dtype::kF32));
  }
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
  const Bytes want = ScalarUnits(format, RunOf(kDim), Dtype::kF32, Narrowed(dense, Dtype::kF32));
  const Bytes values = ScalarRows(format, RunOf(kDim), Dtype::kF32, want);
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

// Groups of 16-bit elements are searched as integers where they have both signs; what has one sign
// or none stands among them here, and the extremes at every place of a group.
TEST(QuantizeTest, GroupsOfHalvesOnOneSideOfZeroGetTheScalarBytes) {
  constexpr uint32_t kDim = 128;
  for (const uint16_t group_size : {uint16_t{32}, uint16_t{64}, uint16_t{128}}) {
    std::vector<float> values = RandomFloats(size_t{kHeads} * kTokens * kDim, group_size);
    for (size_t begin = 0, g = 0; begin < values.size(); begin += group_size, ++g) {
      values[begin + g % group_size] = 5.0f;
      values[begin + (g * 7 + 3) % group_size] = -6.0f;
      if (g % 11 != 0) continue;
      for (float& x : std::span(values).subspan(begin, group_size)) {
        const std::array<float, 4> changed = {std::fabs(x), -std::fabs(x), -0.0f, 3.0f};
        x = changed[g % changed.size()];
      }
    }
    for (const Dtype dtype : {Dtype::kF16, Dtype::kBf16}) {
      for (const uint8_t bits : {uint8_t{4}, uint8_t{8}}) {
        const TensorFormat format = quant::MlxAffineFormat(bits, group_size, dtype);
        SCOPED_TRACE(quant::ToString(format));
        ExpectScalarUnits(format, RunOf(kDim), dtype, Narrowed(values, dtype));
      }
    }
  }
}

TEST(QuantizeTest, NanStaysWithinItsGroup) {
  constexpr uint32_t kDim = 64;
  const TensorFormat format = quant::MlxAffineFormat(8, 32, Dtype::kF32);
  for (const Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBf16}) {
    SCOPED_TRACE(quant::ToString(dtype));
    std::vector<float> rows = TestRows(kDim);
    const Bytes clean = Narrowed(rows, dtype);
    rows[kDim * 10 + 40] = NAN;  // group 1 of token 10
    const Bytes poisoned = Narrowed(rows, dtype);
    const Bytes want = ScalarUnits(format, RunOf(kDim), dtype, clean);
    const Bytes want_values = ScalarRows(format, RunOf(kDim), Dtype::kF32, want);
    ForEachTarget([&](const char*) {
      Bytes units(want.size(), std::byte{0x5a});
      Quantize(format, ViewOf(poisoned, RunOf(kDim), dtype), RunOf(kDim), units.data());
      Bytes values(want_values.size());
      Dequantize(format, units.data(), RunOf(kDim), ViewOf(values, RunOf(kDim), Dtype::kF32));
      for (size_t i = 0; i < rows.size(); ++i) {
        if (i / 32 == kDim * 10 / 32 + 1) continue;
        EXPECT_EQ(std::memcmp(&values[i * 4], &want_values[i * 4], 4), 0) << i;
      }
    });
  }
}

}  // namespace
}  // namespace prefixd::kernels
