// What the workloads that attend share: formats, pages of random rows, calls and their errors.
#pragma once
#include <cmath>

#include "gpu.h"

namespace prefixd::bench {

inline constexpr uint32_t kHeads = 8, kGroup = 4, kDim = 128, kPageTokens = 64;

inline prefixd_tensor_format Mlx(uint8_t bits, uint8_t layout) {
  prefixd_tensor_format format = {};
  format.codec = PREFIXD_MLX_AFFINE;
  format.dtype = PREFIXD_F16;
  format.bits = bits;
  format.group_size = 64;
  format.layout = layout;
  return format;
}
inline prefixd_tensor_format Ggml(uint8_t codec) {
  prefixd_tensor_format format = {};
  format.codec = codec;
  format.layout = PREFIXD_TILED;
  return format;
}

struct NamedFormat {
  const char* name;
  prefixd_format format;
};

struct Shape {
  uint32_t sequences, tokens, rows = 1;  // rows: the last tokens, which ask
  uint32_t dim = kDim;
};

// Pages of several layers, shuffled, filled with quantized random numbers: enough layers that
// nothing of one is left in the L2 cache when it comes again.
class Pages {
 public:
  Pages(Bench& bench, const prefixd_format& format, const Shape& shape)
      : dim_(shape.dim), pages_(shape.sequences * shape.tokens / kPageTokens) {
    key_bytes_ = prefixd_cuda_unit_bytes(&format.key, dim_, kPageTokens);
    value_bytes_ = prefixd_cuda_unit_bytes(&format.value, dim_, kPageTokens);
    layer_bytes_ = kHeads * (key_bytes_ + value_bytes_);
    layers_ =
        static_cast<uint32_t>(std::max<uint64_t>(1, (uint64_t{1} << 30) / (layer_bytes_ * pages_)));
    memory_ = Allocate(size_t{pages_} * layers_ * layer_bytes_);
    order_.resize(pages_);
    for (uint32_t i = 0; i < pages_; ++i) order_[i] = i;
    uint32_t state = 1;
    for (uint32_t i = pages_ - 1; i > 0; --i) {
      state = state * 1664525u + 1013904223u;
      std::swap(order_[i], order_[state % (i + 1)]);
    }
    Fill(bench, format.key, 0);
    Fill(bench, format.value, 1);
  }

  uint32_t layers() const { return layers_; }
  uint64_t layer_bytes() const { return layer_bytes_ * pages_; }
  std::vector<prefixd_block> Blocks(uint32_t first, uint32_t count) const {
    std::vector<prefixd_block> blocks;
    for (uint32_t i = 0; i < count; ++i) {
      blocks.push_back({PageAt(order_[first + i], 0), ~uint64_t{0}, kPageTokens, kPageTokens, 0});
    }
    return blocks;
  }

 private:
  std::byte* PageAt(uint32_t page, uint32_t layer) const {
    return memory_.get() + (size_t{page} * layers_ + layer) * layer_bytes_;
  }

  // The same rows for every 64 pages; the bytes' meaning does not change the time.
  void Fill(Bench& bench, const prefixd_tensor_format& format, uint32_t value) {
    constexpr uint32_t kPagesAtOnce = 64;
    const DeviceMemory rows =
        RandomElements(size_t{kPagesAtOnce} * kPageTokens * kHeads * dim_, 3 + value, bench.stream);
    prefixd_cuda_tensor tensor = PREFIXD_INIT(prefixd_cuda_tensor);
    tensor.data = rows.get();
    tensor.dtype = PREFIXD_BF16;
    tensor.token_stride = kHeads * dim_;
    tensor.head_stride = dim_;
    std::vector<void*> at;
    for (uint32_t i = 0; i < pages_ * layers_; ++i) {
      at.push_back(memory_.get() + i * layer_bytes_ + (value != 0 ? kHeads * key_bytes_ : 0));
    }
    for (uint32_t i = 0; i < at.size(); i += kPagesAtOnce) {
      prefixd_cuda_quantize_options options = PREFIXD_INIT(prefixd_cuda_quantize_options);
      options.rows = &tensor;
      options.format = format;
      options.value = value;
      options.kv_heads = kHeads;
      options.dim = dim_;
      options.page_count = std::min<uint32_t>(kPagesAtOnce, static_cast<uint32_t>(at.size()) - i);
      options.count = options.page_count * kPageTokens;
      options.page_tokens = kPageTokens;
      options.pages = at.data() + i;
      Must(prefixd_cuda_quantize(bench.cuda, &options, bench.stream));
    }
    Must(cudaStreamSynchronize(bench.stream), "pages");
  }

