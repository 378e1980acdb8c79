// Attention of many query rows at the end of a context on quantized pages.
#include "pages.h"

namespace prefixd::bench {
namespace {

struct RowsShape {
  uint32_t rows, tokens;
};

class RowsCalls {
 public:
  RowsCalls(Bench& bench, const prefixd_format& format, const RowsShape& shape, const Pages& pages,
            bool precise)
      : bench_(bench) {
    prefixd_cuda_attention_options options = PREFIXD_INIT(prefixd_cuda_attention_options);
    options.formats = &format;
    options.format_count = 1;
    options.query_rows = shape.rows;
    options.query_heads = kHeads * kGroup;
    options.kv_heads = kHeads;
    options.key_dim = options.value_dim = kDim;
    options.scale = 1 / std::sqrt(static_cast<float>(kDim));
    options.precise = precise ? 1 : 0;
    attention_ = prefixd_cuda_attention_new(bench.cuda, &options);
    Must(attention_ != nullptr, prefixd_cuda_last_error());
    const uint32_t count = shape.tokens / kPageTokens;
    const std::vector<prefixd_block> blocks = pages.Blocks(0, count);
    const prefixd_cuda_sequence sequence = {blocks.data(), count, shape.tokens - shape.rows, 0};
    Must(prefixd_cuda_attention_set(attention_, &sequence, 1, bench.stream));
    elements_ = size_t{shape.rows} * kHeads * kGroup * kDim;
    queries_ = RandomElements(elements_, 9, bench.stream);
    results_ = Allocate(elements_ * 4);
  }
  ~RowsCalls() { prefixd_cuda_attention_free(attention_); }
  RowsCalls(const RowsCalls&) = delete;
  RowsCalls& operator=(const RowsCalls&) = delete;

  void Attend(uint32_t layer) {
    const prefixd_cuda_heads q = {queries_.get(), PREFIXD_BF16, 0, 0, 0, 0};
    const prefixd_cuda_heads out = {results_.get(), PREFIXD_F32, 0, 0, 0, 0};
    Must(prefixd_cuda_attend(attention_, layer, &q, &out, nullptr, bench_.stream));
  }
  std::vector<float> Results() {
    Attend(0);
    Must(cudaStreamSynchronize(bench_.stream), "attend");
    std::vector<float> to(elements_);
    Must(cudaMemcpy(to.data(), results_.get(), to.size() * 4, cudaMemcpyDeviceToHost), "results");
    return to;
  }

 private:
  Bench& bench_;
  prefixd_cuda_attention* attention_ = nullptr;
  DeviceMemory queries_, results_;
  size_t elements_ = 0;
};

void MeasureRows(Bench& bench, const char* name, const prefixd_format& format,
                 const RowsShape& shape) {
  const Pages pages(bench, format, {1, shape.tokens});
  RowsCalls calls(bench, format, shape, pages, false);
  RowsCalls precise(bench, format, shape, pages, true);
  const double error = ErrorOf(calls.Results(), precise.Results());
  Must(error < 1e-3, "prefill: results differ from the precise kernel's");
  const int count = static_cast<int>(std::max(2u, std::min(pages.layers(), 8u)));
  const double ms = GraphMillisecondsOf(bench.stream, bench.quick ? 7 : 15, count, [&] {
    for (int i = 0; i < count; ++i) calls.Attend(static_cast<uint32_t>(i) % pages.layers());
  });
  const std::string title =
      std::to_string(shape.rows) + " x " + std::to_string(shape.tokens) + " " + name;
  const double seen = shape.tokens - (shape.rows - 1) / 2.0;  // tokens of a row
  bench.Add({"prefill", title, ms * 1e3, "us"});
  bench.Add({"prefill", title + ", products",
             4 * seen * shape.rows * kHeads * kGroup * kDim / ms / 1e9, "TFLOP/s"});
  bench.Add({"prefill", title + ", error of the precise kernel's", error, "", 5e-4, true});
}

}  // namespace

void MeasurePrefill(Bench& bench) {
  const prefixd_format k8v4 = {Mlx(8, PREFIXD_ROWS), Mlx(4, PREFIXD_ROWS)};
  MeasureRows(bench, "K8/V4 rows (C2)", k8v4, {512, 32768});
  MeasureRows(bench, "K8/V8 rows", {Mlx(8, PREFIXD_ROWS), Mlx(8, PREFIXD_ROWS)}, {512, 32768});
  MeasureRows(bench, "K4/V4 rows", {Mlx(4, PREFIXD_ROWS), Mlx(4, PREFIXD_ROWS)}, {512, 32768});
  MeasureRows(bench, "K8/V4 tiled", {Mlx(8, PREFIXD_TILED), Mlx(4, PREFIXD_TILED)}, {512, 32768});
  MeasureRows(bench, "K8/V4 rows", k8v4, {2048, 32768});
  MeasureRows(bench, "K8/V4 rows", k8v4, {16, 131072});
}

}  // namespace prefixd::bench
