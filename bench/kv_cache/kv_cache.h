// kv-cache: what a whole model's KV cache takes in each mode, how far its values move and how long
// quantizing and dequantizing takes: the bench of the systems that prefixd grew out of.
#pragma once
#include <string>
#include <vector>

#include "bench/common/bench.h"
#include "bench/kernels/conversion.h"
#include "quant/format.h"

namespace prefixd::bench {

struct CacheMode {
  std::string name;  // "8-bit"
  quant::KvFormat format;
};
// raw, 8-bit, 8/4, 6-bit, 4-bit, q8_0, q4_0 for data of this dtype.
std::vector<CacheMode> CacheModes(const KvCacheOptions& shape, quant::Dtype dtype);

// Bytes of the whole cache in a format, without padding.
uint64_t PayloadBytes(const KvCacheOptions& shape, const quant::KvFormat& format);

// A cache in one mode: layer by layer its floats come chunk by chunk, are quantized into pages that
// stay, and are read back from them.
class ModeRun {
 public:
  ModeRun(const KvCacheOptions& shape, quant::Dtype dtype, const CacheMode& mode)
      : shape_(shape), dtype_(dtype), mode_(mode) {}
  void Run();  // the first time to warm up, and to see how far values move
  std::string name() const { return mode_.name + " of " + quant::ToString(dtype_); }
  Row row() const;
  const Distance& distance() const { return distance_; }
  // The most resident memory beside the pages while they were filled.
  uint64_t extra_bytes() const { return extra_bytes_; }

 private:
  const KvCacheOptions& shape_;
  const quant::Dtype dtype_;
  const CacheMode mode_;
  Distance distance_;
  std::vector<double> quantize_us_, dequantize_us_;  // of the whole cache, each run
  uint64_t rss_before_ = 0, rss_quantized_ = 0, rss_dequantized_ = 0, extra_bytes_ = 0;
};

}  // namespace prefixd::bench
