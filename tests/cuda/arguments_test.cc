// The C functions say what is wrong, also where no GPU is.
#include <cstring>
#include <string>

#include "gtest/gtest.h"

#include "prefixd/cuda.h"
#include "tests/cuda/cases.h"

namespace prefixd::cuda {
namespace {

std::string LastError() { return prefixd_cuda_last_error(); }

TEST(ArgumentsTest, TheVersionIsThatOfTheHeader) {
  EXPECT_EQ(prefixd_cuda_abi_version(), uint32_t{PREFIXD_CUDA_ABI_VERSION});
}

TEST(ArgumentsTest, WithoutAGpuOpenSaysWhy) {
  prefixd_cuda_options options = PREFIXD_INIT(prefixd_cuda_options);
  options.device = 9999;
  EXPECT_EQ(prefixd_cuda_open(&options), nullptr);
  EXPECT_EQ(prefixd_cuda_last_status(), PREFIXD_UNAVAILABLE);
  EXPECT_EQ(LastError().rfind("open: ", 0), 0u) << LastError();
}

TEST(ArgumentsTest, AStructOfANewerHeaderIsRefusedIfItAsksForMore) {
  struct {
    prefixd_cuda_options known;
    uint64_t unknown;
  } options = {PREFIXD_INIT(prefixd_cuda_options), 1};
  options.known.size = sizeof(options);
  EXPECT_EQ(prefixd_cuda_open(&options.known), nullptr);
  EXPECT_EQ(prefixd_cuda_last_status(), PREFIXD_INVALID_ARGUMENT);
  EXPECT_EQ(LastError(), "cuda: a struct asks for something that this library is too old for");
  options.known.size = 1;
  EXPECT_EQ(prefixd_cuda_open(&options.known), nullptr);
  EXPECT_EQ(LastError(), "cuda: a struct's size member is not its size");
}

TEST(ArgumentsTest, NullHandlesAreRefusedAndFreed) {
  EXPECT_EQ(prefixd_cuda_pin(nullptr, nullptr, 0, nullptr), nullptr);
  EXPECT_EQ(LastError(), "pin: no context given");
  EXPECT_EQ(prefixd_cuda_load_begin(nullptr, nullptr), nullptr);
  EXPECT_EQ(LastError(), "load: no context or no options given");
  EXPECT_EQ(prefixd_cuda_load_end(nullptr, nullptr), PREFIXD_INVALID_ARGUMENT);
  EXPECT_EQ(prefixd_cuda_load_ready(nullptr, 0), 0);
  EXPECT_EQ(prefixd_cuda_is_pinned(nullptr, nullptr, 1), 0);
  EXPECT_EQ(prefixd_cuda_quantize(nullptr, nullptr, nullptr), PREFIXD_INVALID_ARGUMENT);
  EXPECT_EQ(prefixd_cuda_attention_new(nullptr, nullptr), nullptr);
  EXPECT_EQ(prefixd_cuda_attend(nullptr, 0, nullptr, nullptr, nullptr, nullptr),
            PREFIXD_INVALID_ARGUMENT);
  EXPECT_EQ(LastError(), "attend: no attention, queries or results given");
  prefixd_cuda_unpin(nullptr);
  prefixd_cuda_attention_free(nullptr);
  prefixd_cuda_free_host(nullptr, nullptr);
  prefixd_cuda_close(nullptr);
  EXPECT_EQ(LastError(), "attend: no attention, queries or results given")
      << "freeing leaves the last error as it is";
}

TEST(ArgumentsTest, UnitBytesAndPlanesAreThoseOfTheFormat) {
  const prefixd_tensor_format format = CFormat(quant::MlxAffineFormat(4, 64, quant::Dtype::kF16));
  EXPECT_EQ(prefixd_cuda_unit_bytes(&format, 128, 64), 64u * (64 + 4 + 4));
  EXPECT_EQ(prefixd_cuda_unit_bytes(&format, 100, 64), 0u);
  alignas(128) std::byte units[128];
  prefixd_planes planes = PREFIXD_INIT(prefixd_planes);
  ASSERT_EQ(prefixd_cuda_planes(&format, 128, 64, units, &planes), PREFIXD_OK);
  EXPECT_EQ(planes.codes, units);
  EXPECT_EQ(planes.scales, units + 64 * 64);
  EXPECT_EQ(planes.biases, units + 64 * 68);
  EXPECT_EQ(planes.codes_head_stride, 64u * 72);
  EXPECT_EQ(planes.codes_token_stride, 64u);
  EXPECT_EQ(planes.scales_token_stride, 4u);
  const prefixd_tensor_format tiled =
      CFormat(quant::Tiled(quant::MlxAffineFormat(4, 64, quant::Dtype::kF16)));
  EXPECT_EQ(prefixd_cuda_planes(&tiled, 128, 64, units, &planes), PREFIXD_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace prefixd::cuda
