// StorePacked, LoadPacked and Relayout against quant/unit.h, byte for byte, on every target.
#include "kernels/relayout.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

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

// What the bytes mean does not matter to what moves them.
Bytes RandomBytes(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  Bytes bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

quant::UnitShape ShapeOf(const TensorFormat& format, const UnitRun& run) {
  return {.format = format, .side = run.side, .dim = run.dim, .page_tokens = run.page_tokens};
}

Bytes RandomUnits(const TensorFormat& format, const UnitRun& run, uint32_t seed) {
  return RandomBytes(kHeads * quant::LayoutOf(ShapeOf(format, run)).unit_bytes, seed);
}

// Copies the run's tokens between units of any two layouts.
Bytes Copied(const TensorFormat& from, const Bytes& units, const TensorFormat& to, Bytes onto,
             const UnitRun& run) {
  const quant::UnitShape source = ShapeOf(from, run), target = ShapeOf(to, run);
  for (uint32_t head = 0; head < kHeads; ++head) {
    quant::CopyTokens(
        {source, units.data() + head * quant::LayoutOf(source).unit_bytes, run.first_token},
        {target, onto.data() + head * quant::LayoutOf(target).unit_bytes, run.first_token},
        run.tokens);
  }
  return onto;
}

// Calls check(format in rows, run) for both sides, head dims of models, and runs that start and end
// inside tiles and words.
template <typename Check>
void ForEachRun(const Check& check) {
  for (const uint32_t dim : {32u, 64u, 96u, 128u, 192u, 256u, 576u}) {
    for (const TensorFormat& format : FormatsFor(dim)) {
      if (!quant::HasTiled(format)) continue;
      for (const quant::Side side : {quant::Side::kKey, quant::Side::kValue}) {
        for (const auto& [page, first, count] : std::vector<std::array<uint32_t, 3>>{{64, 0, 64},
                                                                                     {64, 5, 1},
                                                                                     {64, 2, 61},
                                                                                     {64, 12, 16},
                                                                                     {48, 32, 16},
                                                                                     {63, 30, 33},
                                                                                     {1, 0, 1},
                                                                                     {40, 34, 6}}) {
          SCOPED_TRACE(quant::ToString(format) + " dim " + std::to_string(dim) + " tokens " +
                       std::to_string(first) + " + " + std::to_string(count) + " of " +
                       std::to_string(page) + (side == quant::Side::kKey ? " K" : " V"));
          check(format, UnitRun{.side = side,
                                .heads = kHeads,
                                .dim = dim,
                                .page_tokens = page,
                                .first_token = first,
                                .tokens = count});
        }
      }
    }
  }
}

TEST(RelayoutTest, BothWaysEqualTheScalarConversionOnEveryTarget) {
  ForEachRun([](const TensorFormat& rows, const UnitRun& run) {
    const TensorFormat tiled = quant::Tiled(rows);
    const Bytes in_rows = RandomUnits(rows, run, 1), in_tiles = RandomUnits(tiled, run, 2);
    const Bytes want_tiles = Copied(rows, in_rows, tiled, in_tiles, run);
    const Bytes want_rows = Copied(tiled, in_tiles, rows, in_rows, run);
    ForEachTarget([&](const char*) {
      Bytes seen_tiles = in_tiles, seen_rows = in_rows;
      Relayout(rows, in_rows.data(), run, seen_tiles.data());
      EXPECT_TRUE(seen_tiles == want_tiles);
      Relayout(tiled, in_tiles.data(), run, seen_rows.data());
      EXPECT_TRUE(seen_rows == want_rows);
    });
    if (run.page_tokens != 63 && run.tokens != 64) return;
    for (const auto at : {GuardedBytes::At::kBegin, GuardedBytes::At::kEnd}) {
      ForEachTarget([&](const char*) {
        const GuardedBytes from_rows(in_rows, at), to_tiles(in_tiles, at);
        Relayout(rows, from_rows.data(), run, to_tiles.data());
        EXPECT_TRUE(to_tiles == want_tiles);
        const GuardedBytes from_tiles(in_tiles, at), to_rows(in_rows, at);
        Relayout(tiled, from_tiles.data(), run, to_rows.data());
        EXPECT_TRUE(to_rows == want_rows);
      });
    }
  });
}

// Past the caches, where a run covers its units; padding as zeros.
TEST(RelayoutTest, StreamedUnitsAreTheSameBytes) {
  ForEachRun([](const TensorFormat& rows, UnitRun run) {
    if (run.tokens != run.page_tokens) return;
    const TensorFormat tiled = quant::Tiled(rows);
    const Bytes in_rows = RandomUnits(rows, run, 1), in_tiles = RandomUnits(tiled, run, 2);
    const Bytes want_tiles = Copied(rows, in_rows, tiled, Bytes(in_tiles.size()), run);
    const Bytes want_rows = Copied(tiled, in_tiles, rows, Bytes(in_rows.size()), run);
    run.stream = true;
    for (const size_t shift : {size_t{0}, size_t{8}}) {
      Bytes memory(std::max(in_rows.size(), in_tiles.size()) + 128);
      std::byte* const to =
          memory.data() + 64 - reinterpret_cast<uintptr_t>(memory.data()) % 64 + shift;
      ForEachTarget([&](const char*) {
        std::fill(memory.begin(), memory.end(), std::byte{0x5a});
        Relayout(rows, in_rows.data(), run, to);
        EXPECT_EQ(std::memcmp(to, want_tiles.data(), want_tiles.size()), 0);
        std::fill(memory.begin(), memory.end(), std::byte{0x5a});
        Relayout(tiled, in_tiles.data(), run, to);
        EXPECT_EQ(std::memcmp(to, want_rows.data(), want_rows.size()), 0);
      });
    }
  });
}

// Rows of a tensor whose tokens stand outside its heads, with a gap behind each.
void ExpectStridedRows(const UnitRun& run) {
  for (const TensorFormat& in_rows : FormatsFor(run.dim)) {
    for (const TensorFormat& format : {in_rows, quant::Tiled(in_rows)}) {
      SCOPED_TRACE(quant::ToString(format));
      const quant::RowBytes row = quant::BytesOfStoredRow(in_rows, run.dim);
      const size_t codes_stride = kHeads * row.codes + 3, scales_stride = kHeads * row.scales + 5;
      const Bytes codes = RandomBytes(1 + run.tokens * codes_stride, 1);
      const Bytes scales = RandomBytes(1 + run.tokens * scales_stride, 2);
      const Bytes biases = RandomBytes(1 + run.tokens * scales_stride, 3);
      const Bytes before = RandomUnits(format, run, 4);
      Bytes want = before;
      const quant::UnitShape shape = ShapeOf(format, run);
      for (size_t head = 0; head < kHeads; ++head) {
        for (uint32_t t = 0; t < run.tokens; ++t) {
          const size_t scale = 1 + t * scales_stride + head * row.scales;
          quant::StoreRow(shape,
                          {.codes = &codes[1 + t * codes_stride + head * row.codes],
                           .scales = &scales[scale],
                           .biases = &biases[scale]},
                          run.first_token + t,
                          want.data() + head * quant::LayoutOf(shape).unit_bytes);
        }
      }
      ForEachTarget([&](const char*) {
        Bytes units = before;
        StorePacked(format,
                    {.codes = &codes[1],
                     .scales = &scales[1],
                     .biases = &biases[1],
                     .codes_head_stride = row.codes,
                     .codes_token_stride = codes_stride,
                     .scales_head_stride = row.scales,
                     .scales_token_stride = scales_stride},
                    run, units.data());
        EXPECT_TRUE(units == want);
        Bytes codes_back = codes, scales_back = scales, biases_back = biases;
        for (size_t t = 0; t < run.tokens; ++t) codes_back[1 + t * codes_stride] ^= std::byte{255};
        LoadPacked(format, units.data(), run,
                   {.codes = &codes_back[1],
                    .scales = &scales_back[1],
                    .biases = &biases_back[1],
                    .codes_head_stride = row.codes,
                    .codes_token_stride = codes_stride,
                    .scales_head_stride = row.scales,
                    .scales_token_stride = scales_stride});
        EXPECT_TRUE(codes_back == codes);
        EXPECT_TRUE(scales_back == scales);
        EXPECT_TRUE(biases_back == biases);
      });
    }
  }
}

TEST(RelayoutTest, PackedRowsMayBeStridedAndMisaligned) {
  UnitRun run{.side = quant::Side::kValue,
              .heads = kHeads,
              .dim = 128,
              .page_tokens = 48,
              .first_token = 3,
              .tokens = 39};
  ExpectStridedRows(run);
  run.first_token = 16;
  run.tokens = 32;
  ExpectStridedRows(run);
}

}  // namespace
}  // namespace prefixd::kernels
