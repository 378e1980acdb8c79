// The two ways through a whole cache: everything there at once, as the seed's bench does it, and
// chunk by chunk, as a worker does it.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>

#include "absl/strings/str_cat.h"

#include "bench/common/page_store.h"
#include "bench/common/process_memory.h"
#include "bench/common/timing.h"
#include "bench/kv_cache/kv_cache.h"
#include "quant/codec.h"

namespace prefixd::bench {
namespace {

constexpr uint32_t kChunkTokens = 512;  // of the production flow

size_t TensorFloats(const KvCacheOptions& shape, uint32_t tokens) {
  return size_t{shape.heads} * tokens * shape.head_dim;
}

void Narrow(quant::Dtype dtype, const float* from, size_t count, std::byte* to) {
  if (dtype == quant::Dtype::kF32) {
    std::memcpy(to, from, count * sizeof(float));
  } else {
    quant::NarrowFromFloat(dtype, from, count, to);
  }
}

// Distance of two tensors of `dtype`, a piece at a time.
void AddDistance(quant::Dtype dtype, const std::byte* before, const std::byte* after, size_t count,
                 Distance& to) {
  constexpr size_t kPiece = 4096;
  std::vector<float> a(kPiece), b(kPiece);
  for (size_t done = 0; done < count; done += kPiece) {
    const size_t piece = std::min(kPiece, count - done);
    const size_t offset = done * quant::DtypeBytes(dtype);
    quant::WidenToFloat(dtype, before + offset, piece, a.data());
    quant::WidenToFloat(dtype, after + offset, piece, b.data());
    to.Add(a.data(), b.data(), piece);
  }
}

template <typename Call>
double Micros(Call call) {
  const double start = NowMicros();
  call();
  return NowMicros() - start;
}

CacheResult EmptyResult(const KvCacheOptions& shape, quant::Dtype dtype, const CacheMode& mode) {
  CacheResult result;
  result.mode = mode.name;
  result.dtype = dtype;
  result.raw_bytes = RawBytes(shape, dtype);
  result.memory_bytes = PayloadBytes(shape, mode.format);
  return result;
}

// Everything at once.
class WholeFlow {
 public:
  WholeFlow(const KvCacheOptions& shape, quant::Dtype dtype, Progress& progress)
      : shape_(shape),
        dtype_(dtype),
        progress_(progress),
        tensor_bytes_(TensorFloats(shape, shape.seq_len) * quant::DtypeBytes(dtype)),
        originals_(2 * shape.layers * tensor_bytes_) {
    const size_t floats = TensorFloats(shape, shape.seq_len);
    const FloatPool pool(floats, 7);
    for (uint32_t i = 0; i < 2 * shape.layers; ++i) {
      Narrow(dtype, pool.tensor(i), floats, originals_.data() + i * tensor_bytes_);
    }
  }

  // The first `layers` layers, once.
  void Run(const CacheMode& mode, uint32_t layers, CacheResult& result) {
    const uint64_t layer_bytes = QuantizedLayer::Bytes(shape_, mode.format);
    const HugeBytes quantized(layers * layer_bytes);
    double quantize_us = 0, dequantize_us = 0;
    for (uint32_t layer = 0; layer < layers; ++layer) {
      progress_.Say(absl::StrCat(mode.name, ": quantizing layer ", layer + 1, " of ", layers));
      QuantizedLayer units(shape_, mode.format, quantized.data() + layer * layer_bytes);
      quantize_us += Micros([&] {
        units.Quantize(false, 0, Tensor(originals_, 2 * layer));
        units.Quantize(true, 0, Tensor(originals_, 2 * layer + 1));
      });
    }
    // What the mode before dequantized into stands idle: not of this step.
    const uint64_t idle = dequantized_ == nullptr ? 0 : dequantized_->size();
    result.originals_rss = ResidentBytes() - idle - quantized.size();
    result.quantized_rss = ResidentBytes() - idle;
    if (dequantized_ == nullptr) dequantized_ = std::make_unique<HugeBytes>(originals_.size());
    for (uint32_t layer = 0; layer < layers; ++layer) {
      progress_.Say(absl::StrCat(mode.name, ": dequantizing layer ", layer + 1, " of ", layers));
      const QuantizedLayer units(shape_, mode.format, quantized.data() + layer * layer_bytes);
      dequantize_us += Micros([&] {
        units.Dequantize(false, 0, Tensor(*dequantized_, 2 * layer));
        units.Dequantize(true, 0, Tensor(*dequantized_, 2 * layer + 1));
      });
    }
    result.dequantized_rss = ResidentBytes();
    if (layers < shape_.layers) return;  // it was to warm up
    result.turns.push_back(turns_++);
    result.quantize_us.push_back(quantize_us);
    result.dequantize_us.push_back(dequantize_us);
    if (result.distance.count > 0) return;
    AddDistance(dtype_, originals_.data(), dequantized_->data(),
                2 * shape_.layers * TensorFloats(shape_, shape_.seq_len), result.distance);
  }