  const uint32_t dim_, pages_;
  uint64_t key_bytes_ = 0, value_bytes_ = 0, layer_bytes_ = 0;
  uint32_t layers_ = 1;
  DeviceMemory memory_;
  std::vector<uint32_t> order_;
};

// Root mean square of the error over that of what is wanted.
inline double ErrorOf(const std::vector<float>& got, const std::vector<float>& want) {
  double error = 0, all = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += std::pow(double{got[i]} - double{want[i]}, 2);
    all += std::pow(double{want[i]}, 2);
  }
  return std::sqrt(error / all);
}

// One attention over pages, and what it is given.
class Calls {
 public:
  Calls(Bench& bench, const prefixd_format& format, const Shape& shape, const Pages& pages,
        bool precise)
      : bench_(bench) {
    prefixd_cuda_attention_options options = PREFIXD_INIT(prefixd_cuda_attention_options);
    options.formats = &format;
    options.format_count = 1;
    options.query_rows = shape.rows;
    options.query_heads = kHeads * kGroup;
    options.kv_heads = kHeads;
    options.key_dim = options.value_dim = shape.dim;
    options.scale = 1 / std::sqrt(static_cast<float>(shape.dim));
    options.precise = precise ? 1 : 0;
    options.early = 1;
    attention_ = prefixd_cuda_attention_new(bench.cuda, &options);
    Must(attention_ != nullptr, prefixd_cuda_last_error());
    const uint32_t each = shape.tokens / kPageTokens;
    std::vector<std::vector<prefixd_block>> blocks;
    std::vector<prefixd_cuda_sequence> sequences;
    for (uint32_t s = 0; s < shape.sequences; ++s) {
      blocks.push_back(pages.Blocks(s * each, each));
      sequences.push_back({blocks.back().data(), each, shape.tokens - shape.rows, 0});
    }
    Must(prefixd_cuda_attention_set(attention_, sequences.data(), shape.sequences, bench.stream));
    const size_t elements = size_t{shape.sequences} * shape.rows * kHeads * kGroup * shape.dim;
    queries_ = RandomElements(elements, 9, bench.stream);
    results_ = Allocate(elements * 4);
    result_floats_ = elements;
  }
  ~Calls() { prefixd_cuda_attention_free(attention_); }
  Calls(const Calls&) = delete;
  Calls& operator=(const Calls&) = delete;

  void Attend(uint32_t layer) {
    const prefixd_cuda_heads q = {queries_.get(), PREFIXD_BF16, 0, 0, 0, 0};
    const prefixd_cuda_heads out = {results_.get(), PREFIXD_F32, 0, 0, 0, 0};
    Must(prefixd_cuda_attend(attention_, layer, &q, &out, nullptr, bench_.stream));
  }
  std::vector<float> Results() {
    Attend(0);
    Must(cudaStreamSynchronize(bench_.stream), "attend");
    std::vector<float> to(result_floats_);
    Must(cudaMemcpy(to.data(), results_.get(), to.size() * 4, cudaMemcpyDeviceToHost), "results");
    return to;
  }

 private:
  Bench& bench_;
  prefixd_cuda_attention* attention_ = nullptr;
  DeviceMemory queries_, results_;
  size_t result_floats_ = 0;
};

struct CallTime {
  double ms = 0, error = 0;  // the error is that of the precise kernel's result
};
// Measures calls on one layer after the other, `most` of them in a graph.
inline CallTime TimeCalls(Bench& bench, const prefixd_format& format, const Shape& shape,
                          const Pages& pages, uint32_t most) {
  Calls calls(bench, format, shape, pages, false);
  Calls precise(bench, format, shape, pages, true);
  const double error = ErrorOf(calls.Results(), precise.Results());
  Must(error < 1e-3, "attend: results differ from the precise kernel's");
  const int count = static_cast<int>(std::max(2u, std::min(pages.layers(), most)));
  const double ms = GraphMillisecondsOf(bench.stream, bench.quick ? 7 : 15, count, [&] {
    for (int i = 0; i < count; ++i) calls.Attend(static_cast<uint32_t>(i) % pages.layers());
  });
  return {.ms = ms, .error = error};
}

}  // namespace prefixd::bench
