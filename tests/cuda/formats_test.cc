// The GPU's numbers of formats and units are those of quant/.
#include "client/cuda/formats.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "quant/unit.h"
#include "tests/cuda/cases.h"
#include "tests/kernels/paged_layer.h"

namespace prefixd::cuda {
namespace {

TEST(FormatsTest, UnitsAreCutAsTheCpuCutsThem) {
  for (const uint32_t dim : {32u, 64u, 80u, 96u, 128u, 256u}) {
    for (quant::TensorFormat format : kernels::FormatsFor(dim)) {
      if (quant::IsBlockFloat(format.codec)) continue;
      for (const bool tiled : {false, true}) {
        if (tiled) format = quant::Tiled(format);
        const auto geometry = GeometryOf(CFormat(format), dim, Side::kKey);
        ASSERT_TRUE(geometry.ok()) << geometry.status();
        for (const uint32_t tokens : {1u, 15u, 16u, 37u, 64u, 128u}) {
          const quant::UnitLayout want = quant::LayoutOfUnit(format, dim, tokens);
          const UnitPlaces got = PlacesOf(*geometry, tokens);
          EXPECT_EQ(got.slots, want.slots);
          EXPECT_EQ(got.scales, want.scales_offset) << quant::ToString(format);
          EXPECT_EQ(got.biases, want.biases_offset);
          EXPECT_EQ(got.bytes, want.unit_bytes);
        }
      }
    }
  }
}

TEST(FormatsTest, WhatTheGpuDoesNotReadIsRefusedWithTheReason) {
  const auto message = [](quant::TensorFormat format, uint32_t dim) {
    return std::string(GeometryOf(CFormat(format), dim, Side::kKey).status().message());
  };
  EXPECT_EQ(message(quant::BlockFloatFormat(quant::Codec::kMxFp4), 128),
            "cuda: block floats (mxfp4, mxfp8, nvfp4) are not read on the GPU");
  EXPECT_EQ(message(quant::RawFormat(quant::Dtype::kF16), 260),
            "cuda: head_dim is 260, must be a multiple of 8, at most 256");
  EXPECT_EQ(message(quant::MlxAffineFormat(8, 64, quant::Dtype::kF16), 96),
            "cuda: format: group_size 64 of mlx_affine/8/64/f16 does not divide head_dim 96, "
            "accepted here: 32");
}

TEST(FormatsTest, ATensorWithoutStridesOrTableIsRefused) {
  float data[4] = {};
  prefixd_cuda_tensor tensor = PREFIXD_INIT(prefixd_cuda_tensor);
  const auto message = [&] {
    return std::string(PlaceOf(&tensor, 2, 64, "key").status().message());
  };
  EXPECT_EQ(message(), "cuda: key: no tensor given");
  tensor.data = data;
  EXPECT_EQ(message(), "cuda: key: dtype is 0, must be f32, f16, bf16 or PREFIXD_CUDA_F8");
  tensor.dtype = PREFIXD_F16;
  EXPECT_EQ(message(), "cuda: key: token_stride is 0");
  tensor.token_stride = 64;
  EXPECT_EQ(message(), "cuda: key: head_stride is 0");
  tensor.head_stride = 640;
  tensor.block_tokens = 16;
  EXPECT_EQ(message(), "cuda: key: block_stride is 0");
  tensor.block_stride = 64000;
  tensor.split = 48;
  EXPECT_EQ(message(), "cuda: key: split 48 does not divide head_dim 64");
  tensor.split = 0;
  tensor.scale = -1;
  EXPECT_EQ(message(), "cuda: key: scale is -1, must be positive, or 0 for 1");
  tensor.scale = 0;
  const auto place = PlaceOf(&tensor, 2, 64, "key");
  ASSERT_TRUE(place.ok()) << place.status();
  const int32_t table[2] = {3, 1};
  EXPECT_TRUE(CheckTable(*place, table, 2, 32).ok());
  EXPECT_EQ(CheckTable(*place, table, 2, 33).message(),
            "cuda: the table has 2 blocks of 16 tokens, 3 are needed for 33 tokens");
}

}  // namespace
}  // namespace prefixd::cuda
