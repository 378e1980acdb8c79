#include "tests/cuda/gpu_attention.h"

#include <cmath>
#include <cstring>
#include <utility>

#include "quant/block_table.h"
#include "quant/unit.h"
#include "tests/cuda/arena_file.h"

namespace prefixd::cuda {
namespace {

uint64_t LayerBytes(const AttendCase& it, const quant::BlockTableEntry& entry) {
  const quant::KvFormat& format = it.formats[entry.format];
  return it.layer.kv_heads *
         (quant::LayoutOfUnit(format.key, it.layer.key_dim, entry.page_tokens).unit_bytes +
          quant::LayoutOfUnit(format.value, it.layer.value_dim, entry.page_tokens).unit_bytes);
}

prefixd_cuda_heads Rows(void* data, uint32_t dtype) {
  return {.data = data,
          .dtype = dtype,
          .reserved = 0,
          .sequence_stride = 0,
          .row_stride = 0,
          .head_stride = 0};
}

std::vector<float> AttendTwice(GpuAttention& attention, const PreparedCase& it) {
  const std::vector<float> first = attention.Attend(it), second = attention.Attend(it);
  EXPECT_EQ(std::memcmp(first.data(), second.data(), first.size() * sizeof(float)), 0)
      << "the same call gave other bits";
  return first;
}

}  // namespace

CasePages LayOut(const PreparedCase& it) {
  CasePages pages;
  for (size_t s = 0; s < it.layers.size(); ++s) {
    std::vector<prefixd_block>& blocks = pages.blocks.emplace_back();
    const quant::BlockTable table = it.layers[s]->table();
    for (size_t b = 0; b < table.size(); ++b) {
      const quant::BlockTableEntry& entry = table[b];
      const bool shared = it.shape.share_pages && s > 0;
      blocks.push_back(
          {.units = nullptr,
           .arena_offset = shared ? pages.blocks[0].at(b).arena_offset : pages.bytes.size(),
           .page_tokens = entry.page_tokens,
           .tokens = entry.tokens,
           .format = entry.format});
      if (shared) continue;
      const uint64_t bytes = LayerBytes(it.shape, entry);
      pages.bytes.resize(pages.bytes.size() + bytes, std::byte{0xff});
      pages.bytes.insert(pages.bytes.end(), entry.units, entry.units + bytes);
    }
  }
  return pages;
}

GpuAttention::GpuAttention(const AttendCase& shape) {
  std::vector<prefixd_format> formats;
  for (const auto& format : shape.formats) formats.push_back(CFormat(format));
  prefixd_cuda_attention_options options = PREFIXD_INIT(prefixd_cuda_attention_options);
  options.formats = formats.data();
  options.format_count = static_cast<uint32_t>(formats.size());
  options.query_rows = shape.query_rows;
  options.query_heads = shape.layer.kv_heads * shape.group;
  options.kv_heads = shape.layer.kv_heads;
  options.key_dim = shape.layer.key_dim;
  options.value_dim = shape.layer.value_dim;
  options.scale = 1.0f / std::sqrt(static_cast<float>(options.key_dim));
  options.window = shape.window;
  options.sink_tokens = shape.sink_tokens;
  options.soft_cap = shape.soft_cap;
  options.precise = shape.precise ? 1 : 0;
  attention_ = prefixd_cuda_attention_new(Gpu(), &options);
  EXPECT_NE(attention_, nullptr) << prefixd_cuda_last_error();
  EXPECT_EQ(cudaStreamCreate(&stream_), cudaSuccess);
}

GpuAttention::~GpuAttention() {
  prefixd_cuda_attention_free(attention_);
  cudaStreamDestroy(stream_);
}

void GpuAttention::Set(const PreparedCase& it, const std::byte* memory, CasePages pages) {
  std::vector<prefixd_cuda_sequence> sequences;
  for (size_t s = 0; s < pages.blocks.size(); ++s) {
    for (prefixd_block& block : pages.blocks[s]) {
      block.units = memory + block.arena_offset;
      block.arena_offset = ~uint64_t{0};
    }
    sequences.push_back({.blocks = pages.blocks[s].data(),
                         .block_count = pages.blocks[s].size(),
                         .first_position = it.shape.first_positions[s],
                         .reserved = 0});
  }
  EXPECT_EQ(prefixd_cuda_attention_set(attention_, sequences.data(),
                                       static_cast<uint32_t>(sequences.size()), stream_),
            PREFIXD_OK)
      << prefixd_cuda_last_error();
}

void GpuAttention::Set(const PreparedCase& it) {
  CasePages pages = LayOut(it);
  pages_.push_back(std::make_unique<DeviceBytes>(pages.bytes));
  Set(it, pages_.back()->at(0), std::move(pages));
}

// Heads holds the queries of a case, and the memory for its results, on the GPU.
struct GpuAttention::Heads {
  explicit Heads(const PreparedCase& it)
      : queries(QueryBytes(it)),
        sink_logits(it.sink_logits),
        results(it.want.size() * sizeof(float)),
        dtype(it.shape.query_dtype),
        has_sinks(it.shape.sinks) {}

