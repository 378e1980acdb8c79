// Tensors of fp8 (e4m3): filled from pages, and quantized into pages.
#include <cmath>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "quant/unit.h"
#include "tests/cuda/cases.h"
#include "tests/kernels/paged_layer.h"

namespace prefixd::cuda {
namespace {

constexpr uint32_t kTokens = 40, kHeads = 2, kDim = 64, kPageTokens = 64;

// OCP 8-bit floating point, E4M3: bias 7, no infinities, 0x7f and 0xff are no numbers.
float FloatOfF8(uint8_t bits) {
  const int exponent = bits >> 3 & 15, fraction = bits & 7;
  if (exponent == 15 && fraction == 7) return NAN;
  const double size =
      exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
  return static_cast<float>(bits < 128 ? size : -size);
}

// The nearest of all numbers, the even one of two.
uint8_t NearestF8(float x) {
  uint8_t best = 0;
  double least = INFINITY;
  for (uint32_t bits = 0; bits < 127; ++bits) {
    const double away = std::fabs(double{FloatOfF8(static_cast<uint8_t>(bits))} - std::fabs(x));
    if (away < least || (away == least && bits % 2 == 0)) best = static_cast<uint8_t>(bits);
    least = std::fmin(least, away);
  }
  return static_cast<uint8_t>(best | (std::signbit(x) ? 128 : 0));
}

struct Tensors {
  float scale = 1;
  int64_t token_stride = kHeads * kDim, head_stride = kDim;
  uint32_t split = 0;
  int64_t split_stride = 0;

