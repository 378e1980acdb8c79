// Pages reach tensors and device pages with right values, pinned or not.
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "gtest/gtest.h"

#include "quant/unit.h"
#include "tests/cuda/arena_file.h"
#include "tests/cuda/cases.h"
#include "tests/cuda/tensor_case.h"
#include "tests/kernels/paged_layer.h"

namespace prefixd::cuda {
namespace {

constexpr kernels::LayerShape kLayer{.kv_heads = 2, .key_dim = 128, .value_dim = 64};
constexpr uint32_t kLayers = 3;

// Layers of one sequence with their pages in an arena.
struct Cached {
  kernels::LayerShape layer;
  std::vector<quant::KvFormat> formats;
  std::vector<kernels::BlockShape> shapes;
  std::vector<std::unique_ptr<kernels::PagedLayer>> layers;
  std::unique_ptr<ArenaFile> file;
  std::vector<std::vector<prefixd_block>> blocks;  // of each layer
  uint32_t tokens = 0;

  size_t BytesOf(const quant::BlockTableEntry& entry) const {
    const quant::KvFormat& format = formats[entry.format];
    return layer.kv_heads *
           (quant::LayoutOfUnit(format.key, layer.key_dim, entry.page_tokens).unit_bytes +
            quant::LayoutOfUnit(format.value, layer.value_dim, entry.page_tokens).unit_bytes);
  }
};

Cached MakeCached(std::vector<quant::KvFormat> formats, Draw& draw,
                  std::initializer_list<uint32_t> page_tokens = {16, 64, 64, 37},
                  const kernels::LayerShape& shape = kLayer) {
  Cached cached;
  cached.layer = shape;
  cached.formats = std::move(formats);
  for (int i = 0; i < 9; ++i) {
    const uint32_t slots = draw.OneOf(page_tokens);
    cached.shapes.push_back({.tokens = i == 8 ? draw.From(1, slots + 1) : slots,
                             .page_tokens = slots,
                             .format = draw.Below(static_cast<uint32_t>(cached.formats.size()))});
    cached.tokens += cached.shapes.back().tokens;
  }
  cached.file = std::make_unique<ArenaFile>(size_t{12} << 20);
  size_t at = 0;
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    cached.layers.push_back(
        std::make_unique<kernels::PagedLayer>(shape, cached.formats, cached.shapes, layer + 9));
    auto& blocks = cached.blocks.emplace_back();
    for (const quant::BlockTableEntry& entry : cached.layers.back()->table()) {
      const size_t bytes = cached.BytesOf(entry);
      std::memcpy(cached.file->writer() + at, entry.units, bytes);
      blocks.push_back({.units = cached.file->reader() + at,
                        .arena_offset = at,
                        .page_tokens = entry.page_tokens,
                        .tokens = entry.tokens,
                        .format = entry.format});
      at += bytes + 128 * draw.Below(3000);
      EXPECT_LT(at + (1 << 20), cached.file->bytes());
    }
  }
  return cached;
}

// The elements of a token as the CPU dequantizes them, rounded to `dtype`.
std::vector<float> Want(const Cached& cached, uint32_t layer, uint32_t token, uint32_t head,
                        bool value, quant::Dtype dtype) {
  for (const quant::BlockTableEntry& entry : cached.layers[layer]->table()) {
    if (token >= entry.tokens) {
      token -= entry.tokens;
      continue;
    }
    const quant::KvFormat& format = cached.formats[entry.format];
    const quant::UnitShape key{.format = format.key,
                               .side = quant::Side::kKey,
                               .dim = cached.layer.key_dim,
                               .page_tokens = entry.page_tokens};
    const quant::UnitShape values{.format = format.value,
                                  .side = quant::Side::kValue,
                                  .dim = cached.layer.value_dim,
                                  .page_tokens = entry.page_tokens};
    const size_t key_bytes = quant::LayoutOf(key).unit_bytes;
    const std::byte* unit = value ? entry.units + cached.layer.kv_heads * key_bytes +
                                        head * quant::LayoutOf(values).unit_bytes
                                  : entry.units + head * key_bytes;
    std::vector<float> row(value ? cached.layer.value_dim : cached.layer.key_dim);
    quant::DequantizeToken(value ? values : key, unit, token, row);
    std::vector<std::byte> narrow(row.size() * 4);
    quant::NarrowFromFloat(dtype, row.data(), row.size(), narrow.data());
    quant::WidenToFloat(dtype, narrow.data(), row.size(), row.data());
    return row;
  }
  return {};
}

struct Engine {
  std::vector<std::unique_ptr<EngineTensor>> tensors;  // K and V of each layer
  std::vector<std::unique_ptr<DeviceBytes>> memory;
  std::vector<prefixd_cuda_tensor> described;
};

void ExpectLoaded(const Cached& cached, EngineLayout layout, quant::Dtype dtype, uint32_t begin,
                  uint32_t count, uint64_t pinned_bytes_at_least, Draw& draw) {
  Engine engine;
  for (uint32_t i = 0; i < 2 * kLayers; ++i) {
    engine.tensors.push_back(std::make_unique<EngineTensor>(
        layout, dtype, cached.layer.kv_heads, cached.tokens,
        i % 2 == 0 ? cached.layer.key_dim : cached.layer.value_dim, draw));
    engine.tensors.back()->set_table(engine.tensors.front()->table());
    engine.memory.push_back(std::make_unique<DeviceBytes>(engine.tensors.back()->bytes()));
    engine.described.push_back(engine.tensors.back()->Describe(engine.memory.back()->data()));
  }
  std::vector<prefixd_format> formats;
  for (const auto& format : cached.formats) formats.push_back(CFormat(format));
  std::vector<prefixd_cuda_load_layer> layers;
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    prefixd_cuda_load_layer& it = layers.emplace_back(PREFIXD_INIT(prefixd_cuda_load_layer));
    it.blocks = cached.blocks[layer].data();
    it.block_count = cached.blocks[layer].size();
    it.formats = formats.data();
    it.format_count = static_cast<uint32_t>(formats.size());
    it.kv_heads = cached.layer.kv_heads;
    it.key_dim = cached.layer.key_dim;
    it.value_dim = cached.layer.value_dim;
    it.key = &engine.described[2 * layer];
    it.value = &engine.described[2 * layer + 1];
  }
  prefixd_cuda_load_options options = PREFIXD_INIT(prefixd_cuda_load_options);
  options.layers = layers.data();
  options.layer_count = kLayers;
  options.begin = begin;
  options.count = count;
  options.table = engine.tensors.front()->table().data();
  options.table_count = static_cast<uint32_t>(engine.tensors.front()->table().size());
  prefixd_cuda_load* load = prefixd_cuda_load_begin(Gpu(), &options);
  ASSERT_NE(load, nullptr) << prefixd_cuda_last_error();
  ASSERT_EQ(prefixd_cuda_load_wait(load, kLayers - 1, nullptr), PREFIXD_OK);
  ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  EXPECT_EQ(prefixd_cuda_load_ready(load, 0), 1);
  EXPECT_EQ(prefixd_cuda_load_ready(load, kLayers - 1), 1);
  EXPECT_EQ(prefixd_cuda_load_ready(load, kLayers), 0);
  prefixd_cuda_load_counts counts = PREFIXD_INIT(prefixd_cuda_load_counts);
  ASSERT_EQ(prefixd_cuda_load_end(load, &counts), PREFIXD_OK) << prefixd_cuda_last_error();
  EXPECT_GE(counts.pinned_bytes, pinned_bytes_at_least);
  EXPECT_GT(counts.pinned_bytes + counts.bounced_bytes, 0u);
  const uint32_t end = count == 0 ? cached.tokens : begin + count;
  for (uint32_t i = 0; i < 2 * kLayers; ++i) {
    EngineTensor want = *engine.tensors[i];
    for (uint32_t t = begin; t < end; ++t) {
      for (uint32_t h = 0; h < cached.layer.kv_heads; ++h) {
        want.Set(t, h, Want(cached, i / 2, t, h, i % 2 == 1, dtype));
      }
    }
    const std::vector<std::byte> got = engine.memory[i]->Read<std::byte>();
    EXPECT_EQ(std::memcmp(got.data(), want.bytes().data(), got.size()), 0)
        << "tensor " << i << ", layout " << static_cast<int>(layout) << ", "
        << quant::ToString(cached.formats[0]) << " to " << quant::ToString(dtype);
  }
}