  static std::vector<std::byte> QueryBytes(const PreparedCase& it) {
    const auto dtype = static_cast<quant::Dtype>(it.shape.query_dtype);
    std::vector<std::byte> bytes(it.queries.size() * quant::DtypeBytes(dtype));
    quant::NarrowFromFloat(dtype, it.queries.data(), it.queries.size(), bytes.data());
    return bytes;
  }

  DeviceBytes queries, sink_logits, results;
  uint32_t dtype;
  bool has_sinks;
};

void GpuAttention::Queue(const Heads& heads) {
  const prefixd_cuda_heads queries = Rows(heads.queries.data(), heads.dtype);
  const prefixd_cuda_heads results = Rows(heads.results.data(), PREFIXD_F32);
  const auto* sinks =
      heads.has_sinks ? static_cast<const float*>(heads.sink_logits.data()) : nullptr;
  EXPECT_EQ(prefixd_cuda_attend(attention_, 1, &queries, &results, sinks, stream_), PREFIXD_OK)
      << prefixd_cuda_last_error();
}

std::vector<float> GpuAttention::Attend(const PreparedCase& it) {
  const Heads heads(it);
  Queue(heads);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  return heads.results.Read<float>();
}

std::vector<std::vector<float>> GpuAttention::AttendInGraph(const PreparedCase& it) {
  const Heads heads(it);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  EXPECT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  Queue(heads);
  EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
  EXPECT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  std::vector<std::vector<float>> results;
  for (int launch = 0; launch < 2; ++launch) {
    EXPECT_EQ(cudaMemset(heads.results.data(), 0xff, it.want.size() * sizeof(float)), cudaSuccess);
    EXPECT_EQ(cudaGraphLaunch(executable, stream_), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    results.push_back(heads.results.Read<float>());
  }
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  return results;
}

std::vector<float> AttendOnGpu(const PreparedCase& it, const std::function<void()>& meanwhile) {
  GpuAttention attention(it.shape);
  attention.Set(it);
  meanwhile();
  return AttendTwice(attention, it);
}

std::vector<float> AttendOnArena(const PreparedCase& it) {
  CasePages pages = LayOut(it);
  const ArenaFile file((pages.bytes.size() + (1 << 21)) >> 21 << 21);
  std::memcpy(file.writer(), pages.bytes.data(), pages.bytes.size());
  prefixd_cuda_arena* arena = prefixd_cuda_pin(Gpu(), file.reader(), file.bytes(), nullptr);
  EXPECT_NE(arena, nullptr) << prefixd_cuda_last_error();
  std::vector<float> got;
  {
    GpuAttention attention(it.shape);
    attention.Set(it, file.reader(), std::move(pages));
    got = AttendTwice(attention, it);
  }
  prefixd_cuda_unpin(arena);
  return got;
}

}  // namespace prefixd::cuda