  prefixd_cuda_tensor Describe(void* data) const {
    prefixd_cuda_tensor tensor = PREFIXD_INIT(prefixd_cuda_tensor);
    tensor.data = data;
    tensor.dtype = PREFIXD_CUDA_F8;
    tensor.token_stride = token_stride;
    tensor.head_stride = head_stride;
    tensor.split = split;
    tensor.split_stride = split_stride;
    tensor.scale = scale;
    return tensor;
  }
  size_t At(uint32_t token, uint32_t head, uint32_t channel) const {
    const uint32_t wide = split == 0 ? kDim : split;
    return static_cast<size_t>(token * token_stride + head * head_stride +
                               channel / wide * split_stride + channel % wide);
  }
};

const Tensors kCases[] = {
    {.scale = 0},
    {.scale = 0.01f},
    {.scale = 37.5f, .token_stride = kHeads * kDim + 3},  // rows that are not aligned
    {.scale = 2,
     .token_stride = 1,
     .head_stride = kDim * kTokens,
     .split = 1,
     .split_stride = kTokens},
};

TEST(Fp8Test, PagesFillTensorsWithTheNearestNumbers) {
  SKIP_WITHOUT_GPU();
  for (const quant::TensorFormat& format :
       {quant::RawFormat(quant::Dtype::kBf16), quant::MlxAffineFormat(8, 64, quant::Dtype::kF16)}) {
    for (const Tensors& tensors : kCases) {
      const kernels::PagedLayer layer({.kv_heads = kHeads, .element_scale = 3}, {{format, format}},
                                      kernels::UniformBlocks(kTokens, kPageTokens));
      const quant::BlockTableEntry& entry = layer.table()[0];
      const quant::UnitShape key{
          .format = format, .side = quant::Side::kKey, .dim = kDim, .page_tokens = kPageTokens};
      quant::UnitShape value = key;
      value.side = quant::Side::kValue;
      const size_t unit = quant::LayoutOf(key).unit_bytes;
      const std::vector<std::byte> bytes(entry.units, entry.units + 2 * kHeads * unit);
      const DeviceBytes pages(bytes), keys(size_t{kTokens + 1} * kHeads * (kDim + 3)),
          values(size_t{kTokens + 1} * kHeads * (kDim + 3));
      const prefixd_block block = {pages.data(), ~uint64_t{0}, kPageTokens, kTokens, 0};
      const prefixd_format both = {CFormat(format), CFormat(format)};
      const prefixd_cuda_tensor k = tensors.Describe(keys.data());
      const prefixd_cuda_tensor v = tensors.Describe(values.data());
      prefixd_cuda_load_layer to = PREFIXD_INIT(prefixd_cuda_load_layer);
      to.blocks = &block;
      to.block_count = 1;
      to.formats = &both;
      to.format_count = 1;
      to.kv_heads = kHeads;
      to.key_dim = to.value_dim = kDim;
      to.key = &k;
      to.value = &v;
      prefixd_cuda_load_options options = PREFIXD_INIT(prefixd_cuda_load_options);
      options.layers = &to;
      options.layer_count = 1;
      prefixd_cuda_load* const load = prefixd_cuda_load_begin(Gpu(), &options);
      ASSERT_NE(load, nullptr) << prefixd_cuda_last_error();
      ASSERT_EQ(prefixd_cuda_load_end(load, nullptr), PREFIXD_OK);
      const float scale = tensors.scale == 0 ? 1 : tensors.scale;
      for (const bool is_value : {false, true}) {
        const auto got = (is_value ? values : keys).Read<uint8_t>();
        for (uint32_t head = 0; head < kHeads; ++head) {
          const std::byte* at = bytes.data() + (is_value ? kHeads + head : head) * unit;
          for (uint32_t token = 0; token < kTokens; ++token) {
            std::vector<float> row(kDim);
            quant::DequantizeToken(is_value ? value : key, at, token, row);
            for (uint32_t c = 0; c < kDim; ++c) {
              const uint8_t want = NearestF8(row[c] / scale);
              ASSERT_EQ(got[tensors.At(token, head, c)], want)
                  << quant::ToString(format) << ", scale " << scale << ": " << row[c];
            }
          }
        }
      }
    }
  }
}

TEST(Fp8Test, TensorsAreQuantizedAsTheFloatsTheyStandFor) {
  SKIP_WITHOUT_GPU();
  const quant::TensorFormat format = quant::MlxAffineFormat(8, 64, quant::Dtype::kBf16);
  const quant::UnitShape shape{
      .format = format, .side = quant::Side::kKey, .dim = kDim, .page_tokens = kPageTokens};
  const size_t unit = quant::LayoutOf(shape).unit_bytes;
  for (const Tensors& tensors : kCases) {
    std::vector<uint8_t> elements(size_t{kTokens + 1} * kHeads * (kDim + 3));
    std::vector<std::byte> want(kHeads * unit);
    for (uint32_t head = 0; head < kHeads; ++head) {
      for (uint32_t token = 0; token < kTokens; ++token) {
        std::vector<float> row = kernels::RandomFloats(kDim, head * 100 + token);
        for (uint32_t c = 0; c < kDim; ++c) {
          uint8_t& element = elements[tensors.At(token, head, c)];
          element = NearestF8(row[c] * 50);
          row[c] = FloatOfF8(element) * (tensors.scale == 0 ? 1 : tensors.scale);
        }
        quant::QuantizeToken(shape, row, token, want.data() + head * unit);
      }
    }
    const DeviceBytes source(elements), pages(std::vector<std::byte>(want.size()));
    const prefixd_cuda_tensor rows = tensors.Describe(source.data());
    void* page = pages.data();
    prefixd_cuda_quantize_options options = PREFIXD_INIT(prefixd_cuda_quantize_options);
    options.rows = &rows;
    options.format = CFormat(format);
    options.kv_heads = kHeads;
    options.dim = kDim;
    options.count = kTokens;
    options.page_tokens = kPageTokens;
    options.pages = &page;
    options.page_count = 1;
    ASSERT_EQ(prefixd_cuda_quantize(Gpu(), &options, nullptr), PREFIXD_OK)
        << prefixd_cuda_last_error();
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(pages.Read<std::byte>(), want) << "scale " << tensors.scale;
  }
}

}  // namespace
}  // namespace prefixd::cuda
