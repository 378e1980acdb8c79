// Window, sink tokens, learned sinks, soft-cap, mixed formats: in both arithmetics, on every
// target.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "tests/kernels/attention_checks.h"
#include "tests/kernels/attention_option.h"
#include "tests/kernels/dispatch_targets.h"
#include "tests/kernels/guarded_pages.h"

namespace prefixd::kernels {
namespace {

using options::kLayer;
using options::Option;
using quant::Dtype;
using quant::KvFormat;

// One for each arithmetic.
std::vector<KvFormat> Formats() {
  return {{quant::MlxAffineFormat(8, 64, Dtype::kF16), quant::MlxAffineFormat(4, 32, Dtype::kBf16)},
          {quant::RawFormat(Dtype::kF16), quant::RawFormat(Dtype::kF32)}};
}

const std::vector<Option>& Options() {
  static const std::vector<Option> options = {
      {.name = "window 1", .window = 1},
      {.name = "window 50", .window = 50},
      {.name = "window 64", .window = 64},
      {.name = "window 100 after 4 tokens", .window = 100, .sink_tokens = 4},
      {.name = "window 20 after 90 tokens", .window = 20, .sink_tokens = 90},
      {.name = "a window larger than the context", .window = 5000, .sink_tokens = 5},
      {.name = "learned sinks", .sinks = true},
      {.name = "soft cap 2", .soft_cap = 2, .scale = 0.7f},
      {.name = "soft cap 50", .soft_cap = 50, .scale = 3, .bound = 1e-3},
      {.name = "soft cap 1000", .soft_cap = 1000},
      {.name = "scale below 0", .scale = -0.5f, .bound = 1e-3},
      {.name = "everything",
       .window = 70,
       .sink_tokens = 3,
       .soft_cap = 5,
       .sinks = true,
       .scale = 0.5f,
       .bound = 1e-3}};
  return options;
}

TEST(AttentionOptionsTest, EveryOptionAgreesWithTheScalarOracleOnEveryTarget) {
  for (const KvFormat& format : Formats()) {
    const PagedLayer layer(kLayer, {format}, UniformBlocks(260, 32));
    for (const Option& option : Options()) {
      SCOPED_TRACE(quant::ToString(format) + ", " + option.name);
      ExpectLikeScalarOnEveryTarget(layer, option.Of(1, 259), option.bound);
      ExpectLikeScalarOnEveryTarget(layer, option.Of(90, 170), option.bound);
      ExpectLikeScalarOnEveryTarget(layer, option.Of(150, 0), option.bound);
    }
  }
}

TEST(AttentionOptionsTest, ARowIsTheSameAloneInAChunkAndOnThreadsWithEveryOption) {
  constexpr uint32_t kRows = 100, kFirst = 150;
  for (const KvFormat& format : Formats()) {
    const PagedLayer layer(kLayer, {format}, UniformBlocks(kRows + kFirst, 64));
    const PagedLayer cut(kLayer, {format}, UniformBlocks(kRows + kFirst, 23));
    for (const Option& option : Options()) {
      SCOPED_TRACE(quant::ToString(format) + ", " + option.name);
      AttentionShape all = option.Of(kRows, kFirst);
      const std::vector<float> q = RandomFloats(QueryFloats(all), 5);
      ForEachQuickTarget([&](const char*) {
        const std::vector<float> together = MustAttend(layer, q.data(), all);
        EXPECT_TRUE(SameBits(MustAttend(cut, q.data(), all), together)) << "other blocks";
        AttentionShape threaded = all;
        threaded.threads = 3;
        EXPECT_TRUE(SameBits(MustAttend(layer, q.data(), threaded), together)) << "threads";
        const size_t row_floats = together.size() / kRows;
        for (const uint32_t row : {0u, 1u, 41u, 42u, 99u}) {
          const AttentionShape one = option.Of(1, kFirst + row);
          const auto begin = together.begin() + static_cast<ptrdiff_t>(row * row_floats);
          EXPECT_TRUE(SameBits(MustAttend(layer, q.data() + row * QueryFloats(one), one),
                               {begin, begin + static_cast<ptrdiff_t>(row_floats)}))
              << "row " << row;
        }
      });
    }
  }
}

TEST(AttentionOptionsTest, BlocksThatNoRowSeesAreNotTouched) {
  for (const KvFormat& format : Formats()) {
    const PagedLayer layer(kLayer, {format}, UniformBlocks(400, 20));
    for (const uint32_t sink_tokens : {0u, 4u, 70u}) {
      const Option option{.window = 60, .sink_tokens = sink_tokens};
      for (const uint32_t rows : {1u, 30u}) {
        const AttentionShape shape = option.Of(rows, 400 - rows);
        const std::vector<float> q = RandomFloats(QueryFloats(shape), 5);
        GuardedPages guarded(layer, kLayer, Guard::kBehind);
        const uint32_t first_seen = 400 - rows - 59;
        for (uint32_t block = (sink_tokens + 19) / 20; block < first_seen / 20; ++block) {
          guarded.Forbid(block);
        }
        ForEachQuickTarget([&](const char*) {
          std::vector<float> out(OutFloats(shape));
          ASSERT_TRUE(Attend(guarded.table(), layer.formats(), q.data(), out.data(), shape).ok());
          EXPECT_TRUE(SameBits(out, MustAttend(layer, q.data(), shape)));
        });
      }
    }
  }
}

// Slots beyond a block's tokens hold NaN: with them counted, rows whose window is behind them are
// as if they were not there.
TEST(AttentionOptionsTest, NanOutsideTheWindowDoesNotReachARow) {
  for (const KvFormat& format :
       {KvFormat{quant::RawFormat(Dtype::kF32), quant::RawFormat(Dtype::kF32)},
        KvFormat{quant::MlxAffineFormat(8, 32, Dtype::kF32),
                 quant::MlxAffineFormat(4, 32, Dtype::kF32)}}) {
    SCOPED_TRACE(quant::ToString(format));
    const PagedLayer layer(kLayer, {format}, {{40, 64}, {300, 320}});
    std::vector<quant::BlockTableEntry> table(layer.table().begin(), layer.table().end());
    table[0].tokens = 64;  // positions 40 to 63 are NaN
    const AttentionShape shape = Option{.window = 30, .sink_tokens = 40}.Of(100, 50);
    const std::vector<float> q = RandomFloats(QueryFloats(shape), 5);
    ForEachQuickTarget([&](const char*) {
      std::vector<float> out(OutFloats(shape));
      ASSERT_TRUE(Attend(table, layer.formats(), q.data(), out.data(), shape).ok());
      const size_t row = out.size() / 100;
      for (size_t i = 0; i < out.size(); ++i) {
        const uint32_t position = 50 + static_cast<uint32_t>(i / row);
        EXPECT_EQ(std::isnan(out[i]), position < 63 + 30) << "row at " << position;
        if (HasFailure()) return;
      }
    });
  }
}

TEST(AttentionOptionsTest, EveryPairOfFormatsMayFollowEachOther) {
  const KvFormat formats[] = {
      {quant::RawFormat(Dtype::kF16), quant::RawFormat(Dtype::kF16)},
      {quant::MlxAffineFormat(8, 64, Dtype::kF16), quant::MlxAffineFormat(8, 32, Dtype::kF16)},
      {quant::MlxAffineFormat(8, 32, Dtype::kBf16), quant::MlxAffineFormat(4, 32, Dtype::kF16)},
      {quant::MlxAffineFormat(4, 64, Dtype::kF32), quant::MlxAffineFormat(4, 32, Dtype::kF32)},
      {quant::GgmlFormat(quant::Codec::kQ8_0), quant::GgmlFormat(quant::Codec::kQ4_0)},
      {quant::GgmlFormat(quant::Codec::kQ4_1), quant::GgmlFormat(quant::Codec::kQ5_0)}};
  for (const KvFormat& first : formats) {
    for (const KvFormat& second : formats) {
      SCOPED_TRACE(quant::ToString(first) + " then " + quant::ToString(second));
      const PagedLayer layer(kLayer, {first, second},
                             {{64, 64, 0}, {37, 64, 1}, {50, 50, 0}, {9, 16, 1}});
      ExpectLikeScalarOnEveryTarget(layer, Option{}.Of(1, 159));
      ExpectLikeScalarOnEveryTarget(layer, Option{.window = 90, .sinks = true}.Of(50, 110));
    }
  }
}

// Raw blocks between blocks of codes: each arithmetic takes its own tokens.
TEST(AttentionOptionsTest, ARowOfAMixedTableIsTheSameAloneInAChunkAndOnThreads) {
  const std::vector<KvFormat> formats = {
      {quant::MlxAffineFormat(8, 64, Dtype::kF16), quant::MlxAffineFormat(4, 32, Dtype::kF16)},
      {quant::RawFormat(Dtype::kF16), quant::RawFormat(Dtype::kF16)}};
  const PagedLayer layer(kLayer, formats,
                         {{30, 64, 1}, {64, 64, 0}, {34, 64, 1}, {70, 128, 0}, {52, 64, 1}});
  for (const Option& option : Options()) {
    SCOPED_TRACE(option.name);
    AttentionShape all = option.Of(220, 30);
    const std::vector<float> q = RandomFloats(QueryFloats(all), 5);
    ForEachQuickTarget([&](const char*) {
      const std::vector<float> together = MustAttend(layer, q.data(), all);
      AttentionShape threaded = all;
      threaded.threads = 2;
      EXPECT_TRUE(SameBits(MustAttend(layer, q.data(), threaded), together)) << "threads";
      const size_t row_floats = together.size() / 220;
      for (const uint32_t row : {0u, 33u, 64u, 140u, 219u}) {
        const AttentionShape one = option.Of(1, 30 + row);
        const auto begin = together.begin() + static_cast<ptrdiff_t>(row * row_floats);
        EXPECT_TRUE(SameBits(MustAttend(layer, q.data() + row * QueryFloats(one), one),
                             {begin, begin + static_cast<ptrdiff_t>(row_floats)}))
            << "row " << row;
      }
    });
    ExpectLikeScalarOnEveryTarget(layer, all, option.bound);
  }
}

TEST(AttentionOptionsTest, AFormatThatNoBlockHasChangesNoBit) {
  const KvFormat codes{quant::MlxAffineFormat(8, 64, Dtype::kF16),
                       quant::MlxAffineFormat(4, 32, Dtype::kF16)};
  const KvFormat raw{quant::RawFormat(Dtype::kF16), quant::RawFormat(Dtype::kF16)};
  const AttentionShape shape = Option{.window = 90, .sinks = true}.Of(20, 150);
  const std::vector<float> q = RandomFloats(QueryFloats(shape), 5);
  const PagedLayer alone(kLayer, {codes}, UniformBlocks(170, 64));
  const PagedLayer listed(kLayer, {codes, raw}, UniformBlocks(170, 64));
  const PagedLayer raw_alone(kLayer, {raw}, UniformBlocks(170, 64));
  const PagedLayer raw_listed(kLayer, {codes, raw}, UniformBlocks(170, 64, /*format=*/1));
  ForEachQuickTarget([&](const char*) {
    EXPECT_TRUE(SameBits(MustAttend(listed, q.data(), shape), MustAttend(alone, q.data(), shape)));
    EXPECT_LE(RelativeError(MustAttend(raw_listed, q.data(), shape),
                            MustAttend(raw_alone, q.data(), shape)),
              kErrorBound);
  });
}

// A sink of minus infinity is no sink, bit for bit; a sink so large that it takes all leaves 0.
TEST(AttentionOptionsTest, LearnedSinksRunFromNothingToEverything) {
  for (const KvFormat& format : Formats()) {
    const PagedLayer layer(kLayer, {format}, UniformBlocks(100, 64));
    AttentionShape shape = Option{}.Of(2, 98);
    const std::vector<float> q = RandomFloats(QueryFloats(shape), 5);
    ForEachQuickTarget([&](const char*) {
      shape.sink_logits = nullptr;
      const std::vector<float> none = MustAttend(layer, q.data(), shape);
      const std::vector<float> nothing(6, -std::numeric_limits<float>::infinity());
      shape.sink_logits = nothing.data();
      EXPECT_TRUE(SameBits(MustAttend(layer, q.data(), shape), none));
      const std::vector<float> everything(6, 300.0f);
      shape.sink_logits = everything.data();
      for (const float value : MustAttend(layer, q.data(), shape))
        EXPECT_LE(std::fabs(value), 1e-30f);
    });
  }
}

}  // namespace
}  // namespace prefixd::kernels
