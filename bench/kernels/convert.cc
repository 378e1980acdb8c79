// Quantize, dequantize and relayout against memcpy of as many bytes. One thread.
#include <memory>

#include "absl/strings/str_cat.h"

#include "bench/common/timing.h"
#include "bench/kernels/conversion.h"
#include "bench/kernels/kernels.h"

namespace prefixd::bench {
namespace {

// Floors as shares of memcpy's rate; 0 = promises nothing.
struct ConvertCase {
  std::string name;  // "8-bit rows"
  quant::TensorFormat format;
  double quantize = 0, dequantize = 0;
};

void AddAndJudge(Bench& bench, const std::string& name, const Rounds& seen, size_t side,
                 size_t reference, double at_least) {
  const double ours = seen.bytes_per_s(side), copied = seen.bytes_per_s(reference);
  const double ratio = seen.RateRatio(side, reference);
  const double spread = seen.RateSpreadPercent(side, reference);
  bench.Add({name,
             {{"median_us", seen.median_us(side)},
              {"spread_percent", spread},
              {"rate_bytes_per_s", ours},
              {"memcpy_bytes_per_s", copied},
              {"of_memcpy_ratio", ratio}}});
  if (at_least == 0) return;
  JudgeRate(bench, seen,
            {.name = "K-" + name,
             .at_least = at_least,
             .reference = "memcpy",
             .side = side,
             .reference_side = reference});
}

void Convert(Bench& bench, const ConvertCase& what, const FloatTensor& floats,
             const FloatTensor& values, const HugeBytes& copy, uint64_t rounds) {
  PagedTensor pages(what.format, floats);
  pages.QuantizeFrom(floats);
  pages.DequantizeTo(values);
  const std::string dtype = quant::ToString(floats.dtype());
  if (!bench.Check(pages.EqualsScalarCodec(floats, values),
                   absl::StrCat(what.name, " ", dtype, " differs from the scalar codec"))) {
    return;
  }
  const uint64_t bytes = floats.bytes();
  const Rounds seen =
      TakeTurns({{"quantize", bytes, [&] { pages.QuantizeFrom(floats); }},
                 {"dequantize", bytes, [&] { pages.DequantizeTo(values); }},
                 {"memcpy", bytes, [&] { CopyBytes(floats.data(), copy.data(), bytes); }}},
                rounds);
  AddAndJudge(bench, absl::StrCat("quantize ", dtype, " to ", what.name), seen, 0, 2,
              what.quantize);
  AddAndJudge(bench, absl::StrCat("dequantize ", what.name, " to ", dtype), seen, 1, 2,
              what.dequantize);
}

std::vector<ConvertCase> CasesOf(quant::Dtype dtype) {
  const bool f32 = dtype == quant::Dtype::kF32, f16 = dtype == quant::Dtype::kF16;
  const quant::Dtype stored = f32 ? quant::Dtype::kF16 : dtype;
  const double quantize = f32 ? 1.4 : 0.9, dequantize = f32 ? 1.4 : f16 ? 1.2 : 0;
  std::vector<ConvertCase> cases = {
      {"8-bit rows", quant::MlxAffineFormat(8, 64, stored), quantize, dequantize},
      {"4-bit rows", quant::MlxAffineFormat(4, 64, stored), quantize, dequantize},
      {"q8_0 rows", quant::GgmlFormat(quant::Codec::kQ8_0)},
      {"q4_0 rows", quant::GgmlFormat(quant::Codec::kQ4_0)}};
  for (size_t i = 0; i < 4; ++i) {
    ConvertCase tiled = cases[i];
    tiled.name = tiled.name.substr(0, tiled.name.find(' ')) + " tiled";
    tiled.format = quant::Tiled(tiled.format);
    cases.push_back(std::move(tiled));
  }
  return cases;
}

void Relayout(Bench& bench, const ConvertCase& rows, const FloatTensor& floats, uint64_t rounds) {
  const quant::TensorFormat tiled = quant::Tiled(rows.format);
  PagedTensor in_rows(rows.format, floats), in_tiles(tiled, floats), copy(rows.format, floats);
  in_rows.QuantizeFrom(floats);
  in_rows.RelayoutTo(in_tiles);
  in_tiles.RelayoutTo(copy);
  if (!bench.Check(SameBytes(in_rows.page(0), copy.page(0), in_rows.bytes()),
                   rows.name + " do not come back from tiles")) {
    return;
  }
  const uint64_t bytes = in_rows.bytes();
  const Rounds seen =
      TakeTurns({{"tile", bytes, [&] { in_rows.RelayoutTo(in_tiles); }},
                 {"untile", bytes, [&] { in_tiles.RelayoutTo(copy); }},
                 {"memcpy", bytes, [&] { CopyBytes(in_rows.page(0), copy.page(0), bytes); }}},
                rounds);
  const std::string name = rows.name.substr(0, rows.name.find(' '));
  AddAndJudge(bench, absl::StrCat("relayout ", name, " rows to tiled"), seen, 0, 2, 0.8);
  AddAndJudge(bench, absl::StrCat("relayout ", name, " tiled to rows"), seen, 1, 2, 0.8);
}

}  // namespace

// Tensors and pages of the same many bytes in every line: none is measured in a cache.
void KernelsConvert(Bench& bench) {
  const uint64_t rounds = bench.Parameter("convert_rounds", 2, 7, 21);
  const auto tokens = static_cast<uint32_t>(bench.Parameter("convert_tokens", 128, 16384, 32768));
  for (const quant::Dtype dtype : {quant::Dtype::kF32, quant::Dtype::kF16, quant::Dtype::kBf16}) {
    const uint32_t wide = 4 / quant::DtypeBytes(dtype);
    const FloatTensor floats(dtype, kHeads, wide * tokens, kDim);
    const FloatTensor values(dtype, kHeads, wide * tokens, kDim);
    const HugeBytes copy(floats.bytes());
    for (const ConvertCase& what : CasesOf(dtype)) {
      if (bench.targets_only() && what.quantize == 0) continue;
      Convert(bench, what, floats, values, copy, rounds);
    }
  }
  for (const uint32_t bits : {8, 4}) {
    const FloatTensor floats(quant::Dtype::kF16, kHeads, 32 / bits * tokens, kDim);
    for (const ConvertCase& what : CasesOf(quant::Dtype::kF16)) {
      if (what.format.layout != quant::Layout::kRows || what.format.bits != bits) continue;
      Relayout(bench, what, floats, rounds);
    }
  }
}

}  // namespace prefixd::bench