quant::KvFormat Both(const quant::TensorFormat& format) { return {format, format}; }

std::vector<std::vector<quant::KvFormat>> Ladders() {
  using quant::Codec;
  using quant::Dtype;
  std::vector<std::vector<quant::KvFormat>> ladders;
  for (const Dtype dtype : {Dtype::kF16, Dtype::kBf16, Dtype::kF32}) {
    for (const uint8_t bits : std::initializer_list<uint8_t>{2, 3, 4, 5, 6, 8}) {
      const quant::TensorFormat format = quant::MlxAffineFormat(bits, bits == 5 ? 32 : 64, dtype);
      ladders.push_back({Both(format)});
      if (quant::HasTiled(format)) ladders.push_back({Both(quant::Tiled(format))});
    }
    ladders.push_back({Both(quant::RawFormat(dtype))});
    ladders.push_back({{quant::RawFormat(dtype), quant::Transposed(quant::RawFormat(dtype))}});
  }
  for (const Codec codec : {Codec::kQ8_0, Codec::kQ4_0, Codec::kQ4_1, Codec::kQ5_0, Codec::kQ5_1}) {
    ladders.push_back({Both(quant::GgmlFormat(codec))});
    ladders.push_back({Both(quant::Tiled(quant::GgmlFormat(codec)))});
  }
  ladders.push_back({Both(quant::RawFormat(Dtype::kBf16)),
                     {quant::MlxAffineFormat(8, 64, Dtype::kBf16),
                      quant::Tiled(quant::MlxAffineFormat(4, 64, Dtype::kBf16))}});
  return ladders;
}

