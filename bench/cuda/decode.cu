// Decode attention on quantized pages beside a plain read of as many bytes.
#include "pages.h"

namespace prefixd::bench {
namespace {

class Calls {
 public:
  Calls(Bench& bench, const prefixd_format& format, const Shape& shape, const Pages& pages,
        bool precise)
      : bench_(bench) {
    prefixd_cuda_attention_options options = PREFIXD_INIT(prefixd_cuda_attention_options);
    options.formats = &format;
    options.format_count = 1;
    options.query_heads = kHeads * kGroup;
    options.kv_heads = kHeads;
    options.key_dim = options.value_dim = kDim;
    options.scale = 1 / std::sqrt(static_cast<float>(kDim));
    options.precise = precise ? 1 : 0;
    options.early = 1;
    attention_ = prefixd_cuda_attention_new(bench.cuda, &options);
    Must(attention_ != nullptr, prefixd_cuda_last_error());
    const uint32_t each = shape.tokens / kPageTokens;
    std::vector<std::vector<prefixd_block>> blocks;
    std::vector<prefixd_cuda_sequence> sequences;
    for (uint32_t s = 0; s < shape.sequences; ++s) {
      blocks.push_back(pages.Blocks(s * each, each));
      sequences.push_back({blocks.back().data(), each, shape.tokens - 1, 0});
    }
    Must(prefixd_cuda_attention_set(attention_, sequences.data(), shape.sequences, bench.stream));
    const size_t elements = size_t{shape.sequences} * kHeads * kGroup * kDim;
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

void Measure(Bench& bench, const NamedFormat& it, const Shape& shape, double read_rate,
             double target_of_read) {
  const Pages pages(bench, it.format, shape);
  Calls calls(bench, it.format, shape, pages, false);
  Calls precise(bench, it.format, shape, pages, true);
  const double error = ErrorOf(calls.Results(), precise.Results());
  Must(error < 1e-3, "decode: results differ from the precise kernel's");
  const int graph_calls = static_cast<int>(std::max(2u, std::min(pages.layers(), 20u)));
  const double ms = GraphMillisecondsOf(bench.stream, bench.quick ? 7 : 15, graph_calls, [&] {
    for (int i = 0; i < graph_calls; ++i) calls.Attend(static_cast<uint32_t>(i) % pages.layers());
  });
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
