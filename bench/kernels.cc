// kernels: quantize and dequantize against memcpy of the same floats, decode attention of one layer
// against a stream read of as many bytes as its K and V have, prefill attention against as many
// float operations. One thread.
#include <cmath>
#include <cstring>
#include <memory>

#include "bench/fma_peak.h"
#include "bench/paged_layer.h"
#include "bench/reference.h"
#include "bench/timing.h"
#include "bench/workloads.h"
#include "kernels/attention.h"
#include "kernels/quantize.h"
#include "quant/codec.h"

namespace prefixd::bench {
namespace {

constexpr uint32_t kDim = 128, kQueryHeads = 32, kKvHeads = 8;

// --- conversions
// -----------------------------------------------------------------------------------

struct Conversion {
  quant::TensorFormat format;
  uint32_t tokens = 0;
  const std::vector<float>& floats;  // [kKvHeads][tokens][kDim]

  uint64_t float_bytes() const { return floats.size() * sizeof(float); }
  kernels::UnitRun run() const {
    return {
        .heads = kKvHeads, .dim = kDim, .page_tokens = tokens, .first_token = 0, .tokens = tokens};
  }
  quant::UnitLayout layout() const { return quant::LayoutOfUnit(format, kDim, tokens); }
};

void Quantize(const Conversion& what, std::byte* units) {
  kernels::Quantize(what.format,
                    {.data = reinterpret_cast<const std::byte*>(what.floats.data()),
                     .dtype = quant::Dtype::kF32,
                     .head_stride = size_t{what.tokens} * kDim,
                     .token_stride = kDim},
                    what.run(), units);
}

void Dequantize(const Conversion& what, const std::byte* units, float* to) {
  kernels::Dequantize(what.format, units, what.run(),
                      {.data = reinterpret_cast<std::byte*>(to),
                       .dtype = quant::Dtype::kF32,
                       .head_stride = size_t{what.tokens} * kDim,
                       .token_stride = kDim});
}

// Every byte and every value against the scalar codecs.
bool EqualsScalarCodec(const Conversion& what, const std::byte* units, const float* values) {
  const quant::UnitLayout layout = what.layout();
  AlignedBytes expected(kKvHeads * layout.unit_bytes);
  std::vector<float> row(kDim);
  for (size_t i = 0; i < size_t{kKvHeads} * what.tokens; ++i) {
    const uint32_t token = static_cast<uint32_t>(i % what.tokens);
    std::byte* unit = expected.data() + i / what.tokens * layout.unit_bytes;
    quant::QuantizeRow(what.format, std::span(what.floats).subspan(i * kDim, kDim),
                       quant::RowOf(unit, layout, what.format, kDim, token));
    const std::byte* stored = unit;
    quant::DequantizeRow(what.format, quant::RowOf(stored, layout, what.format, kDim, token), row);
    if (std::memcmp(row.data(), values + i * kDim, kDim * sizeof(float)) != 0) return false;
  }
  return SameBytes(expected.data(), units, expected.size());
}

void RunConversion(Bench& bench, const Conversion& what, uint64_t rounds) {
  const std::string name = quant::ToString(what.format);
  AlignedBytes units(kKvHeads * what.layout().unit_bytes), copy(what.float_bytes());
  std::vector<float> values(what.floats.size());
  Quantize(what, units.data());
  Dequantize(what, units.data(), values.data());
  bench.Check(EqualsScalarCodec(what, units.data(), values.data()),
              name + " differs from the scalar codec");

  const auto* floats = reinterpret_cast<const std::byte*>(what.floats.data());
  const Side memcpy_floats{"memcpy", what.float_bytes(),
                           [&] { CopyBytes(floats, copy.data(), copy.size()); }};
  bench.Add(
      CompareRow({"quantize " + name, what.float_bytes(), [&] { Quantize(what, units.data()); }},
                 memcpy_floats, rounds));
  bench.Add(CompareRow({"dequantize " + name, what.float_bytes(),
                        [&] { Dequantize(what, units.data(), values.data()); }},
                       memcpy_floats, rounds));
}

// --- attention
// -------------------------------------------------------------------------------------

struct Heads {
  uint32_t query = kQueryHeads, kv = kKvHeads, dim = kDim;
};

struct Attention {
  const PagedLayers& layers;
  kernels::AttentionShape shape;
  std::vector<float> q, out;

  Attention(const PagedLayers& which, const Heads& heads, uint32_t tokens, uint32_t rows)
      : layers(which),
        shape{.query_rows = rows,
              .query_heads = heads.query,
              .kv_heads = heads.kv,
              .key_dim = heads.dim,
              .value_dim = heads.dim,
              .first_position = tokens - rows,
              .scale = 1 / std::sqrt(static_cast<float>(heads.dim))},
        q(NormalFloats(size_t{rows} * heads.query * heads.dim, 3)),
        out(q.size()) {}

