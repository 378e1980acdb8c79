// kv-cache: what a whole model's KV cache takes in each mode, how far its values move and how long
// quantizing and dequantizing takes: the bench of the systems that prefixd grew out of.
#pragma once
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "bench/common/bench.h"
#include "bench/common/kv_cache_options.h"
#include "bench/kv_cache/whole_cache.h"
#include "quant/format.h"

namespace prefixd::bench {

// One line of the table, in one width of floats.
struct CacheMode {
  std::string name;  // "8-bit"
  quant::KvFormat format;
};
// raw, 8-bit, 8/4, 6-bit, 4-bit, q8_0, q4_0 for data of this dtype.
std::vector<CacheMode> CacheModes(const KvCacheOptions& shape, quant::Dtype dtype);

struct CacheResult {
  std::string mode;
  quant::Dtype dtype = quant::Dtype::kF32;
  uint64_t raw_bytes = 0, memory_bytes = 0;
  Distance distance;
  std::vector<double> quantize_us, dequantize_us;  // of the whole cache, a round each
  std::vector<uint32_t> turns;  // of each round: which of all timed runs of the flow it was
  uint64_t originals_rss = 0, quantized_rss = 0,
           dequantized_rss = 0;  // of this process when the step was done
  uint64_t extra_bytes = 0;      // production: the most beside what is stored
  double ratio() const {
    return static_cast<double>(raw_bytes) / static_cast<double>(memory_bytes);
  }
};

// Says on stderr where a long run is, at most once a second.
class Progress {
 public:
  explicit Progress(bool on) : on_(on) {}
  void Say(const std::string& text);

 private:
  const bool on_;
  double last_us_ = 0;
};

// Originals, quantized and dequantized copies are there at once. In random order of modes, warmed
// up. Requires: memory for WholeFlowBytes.
std::vector<CacheResult> RunWholeFlow(const KvCacheOptions& shape, quant::Dtype dtype,
                                      uint64_t rounds, Progress& progress);
uint64_t WholeFlowBytes(const KvCacheOptions& shape, quant::Dtype dtype);

// Floats come and go chunk by chunk; one mode.
CacheResult RunProductionFlow(const KvCacheOptions& shape, quant::Dtype dtype,
                              const CacheMode& mode, Progress& progress);
uint64_t ProductionFlowBytes(const KvCacheOptions& shape, const CacheMode& mode);

// Mean squared errors without and with hadamard, on Gaussian data and on data with outliers.
void CompareRotation(Bench& bench, const KvCacheOptions& shape);

}  // namespace prefixd::bench