TEST(LoadTest, ElementsAreThoseOfTheCpuInEveryFormatAndLayoutOfAnEngine) {
  SKIP_WITHOUT_GPU();
  Draw draw(8);
  for (const auto& formats : Ladders()) {
    const Cached cached = MakeCached(formats, draw);
    prefixd_cuda_arena* arena =
        prefixd_cuda_pin(Gpu(), cached.file->reader(), cached.file->bytes(), nullptr);
    ASSERT_NE(arena, nullptr) << prefixd_cuda_last_error();
    const EngineLayout layout = kEngineLayouts[draw.Below(6)];
    const auto dtype = draw.OneOf({quant::Dtype::kF16, quant::Dtype::kBf16, quant::Dtype::kF32});
    ExpectLoaded(cached, layout, dtype, 0, 0, 1, draw);
    const uint32_t begin = draw.Below(cached.tokens);
    ExpectLoaded(cached, layout, dtype, begin, draw.From(1, cached.tokens - begin + 1), 1, draw);
    prefixd_cuda_unpin(arena);
    if (HasFailure()) return;
  }
}

// Pages of whole quads have kernels of their own for tensors of halves.
TEST(LoadTest, HalvesFromPagesOfWholeQuadsAreThoseOfTheCpu) {
  SKIP_WITHOUT_GPU();
  Draw draw(10);
  for (const auto& formats : Ladders()) {
    // K and V of one size go by one launch where their formats are the same.
    const kernels::LayerShape shape{
        .kv_heads = 2, .key_dim = 128, .value_dim = draw.OneOf({64u, 128u})};
    const Cached cached = MakeCached(formats, draw, {16, 64, 36, 48}, shape);
    for (const quant::Dtype dtype : {quant::Dtype::kF16, quant::Dtype::kBf16}) {
      const EngineLayout layout = kEngineLayouts[draw.Below(5)];
      ExpectLoaded(cached, layout, dtype, 0, 0, 0, draw);
      const uint32_t begin = draw.Below(cached.tokens);
      ExpectLoaded(cached, layout, dtype, begin, draw.From(1, cached.tokens - begin + 1), 0, draw);
    }
    if (HasFailure()) return;
  }
}

TEST(LoadTest, HalvesOfEveryDimensionAreThoseOfTheCpu) {
  SKIP_WITHOUT_GPU();
  Draw draw(11);
  for (uint32_t dim = 32; dim <= 256; dim += 32) {
    for (const quant::TensorFormat& format :
         {quant::MlxAffineFormat(8, 32, quant::Dtype::kF16),
          quant::Tiled(quant::MlxAffineFormat(4, 32, quant::Dtype::kBf16)),
          quant::GgmlFormat(quant::Codec::kQ8_0),
          quant::Tiled(quant::GgmlFormat(quant::Codec::kQ4_0))}) {
      const kernels::LayerShape shape{.kv_heads = 2, .key_dim = dim, .value_dim = dim};
      const Cached cached = MakeCached({Both(format)}, draw, {16, 64, 36}, shape);
      ExpectLoaded(cached, EngineLayout::kVllm, quant::Dtype::kBf16, 0, 0, 0, draw);
      ExpectLoaded(cached, EngineLayout::kContiguous, quant::Dtype::kF16, 0, 0, 0, draw);
      if (HasFailure()) return;
    }
  }
}