 private:
  TensorBytes Tensor(const HugeBytes& memory, uint32_t index) const {
    return {
        .data = memory.data() + index * tensor_bytes_, .dtype = dtype_, .tokens = shape_.seq_len};
  }
  const KvCacheOptions& shape_;
  const quant::Dtype dtype_;
  Progress& progress_;
  const size_t tensor_bytes_;
  const HugeBytes originals_;
  std::unique_ptr<HugeBytes> dequantized_;
  uint32_t turns_ = 0;
};

}  // namespace

void Progress::Say(const std::string& text) {
  if (!on_ || NowMicros() - last_us_ < 1e6) return;
  if (last_us_ > 0) std::fprintf(stderr, "kv-cache: %s\n", text.c_str());
  last_us_ = NowMicros();
}

uint64_t WholeFlowBytes(const KvCacheOptions& shape, quant::Dtype dtype) {
  uint64_t largest = 0;
  for (const CacheMode& mode : CacheModes(shape, dtype)) {
    largest = std::max(largest, shape.layers * QuantizedLayer::Bytes(shape, mode.format));
  }
  return 2 * RawBytes(shape, dtype) + largest;
}

std::vector<CacheResult> RunWholeFlow(const KvCacheOptions& shape, quant::Dtype dtype,
                                      uint64_t rounds, Progress& progress) {
  const std::vector<CacheMode> modes = CacheModes(shape, dtype);
  WholeFlow flow(shape, dtype, progress);
  std::vector<CacheResult> results;
  for (const CacheMode& mode : modes) {
    flow.Run(mode, std::min(shape.layers - 1, 1u),
             results.emplace_back(EmptyResult(shape, dtype, mode)));
  }
  std::vector<size_t> order(modes.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::mt19937 random(std::random_device{}());
  for (uint64_t round = 0; round < rounds; ++round) {
    std::shuffle(order.begin(), order.end(), random);
    for (const size_t i : order) flow.Run(modes[i], shape.layers, results[i]);
  }
  return results;
}

uint64_t ProductionFlowBytes(const KvCacheOptions& shape, const CacheMode& mode) {
  return shape.layers * QuantizedLayer::Bytes(shape, mode.format);
}

CacheResult RunProductionFlow(const KvCacheOptions& shape, quant::Dtype dtype,
                              const CacheMode& mode, Progress& progress) {
  CacheResult result = EmptyResult(shape, dtype, mode);
  const uint32_t chunk_tokens = std::min(kChunkTokens, shape.seq_len);
  const FloatPool pool(TensorFloats(shape, chunk_tokens), 7);
  const uint64_t layer_bytes = QuantizedLayer::Bytes(shape, mode.format);
  const size_t chunk_bytes = TensorFloats(shape, chunk_tokens) * quant::DtypeBytes(dtype);
  const HugeBytes chunk(chunk_bytes), restored(chunk_bytes);
  result.originals_rss = ResidentBytes();  // a chunk of them
  const uint64_t rss_before = ResidentBytes() - chunk.size() - restored.size();
  const HugeBytes quantized = HugeBytes::Untouched(shape.layers * layer_bytes);
  uint64_t stored = 0;
  double quantize_us = 0, dequantize_us = 0;
  const auto for_each_chunk = [&](uint32_t layer, auto call) {
    for (const bool value : {false, true}) {
      for (uint32_t first = 0; first < shape.seq_len; first += chunk_tokens) {
        const uint32_t tokens = std::min(chunk_tokens, shape.seq_len - first);
        const uint32_t index = (2 * layer + (value ? 1 : 0)) * (shape.seq_len / chunk_tokens + 1) +
                               first / chunk_tokens;
        Narrow(dtype, pool.tensor(index), TensorFloats(shape, tokens), chunk.data());
        call(value, first, TensorBytes{chunk.data(), dtype, tokens});
      }
    }
  };
  for (uint32_t layer = 0; layer < shape.layers; ++layer) {
    // Faulted in before the clock runs, as staging memory is.
    std::memset(quantized.data() + layer * layer_bytes, 0, layer_bytes);
    QuantizedLayer units(shape, mode.format, quantized.data() + layer * layer_bytes);
    for_each_chunk(layer, [&](bool value, uint32_t first, const TensorBytes& floats) {
      quantize_us += Micros([&] { units.Quantize(value, first, floats); });
    });
    progress.Say(absl::StrCat(mode.name, ": stored layer ", layer + 1, " of ", shape.layers));
    stored += layer_bytes;
    const uint64_t now = ResidentBytes() - rss_before;
    result.extra_bytes = std::max(result.extra_bytes, now > stored ? now - stored : 0);
  }
  result.quantized_rss = ResidentBytes();
  for (uint32_t layer = 0; layer < shape.layers; ++layer) {
    const QuantizedLayer units(shape, mode.format, quantized.data() + layer * layer_bytes);
    for_each_chunk(layer, [&](bool value, uint32_t first, const TensorBytes& floats) {
      const TensorBytes to{restored.data(), dtype, floats.tokens};
      dequantize_us += Micros([&] { units.Dequantize(value, first, to); });
      AddDistance(dtype, floats.data, to.data, TensorFloats(shape, floats.tokens), result.distance);
    });
    progress.Say(absl::StrCat(mode.name, ": read layer ", layer + 1, " of ", shape.layers));
  }
  result.dequantized_rss = ResidentBytes();
  result.quantize_us = {quantize_us};
  result.dequantize_us = {dequantize_us};
  return result;
}

}  // namespace prefixd::bench
