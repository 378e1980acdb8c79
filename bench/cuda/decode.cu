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
}

}  // namespace prefixd::bench