  absl::Status Run(size_t layer) {
    return kernels::Attend(layers.table(layer), layers.formats(), q.data(), out.data(), shape);
  }
  // The most that any output differs from the scalar oracle; infinity after an error.
  double WorstError() {
    std::vector<float> exact(out.size());
    if (!Run(0).ok() ||
        !kernels::AttendScalar(layers.table(0), layers.formats(), q.data(), exact.data(), shape)
             .ok()) {
      return INFINITY;
    }
    double worst = 0;
    for (size_t i = 0; i < out.size(); ++i) {
      const double error = std::abs(static_cast<double>(out[i]) - exact[i]);
      worst = error <= worst ? worst : error;  // a NaN is worse than anything
    }
    return worst;
  }
  // Two products of every query row with every position that it sees.
  double Flop() const {
    const double seen = shape.first_position + (shape.query_rows + 1) / 2.0;
    return 4.0 * shape.query_rows * shape.query_heads * shape.key_dim * seen;
  }
};

// A softmax of 4,096 standard normal scores averages values of size 1: outputs of about 0.02 to 1.
constexpr double kMaxError = 2e-4;

void RunDecode(Bench& bench, const PagedLayers& layers, uint32_t tokens, uint32_t layer_count,
               const std::string& name, uint64_t rounds) {
  Attention decode(layers, {}, tokens, /*rows=*/1);
  if (!bench.Check(decode.WorstError() <= kMaxError, name + " differs from the scalar oracle"))
    return;
  // Both walk all layers in turn, as a decode step does, so that neither finds its bytes in L2.
  const uint64_t bytes = layers.layer_bytes();
  AlignedBytes plain(bytes * layer_count);
  std::memset(plain.data(), 1, plain.size());
  size_t layer = 0, plain_layer = 0;
  uint64_t sum = 0;
  bench.Add(CompareRow(
      {name, bytes, [&] { decode.Run(layer++ % layer_count).IgnoreError(); }},
      {"stream_read", bytes,
       [&] { sum += StreamRead(plain.data() + plain_layer++ % layer_count * bytes, bytes); }},
      rounds));
  bench.Check(sum != 0, "the stream read saw nothing");
}

// Against as many float operations in registers.
void RunPrefill(Bench& bench, const PagedLayers& layers, const Heads& heads, uint32_t tokens,
                uint32_t rows, const std::string& name, uint64_t rounds) {
  Attention prefill(layers, heads, tokens, rows);
  if (!bench.Check(prefill.WorstError() <= kMaxError, name + " differs from the scalar oracle"))
    return;
  const auto flop = static_cast<uint64_t>(prefill.Flop());
  uint64_t done = 0;
  const Compared compared = Compare({name, flop, [&] { prefill.Run(0).IgnoreError(); }},
                                    {"fma", flop, [&] { done = MultiplyAddFloats(flop); }}, rounds);
  bench.Check(done >= flop, "the float operations were not done");
  bench.Add({name,
             {{"median_us", compared.ours.median_us},
              {"spread_percent", compared.ours.spread_percent},
              {"rate_flop_per_s", prefill.Flop() * 1e6 / compared.ours.median_us},
              {"f32_fma_flop_per_s", prefill.Flop() * 1e6 / compared.reference.median_us},
              {"of_f32_fma_ratio", compared.rate_ratio}}});
}

// What the shipped model's worker asks for in a late step of its longest prompts.
void RunWorkerPrefill(Bench& bench, const quant::KvFormat& format, uint32_t tokens,
                      const std::string& name, uint64_t rounds) {
  const Heads heads{.query = 8, .kv = 2, .dim = 64};
  const PagedLayers pages({.layers = 1, .kv_heads = heads.kv, .dim = heads.dim, .tokens = tokens},
                          format);
  RunPrefill(bench, pages, heads, tokens, kPageTokens, name, rounds);
}

}  // namespace

void RunKernels(Bench& bench) {
  const auto tokens = static_cast<uint32_t>(bench.Parameter("tokens", 256, 4096));
  const auto layers = static_cast<uint32_t>(bench.Parameter("layers", 2, 8));
  const auto rows = static_cast<uint32_t>(bench.Parameter("prefill_rows", 64, 64));
  const auto worker_tokens =
      static_cast<uint32_t>(bench.Parameter("worker_prefill_tokens", 256, 7488));
  const uint64_t rounds = bench.Parameter("rounds", 3, 41);

  const std::vector<float> floats = NormalFloats(size_t{kKvHeads} * tokens * kDim, 4);
  const quant::TensorFormat mlx8 = quant::MlxAffineFormat(8, 64, quant::Dtype::kF16);
  const quant::TensorFormat mlx4 = quant::MlxAffineFormat(4, 64, quant::Dtype::kF16);
  for (const quant::TensorFormat& format : {mlx8, mlx4, quant::GgmlFormat(quant::Codec::kQ8_0)}) {
    RunConversion(bench, {.format = format, .tokens = tokens, .floats = floats}, rounds);
  }
  const quant::TensorFormat raw = quant::RawFormat(quant::Dtype::kF16);
  const quant::TensorFormat q8_0 = quant::GgmlFormat(quant::Codec::kQ8_0);
  const struct {
    const char* name;
    quant::KvFormat format;
  } kPairs[] = {{"raw f16", {raw, raw}},
                {"mlx 8/8", {mlx8, mlx8}},
                {"mlx 8/4", {mlx8, mlx4}},
                {"mlx 4/4", {mlx4, mlx4}},
                {"q8_0", {q8_0, q8_0}}};
  const uint64_t prefill_rounds = std::max<uint64_t>(rounds / 4, 3);
  for (const auto& [name, format] : kPairs) {
    const PagedLayers pages({.layers = layers, .kv_heads = kKvHeads, .dim = kDim, .tokens = tokens},
                            format);
    RunDecode(bench, pages, tokens, layers, std::string("decode ") + name, rounds);
    RunPrefill(bench, pages, {}, tokens, rows, std::string("prefill ") + name, prefill_rounds);
    RunWorkerPrefill(bench, format, worker_tokens, std::string("prefill 8/2 heads x 64 ") + name,
                     prefill_rounds);
  }
}

}  // namespace prefixd::bench
