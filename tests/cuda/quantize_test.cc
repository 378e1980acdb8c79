// The GPU quantizes to the CPU's bytes.
#include <cmath>
#include <vector>

#include "gtest/gtest.h"

#include "quant/unit.h"
#include "tests/cuda/cases.h"
#include "tests/cuda/tensor_case.h"
#include "tests/kernels/paged_layer.h"

namespace prefixd::cuda {
namespace {

struct QuantizeCase {
  quant::TensorFormat format;
  quant::Side side = quant::Side::kKey;
  quant::Dtype source = quant::Dtype::kF32;
  EngineLayout layout = EngineLayout::kContiguous;
  uint32_t heads = 1, dim = 64, tokens = 1, begin = 0, count = 1;
  uint32_t page_tokens = 64, first_slot = 0;
  uint32_t kind = 0;  // of the numbers
};

std::vector<float> RowOf(const QuantizeCase& it, Draw& draw) {
  std::vector<float> row = kernels::RandomFloats(it.dim, draw.Below(1u << 30));
  for (float& x : row) {
    if (it.kind == 1) x = std::floor(x * 4) / 4;  // many ties
    if (it.kind == 2) x = -3 - std::fabs(x);      // one sign
    if (it.kind == 3) x = 0;
    if (it.kind == 4) x *= 1e-7f;                       // near the smallest scale
    if (it.kind == 5) x *= 8e3f;                        // finite as f16
    if (it.kind == 6) x = draw.Once(2) ? 1.5f : -1.5f;  // edges of equal magnitude
    if (it.kind == 7) x *= 1e-39f;                      // subnormal
    if (it.kind == 8) x = draw.Once(16) ? x * 100 : x;  // outliers
    if (it.kind == 9) x = 900 + x / 4;                  // far from zero
    if (it.kind == 10 && draw.Once(20)) x = std::copysign(INFINITY, x);
    if (it.kind == 11 && draw.Once(20)) x = NAN;
  }
  return row;
}

EngineTensor RowsOf(const QuantizeCase& it, Draw& draw) {
  EngineTensor tensor(it.layout, it.source, it.heads, it.tokens, it.dim, draw);
  for (uint32_t t = 0; t < it.tokens; ++t) {
    for (uint32_t h = 0; h < it.heads; ++h) tensor.Set(t, h, RowOf(it, draw));
  }
  return tensor;
}

quant::UnitShape ShapeOf(const QuantizeCase& it) {
  return {.format = it.format, .side = it.side, .dim = it.dim, .page_tokens = it.page_tokens};
}

// The bytes of all pages before anything is quantized.
std::vector<std::byte> PagesOf(const QuantizeCase& it) {
  const uint32_t pages = (it.first_slot + it.count + it.page_tokens - 1) / it.page_tokens;
  std::vector<std::byte> bytes(pages * it.heads * quant::LayoutOf(ShapeOf(it)).unit_bytes);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7);
  return bytes;
}

// The pages' bytes after calls of `at_once` tokens.
std::vector<std::byte> OnTheGpu(const QuantizeCase& it, const EngineTensor& tensor,
                                uint32_t at_once) {
  const DeviceBytes got(PagesOf(it)), rows(tensor.bytes());
  const size_t page_bytes = it.heads * quant::LayoutOf(ShapeOf(it)).unit_bytes;
  std::vector<void*> pages;
  for (size_t at = 0; at < PagesOf(it).size(); at += page_bytes) pages.push_back(got.at(at));
  const prefixd_cuda_tensor described = tensor.Describe(rows.data());
  prefixd_cuda_quantize_options options = PREFIXD_INIT(prefixd_cuda_quantize_options);
  options.rows = &described;
  options.format = CFormat(it.format);
  options.value = it.side == quant::Side::kValue ? 1 : 0;
  options.kv_heads = it.heads;
  options.dim = it.dim;
  options.table = tensor.table().data();
  options.table_count = static_cast<uint32_t>(tensor.table().size());
  options.page_tokens = it.page_tokens;
  for (uint32_t done = 0; done < it.count; done += at_once) {
    const uint32_t slot = it.first_slot + done, page = slot / it.page_tokens;
    options.begin = it.begin + done;
    options.count = std::min(at_once, it.count - done);
    options.pages = pages.data() + page;
    options.page_count = static_cast<uint32_t>(pages.size()) - page;
    options.first_slot = slot % it.page_tokens;
    EXPECT_EQ(prefixd_cuda_quantize(Gpu(), &options, nullptr), PREFIXD_OK)
        << prefixd_cuda_last_error();
  }
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  return got.Read<std::byte>();
}

void Check(const QuantizeCase& it, Draw& draw) {
  const EngineTensor tensor = RowsOf(it, draw);
  const quant::UnitShape shape = ShapeOf(it);
  const size_t unit_bytes = quant::LayoutOf(shape).unit_bytes;
  std::vector<std::byte> want = PagesOf(it);
  for (uint32_t i = 0; i < it.count; ++i) {
    const uint32_t slot = it.first_slot + i;
    for (uint32_t h = 0; h < it.heads; ++h) {
      std::byte* unit = want.data() + (slot / it.page_tokens * it.heads + h) * unit_bytes;
      quant::QuantizeToken(shape, tensor.Get(it.begin + i, h), slot % it.page_tokens, unit);
    }
  }
  const std::vector<std::byte> bytes = OnTheGpu(it, tensor, it.count);
  size_t different = 0, first = 0;
  for (size_t i = want.size(); i-- > 0;) {
    if (bytes[i] == want[i]) continue;
    ++different;
    first = i;
  }
  EXPECT_EQ(different, 0u) << quant::ToString(it.format) << " from " << quant::ToString(it.source)
                           << ", kind " << it.kind << ", dim " << it.dim << ", side "
                           << static_cast<int>(it.side) << ", first at " << first << " of "
                           << want.size();
}

std::vector<quant::TensorFormat> WrittenFormats(uint32_t dim) {
  std::vector<quant::TensorFormat> formats;
  for (const quant::TensorFormat& format : kernels::FormatsFor(dim)) {
    const bool written = format.codec == quant::Codec::kRaw ||
                         format.codec == quant::Codec::kMlxAffine ||
                         format.codec == quant::Codec::kQ8_0 || format.codec == quant::Codec::kQ4_0;
    if (!written) continue;
    formats.push_back(format);
    if (quant::HasTiled(format)) formats.push_back(quant::Tiled(format));
    if (format.codec == quant::Codec::kRaw) formats.push_back(quant::Transposed(format));
  }
  return formats;
}

TEST(QuantizeTest, C3_TheBytesAreThoseOfTheCpu) {
  SKIP_WITHOUT_GPU();
  Draw draw(3);
  for (const uint32_t dim : {32u, 64u, 80u, 96u, 128u, 256u}) {
    for (const quant::TensorFormat& format : WrittenFormats(dim)) {
      for (uint32_t kind = 0; kind < 9; ++kind) {
        QuantizeCase it{
            .format = format,
            .side = draw.Once(2) ? quant::Side::kKey : quant::Side::kValue,
            .source = draw.OneOf({quant::Dtype::kF16, quant::Dtype::kBf16, quant::Dtype::kF32}),
            .layout = kEngineLayouts[draw.Below(6)],
            .heads = draw.From(1, 4),
            .dim = dim,
            .kind = kind};
        it.begin = draw.Below(5);
        it.count = draw.From(1, 50);
        it.tokens = it.begin + it.count + draw.Below(4);
        it.page_tokens = draw.OneOf({16u, 64u, 37u});
        it.first_slot = draw.Below(it.page_tokens);
        Check(it, draw);
        if (HasFailure()) return;
      }
    }
  }
}

// A case of whole quads, which have a kernel of their own in calls of 64 tokens and more.
QuantizeCase ManyTokens(const quant::TensorFormat& format, uint32_t dim, uint32_t kind,
                        Draw& draw) {
  QuantizeCase it{.format = format,
                  .side = draw.Once(2) ? quant::Side::kKey : quant::Side::kValue,
                  .source = draw.OneOf({quant::Dtype::kF16, quant::Dtype::kBf16}),
                  .layout = kEngineLayouts[draw.Below(5)],
                  .heads = draw.From(1, 3),
                  .dim = dim,
                  .kind = kind};
  it.page_tokens = draw.OneOf({4u, 16u, 64u, 36u, 300u});
  it.first_slot = draw.Below(it.page_tokens);
  it.begin = draw.Once(2) ? it.first_slot % 4 : draw.Below(9);
  it.count = draw.From(72, 200);
  it.tokens = it.begin + it.count;
  return it;
}

TEST(QuantizeTest, C3_TheBytesOfManyTokensAreThoseOfTheCpu) {
  SKIP_WITHOUT_GPU();
  Draw draw(5);
  for (const uint32_t dim : {32u, 64u, 96u, 128u, 160u, 192u, 224u, 256u}) {
    for (const quant::TensorFormat& format : WrittenFormats(dim)) {
      if (format.codec == quant::Codec::kRaw) continue;
      for (uint32_t kind = 0; kind < 10; ++kind) {
        Check(ManyTokens(format, dim, kind, draw), draw);
        if (HasFailure()) return;
      }
    }
  }
}

// What bits a NaN has is not the CPU's choice; some NaN among numbers are no reason for two
// results.
TEST(QuantizeTest, InfinitiesAndSomeNanAreQuantizedAlikeInShortCallsAndLongOnes) {
  SKIP_WITHOUT_GPU();
  Draw draw(7);
  for (const uint32_t dim : {64u, 128u}) {
    for (const quant::TensorFormat& format : WrittenFormats(dim)) {
      if (format.codec == quant::Codec::kRaw) continue;
      for (const uint32_t kind : {10u, 11u}) {
        const QuantizeCase it = ManyTokens(format, dim, kind, draw);
        const EngineTensor tensor = RowsOf(it, draw);
        EXPECT_EQ(OnTheGpu(it, tensor, it.count), OnTheGpu(it, tensor, 48))
            << quant::ToString(format) << " from " << quant::ToString(it.source) << ", kind "
            << kind;
      }
    }
  }
}

TEST(QuantizeTest, C3_AMillionHalvesHaveTheCodesOfTheCpu) {
  SKIP_WITHOUT_GPU();
  Draw draw(6);
  for (const quant::TensorFormat& format :
       {quant::MlxAffineFormat(8, 64, quant::Dtype::kF16),
        quant::MlxAffineFormat(4, 32, quant::Dtype::kBf16), quant::GgmlFormat(quant::Codec::kQ8_0),
        quant::GgmlFormat(quant::Codec::kQ4_0)}) {
    for (const quant::Dtype source : {quant::Dtype::kF16, quant::Dtype::kBf16}) {
      Check({.format = format,
             .source = source,
             .heads = 4,
             .dim = 128,
             .tokens = 2048,
             .count = 2048},
            draw);
    }
  }
}

TEST(QuantizeTest, PackedRowsGoToPinnedHostMemory) {
  SKIP_WITHOUT_GPU();
  Draw draw(4);
  const quant::TensorFormat format = quant::MlxAffineFormat(4, 64, quant::Dtype::kBf16);
  EngineTensor tensor(EngineLayout::kVllm, quant::Dtype::kBf16, 2, 40, 128, draw);
  for (uint32_t t = 0; t < 40; ++t) {
    for (uint32_t h = 0; h < 2; ++h) tensor.Set(t, h, kernels::RandomFloats(128, 40 * h + t));
  }
  const DeviceBytes rows(tensor.bytes());
  const prefixd_cuda_tensor described = tensor.Describe(rows.data());
  prefixd_cuda_quantize_options options = PREFIXD_INIT(prefixd_cuda_quantize_options);
  options.rows = &described;
  options.format = CFormat(format);
  options.kv_heads = 2;
  options.dim = 128;
  options.count = 40;
  options.table = tensor.table().data();
  options.table_count = static_cast<uint32_t>(tensor.table().size());
  options.page_tokens = 40;
  const uint64_t unit_bytes = prefixd_cuda_unit_bytes(&options.format, 128, 40);
  void* const packed = prefixd_cuda_alloc_host(Gpu(), 2 * unit_bytes);
  ASSERT_NE(packed, nullptr) << prefixd_cuda_last_error();
  options.pages = &packed;
  options.page_count = 1;
  ASSERT_EQ(prefixd_cuda_quantize(Gpu(), &options, nullptr), PREFIXD_OK)
      << prefixd_cuda_last_error();
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  prefixd_planes planes = PREFIXD_INIT(prefixd_planes);
  ASSERT_EQ(prefixd_cuda_planes(&options.format, 128, 40, packed, &planes), PREFIXD_OK);
  for (uint32_t t = 0; t < 40; ++t) {
    for (uint32_t h = 0; h < 2; ++h) {
      std::byte codes[64], scales[4], biases[4];
      quant::QuantizeRow(format, tensor.Get(t, h), {codes, scales, biases});
      const auto equal = [&](void* plane, size_t head, size_t token, const void* want, size_t n) {
        return std::memcmp(static_cast<std::byte*>(plane) + h * head + t * token, want, n) == 0;
      };
      EXPECT_TRUE(
          equal(planes.codes, planes.codes_head_stride, planes.codes_token_stride, codes, 64));
      EXPECT_TRUE(
          equal(planes.scales, planes.scales_head_stride, planes.scales_token_stride, scales, 4));
      EXPECT_TRUE(
          equal(planes.biases, planes.scales_head_stride, planes.scales_token_stride, biases, 4));
    }
  }
  prefixd_cuda_free_host(Gpu(), packed);
}

}  // namespace
}  // namespace prefixd::cuda
