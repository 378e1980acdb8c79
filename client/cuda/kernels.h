// The kernels: what they are given, and functions that queue them.
//
// Functions check nothing: their callers did. They return CUDA's error of the launch. Arrays of the
// argument structs are in device memory.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "geometry.h"

namespace prefixd::cuda {

// --- gather and expand (copy.cu) ---

// Both addresses are 16-byte aligned, bytes is a multiple of 16. `from` may be pinned host memory.
struct Piece {
  const void* from = nullptr;
  void* to = nullptr;
  uint32_t bytes = 0;
};
cudaError_t QueueGather(const Piece* pieces, uint32_t count, cudaStream_t stream);

// Slots [first_slot, first_slot + count) of a block of one layer, which are the tokens from
// `token`.
struct BlockPart {
  const uint8_t* units = nullptr;
  uint32_t page_tokens = 0;
  uint32_t first_slot = 0, count = 0;
  uint32_t token = 0;
  uint32_t format = 0;
};
struct ExpandArguments {
  PairGeometry formats[kMostFormats] = {};
  TensorPlace key = {}, value = {};
  const int32_t* table = nullptr;
  const BlockPart* parts = nullptr;
  uint32_t part_count = 0;
  uint32_t kv_heads = 0;
  bool whole_quads = false;  // each part's page_tokens is a multiple of 4
};
// used: the formats that parts have.
cudaError_t QueueExpand(const ExpandArguments& arguments, const bool (&used)[kMostFormats],
                        cudaStream_t stream);

// Whether QueueExpandQuads() (expand_quads.cu) takes a tensor's parts, if they have whole quads.
bool ExpandsQuads(const TensorGeometry& tensor, const TensorPlace& to);
// formats: a bit for each of K's and then of V's formats that go by this call. All have the codec,
// bits, layout, dtype and dim of `tensor`, and go to elements of one type; K and V both only in
// rows.
cudaError_t QueueExpandQuads(const ExpandArguments& arguments, const TensorGeometry& tensor,
                             uint32_t formats, cudaStream_t stream);

// --- quantize (quantize.cu) ---

struct QuantizeArguments {
  TensorGeometry tensor;
  UnitPlaces places;
  TensorPlace rows;
  const int32_t* table = nullptr;
  uint8_t* const* pages = nullptr;
  uint64_t unit_stride = 0;
  uint32_t page_tokens = 0, first_slot = 0;
  uint32_t kv_heads = 0;
  uint32_t begin = 0, count = 0;  // tokens of `rows`
};
cudaError_t QueueQuantize(const QuantizeArguments& arguments, cudaStream_t stream);

// Whether whole quads of these tokens may go to QueueQuantizeQuads() (quantize_quads.cu): tokens
// from a slot that is a multiple of 4 on, a multiple of 4 of them.
bool TakesQuads(const QuantizeArguments& arguments);
cudaError_t QueueQuantizeQuads(const QuantizeArguments& arguments, cudaStream_t stream);

}  // namespace prefixd::cuda
