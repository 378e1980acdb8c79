#include "bench/kv_cache/kv_cache.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

#include "bench/common/process_memory.h"
#include "bench/common/timing.h"
#include "bench/common/workloads.h"

namespace prefixd::bench {
namespace {

// Of what is available: beyond it the kernel may have to take memory from others.
constexpr double kMostOfMemory = 0.8;

uint64_t MemoryLimit(const KvCacheOptions& shape) {
  if (shape.memory_limit_bytes != 0) return shape.memory_limit_bytes;
  return static_cast<uint64_t>(kMostOfMemory * static_cast<double>(AvailableBytes()));
}

std::string Text(uint64_t bytes) { return BytesText(static_cast<double>(bytes)); }

// The names of refused modes go into a note and not into the table.
std::vector<CacheResult> RunProduction(Bench& bench, const KvCacheOptions& shape,
                                       quant::Dtype dtype, Progress& progress) {
  std::vector<CacheResult> results;
  for (const CacheMode& mode : CacheModes(shape, dtype)) {
    const uint64_t needed = ProductionFlowBytes(shape, mode);
    if (needed > MemoryLimit(shape)) {
      bench.Note(absl::StrCat("refused: ", mode.name, " of ", quant::ToString(dtype),
                              " would store ", Text(needed), ", 80 % of the available memory are ",
                              Text(MemoryLimit(shape))));
      continue;
    }
    results.push_back(RunProductionFlow(shape, dtype, mode, progress));
  }
  return results;
}

std::vector<CacheResult> RunModes(Bench& bench, const KvCacheOptions& shape, quant::Dtype dtype,
                                  uint64_t rounds, Progress& progress) {
  if (shape.production) return RunProduction(bench, shape, dtype, progress);
  const uint64_t needed = WholeFlowBytes(shape, dtype);
  if (needed <= MemoryLimit(shape)) return RunWholeFlow(shape, dtype, rounds, progress);
  bench.Note(absl::StrCat("warning: originals, quantized and dequantized values of ",
                          quant::ToString(dtype), " would take ", Text(needed),
                          ", 80 % of the available memory are ", Text(MemoryLimit(shape)),
                          ": each chunk of floats is freed instead, as with --production"));
  return RunProduction(bench, shape, dtype, progress);
}

std::string Cell(const char* format, double value) {
  char text[48];
  std::snprintf(text, sizeof(text), format, value);
  return text;
}

std::string Milliseconds(const std::vector<double>& us) {
  return Cell("%.1f ms", Quantile(us, 0.5) * 1e-3);
}

std::string MebibytesText(uint64_t bytes) {
  return Cell("%.2f MiB", static_cast<double>(bytes) / (1 << 20));
}

void PrintTable(Bench& bench, const std::vector<CacheResult>& f32,
                const std::vector<CacheResult>& f16) {
  char line[240];
  std::snprintf(line, sizeof(line),
                "%-6s | %12s %11s %10s %9s %11s %11s | %12s %11s %10s %11s %11s", "", "of f32:", "",
                "", "", "", "", "of f16:", "", "", "", "");
  bench.Note(line);
  std::snprintf(line, sizeof(line),
                "%-6s | %12s %11s %10s %9s %11s %11s | %12s %11s %10s %11s %11s", "Mode", "Memory",
                "Compression", "Mean Error", "Max Error", "Quantize", "Dequantize", "Memory",
                "Compression", "Mean Error", "Quantize", "Dequantize");
  bench.Note(line);
  for (const CacheResult& a : f32) {
    const auto b = std::find_if(f16.begin(), f16.end(),
                                [&](const CacheResult& other) { return other.mode == a.mode; });
    std::snprintf(line, sizeof(line), "%-6s | %12s %10.3fx %10.5f %9.5f %11s %11s |",
                  a.mode.c_str(), MebibytesText(a.memory_bytes).c_str(), a.ratio(),
                  a.distance.mean(), a.distance.largest, Milliseconds(a.quantize_us).c_str(),
                  Milliseconds(a.dequantize_us).c_str());
    std::string text = line;
    if (b != f16.end()) {
      std::snprintf(line, sizeof(line), " %12s %10.3fx %10.5f %11s %11s",
                    MebibytesText(b->memory_bytes).c_str(), b->ratio(), b->distance.mean(),
                    Milliseconds(b->quantize_us).c_str(), Milliseconds(b->dequantize_us).c_str());
      text += line;
    }
    bench.Note(text);
  }
}

void AddRow(Bench& bench, const CacheResult& result, uint64_t rss_before, bool production) {
  std::vector<Figure> figures = {
      {"memory_bytes", static_cast<double>(result.memory_bytes)},
      {"compression_ratio", result.ratio()},
      {"mean_error", result.distance.mean()},
      {"max_error", result.distance.largest},
      {"quantize_us", Quantile(result.quantize_us, 0.5)},
      {"dequantize_us", Quantile(result.dequantize_us, 0.5)},
      {"rss_before_bytes", static_cast<double>(rss_before)},
      {"rss_originals_bytes", static_cast<double>(result.originals_rss)},
      {"rss_quantized_bytes", static_cast<double>(result.quantized_rss)},
      {"rss_dequantized_bytes", static_cast<double>(result.dequantized_rss)}};
  if (production) figures.push_back({"extra_bytes", static_cast<double>(result.extra_bytes)});
  bench.Add({absl::StrCat(result.mode, " of ", quant::ToString(result.dtype)), std::move(figures)});
}

// Values differ by half a step at most, and raw ones not at all.
void CheckResults(Bench& bench, const std::vector<CacheResult>& results) {
  for (const CacheResult& result : results) {
    const bool raw = result.mode == "raw";
    bench.Check(raw == (result.distance.largest == 0),
                absl::StrCat(result.mode, " moved values by ", result.distance.largest));
  }
}

}  // namespace

std::vector<CacheMode> CacheModes(const KvCacheOptions& shape, quant::Dtype dtype) {
  const auto group = static_cast<uint16_t>(shape.group_size);
  const quant::TensorFormat raw = quant::RawFormat(dtype);
  const quant::TensorFormat q8_0 = quant::GgmlFormat(quant::Codec::kQ8_0);
  const quant::TensorFormat q4_0 = quant::GgmlFormat(quant::Codec::kQ4_0);
  const auto mlx = [&](uint8_t bits) { return quant::MlxAffineFormat(bits, group, dtype); };
  const std::vector<CacheMode> all = {{"raw", {raw, raw}},         {"8-bit", {mlx(8), mlx(8)}},
                                      {"8/4", {mlx(8), mlx(4)}},   {"6-bit", {mlx(6), mlx(6)}},
                                      {"4-bit", {mlx(4), mlx(4)}}, {"q8_0", {q8_0, q8_0}},
                                      {"q4_0", {q4_0, q4_0}}};
  std::vector<CacheMode> fitting;
  std::copy_if(all.begin(), all.end(), std::back_inserter(fitting), [&](const CacheMode& mode) {
    return quant::Validate(mode.format.key, shape.head_dim).ok() &&
           quant::Validate(mode.format.value, shape.head_dim).ok();
  });
  return fitting;
}

void RunKvCache(Bench& bench) {
  KvCacheOptions shape = bench.kv_cache();
  shape.layers = static_cast<uint32_t>(bench.Parameter("layers", 2, shape.layers));
  shape.seq_len = static_cast<uint32_t>(bench.Parameter("seq_len", 100, shape.seq_len));
  shape.heads = static_cast<uint32_t>(bench.Parameter("heads", 2, shape.heads));
  bench.Parameter("head_dim", shape.head_dim, shape.head_dim);
  bench.Parameter("group_size", shape.group_size, shape.group_size);
  const absl::Status fits = quant::Validate(
      quant::MlxAffineFormat(8, static_cast<uint16_t>(shape.group_size), quant::Dtype::kF32),
      shape.head_dim);
  if (!fits.ok()) bench.Note(absl::StrCat("without MLX's modes: ", fits.ToString()));
  const uint64_t rounds = shape.production ? 1 : bench.Parameter("rounds", 1, 3, 5);
  Progress progress(!bench.smoke());
  const uint64_t rss_before = ResidentBytes();
  const auto f32 = RunModes(bench, shape, quant::Dtype::kF32, rounds, progress);
  const auto f16 = RunModes(bench, shape, quant::Dtype::kF16, rounds, progress);
  PrintTable(bench, f32, f16);
  for (const auto* results : {&f32, &f16}) {
    CheckResults(bench, *results);
    for (const CacheResult& result : *results) AddRow(bench, result, rss_before, shape.production);
  }
  if (bench.smoke()) RunProduction(bench, shape, quant::Dtype::kF32, progress);
  if (bench.smoke() || shape.rotation == "hadamard") CompareRotation(bench, shape);
}

}  // namespace prefixd::bench
