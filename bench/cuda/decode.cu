// Decode attention on quantized pages beside a plain read of as many bytes.
#include "pages.h"

namespace prefixd::bench {
namespace {

void Measure(Bench& bench, const NamedFormat& it, const Shape& shape, double read_rate,
             double target_of_read) {
  const Pages pages(bench, it.format, shape);
  const auto [ms, error] = TimeCalls(bench, it.format, shape, pages, 20);
  const std::string name =
      std::to_string(shape.sequences) + " x " + std::to_string(shape.tokens) + " " + it.name;
  const double rate = static_cast<double>(pages.layer_bytes()) / ms / 1e6;
  bench.Add({"decode", name, ms * 1e3, "us"});
  bench.Add({"decode", name + ", of a plain read", rate / read_rate, "", target_of_read, false});
  bench.Add({"decode", name + ", error of the precise kernel's", error, "", 5e-4, true});
}

// One sequence of MLA's latents: pages of keys of 576 elements, whose first 512 are the values.
void MeasureLatents(Bench& bench, uint32_t heads) {
  constexpr uint32_t kTokens = 32768, kKeyDim = 576, kValueDim = 512;
  const prefixd_tensor_format format = Mlx(8, PREFIXD_ROWS);
  const prefixd_format both = {format, format};
  const uint64_t unit_bytes = prefixd_cuda_unit_bytes(&format, kKeyDim, kPageTokens);
  const DeviceMemory pages = Allocate(kTokens / kPageTokens * unit_bytes);
  const DeviceMemory rows = RandomElements(size_t{kTokens} * kKeyDim, 7, bench.stream);
  std::vector<void*> units;
  std::vector<prefixd_block> blocks;
  for (uint32_t i = 0; i < kTokens / kPageTokens; ++i) {
    units.push_back(pages.get() + i * unit_bytes);
    blocks.push_back({units.back(), ~uint64_t{0}, kPageTokens, kPageTokens, 0});
  }
  prefixd_cuda_tensor tensor = PREFIXD_INIT(prefixd_cuda_tensor);
  tensor.data = rows.get();
  tensor.dtype = PREFIXD_BF16;
  tensor.token_stride = tensor.head_stride = kKeyDim;
  prefixd_cuda_quantize_options quantize = PREFIXD_INIT(prefixd_cuda_quantize_options);
  quantize.rows = &tensor;
  quantize.format = format;
  quantize.kv_heads = 1;
  quantize.dim = kKeyDim;
  quantize.count = kTokens;
  quantize.page_tokens = kPageTokens;
  quantize.pages = units.data();
  quantize.page_count = static_cast<uint32_t>(units.size());
  Must(prefixd_cuda_quantize(bench.cuda, &quantize, bench.stream));
  prefixd_cuda_attention_options options = PREFIXD_INIT(prefixd_cuda_attention_options);
  options.formats = &both;
  options.format_count = 1;
  options.query_rows = 1;
  options.query_heads = heads;
  options.kv_heads = 1;
  options.key_dim = kKeyDim;
  options.value_dim = kValueDim;
  options.scale = 1 / std::sqrt(static_cast<float>(kKeyDim));
  options.values = PREFIXD_VALUES_KEY_PREFIX;
  prefixd_cuda_attention* const attention = prefixd_cuda_attention_new(bench.cuda, &options);
  Must(attention != nullptr, prefixd_cuda_last_error());
  const prefixd_cuda_sequence sequence = {blocks.data(), blocks.size(), kTokens - 1, 0};
  Must(prefixd_cuda_attention_set(attention, &sequence, 1, bench.stream));
  const DeviceMemory queries = RandomElements(size_t{heads} * kKeyDim, 9, bench.stream);
  const DeviceMemory results = Allocate(size_t{heads} * kValueDim * 4);
  const prefixd_cuda_heads q = {queries.get(), PREFIXD_BF16, 0, 0, 0, 0};
  const prefixd_cuda_heads out = {results.get(), PREFIXD_F32, 0, 0, 0, 0};
  const double ms = MillisecondsOf(bench.stream, bench.quick ? 7 : 15, [&] {
    Must(prefixd_cuda_attend(attention, 0, &q, &out, nullptr, bench.stream));
  });
  prefixd_cuda_attention_free(attention);
  const std::string name =
      "1 x 32768 latents of 576 (MLA), 8 bits, " + std::to_string(heads) + " heads";
  bench.Add({"decode", name, ms * 1e3, "us"});
  bench.Add({"decode", name + ", products",
             2.0 * kTokens * heads * (kKeyDim + kValueDim) / ms / 1e9, "TFLOP/s"});
}

}  // namespace

void MeasureDecode(Bench& bench) {
  const double read_rate = ReadRate(bench, size_t{4} << 30);
  bench.Add({"decode", "plain read of 4 GiB", read_rate, "GB/s"});
  const NamedFormat formats[] = {
      {"K8/V4 tiled", {Mlx(8, PREFIXD_TILED), Mlx(4, PREFIXD_TILED)}},
      {"K8/V4 rows", {Mlx(8, PREFIXD_ROWS), Mlx(4, PREFIXD_ROWS)}},
      {"K8/V8 tiled", {Mlx(8, PREFIXD_TILED), Mlx(8, PREFIXD_TILED)}},
      {"K8/V8 rows", {Mlx(8, PREFIXD_ROWS), Mlx(8, PREFIXD_ROWS)}},
      {"K4/V4 tiled", {Mlx(4, PREFIXD_TILED), Mlx(4, PREFIXD_TILED)}},
      {"K4/V4 rows", {Mlx(4, PREFIXD_ROWS), Mlx(4, PREFIXD_ROWS)}},
      {"q8_0/q8_0 tiled", {Ggml(PREFIXD_Q8_0), Ggml(PREFIXD_Q8_0)}},
      {"q8_0/q4_0 tiled", {Ggml(PREFIXD_Q8_0), Ggml(PREFIXD_Q4_0)}},
      {"q4_0/q4_0 tiled", {Ggml(PREFIXD_Q4_0), Ggml(PREFIXD_Q4_0)}},
  };
  for (const NamedFormat& it : formats) Measure(bench, it, {8, 131072}, read_rate, .9);
  for (const NamedFormat& it : {formats[0], formats[1]}) {
    Measure(bench, it, {1, 131072}, read_rate, .8);
    Measure(bench, it, {8, 32768}, read_rate, 0);
    Measure(bench, it, {1, 32768}, read_rate, 0);
  }
  // The kernel for every format, on a format that no other has.
  Measure(bench, {"K6/V3 rows", {Mlx(6, PREFIXD_ROWS), Mlx(3, PREFIXD_ROWS)}}, {1, 32768},
          read_rate, 0);
  MeasureLatents(bench, 16);
  MeasureLatents(bench, 128);
}

}  // namespace prefixd::bench
