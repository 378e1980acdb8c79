// What is checked before anything is queued, and how launches are planned: no GPU needed.
#include <algorithm>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "client/cuda/attention.h"
#include "client/cuda/formats.h"
#include "client/cuda/load.h"
#include "client/cuda/store.h"
#include "tests/cuda/cases.h"

namespace prefixd::cuda {
namespace {

quant::TensorFormat Mlx(uint8_t bits) {
  return quant::MlxAffineFormat(bits, 64, quant::Dtype::kF16);
}

TEST(ChecksTest, ALoadTakesTheSlotsOfTheAskedTokensAndNoOthers) {
  Draw draw(5);
  alignas(16) std::byte units[16];
  for (int round = 0; round < 300; ++round) {
    std::vector<prefixd_block> blocks;
    std::vector<int> owner;  // of each token: its block, -1 if that has no units
    for (uint32_t i = 0, count = draw.From(1, 8); i < count; ++i) {
      const uint32_t tokens = draw.Below(20);
      const bool absent = draw.Once(4);
      blocks.push_back({absent ? nullptr : units, 0, 20, tokens, 0});
      owner.insert(owner.end(), tokens, absent ? -1 : static_cast<int>(i));
    }
    const uint64_t begin = draw.Below(40), end = begin + draw.Below(60);
    std::vector<int> taken(owner.size(), -1);
    for (const WantedBlock& it : WantedBlocks(blocks.data(), blocks.size(), begin, end)) {
      EXPECT_GT(it.count, 0u);
      for (uint32_t k = 0; k < it.count; ++k) {
        ASSERT_LT(it.token + k, taken.size());
        EXPECT_EQ(taken[it.token + k], -1) << "a token that two blocks bring";
        taken[it.token + k] = static_cast<int>(it.block);
        uint32_t first = 0;
        for (size_t b = 0; b < it.block; ++b) first += blocks[b].tokens;
        EXPECT_EQ(it.first_slot + k, it.token + k - first);
      }
    }
    for (uint64_t t = 0; t < owner.size(); ++t) {
      EXPECT_EQ(taken[t], t >= begin && t < end ? owner[t] : -1);
    }
  }
}

TEST(ChecksTest, QuantizeSaysWhatIsWrong) {
  alignas(128) std::byte page[128];
  float rows[8] = {};
  prefixd_cuda_tensor tensor = PREFIXD_INIT(prefixd_cuda_tensor);
  tensor.data = rows;
  tensor.dtype = PREFIXD_F32;
  tensor.token_stride = 128;
  tensor.head_stride = 1280;
  void* pages[2] = {page, page};
  prefixd_cuda_quantize_options options = PREFIXD_INIT(prefixd_cuda_quantize_options);
  options.rows = &tensor;
  options.format = CFormat(Mlx(4));
  options.kv_heads = 2;
  options.dim = 128;
  options.count = 20;
  options.page_tokens = 16;
  options.pages = pages;
  options.page_count = 2;
  const auto message = [&] { return std::string(CheckQuantize(options).status().message()); };
  ASSERT_EQ(message(), "");
  options.count = 33;
  EXPECT_EQ(message(), "quantize: 2 pages are given, 3 are needed for 33 slots");
  options.count = 20;
  options.first_slot = 16;
  EXPECT_EQ(message(), "quantize: first_slot 16 is not in a page of 16 tokens");
  options.first_slot = 0;
  options.unit_stride = 128;
  EXPECT_EQ(message(), "quantize: unit_stride 128 is no multiple of 128 of at least 1152");
  options.unit_stride = 0;
  pages[1] = page + 8;
  EXPECT_EQ(message(), "quantize: page 1 is NULL or not 128-byte aligned");
  pages[1] = page;
  options.format = CFormat(quant::GgmlFormat(quant::Codec::kQ5_1));
  EXPECT_EQ(message(), "quantize: the GPU writes raw, mlx_affine, q8_0 and q4_0, not codec 6");
  options.format = CFormat(Mlx(4));
  options.kv_heads = 0;
  EXPECT_EQ(message(), "quantize: kv_heads is 0, must be 1 to 1024");
}

prefixd_cuda_attention_options OptionsOf(const prefixd_format* formats, uint32_t count) {
  prefixd_cuda_attention_options options = PREFIXD_INIT(prefixd_cuda_attention_options);
  options.formats = formats;
  options.format_count = count;
  options.query_heads = 32;
  options.kv_heads = 8;
  options.key_dim = options.value_dim = 128;
  options.scale = 0.1f;
  return options;
}

TEST(ChecksTest, ManyRowsAreQuickOnHopperInEveryFormat) {
  prefixd_cuda_facts hopper = {}, other = {};
  hopper.major = 9;
  other.major = 10;
  const quant::TensorFormat raw = quant::RawFormat(quant::Dtype::kF32);
  const prefixd_format formats[] = {
      CFormat(quant::KvFormat{Mlx(8), Mlx(4)}), CFormat(quant::KvFormat{Mlx(6), raw}),
      CFormat(quant::KvFormat{quant::Tiled(Mlx(8)), quant::Tiled(Mlx(4))})};
  prefixd_cuda_attention_options options = OptionsOf(formats, 3);
  EXPECT_EQ(*QuickRows(hopper, options), 2048u);
  EXPECT_EQ(*QuickRows(other, options), 8u);
  options.precise = 1;
  EXPECT_EQ(*QuickRows(hopper, options), 8u);
  options = OptionsOf(formats, 1);
  options.key_dim = options.value_dim = 256;
  EXPECT_EQ(*QuickRows(hopper, options), 2048u);
  options.kv_heads = 0;
  EXPECT_FALSE(QuickRows(hopper, options).ok());
}

TEST(ChecksTest, AttentionSaysWhatIsWrong) {
  const prefixd_format format = CFormat(quant::KvFormat{Mlx(8), Mlx(4)});
  prefixd_cuda_attention_options options = OptionsOf(&format, 1);
  const auto message = [&] { return std::string(CheckShape(options).status().message()); };
  ASSERT_EQ(message(), "");
  EXPECT_EQ(CheckShape(options)->group, 4u);
  options.query_rows = 2048;
  EXPECT_EQ(message(), "");
  options.query_rows = 2049;
  EXPECT_EQ(message(), "attend: query_rows is 2049, must be 1 to 2048");
  options.query_rows = 1;
  options.query_heads = 136;
  EXPECT_EQ(message(),
            "attend: query_heads 136 is no multiple of kv_heads 8, or more than 16 times as many");
  options.query_heads = 32;
  options.soft_cap = -1;
  EXPECT_EQ(message(), "attend: soft_cap is -1, must be 0 for none, or positive");
  options.soft_cap = 0;
  options.scale = 0;
  EXPECT_EQ(message(), "attend: scale must be that of q.k, mostly 1 / sqrt(key_dim)");
  options.scale = 1;
  options.format_count = 0;
  EXPECT_EQ(message(), "cuda: no formats given");
  options.format_count = 1;
  options.kv_heads = 0;
  EXPECT_EQ(message(), "cuda: kv_heads is 0, must be 1 to 1024");
}

TEST(ChecksTest, AttentionOnKeysAloneSaysWhatIsWrong) {
  const prefixd_format format = CFormat(quant::KvFormat{Mlx(8), Mlx(8)});
  prefixd_cuda_attention_options options = OptionsOf(&format, 1);
  const auto message = [&] { return std::string(CheckShape(options).status().message()); };
  options.kv_heads = 1;
  options.query_heads = 128;
  options.key_dim = 576;
  options.value_dim = 512;
  EXPECT_EQ(message(), "cuda: head_dim is 576, must be a multiple of 8, at most 256");
  options.values = PREFIXD_VALUES_KEY_PREFIX;
  ASSERT_EQ(message(), "");
  EXPECT_TRUE(CheckShape(options)->latent);
  EXPECT_EQ(CheckShape(options)->formats[0].value.dim, 0u);
  options.query_heads = 129;
  EXPECT_EQ(message(),
            "attend: query_heads 129 is no multiple of kv_heads 1, or more than 128 times as many");
  options.query_heads = 128;
  for (const uint32_t dim : {584u, 288u, 640u}) {
    options.key_dim = dim;
    EXPECT_EQ(message(), "cuda: keys have " + std::to_string(dim) +
                             " elements, must be a multiple of 8 up to 256, or of 64 up to 576");
  }
  options.key_dim = 448;
  EXPECT_EQ(message(),
            "attend: value_dim is 512, must be a multiple of 8, at most 448: the values "
            "are the keys' first elements");
  options.key_dim = 576;
  options.value_dim = 0;
  EXPECT_NE(message(), "");
  options.value_dim = 520;
  EXPECT_NE(message(), "");
  options.value_dim = 512;
  options.values = PREFIXD_VALUES_NONE;
  EXPECT_EQ(message(), "cuda: values is 2, must be PREFIXD_VALUES_STORED or _KEY_PREFIX");
}

PairGeometry PairOf(const quant::KvFormat& format) {
  const prefixd_format c = CFormat(format);
  return GeometryOf(&c, 1, {8, 128, 128}).value()[0];
}

TEST(ChecksTest, TheCommonFormatsHaveFastKernelsAndOthersDoNot) {
  for (const auto& [key, value] : {std::pair{8, 8}, {8, 4}, {4, 4}}) {
    const quant::TensorFormat k = Mlx(static_cast<uint8_t>(key)),
                              v = Mlx(static_cast<uint8_t>(value));
    EXPECT_TRUE(HasFast(PairOf({k, v})));
    EXPECT_TRUE(HasFast(PairOf({quant::Tiled(k), quant::Tiled(v)})));
    EXPECT_FALSE(HasFast(PairOf({quant::Tiled(k), v})));
  }
  const quant::TensorFormat q8 = quant::GgmlFormat(quant::Codec::kQ8_0);
  EXPECT_TRUE(HasFast(PairOf({quant::Tiled(q8), quant::Tiled(q8)})));
  EXPECT_FALSE(HasFast(PairOf({q8, q8})));
  EXPECT_FALSE(HasFast(PairOf({Mlx(6), Mlx(6)})));
}

TEST(ChecksTest, FastLaunchesFitTheGpuWithAtLeastTwoStages) {
  const SharedMemory hopper{.each = 233472, .most = 232448}, ada{.each = 102400, .most = 101376};
  for (const SharedMemory& memory : {hopper, ada}) {
    for (const uint32_t page_tokens : {16u, 32u, 48u, 64u, 80u, 96u, 112u, 128u, 1024u}) {
      for (const uint32_t columns : {1u, 4u, 8u, 128u}) {
        for (const uint32_t blocks : {1u, 2u}) {
          const FastLaunch launch = PlanFast(PairOf({Mlx(8), Mlx(page_tokens % 32 == 0 ? 8 : 4)}),
                                             page_tokens, columns, memory, blocks);
          if (launch.warps == 0) continue;
          EXPECT_GE(launch.stages, 2u);
          EXPECT_LE(launch.warps, 8u);
          EXPECT_LE(launch.shared_bytes, memory.most);
          EXPECT_LE(blocks * (launch.shared_bytes + 1024), memory.each);
          EXPECT_GE(launch.shared_bytes,
                    launch.warps * launch.stages * launch.stage_bytes +
                        4 * SumFloats(launch.warps, std::min(columns, 8u), 128));
        }
      }
    }
    EXPECT_GT(PlanFast(PairOf({Mlx(8), Mlx(4)}), 64, 4, memory, 1).warps, 2u);
    EXPECT_EQ(PlanFast(PairOf({Mlx(8), Mlx(8)}), 1024, 4, memory, 1).warps, 0u)
        << "two pages of 270 KiB fit no GPU: the kernel for every format has them";
  }
}

}  // namespace
}  // namespace prefixd::cuda
