#include "bench/kv_cache/kv_cache.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"

#include "bench/common/process_memory.h"
#include "bench/common/timing.h"
#include "bench/common/workloads.h"
#include "kernels/hadamard.h"

namespace prefixd::bench {
namespace {

constexpr uint32_t kChunkTokens = 512;  // whole pages of floats, as a worker hands them over

// Of what is available: beyond it the kernel may have to take memory from others.
uint64_t MemoryLimit(const KvCacheOptions& shape) {
  if (shape.memory_limit_bytes != 0) return shape.memory_limit_bytes;
  return AvailableBytes() / 5 * 4;
}

// What turning rows by a Hadamard matrix before they are quantized is worth, on normal data and on
// such with outliers: every 32nd channel, as models have them in K, is 20 times as large.
void CompareRotation(Bench& bench, const KvCacheOptions& shape) {
  const uint32_t rows = bench.smoke() ? 64 : 8192, dim = shape.head_dim;
  const auto floats = [](const FloatTensor& tensor) {
    return reinterpret_cast<float*>(tensor.data());
  };
  const FloatTensor normal(quant::Dtype::kF32, 1, rows, dim);
  const FloatTensor outliers(quant::Dtype::kF32, 1, rows, dim);
  for (size_t i = 0; i < outliers.count(); ++i) {
    if (i % dim % 32 == 5) floats(outliers)[i] *= 20;
  }
  const auto squared_error = [&](const quant::TensorFormat& format, const FloatTensor& from,
                                 bool rotate) {
    const FloatTensor turned(quant::Dtype::kF32, 1, rows, dim);
    std::copy_n(from.data(), from.bytes(), turned.data());
    if (rotate) kernels::RotateRows(floats(turned), rows, dim, dim);
    PagedTensor pages(format, from);
    pages.QuantizeFrom(turned);
    pages.DequantizeTo(turned);
    if (rotate) kernels::RotateRows(floats(turned), rows, dim, dim);
    Distance distance;
    distance.Add(from, turned);
    return distance.mean_square();
  };
  for (const CacheMode& mode : CacheModes(shape, quant::Dtype::kF32)) {
    if (mode.name != "8-bit" && mode.name != "4-bit") continue;
    for (const auto& [name, data] : {std::pair("Gaussian", &normal), {"outliers", &outliers}}) {
      const double plain = squared_error(mode.format.key, *data, false);
      const double turned = squared_error(mode.format.key, *data, true);
      bench.Add({absl::StrCat("hadamard, ", mode.name, ", ", name),
                 {{"mse_1e6", plain * 1e6},
                  {"rotated_mse_1e6", turned * 1e6},
                  {"gain_ratio", plain / turned}}});
    }
  }
}

}  // namespace

uint64_t PayloadBytes(const KvCacheOptions& shape, const quant::KvFormat& format) {
  const uint64_t row = quant::BytesOfStoredRow(format.key, shape.head_dim).total() +
                       quant::BytesOfStoredRow(format.value, shape.head_dim).total();
  return row * shape.heads * shape.seq_len * shape.layers;
}

std::vector<CacheMode> CacheModes(const KvCacheOptions& shape, quant::Dtype dtype) {
  const auto group = static_cast<uint16_t>(shape.group_size);
  const quant::TensorFormat raw = quant::RawFormat(dtype);
  const quant::TensorFormat q8_0 = quant::GgmlFormat(quant::Codec::kQ8_0);
  const quant::TensorFormat q4_0 = quant::GgmlFormat(quant::Codec::kQ4_0);
  const auto mlx = [&](uint8_t bits) { return quant::MlxAffineFormat(bits, group, dtype); };
  std::vector<CacheMode> modes = {{"raw", {raw, raw}},         {"8-bit", {mlx(8), mlx(8)}},
                                  {"8/4", {mlx(8), mlx(4)}},   {"6-bit", {mlx(6), mlx(6)}},
                                  {"4-bit", {mlx(4), mlx(4)}}, {"q8_0", {q8_0, q8_0}},
                                  {"q4_0", {q4_0, q4_0}}};
  std::erase_if(modes, [&](const CacheMode& mode) {
    return !quant::Validate(mode.format.key, shape.head_dim).ok() ||
           !quant::Validate(mode.format.value, shape.head_dim).ok();
  });
  return modes;
}

void ModeRun::Run() {
  const uint32_t tokens = shape_.seq_len, chunk_tokens = std::min(kChunkTokens, tokens);
  FloatTensor floats(dtype_, shape_.heads, chunk_tokens, shape_.head_dim);
  const FloatTensor back(dtype_, shape_.heads, chunk_tokens, shape_.head_dim);
  const uint64_t rss_before = ResidentBytes();
  std::vector<std::unique_ptr<PagedTensor>> tensors;  // K and V of each layer
  uint64_t stored = 0;
  double quantize_us = 0, dequantize_us = 0;
  const bool warms_up = distance_.count == 0;
  const auto for_each_chunk = [&](size_t tensor, double* us, auto convert) {
    for (uint32_t first = 0; first < tokens; first += chunk_tokens) {
      floats.Fill(tensor * tokens + first);
      const double start = NowMicros();
      convert(first);
      *us += NowMicros() - start;
      if (warms_up && us == &dequantize_us && first + chunk_tokens <= tokens) {
        distance_.Add(floats, back);
      }
    }
  };
  for (size_t i = 0; i < 2 * shape_.layers; ++i) {
    tensors.push_back(std::make_unique<PagedTensor>(
        i % 2 == 0 ? mode_.format.key : mode_.format.value,
        TensorShape{.heads = shape_.heads, .tokens = tokens, .dim = shape_.head_dim}));
    for_each_chunk(i, &quantize_us,
                   [&](uint32_t first) { tensors[i]->QuantizeFrom(floats, first); });
    stored += tensors[i]->memory_bytes();
    const uint64_t now = ResidentBytes() - rss_before;
    extra_bytes_ = std::max(extra_bytes_, now > stored ? now - stored : 0);
  }
  rss_before_ = rss_before;
  rss_quantized_ = ResidentBytes();
  for (size_t i = 0; i < tensors.size(); ++i) {
    for_each_chunk(i, &dequantize_us,
                   [&](uint32_t first) { tensors[i]->DequantizeTo(back, first); });
  }
  rss_dequantized_ = ResidentBytes();
  if (warms_up) return;
  quantize_us_.push_back(quantize_us);
  dequantize_us_.push_back(dequantize_us);
}

Row ModeRun::row() const {
  const auto number = [](uint64_t value) { return static_cast<double>(value); };
  const quant::TensorFormat raw = quant::RawFormat(dtype_);
  const double memory = number(PayloadBytes(shape_, mode_.format));
  return {name(),
          {{"memory_bytes", memory},
           {"compression_ratio", number(PayloadBytes(shape_, {raw, raw})) / memory},
           {"mean_error", distance_.mean()},
           {"max_error", distance_.largest},
           {"quantize_us", Quantile(quantize_us_, 0.5)},
           {"dequantize_us", Quantile(dequantize_us_, 0.5)},
           {"rss_before_bytes", number(rss_before_)},
           {"rss_quantized_bytes", number(rss_quantized_)},
           {"rss_dequantized_bytes", number(rss_dequantized_)},
           {"extra_bytes", number(extra_bytes_)}}};
}

void RunKvCache(Bench& bench) {
  KvCacheOptions shape = bench.kv_cache();
  shape.layers = static_cast<uint32_t>(bench.Parameter("layers", 2, shape.layers));
  shape.seq_len = static_cast<uint32_t>(bench.Parameter("seq_len", 100, shape.seq_len));
  shape.heads = static_cast<uint32_t>(bench.Parameter("heads", 2, shape.heads));
  bench.Parameter("head_dim", shape.head_dim, shape.head_dim);
  bench.Parameter("group_size", shape.group_size, shape.group_size);
  const uint64_t rounds = bench.Parameter("rounds", 1, 3, 5);
  std::vector<std::unique_ptr<ModeRun>> runs;
  std::vector<Side> sides;
  for (const quant::Dtype dtype : {quant::Dtype::kF32, quant::Dtype::kF16}) {
    const std::vector<CacheMode> modes = CacheModes(shape, dtype);
    if (modes.size() < 4) bench.Note("without the modes whose groups do not divide a head");
    for (const CacheMode& mode : modes) {
      auto run = std::make_unique<ModeRun>(shape, dtype, mode);
      const uint64_t needed = PayloadBytes(shape, mode.format), limit = MemoryLimit(shape);
      if (needed > limit) {
        bench.Note(absl::StrCat(
            "refused: ", run->name(), " would store ", BytesText(static_cast<double>(needed)),
            ", 80 % of the available memory are ", BytesText(static_cast<double>(limit))));
        continue;
      }
      sides.push_back({run->name(), needed, [raw = run.get()] { raw->Run(); }});
      runs.push_back(std::move(run));
    }
  }
  TakeTurns(sides, rounds);
  for (const auto& run : runs) {
    // Values differ by half a step at most, and raw ones not at all.
    bench.Check(run->name().starts_with("raw ") == (run->distance().largest == 0),
                absl::StrCat(run->name(), " moved values by ", run->distance().largest));
    bench.Add(run->row());
  }
  if (bench.smoke() || shape.rotation == "hadamard") CompareRotation(bench, shape);
}

}  // namespace prefixd::bench