TEST(LoadTest, EveryLayoutOfAnEngineIsFilledFromPagesThatAreNotPinned) {
  SKIP_WITHOUT_GPU();
  Draw draw(9);
  const Cached cached = MakeCached({Both(quant::MlxAffineFormat(4, 64, quant::Dtype::kF16))}, draw);
  for (const EngineLayout layout : kEngineLayouts) {
    ExpectLoaded(cached, layout, quant::Dtype::kBf16, 3, 200, 0, draw);
  }
}

TEST(LoadTest, PagesTravelAsTheyAre) {
  SKIP_WITHOUT_GPU();
  Draw draw(10);
  const Cached cached =
      MakeCached({Both(quant::Tiled(quant::MlxAffineFormat(8, 64, quant::Dtype::kF16)))}, draw);
  prefixd_cuda_pin_options pin = PREFIXD_INIT(prefixd_cuda_pin_options);
  pin.slice_bytes = uint64_t{2} << 20;
  prefixd_cuda_arena* arena =
      prefixd_cuda_pin(Gpu(), cached.file->reader(), cached.file->bytes() / 2, &pin);
  ASSERT_NE(arena, nullptr) << prefixd_cuda_last_error();
  const prefixd_format format = CFormat(cached.formats[0]);
  const auto& table = cached.layers[1]->table();
  std::vector<std::unique_ptr<DeviceBytes>> memory;
  std::vector<void*> pages;
  for (const auto& entry : table) {
    memory.push_back(std::make_unique<DeviceBytes>(cached.BytesOf(entry)));
    pages.push_back(memory.back()->data());
  }
  prefixd_cuda_load_layer layer = PREFIXD_INIT(prefixd_cuda_load_layer);
  layer.blocks = cached.blocks[1].data();
  layer.block_count = cached.blocks[1].size();
  layer.formats = &format;
  layer.format_count = 1;
  layer.kv_heads = kLayer.kv_heads;
  layer.key_dim = kLayer.key_dim;
  layer.value_dim = kLayer.value_dim;
  layer.pages = pages.data();
  prefixd_cuda_load_options options = PREFIXD_INIT(prefixd_cuda_load_options);
  options.layers = &layer;
  options.layer_count = 1;
  prefixd_cuda_load* load = prefixd_cuda_load_begin(Gpu(), &options);
  ASSERT_NE(load, nullptr) << prefixd_cuda_last_error();
  ASSERT_EQ(prefixd_cuda_load_end(load, nullptr), PREFIXD_OK) << prefixd_cuda_last_error();
  for (size_t i = 0; i < table.size(); ++i) {
    const std::vector<std::byte> got = memory[i]->Read<std::byte>();
    EXPECT_EQ(std::memcmp(got.data(), cached.blocks[1][i].units, got.size()), 0);
  }
  prefixd_cuda_unpin(arena);
}

TEST(LoadTest, WhatIsImpossibleIsRefusedWithTheReason) {
  SKIP_WITHOUT_GPU();
  Draw draw(11);
  const Cached cached = MakeCached({Both(quant::MlxAffineFormat(4, 64, quant::Dtype::kF16))}, draw);
  const prefixd_format format = CFormat(cached.formats[0]);
  prefixd_cuda_load_layer layer = PREFIXD_INIT(prefixd_cuda_load_layer);
  layer.blocks = cached.blocks[0].data();
  layer.block_count = cached.blocks[0].size();
  layer.formats = &format;
  layer.format_count = 1;
  layer.kv_heads = kLayer.kv_heads;
  layer.key_dim = kLayer.key_dim;
  layer.value_dim = kLayer.value_dim;
  prefixd_cuda_load_options options = PREFIXD_INIT(prefixd_cuda_load_options);
  options.layers = &layer;
  options.layer_count = 1;
  EXPECT_EQ(prefixd_cuda_load_begin(Gpu(), &options), nullptr);
  EXPECT_EQ(std::string(prefixd_cuda_last_error()), "load: layer 0: cuda: key: no tensor given");
  prefixd_block block = cached.blocks[0][0];
  block.tokens = block.page_tokens + 1;
  layer.blocks = &block;
  layer.block_count = 1;
  EXPECT_EQ(prefixd_cuda_load_begin(Gpu(), &options), nullptr);
  EXPECT_EQ(std::string(prefixd_cuda_last_error()).rfind("load: layer 0: load: block 0 has ", 0),
            0u);
}

}  // namespace
}  // namespace prefixd::cuda
