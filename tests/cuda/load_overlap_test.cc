// A layer is expanded while later ones travel: nobody sees the wrong one's bytes.
#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "gtest/gtest.h"

#include "tests/cuda/arena_file.h"
#include "tests/cuda/cases.h"

namespace prefixd::cuda {
namespace {

constexpr uint32_t kLayers = 8, kHeads = 4, kDim = 256, kSlots = 64, kBlocks = 128;
const quant::TensorFormat kRaw = quant::RawFormat(quant::Dtype::kBf16);
constexpr size_t kRowElements = size_t{kHeads} * kDim;
constexpr size_t kPageBytes = 2 * kSlots * kRowElements * sizeof(uint16_t);  // K and V, bf16
constexpr size_t kBlockElements = kSlots * kRowElements;

// The top half of a small integer's float is its bf16.
uint16_t Bf16Of(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return static_cast<uint16_t>(bits >> 16);
}
void FillPage(float value, std::byte* page) {
  std::vector<uint16_t> elements(kPageBytes / sizeof(uint16_t), Bf16Of(value));
  std::memcpy(page, elements.data(), kPageBytes);
}

// Layers that are expanded for longer than they travel: the first block of each is in the arena,
// the others are one page of device memory. Layer i writes its rows i blocks into the tensors, so
// what its first block holds stays there.
class LoadOverlapTest : public ::testing::Test {
 protected:
  void SetUp() override {
    SKIP_WITHOUT_GPU();
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    file_ = std::make_unique<ArenaFile>(kLayers * kPageBytes);
    for (uint32_t i = 0; i < kLayers; ++i) {
      FillPage(static_cast<float>(i + 1), file_->writer() + i * kPageBytes);
    }
    arena_ = prefixd_cuda_pin(Gpu(), file_->reader(), file_->bytes(), nullptr);
    ASSERT_NE(arena_, nullptr) << prefixd_cuda_last_error();
    page_ = std::make_unique<DeviceBytes>(kPageBytes);
    for (auto& memory : memory_) {
      memory = std::make_unique<DeviceBytes>((kBlocks + kLayers) * kBlockElements * sizeof(float));
    }
    for (uint32_t i = 0; i < kLayers; ++i) Describe(i);
  }
  void TearDown() override {
    if (arena_ != nullptr) prefixd_cuda_unpin(arena_);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }
  void Describe(uint32_t i) {
    prefixd_block block = {};
    block.units = page_->data();
    block.page_tokens = block.tokens = kSlots;
    blocks_[i].assign(kBlocks, block);
    blocks_[i][0].units = file_->reader() + i * kPageBytes;
    for (uint32_t side = 0; side < 2; ++side) {
      prefixd_cuda_tensor& tensor = tensors_[2 * i + side];
      tensor = PREFIXD_INIT(prefixd_cuda_tensor);
      tensor.data = memory_[side]->at(i * kBlockElements * sizeof(float));
      tensor.dtype = PREFIXD_F32;
      tensor.token_stride = kRowElements;
      tensor.head_stride = kDim;
    }
    prefixd_cuda_load_layer& layer = layers_[i] = PREFIXD_INIT(prefixd_cuda_load_layer);
    layer.blocks = blocks_[i].data();
    layer.block_count = kBlocks;
    layer.formats = &format_;
    layer.format_count = 1;
    layer.kv_heads = kHeads;
    layer.key_dim = layer.value_dim = kDim;
    layer.key = &tensors_[2 * i];
    layer.value = &tensors_[2 * i + 1];
  }
  prefixd_cuda_load* Begin() {
    prefixd_cuda_load_options options = PREFIXD_INIT(prefixd_cuda_load_options);
    options.layers = layers_;
    options.layer_count = kLayers;
    options.stream = stream_;
    prefixd_cuda_load* const load = prefixd_cuda_load_begin(Gpu(), &options);
    EXPECT_NE(load, nullptr) << prefixd_cuda_last_error();
    return load;
  }

  cudaStream_t stream_ = nullptr;
  prefixd_cuda_arena* arena_ = nullptr;
  std::unique_ptr<ArenaFile> file_;
  std::unique_ptr<DeviceBytes> page_, memory_[2];
  const prefixd_format format_ = CFormat({.key = kRaw, .value = kRaw});
  std::vector<prefixd_block> blocks_[kLayers];
  prefixd_cuda_tensor tensors_[2 * kLayers];
  prefixd_cuda_load_layer layers_[kLayers];
};

TEST_F(LoadOverlapTest, ALayersPagesStayUntilTheyAreExpandedHoweverFarLaterOnesAre) {
  prefixd_cuda_load* const load = Begin();
  ASSERT_EQ(prefixd_cuda_load_end(load, nullptr), PREFIXD_OK) << prefixd_cuda_last_error();
  for (uint32_t side = 0; side < 2; ++side) {
    const std::vector<float> got = memory_[side]->Read<float>();
    for (uint32_t i = 0; i < kLayers; ++i) {
      const auto first = got.begin() + static_cast<ptrdiff_t>(i * kBlockElements);
      EXPECT_EQ(std::count(first, first + kBlockElements, static_cast<float>(i + 1)),
                static_cast<ptrdiff_t>(kBlockElements))
          << "layer " << i << (side == 0 ? ", keys" : ", values");
    }
  }
}

TEST_F(LoadOverlapTest, WhatIsQueuedOnTheLoadsStreamAfterwardsSeesAllOfIt) {
  DeviceBytes copy(kBlockElements * sizeof(float));
  prefixd_cuda_load* const load = Begin();
  ASSERT_EQ(cudaMemcpyAsync(copy.data(), tensors_[2 * kLayers - 1].data,
                            kBlockElements * sizeof(float), cudaMemcpyDeviceToDevice, stream_),
            cudaSuccess);
  ASSERT_EQ(prefixd_cuda_load_end(load, nullptr), PREFIXD_OK) << prefixd_cuda_last_error();
  ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  EXPECT_EQ(copy.Read<float>(), std::vector<float>(kBlockElements, kLayers));
}

}  // namespace
}  // namespace prefixd::cuda
