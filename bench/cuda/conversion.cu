// Quantize and dequantize beside a device copy that moves as many bytes.
#include "gpu.h"

namespace prefixd::bench {
namespace {

constexpr uint32_t kHeads = 8, kDim = 128, kPageTokens = 64, kTokens = 131072;
constexpr uint32_t kPages = kTokens / kPageTokens;

struct Named {
  const char* name;
  uint8_t codec, bits, layout;
};

void Measure(Bench& bench, const Named& it, double copy_rate) {
  prefixd_tensor_format format = {};
  format.codec = it.codec;
  format.layout = it.layout;
  if (it.codec == PREFIXD_MLX_AFFINE) {
    format.dtype = PREFIXD_F16;
    format.bits = it.bits;
    format.group_size = 64;
  }
  const uint64_t unit_bytes = prefixd_cuda_unit_bytes(&format, kDim, kPageTokens);
  const DeviceMemory rows = RandomElements(size_t{kTokens} * kHeads * kDim, 5, bench.stream);
  const uint64_t page_bytes = 2 * kHeads * unit_bytes;  // K units, then V units
  const DeviceMemory pages = Allocate(kPages * page_bytes);
  std::vector<void*> keys, values;
  std::vector<prefixd_block> blocks;
  for (uint32_t i = 0; i < kPages; ++i) {
    keys.push_back(pages.get() + i * page_bytes);
    values.push_back(pages.get() + i * page_bytes + kHeads * unit_bytes);
    blocks.push_back({keys.back(), ~uint64_t{0}, kPageTokens, kPageTokens, 0});
  }
  prefixd_cuda_tensor tensor = PREFIXD_INIT(prefixd_cuda_tensor);
  tensor.data = rows.get();
  tensor.dtype = PREFIXD_BF16;
  tensor.token_stride = kHeads * kDim;
  tensor.head_stride = kDim;
  prefixd_cuda_quantize_options options = PREFIXD_INIT(prefixd_cuda_quantize_options);
  options.rows = &tensor;
  options.format = format;
  options.kv_heads = kHeads;
  options.dim = kDim;
  options.count = kTokens;
  options.page_tokens = kPageTokens;
  options.page_count = kPages;
  const double bytes = static_cast<double>(kTokens) * kHeads * kDim * 2 +
                       static_cast<double>(kPages) * kHeads * static_cast<double>(unit_bytes);
  const auto quantize = [&](uint32_t value) {
    options.value = value;
    options.pages = value != 0 ? values.data() : keys.data();
    Must(prefixd_cuda_quantize(bench.cuda, &options, bench.stream));
  };
  const double quantize_ms = MillisecondsOf(bench.stream, bench.quick ? 7 : 15, [&] {
    quantize(0);
    quantize(1);
  });
  const std::string name = it.name;
  bench.Add({"convert", "quantize bf16 to " + name + ", of a copy",
             2 * bytes / quantize_ms / 1e6 / copy_rate, "", .8, false});
  const double expand_ms = ExpandMilliseconds(bench, {format, format}, kHeads, kDim, blocks);
  bench.Add({"convert", "dequantize " + name + " to bf16, of a copy",
             2 * bytes / expand_ms / 1e6 / copy_rate, "", .8, false});
}

}  // namespace

double ExpandMilliseconds(Bench& bench, const prefixd_format& format, uint32_t kv_heads,
                          uint32_t dim, const std::vector<prefixd_block>& blocks) {
  const size_t elements = blocks.size() * kPageTokens * kv_heads * dim;
  const DeviceMemory key_rows = Allocate(elements * 2), value_rows = Allocate(elements * 2);
  prefixd_cuda_tensor key = PREFIXD_INIT(prefixd_cuda_tensor);
  key.data = key_rows.get();
  key.dtype = PREFIXD_BF16;
  key.token_stride = kv_heads * dim;
  key.head_stride = dim;
  prefixd_cuda_tensor value = key;
  value.data = value_rows.get();
  prefixd_cuda_load_layer layer = PREFIXD_INIT(prefixd_cuda_load_layer);
  layer.blocks = blocks.data();
  layer.block_count = blocks.size();
  layer.formats = &format;
  layer.format_count = 1;
  layer.kv_heads = kv_heads;
  layer.key_dim = layer.value_dim = dim;
  layer.key = &key;
  layer.value = &value;
  prefixd_cuda_load_options load = PREFIXD_INIT(prefixd_cuda_load_options);
  load.layers = &layer;
  load.layer_count = 1;
  load.stream = bench.stream;
  std::vector<prefixd_cuda_load*> begun;
  const double ms = MillisecondsOf(bench.stream, bench.quick ? 7 : 15, [&] {
    begun.push_back(prefixd_cuda_load_begin(bench.cuda, &load));
    Must(begun.back() != nullptr, prefixd_cuda_last_error());
  });
  for (prefixd_cuda_load* it : begun) Must(prefixd_cuda_load_end(it, nullptr));
  return ms;
}

void MeasureConversion(Bench& bench) {
  const double copy_rate = CopyRate(bench, size_t{1} << 30);
  bench.Add({"convert", "device copy, read and written", copy_rate, "GB/s"});
  for (const Named& it : {Named{"8 bits, rows", PREFIXD_MLX_AFFINE, 8, PREFIXD_ROWS},
                          Named{"8 bits, tiled", PREFIXD_MLX_AFFINE, 8, PREFIXD_TILED},
                          Named{"4 bits, rows", PREFIXD_MLX_AFFINE, 4, PREFIXD_ROWS},
                          Named{"4 bits, tiled", PREFIXD_MLX_AFFINE, 4, PREFIXD_TILED},
                          Named{"3 bits, rows", PREFIXD_MLX_AFFINE, 3, PREFIXD_ROWS},
                          Named{"q8_0, tiled", PREFIXD_Q8_0, 8, PREFIXD_TILED},
                          Named{"q8_0, rows", PREFIXD_Q8_0, 8, PREFIXD_ROWS},
                          Named{"q4_0, rows", PREFIXD_Q4_0, 4, PREFIXD_ROWS}}) {
    Measure(bench, it, copy_rate);
  }
}

}  // namespace prefixd::bench
