// Attention of many query rows at the end of a context on quantized pages.
#include "pages.h"

namespace prefixd::bench {
namespace {

void MeasureRows(Bench& bench, const char* name, const prefixd_format& format, const Shape& shape,
                 const Pages& pages) {
  const auto [ms, error] = TimeCalls(bench, format, shape, pages, 8);
  const std::string title =
      std::to_string(shape.rows) + " x " + std::to_string(shape.tokens) + " " + name;
  const double seen = shape.tokens - (shape.rows - 1) / 2.0;  // tokens of a row
  bench.Add({"prefill", title, ms * 1e3, "us"});
  bench.Add({"prefill", title + ", products",
             4 * seen * shape.rows * kHeads * kGroup * shape.dim / ms / 1e9, "TFLOP/s"});
  bench.Add({"prefill", title + ", error of the precise kernel's", error, "", 5e-4, true});
}

void MeasureRows(Bench& bench, const char* name, const prefixd_format& format, const Shape& shape) {
  MeasureRows(bench, name, format, shape, Pages(bench, format, shape));
}

// Also what "dequantize, then another kernel" would do first.
void MeasureC2(Bench& bench, const prefixd_format& format) {
  const Shape shape = {1, 32768, 512};
  const Pages pages(bench, format, shape);
  MeasureRows(bench, "K8/V4 rows (C2)", format, shape, pages);
  const auto blocks = pages.Blocks(0, shape.tokens / kPageTokens);
  bench.Add({"prefill", std::to_string(shape.tokens) + " tokens of K8/V4 rows to bf16",
             ExpandMilliseconds(bench, format, kHeads, kDim, blocks) * 1e3, "us"});
}

}  // namespace

void MeasurePrefill(Bench& bench) {
  const prefixd_format k8v4 = {Mlx(8, PREFIXD_ROWS), Mlx(4, PREFIXD_ROWS)};
  MeasureC2(bench, k8v4);
  MeasureRows(bench, "K8/V8 rows", {Mlx(8, PREFIXD_ROWS), Mlx(8, PREFIXD_ROWS)}, {1, 32768, 512});
  MeasureRows(bench, "K4/V4 rows", {Mlx(4, PREFIXD_ROWS), Mlx(4, PREFIXD_ROWS)}, {1, 32768, 512});
  MeasureRows(bench, "K8/V4 tiled", {Mlx(8, PREFIXD_TILED), Mlx(4, PREFIXD_TILED)},
              {1, 32768, 512});
  MeasureRows(bench, "q8_0 tiled", {Ggml(PREFIXD_Q8_0), Ggml(PREFIXD_Q8_0)}, {1, 32768, 512});
  MeasureRows(bench, "q4_0 tiled", {Ggml(PREFIXD_Q4_0), Ggml(PREFIXD_Q4_0)}, {1, 32768, 512});
  prefixd_tensor_format q8_rows = Ggml(PREFIXD_Q8_0), raw = Ggml(PREFIXD_RAW);
  q8_rows.layout = raw.layout = PREFIXD_ROWS;
  raw.dtype = PREFIXD_BF16;
  MeasureRows(bench, "q8_0 rows", {q8_rows, q8_rows}, {1, 32768, 512});
  MeasureRows(bench, "K6/V6 rows", {Mlx(6, PREFIXD_ROWS), Mlx(6, PREFIXD_ROWS)}, {1, 32768, 512});
  MeasureRows(bench, "bf16 rows", {raw, raw}, {1, 32768, 512});
  MeasureRows(bench, "K8/V4 rows of 256", k8v4, {1, 32768, 512, 256});
  MeasureRows(bench, "K8/V4 rows", k8v4, {1, 32768, 2048});
  MeasureRows(bench, "K8/V4 rows", k8v4, {1, 131072, 16});
  MeasureRows(bench, "K8/V4 tiled", {Mlx(8, PREFIXD_TILED), Mlx(4, PREFIXD_TILED)},
              {1, 131072, 16});
}

}  // namespace prefixd::bench
